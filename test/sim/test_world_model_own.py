import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evidence import assert_sound
from ideal_readings import sense
from own_models import PROFILES, own_contract, write_model

from embodied_env.contract import Contract
from embodied_env.contract.bounded_files import MOST_DATA_BYTES
from embodied_env.contract.contract_loader import dump_contract, parse_contract
from embodied_env.contract.model_files import model_files
from embodied_env.envs.registration import make
from embodied_env.errors import ContractError
from embodied_env.sim.servos import ELEMENTS, REFUSED, refusal, set_gains, why_no_servo
from embodied_env.sim.world import World
from embodied_env.sim.world_model import WorldModel, import_mujoco
from embodied_env.sim.world_profile import ServoGains, load_profile

KINDS = tuple(PROFILES)


def world_of(contract: Contract) -> World:
    return World(contract, load_profile(contract, "mujoco"))


def error_of(kind: str, folder: Path, profile: str) -> ContractError:
    with pytest.raises(ContractError) as caught:
        world_of(own_contract(kind, folder, profile))
    return caught.value


@pytest.mark.parametrize("kind", KINDS)
def test_an_episode_runs_and_its_record_passes_the_audit(kind: str, tmp_path: Path) -> None:
    env = make(own_contract(kind, tmp_path), backend="mujoco", record=tmp_path / "runs")
    observation, _ = env.reset(seed=1)
    start = {key: np.array(value) for key, value in observation.items()}
    for _ in range(10):
        observation, *_ = env.step(np.ones(env.action_space.shape))
    env.close()
    assert any(not np.array_equal(start[key], value) for key, value in observation.items())
    (run,) = (tmp_path / "runs").iterdir()
    assert_sound(run)


def test_motors_with_gains_follow_like_servos(tmp_path: Path) -> None:
    ends = []
    for kind in ("arm", "motors"):
        world = world_of(own_contract(kind, tmp_path / kind, PROFILES[kind].replace("0.2, j2: -0.3", "0.0, j2: 0.0")))
        world.reset(0, {})
        for step in range(20):
            world.command(np.array([0.02, -0.02]) * step)
            world.step()
        ends.append(sense(world, "joints")["position"])
    np.testing.assert_allclose(ends[0], ends[1], atol=1e-9)
    np.testing.assert_allclose(ends[0], [0.38, -0.38], atol=0.05)


def test_an_actuator_outside_the_contract_keeps_its_keyframe_control(tmp_path: Path) -> None:
    contract = own_contract("hand_eye", tmp_path)
    model = WorldModel(contract, load_profile(contract, "mujoco"), "backends.mujoco")
    grip = model.find("actuator", "grip", "")
    world = World(contract, model.profile)
    world.reset(0, {})
    world.command(np.array([0.3, 0.4]))
    world.step()
    assert world._data.ctrl[grip] == 255.0


KNOWN: dict[str, tuple[bool, bool, bool]] = {  # MJCF -> supports positions, supports velocities, supports gains
    '<position joint="a" kp="9" kv="1"/>': (True, False, True),
    '<position joint="a" kp="9" timeconst="0.1"/>': (True, False, False),
    '<velocity joint="a" kv="3"/>': (False, True, True),
    '<motor joint="a" gear="2"/>': (False, False, True),
    '<general joint="a" gainprm="9" biastype="affine" biasprm="0 -9 -1"/>': (True, False, True),
    '<general joint="a" gainprm="9" biastype="affine" biasprm="0 0 -9"/>': (False, True, True),
    '<general joint="a" gainprm="9" biastype="affine" biasprm="1 -9 0"/>': (False, False, True),
    '<general jointinparent="a" gainprm="9"/>': (False, False, True),
}
UNFIT = {  # type -> MJCF
    "mjTRN_TENDON": '<position tendon="t" kp="9"/>',
    "mjTRN_SITE": '<general site="s"/>',
    "mjTRN_SLIDERCRANK": '<general cranksite="s" slidersite="s" cranklength="1"/>',
    "mjTRN_BODY": '<adhesion body="b" ctrlrange="0 1"/>',
    "mjDYN_INTEGRATOR": '<intvelocity joint="a" kp="9" actrange="-1 1"/>',
    "mjDYN_FILTER": '<cylinder joint="a"/>',
    "mjDYN_MUSCLE": '<muscle joint="a" lengthrange="0 1"/>',
    "mjDYN_USER": '<general joint="a" dyntype="user"/>',
    "mjGAIN_DCMOTOR": '<dcmotor joint="a" motorconst="0.05" resistance="2"/>',
    "mjGAIN_PID": '<pid joint="a" kp="9" ki="1"/>',
    "mjGAIN_AFFINE": '<damper joint="a" kv="3" ctrlrange="0 1"/>',
}
SINCE_4 = ("mjGAIN_DCMOTOR", "mjGAIN_PID")


def compiled(actuator: str) -> tuple[Any, Any]:
    mujoco = import_mujoco()
    return mujoco, mujoco.MjModel.from_xml_string(
        '<mujoco><worldbody><body name="b"><joint name="a"/><geom size="0.1"/><site name="s"/></body></worldbody>'
        f'<tendon><fixed name="t"><joint joint="a" coef="1"/></fixed></tendon><actuator>{actuator}</actuator></mujoco>'
    )


@pytest.mark.parametrize(("actuator", "takes"), KNOWN.items())
def test_a_supported_actuator_accepts_its_commands(actuator: str, takes: tuple[bool, bool, bool]) -> None:
    mujoco, mj = compiled(actuator)
    fits = [why_no_servo(mujoco, mj, 0, velocity=velocity) is None for velocity in (False, True)]
    assert (*fits, set_gains(mujoco, mj, 0, ServoGains(stiffness=9.0, damping=2.0)) is None) == takes
    if takes[2]:
        assert why_no_servo(mujoco, mj, 0, velocity=False) is None
        set_gains(mujoco, mj, 0, ServoGains(damping=2.0))
        assert why_no_servo(mujoco, mj, 0, velocity=True) is None


@pytest.mark.parametrize("kind", REFUSED)
def test_an_unsupported_actuator_is_rejected_with_its_reason(kind: str) -> None:
    if kind in SINCE_4 and not hasattr(import_mujoco().mjtGain, kind):
        pytest.skip("needs MuJoCo 4")
    mujoco, mj = compiled(UNFIT[kind])
    assert refusal(mujoco, mj, 0) == REFUSED[kind][1]
    assert set_gains(mujoco, mj, 0, ServoGains(damping=1.0)) == REFUSED[kind][1]


def test_each_element_of_the_table_is_tested() -> None:
    tried = {re.match(r"<(\w+)", actuator)[1] for actuator in KNOWN}
    assert tried == {re.match(r"`(\w+)`", element)[1] for element in ELEMENTS}


def test_a_motor_used_as_a_servo_keeps_its_force_limit() -> None:
    mujoco, mj = compiled('<motor joint="a" gear="-20" ctrlrange="-1 0.5" forcerange="-0.8 2"/>')
    set_gains(mujoco, mj, 0, ServoGains(stiffness=100.0))
    assert mj.actuator_forcerange[0].tolist() == [-10.0, 16.0]
    assert mj.actuator_forcelimited[0]
    assert not mj.actuator_ctrllimited[0]


def test_a_servo_with_a_time_constant_starts_at_rest(tmp_path: Path) -> None:
    contract = own_contract("arm", tmp_path)
    scene = tmp_path / "model" / "scene.xml"
    scene.write_text(scene.read_text().replace('kp="50"', 'kp="50" timeconst="0.2"'))
    world = world_of(parse_contract(contract.text, source=contract.source))
    world.reset(0, {})
    world.step()
    np.testing.assert_allclose(sense(world, "joints")["position"], [0.2, -0.3], atol=0.03)


MISTAKES = {
    "a joint of another name": ("home: {}", "sensors.joints.fields.position.joints", r"no such joint.*one of: m1, m2\).*mujoco.joints: \{j1: JOINT\}"),
    "several actuators": ("TWICE", "actuators.arm.joints.j1", r"one, two .*mujoco.actuators: \{j1: one\}"),
    "an actuator of another joint": (
        "joints: {j1: m1, j2: m2}, actuators: {j1: elbow_servo}",
        "backends.mujoco.actuators.j1",
        r"'elbow_servo' in scene.xml: it drives another joint \(expected one of: base_servo\)",
    ),
    "an unknown actuator": ("joints: {j1: m1, j2: m2}, actuators: {j1: base_serv}", "backends.mujoco.actuators.j1", "mean 'base_servo'"),
    "an unknown joint": ("servo_gains: {j3: {damping: 1}}", "backends.mujoco.servo_gains.j3", r"no such joint: 'j3'"),
    "no gain": ("servo_gains: {j1: {}}", "backends.mujoco.servo_gains.j1", r"no gain \(expected stiffness or damping"),
    "a negative gain": ("servo_gains: {j1: {damping: -1}}", "backends.mujoco.servo_gains.j1.damping", r"-1(.0)? \(expected at least 0"),
    "a home outside the limits": (
        "joints: {j1: m1, j2: m2}, home: {j2: 1.6}",
        "backends.mujoco.home.j2",
        r"j2 starts at 1.6 \(expected -1.48 to 1.48",
    ),
    "a home of no joint": ("home: {j3: 0.0}", "backends.mujoco.home.j3", "no such joint"),
    "an unknown camera": ("joints: {j1: m1, j2: m2}, render: {camera: top}", "backends.mujoco.render.camera", "no such camera"),
}  # fmt: skip


@pytest.mark.parametrize(("profile", "path", "problem"), MISTAKES.values(), ids=MISTAKES)
def test_the_error_of_a_mistake_has_a_remedy(profile: str, path: str, problem: str, tmp_path: Path) -> None:
    if profile == "TWICE":
        contract = own_contract("arm", tmp_path)
        scene = tmp_path / "model" / "scene.xml"
        scene.write_text(scene.read_text().replace('name="base_servo"', 'name="one"').replace(
            "</actuator>", '<velocity name="two" joint="m1"/></actuator>'))  # fmt: skip
        with pytest.raises(ContractError) as caught:
            world_of(parse_contract(contract.text, source=contract.source))
        error = caught.value
    else:
        error = error_of("arm", tmp_path, profile)
    assert error.path == path
    assert re.search(problem, error.problem)


def test_the_error_of_a_start_outside_the_limits_requests_a_home(tmp_path: Path) -> None:
    contract = own_contract("arm", tmp_path, "joints: {j1: m1, j2: m2}")
    text = contract.text.replace("j2: {position: [-1.5, 1.5]", "j2: {position: [0.5, 1.5]")
    with pytest.raises(ContractError, match=r"j2 starts at 0 \(expected 0.52 to 1.48.*mujoco.home: \{j2: POSITION\}"):
        world_of(parse_contract(text, source=contract.source))


def test_an_actuator_is_selected_among_several(tmp_path: Path) -> None:
    contract = own_contract("arm", tmp_path, "joints: {j1: m1, j2: m2}, actuators: {j1: base_servo}")
    scene = tmp_path / "model" / "scene.xml"
    scene.write_text(scene.read_text().replace("</actuator>", '<velocity name="two" joint="m1"/></actuator>'))
    world_of(parse_contract(contract.text, source=contract.source)).reset(0, {})


def test_home_overrides_the_keyframe_at_each_reset(tmp_path: Path) -> None:
    world = world_of(own_contract("hand_eye", tmp_path, PROFILES["hand_eye"] + ", home: {j2: -0.5, f1: 0.02}"))
    for seed in range(2):
        world.reset(seed, {})
        np.testing.assert_array_equal(sense(world, "joints")["position"], [0.3, -0.5])
        world.command(np.array([0.4, -0.6]))
        world.step()
    world.close()


def hash_of(contract: Contract) -> str:
    return contract.backend_fingerprint("mujoco")


def test_the_fingerprint_of_the_profile_covers_file_contents_not_paths(tmp_path: Path) -> None:
    contract = own_contract("arm", tmp_path / "a")
    assert hash_of(own_contract("arm", tmp_path / "b")) == hash_of(contract)
    moved = contract.text.replace("../model", str(tmp_path / "b" / "model"))
    assert hash_of(parse_contract(moved, source=str(tmp_path / "c.yaml"))) == hash_of(contract)
    assert parse_contract(moved, source=str(tmp_path / "c.yaml")).fingerprint == contract.fingerprint
    for file in ("scene.xml", "robot.xml", "meshes/link.obj"):
        changed = tmp_path / "b" / "model" / file
        before = changed.read_text()
        changed.write_text(before + "\n")
        assert hash_of(parse_contract(moved, source=str(tmp_path / "c.yaml"))) != hash_of(contract), file
        changed.write_text(before)


def test_the_contract_of_a_run_opens_no_file_and_keeps_the_fingerprint(tmp_path: Path) -> None:
    contract = own_contract("arm", tmp_path)
    (tmp_path / "model" / "scene.xml").unlink()
    recorded = parse_contract(dump_contract(contract), source=contract.source, trusted=False)
    assert hash_of(recorded) == hash_of(contract)


def test_a_model_changed_since_loading_is_rejected(tmp_path: Path) -> None:
    contract = own_contract("arm", tmp_path)
    (tmp_path / "model" / "meshes" / "link.obj").write_text("v 0 0 0\n")
    with pytest.raises(ContractError, match=r"model_sha256: .*scene.xml or one of its files has changed\); load"):
        world_of(contract)


@pytest.mark.parametrize("make_file", [os.mkfifo, lambda mesh: os.truncate(mesh, MOST_DATA_BYTES + 1)])
def test_a_mesh_that_cannot_be_read_in_bounded_time_is_refused(
    make_file: Callable[[Path], None], tmp_path: Path
) -> None:
    contract = own_contract("arm", tmp_path)
    mesh = tmp_path / "model" / "meshes" / "link.obj"
    if make_file is os.mkfifo:
        mesh.unlink()
    make_file(mesh)
    with pytest.raises(
        ContractError, match=r"mujoco.model: cannot read the MuJoCo model 'scene.xml': (not a|file too)"
    ):
        world_of(parse_contract(contract.text, source=contract.source))


def test_a_model_without_a_timestep_is_refused(tmp_path: Path) -> None:
    contract = own_contract("base", tmp_path)
    scene = tmp_path / "model" / "robot.xml"
    scene.write_text(scene.read_text().replace('timestep="0.005"', 'timestep="0"'))
    with pytest.raises(ContractError, match=r"mujoco.model: timestep 0.0 s in 'robot.xml' \(expected > 0\)"):
        world_of(parse_contract(contract.text, source=contract.source))


def test_texture_folders_nested_includes_and_stripped_paths_are_resolved(tmp_path: Path) -> None:
    write_model("arm", tmp_path)
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "sky.png").write_bytes(b"1")
    (tmp_path / "parts" / "deep.xml").write_text('<mujocoinclude><hfield file="far/away/link.obj"/></mujocoinclude>')
    (tmp_path / "parts" / "part.xml").write_text('<mujocoinclude><include file="deep.xml"/></mujocoinclude>')
    main = tmp_path / "main.xml"
    main.write_text(
        '<mujoco><compiler texturedir="parts" meshdir="meshes" strippath="true"/><include file="parts/part.xml"/>'
        '<asset><texture fileup="sky.png" file="missing.png"/></asset><include file="main.xml"/></mujoco>'
    )
    names = [file.name for file in model_files(main)]
    assert names == ["main.xml", "part.xml", "deep.xml", "sky.png", "link.obj"]
