"""The message of a usage error leads to the correct command."""

import functools
import importlib.util
import shlex
from dataclasses import replace

import pytest
import yaml
from extension_marks import needing
from shipped_contracts import resolved_document
from strategies import changed

import embodied_env
from embodied_env.cli.main import main
from embodied_env.contract.contract_loader import dump_contract
from embodied_env.contract.contract_schema import RobotSource

ARM = embodied_env.load_contract("arm_reach")
CHOSEN = "actuators.arm.joints.j1.acceleration"
FAKE = "evaluate arm_reach --backend fake"

WRONG_USES = [  # command line, message, exit status
    ("", ["usage: embodied-env", "demo", "doctor"], 2),
    ("evalute arm_reach", ["unknown verb 'evalute'", "did you mean 'evaluate'?"], 2),
    ("--backend fake", ["unknown verb 'fake'", "embodied-env --help"], 2),
    ("evaluate", ["required: CONTRACT", "embodied-env evaluate --help"], 2),
    ("evaluate arm_rech", ["no such contract: 'arm_rech'", "did you mean 'arm_reach'?"], 2),
    ("evaluate folder/arm.yaml", ["no such file: 'folder/arm.yaml'", "expected a path, or one of"], 2),
    ("evaluate typo.yaml", ["typo.yaml: sensor", "unknown key", "did you mean 'sensors'?"], 2),
    ("evaluate schema.yaml", ["schema.yaml: contract: unknown schema 'embodied_env/9'", "embodied_env/1"], 2),
    ("evaluate limit.yaml", ["actuators.arm.joints.j1.velocity", "-3.1"], 2),
    ("evaluate robot.yaml", ["robot: no such robot: 'ur5'", "did you mean 'ur5e'?"], 2),
    ("evaluate remove.yaml", ["remove: no such path in the robot file: 'sensors.joint'", "did you mean 'joints'?"], 2),
    ("evaluate loose.yaml", ["shoulder_pan_joint.velocity: 9 loosens the limit 3.14", "override_robot_limits"], 2),
    ("evaluate confirm.yaml", ["confirmed", "actuators.arm.joints.j9.velocity"], 2),
    ("evaluate arm_reach --backend mujco", ["unknown backend 'mujco'", "did you mean 'mujoco'?"], 2),
    (f"{FAKE} --policy scriptd", ["unknown policy 'scriptd'", "did you mean 'scripted'?"], 2),
    (f"{FAKE} --policy nothing_here:act", ["cannot import policy 'nothing_here:act'", "No module named"], 2),
    (f"{FAKE} --policy os:sep", ["policy 'os:sep' is not callable"], 2),
    (f"{FAKE} --episods 3", ["unrecognized arguments: --episods 3", "did you mean '--episodes'?"], 2),
    (f"{FAKE} --episodes 0", ["--episodes", "'0' (expected an integer >= 1)"], 2),
    (f"{FAKE} --seed x", ["--seed", "'x' (expected an integer >= 0)"], 2),
    (f"{FAKE} --clock virtaul", ["unknown clock='virtaul'", "did you mean 'virtual'?"], 2),
    (f"{FAKE} --pacing fast", ["unsupported pacing for fake: 'fast'", "'realtime'"], 2),
    (f"{FAKE} --delay-profile nope.json", ["nope.json"], 2),
    (f"{FAKE} --fifo-priority 100", ["fifo_priority", "100"], 2),
    (f"{FAKE} --workers 2", ["--workers 2 requires --engine local or ray"], 2),
    (f"{FAKE} --engine locl", ["unknown --engine 'locl'", "did you mean 'local'?"], 2),
    (f"{FAKE} --address here", ["--address 'here' requires --engine ray"], 2),
    (f"{FAKE} --emulator", ["backend 'fake' got an unexpected keyword argument 'emulator'"], 2),
    (f"{FAKE} --dry-run", ["--dry-run with the backend 'fake'", "'real'"], 2),
    (f"{FAKE} --record-messages", ["not available with backend 'fake'"], 2),
    ("evaluate chosen.yaml --backend real", [f"1 not confirmed: {CHOSEN}: no source", "--confirm-chosen"], 1),
    ("evaluate arm_reach --backend real --connect-timeout 0", ["connect_timeout_s", "0"], 2),
    ("audit runs/nope", ["no such run: 'runs/nope'", "expected a run directory"], 2),
    ("report runs/nope", ["no such run directory: 'runs/nope'"], 2),
    ("compare runs/a", ["no such run directory: 'runs/a'"], 2),
    ("contract valdate arm_reach", ["unknown action 'valdate'", "did you mean 'validate'?"], 2),
    ("contract diff arm_reach", ["required"], 2),
    ("doctor arm_reach", ["required: --backend"], 2),
    ("doctor arm_reach --backend reel", ["unknown backend 'reel'", "did you mean 'real'?"], 2),
    ("doctor arm_reach --backend fake --timeout 0", ["invalid --timeout: 0.0 (expected seconds > 0)"], 2),
    ("doctor arm_reach --backend fake --namespace robot", ["'robot'"], 2),
    ("launch rael", ["unknown target 'rael'", "did you mean 'real'?"], 2),
    ("launch real contrat:=x", ["unknown argument of real: 'contrat'", "did you mean 'contract'?"], 2),
    ("launch real armed:=arm6", ["armed:=arm6", "expected one of: false, arm_reach"], 2),
    ("sim arm_reach --emulator-settings '{}'", ["--emulator-settings requires --free-running"], 2),
    ("sim arm_reach --free-running --emulator-settings '{'", ["invalid --emulator-settings", "a JSON object"], 2),
    ("relay arm_reach --backend reel", ["no profile of --backend 'reel' in arm_reach", "did you mean 'real'?"], 2),
]
OVER_ROS = ("real", "sim ", "relay ")


@functools.cache
def contracts():
    """Return the text of invalid contracts by file name."""
    arm, ur5e = resolved_document("arm_reach"), yaml.safe_load(embodied_env.load_contract("ur5e_reach").text)
    chosen = replace(ARM, robot=RobotSource(name="some_arm", sha256="0" * 64, chosen={CHOSEN: "no source"}))
    wrong = {
        "typo": {**{key: value for key, value in arm.items() if key != "sensors"}, "sensor": arm["sensors"]},
        "schema": {**arm, "contract": "embodied_env/9"},
        "limit": changed("actuators.arm.joints.j1.velocity", -3.1, arm),
        "robot": {**ur5e, "robot": "ur5"},
        "remove": {**ur5e, "remove": ["sensors.joint"]},
        "loose": {**ur5e, "actuators": {"arm": {"joints": {"shoulder_pan_joint": {"velocity": 9.0}}}}},
        "confirm": {**ur5e, "confirmed": ["actuators.arm.joints.j9.velocity"]},
    }
    return {"chosen": dump_contract(chosen), **{name: yaml.safe_dump(document) for name, document in wrong.items()}}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, text in contracts().items():
        (tmp_path / f"{name}.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("command", "words", "status"),
    [pytest.param(*use, id=use[0], marks=needing(*use[0].split())) for use in WRONG_USES],
)
def test_a_usage_error_suggests_the_correct_command(folder, capsys, command, words, status):
    if any(part in command for part in OVER_ROS) and importlib.util.find_spec("rclpy") is None:
        pytest.skip("needs rclpy")
    assert main(shlex.split(command)) == status
    output = capsys.readouterr()
    assert output.out == ""
    assert [word for word in words if word not in output.err] == []
