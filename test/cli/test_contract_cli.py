import json
import os
import subprocess
import sys
import types
from dataclasses import replace

import pytest
import yaml
from extension_marks import needing
from shipped_contracts import resolved_document
from strategies import ABSENT, changed, document, parse

from embodied_env import __version__
from embodied_env.cli.main import VERBS, main
from embodied_env.contract import load_contract, parse_contract
from embodied_env.contract.contract_loader import dump_contract
from embodied_env.contract.contract_validation import suspected_degrees
from embodied_env.envs.registration import make
from embodied_env.errors import BackendNotReadyError, ContractError, MissingDependencyError, UsageError

FIELD = "sensors.joints.fields.position"


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a document to a file and returns its path."""

    def write_document(source, name="small"):
        file = tmp_path / f"{name}.yaml"
        file.write_text(json.dumps(source))
        return str(file)

    return write_document


@pytest.fixture
def small(write):
    return write(document())


# command line


def test_help_lists_every_verb_and_imports_none():
    code = (
        "import sys; from embodied_env.cli.main import VERBS, main; status = main(['--help'])\n"
        "heavy = ['pydantic_core', 'yaml', 'rich', 'rclpy', 'mujoco', *(f'embodied_env.{verb.module}' for verb in VERBS.values())]\n"
        "print(status, [name for name in heavy if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    *help_, last = done.stdout.splitlines()
    assert last == "0 []"
    text = " ".join(" ".join(help_).split())
    assert [name for name, verb in VERBS.items() if f"{name} {verb.help}" not in text] == []


@pytest.mark.parametrize("verb", [pytest.param(verb, marks=needing(verb)) for verb in VERBS])
def test_options_of_each_verb_state_their_defaults(verb, capsys):
    assert main([verb, "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert VERBS[verb].help in text
    assert "(default: None)" not in text
    assert "(default: False)" not in text


def test_version_matches_package(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"embodied-env {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["contrakt"], "unknown verb 'contrakt'"),
        (["contract"], "the following arguments are required: ACTION (see embodied-env contract --help)"),
        (["contract", "show"], "the following arguments are required: CONTRACT"),
        (["contract", "show", "x", "--jsn"], "unrecognized arguments: --jsn"),
    ],
)
def test_usage_error_prints_one_line_and_exits_2(arguments, message, capsys):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"embodied-env: error: {message}")
    assert captured.err.count("\n") == 1


@pytest.fixture
def replace_verb(monkeypatch):
    def install(act):
        module = types.SimpleNamespace(add_arguments=lambda _: None, run=act)
        monkeypatch.setitem(sys.modules, "embodied_env.extensions.evaluation.demo_cli", module)

    return install


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UsageError("no such\nthing"), 2),
        (ContractError("version", "no such\nthing"), 2),
        (BackendNotReadyError("no such\nthing"), 1),
        (MissingDependencyError("no such\nthing", needed_for="it", remedy="pip"), 1),
    ],
)
def test_package_error_prints_one_line_and_sets_exit_status(error, status, replace_verb, capsys):
    def fail(args):
        raise error

    replace_verb(fail)
    assert main(["demo"]) == status
    captured = capsys.readouterr()
    assert captured.err.startswith("embodied-env: error: ")
    assert captured.err.count("\n") == 1


def test_interrupt_exits_130(replace_verb, capsys):
    def interrupt(args):
        raise KeyboardInterrupt

    replace_verb(interrupt)
    assert main(["demo"]) == 130
    assert capsys.readouterr().err == "embodied-env: interrupted\n"


@pytest.mark.parametrize("error", [ZeroDivisionError, BrokenPipeError])  # of another pipe than stdout
def test_program_error_is_not_hidden(replace_verb, capfd, error):
    def fail(args):
        raise error

    replace_verb(fail)
    with capfd.disabled(), pytest.raises(error):
        main(["demo"])


@pytest.mark.parametrize("arguments", [["contract", "show", "arm_reach"], ["contract", "fingerprint", "arm_reach"]])
def test_closed_stdout_prints_no_error(arguments):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [sys.executable, "-m", "embodied_env.cli", *arguments]
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


# --- contract validate


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("task.success_radius", 1.0, "task.success_radius: unknown key 'success_radius'"),
        ("task.success_radius_m", ABSENT, "task.success_radius_m: missing key"),
        ("task.success_radius_m", "far", 'task.success_radius_m: "far" (expected a number)'),
        ("task.tip", "tool", "task.tip: "),
        ("task.type", "raech", "task.type: unknown name 'raech' (expected one of: "),
        ("task.type", "embodied_env.tasks.reach:Rich", "task.type: unknown task 'embodied_env.tasks.reach:Rich'"),
    ],
)
def test_validate_rejects_invalid_task_parameters(path, value, message, write, capsys):
    assert main(["contract", "validate", write(changed(path, value))]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        ("backends.mujoco.model", "nowhere.xml", "backends.mujoco.model: cannot read 'nowhere.xml'"),
        ("backends.mujoco.model", "a\0b", "backends.mujoco.model: cannot read"),
        ("backends.real.reset.home.elbow", 0.1, "backends.real.reset.home.elbow: no such joint"),
        ("backends.real.reset.home.j1", "up", "backends.real.reset.home.j1: invalid value: 'up'"),
        ("backends.real.reset.home.j1", 100.0, "backends.real.reset.home.j1: 100.0 (expected"),
        ("actuators.arm.joints.j1.position", [-180.0, 180.0], "actuators.arm.joints.j1.position: "),
        ("actuators.arm.joints.j1.velocity", 90.0, "actuators.arm.joints.j1.velocity: "),
    ],
)
def test_validate_rejects_settings_no_backend_supports(path, value, where, write, capsys):
    arm = json.loads(dump_contract(load_contract("arm_reach")))
    arm["backends"]["real"]["reset"] = {"home": dict(arm["backends"]["gazebo"]["home"])}
    part = arm
    for key in path.split(".")[:-1]:
        part = part[key]
    part[path.rpartition(".")[2]] = value
    assert main(["contract", "validate", write(arm)]) == 2
    assert where in capsys.readouterr().err


def test_make_warns_of_limits_that_look_like_degrees():
    arm = json.loads(dump_contract(load_contract("arm_reach")))
    arm["actuators"]["arm"]["joints"]["j1"]["velocity"] = 90.0
    with pytest.warns(UserWarning, match=r"actuators.arm.joints.j1.velocity: .*degrees"):
        make(parse_contract(yaml.safe_dump(arm)), backend="fake").close()


def fast_arm(**keys):
    arm = json.loads(dump_contract(load_contract("arm_reach")))
    arm["actuators"]["arm"]["joints"]["j1"]["velocity"] = 90.0
    return arm | keys


@pytest.mark.needs("evaluation")
def test_limits_that_look_like_degrees_are_refused_unless_confirmed(write, tmp_path, capsys):
    path = "actuators.arm.joints.j1.velocity"
    suspected, confirmed = write(fast_arm()), write(fast_arm(confirmed=[path]), "confirmed")
    evaluated = ["--policy", "hold", "--backend", "fake", "--episodes", "1", "--out", str(tmp_path / "runs")]
    for verb in (["contract", "validate"], ["doctor", "--backend", "fake"], ["evaluate", *evaluated]):
        assert main([*verb, suspected]) in (1, 2)
        assert path in "".join(capsys.readouterr())
        assert main([*verb, confirmed]) == 0, capsys.readouterr()
        capsys.readouterr()


@pytest.mark.needs("contract_init")
def test_a_draft_with_limits_in_degrees_is_not_valid(tmp_path, capsys):
    (tmp_path / "arm.urdf").write_text(
        '<robot name="r"><link name="a"/><link name="b"/><joint name="j" type="revolute"><parent link="a"/>'
        '<child link="b"/><limit lower="-114" upper="114" velocity="57" effort="1"/></joint></robot>'
    )
    assert main(["contract", "init", "--urdf", str(tmp_path / "arm.urdf"), "-o", str(tmp_path / "arm.yaml")]) == 1
    assert "actuators.arm.joints.j.position: [-114.0, 114.0] rad" in capsys.readouterr().out


@pytest.mark.needs("contract_init")
def test_a_damaged_urdf_is_named(tmp_path, capsys):
    (tmp_path / "arm.urdf").write_text("<robot")
    assert main(["contract", "init", "--urdf", str(tmp_path / "arm.urdf")]) == 2
    assert f"{tmp_path / 'arm.urdf'}: urdf: not well-formed XML" in capsys.readouterr().err


def test_wheel_limits_are_not_suspected_to_be_degrees():
    cart = load_contract("cart_goal")
    fast = {name: replace(limits, velocity=500.0) for name, limits in cart.actuators["base"].joints.items()}
    wheels = replace(cart, actuators={"base": replace(cart.actuators["base"], joints=fast)})
    assert list(suspected_degrees(wheels)) == []


def test_validate_lists_the_sensors_that_stop_the_robot(capsys):
    assert main(["contract", "validate", "turtlebot4_goal"]) == 0
    found = next(line for line in capsys.readouterr().out.splitlines() if "lost sensors" in line)
    assert "stops if odom or scan is lost; it goes on without imu (not required, on_gap hold)" in found


def test_validate_reports_every_contract(small, write, capsys):
    wrong = write(changed("version", 0), "wrong")
    assert main(["contract", "validate", wrong, "nowhere", small]) == 2
    captured = capsys.readouterr()
    assert captured.out.startswith(f"{small}: valid")
    first, second = captured.err.splitlines()
    assert first == f"embodied-env: error: {wrong}: version: 0 (expected at least 1)"
    assert "no such contract: 'nowhere'" in second


def test_validate_json_reports_path_and_problem(small, write, capsys):
    wrong = write(changed("version", 0), "wrong")
    assert main(["contract", "validate", "--json", small, wrong]) == 2
    good, bad = json.loads(capsys.readouterr().out)
    fingerprint = parse(document()).fingerprint
    sound = {"contract": small, "valid": True, "source": small, "fingerprint": fingerprint}
    held = dict.fromkeys(("tcp", "target"), "not required, on_gap hold")
    sound |= {"stops": ["joints"], "does_not_stop": held}
    assert good == {**sound, "task_verified": True, "unconfirmed": {}, "unknown": {}, "suspicious": {}, "hints": {}}
    problem = "0 (expected at least 1)"
    found = {"path": "version", "problem": problem}
    assert bad == {"contract": wrong, "valid": False, **found, "errors": [found]}


def test_validate_hints_at_the_prompt_of_a_policy_that_sees_images(write, capsys):
    assert main(["contract", "validate", "door_open"]) == 0
    assert "hint" not in capsys.readouterr().out
    silent = write(resolved_document("door_open", {"task.instruction": ABSENT, "backends": ABSENT}))
    assert main(["contract", "validate", silent]) == 0
    assert "  hint: task.instruction: none; language-conditioned policies (openpi, GR00T" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["gates", "interlocks"])
def test_validate_refuses_gates_and_interlocks_that_are_not_installed(kind, write, capsys):
    assert main(["contract", "validate", write(changed(f"safety.{kind}", {"missing": {}}))]) == 2
    assert f"safety.{kind}.missing: unknown name 'missing'" in capsys.readouterr().err


def test_validate_hints_at_profiles_of_unknown_backends(write, capsys):
    assert main(["contract", "validate", write(changed("backends.mujco", {}))]) == 0
    assert "  hint: backends.mujco: unknown backend 'mujco'" in capsys.readouterr().out


# --- contract fingerprint


def test_fingerprint_is_identical_across_processes(small):
    command = [sys.executable, "-m", "embodied_env.cli", "contract", "fingerprint", small]
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, parse(document()).fingerprint + "\n", "")


def test_fingerprint_of_backend_without_profile_is_a_usage_error(small, capsys):
    assert main(["contract", "fingerprint", small, "--backend", "fke"]) == 2
    message = "--backend: 'fke' (expected one of: fake); did you mean 'fake'?\n"
    assert capsys.readouterr().err == f"embodied-env: error: {message}"


def test_fingerprint_of_a_backend_and_both_as_json(small, capsys):
    contract = parse(document())
    assert main(["contract", "fingerprint", small, "--backend", "fake"]) == 0
    assert capsys.readouterr().out == contract.backend_fingerprint("fake") + "\n"
    assert main(["contract", "fingerprint", small, "--backend", "fake", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "contract": "small",
        "fingerprint": contract.fingerprint,
        "backend": "fake",
        "backend_fingerprint": contract.backend_fingerprint("fake"),
    }


# --- contract diff


def test_diff_with_itself_exits_0(small, capsys):
    assert main(["contract", "diff", small, small]) == 0
    short = parse(document()).fingerprint[:16]
    assert capsys.readouterr().out == f"the fingerprints are equal: {short} {short}\n"


def test_diff_inside_fingerprint_exits_1(small, write, capsys):
    other = write(changed("task.success_radius_m", 0.05), "other")
    assert main(["contract", "diff", small, other]) == 1
    out = capsys.readouterr().out
    (line,) = [line for line in out.splitlines() if "task.success_radius_m" in line]
    assert [cell.strip() for cell in line.split("│")[1:-1]] == ["task.success_radius_m", "0.03", "0.05", "true"]
    assert "the fingerprints differ: " in out
    assert f"a:{small},b:{other}" in "".join(out.split())  # names keep their underscores


@pytest.mark.parametrize(
    ("path", "value", "before"),
    [
        ("name", "other", "small"),
        ("sensors.tcp.topic", "elsewhere", "tcp_pose"),
        ("actuators.arm.topic", "elsewhere", "commands"),
        ("backends.real", {"robot": 1}, None),
    ],
)
def test_diff_outside_fingerprint_exits_0(path, value, before, small, write, capsys):
    other = write(changed(path, value), "other")
    assert main(["contract", "diff", small, other, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["equal"] is True
    assert result["differences"] == [{"path": path, "a": before, "b": value, "in_fingerprint": False}]


def test_diff_lists_removed_sensor_once(small, write, capsys):
    source = changed("task.tip", "target", changed("sensors.tcp", ABSENT))
    assert main(["contract", "diff", small, write(source, "other"), "--json"]) == 1
    paths = [row["path"] for row in json.loads(capsys.readouterr().out)["differences"]]
    assert paths == ["sensors.tcp", "task.tip"]


# --- contract show


def test_show_has_both_velocity_limits_where_they_differ(tmp_path, capsys):
    path = tmp_path / "base.yaml"
    path.write_text(json.dumps(changed("actuators.arm.joints.a.velocity", [-1.0, 3.0])))
    assert main(["contract", "show", str(path), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["limits_after_margins"]
    assert [row["velocity_per_s"] for row in rows] == [[-0.95, 3.0 * 0.95], 3.0 * 0.95]


def test_show_json_describes_the_contract(small, capsys):
    assert main(["contract", "show", small, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    contract = parse(document())
    assert shown["contract"]["fingerprint"] == contract.fingerprint
    assert {row["key"] for row in shown["observation_space"]} == set(contract.observation_space)
    assert shown["action_space"] == [{"actuator": "arm", "shape": [2], "dtype": "float64", "low": -1.0, "high": 1.0}]
    assert shown["limits_after_margins"][0] == {
        "actuator": "arm",
        "joint": "a",
        "unit": "rad",
        "position": [-0.98, 1.98],
        "velocity_per_s": 3.0 * 0.95,
        "acceleration_per_s2": 8.0 * 0.9,
        "deceleration_per_s2": 8.0 * 0.9,
        "action": [-1.0, 1.0],
        "action_si": [-0.98, 1.98],
        "action_si_unit": "rad",
    }
    assert [row["visibility"] for row in shown["sensors"]] == ["agent"] * 3
    assert shown["backends"]["fake"]["fingerprint"] == contract.backend_fingerprint("fake")


@pytest.mark.parametrize(
    ("command", "unit"), [("position", "rad"), ("position_delta", "rad per step"), ("velocity", "rad/s")]
)
def test_show_includes_unit_of_action(command, unit, write, capsys):
    assert main(["contract", "show", write(changed("actuators.arm.command", command)), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["limits_after_margins"][0]["action_si_unit"] == unit


def test_show_of_twist_has_velocities_but_no_positions_and_no_key_for_the_evaluator(capsys):
    assert main(["contract", "show", "cart_goal", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["actuators"][0]["frame"] == "base_link"
    forward, turn = shown["limits_after_margins"]
    assert (forward["joint"], forward["position"], forward["action_si_unit"]) == ("linear.x", None, "m/s")
    assert (turn["joint"], turn["action_si"]) == ("angular.z", [-1.5 * 0.95, 1.5 * 0.95])
    keys = {(row["sensor"], row["field"]): row["observation_key"] for row in shown["fields"]}
    assert (keys["scan", "ranges"], keys["true_pose", "position"]) == ("scan_ranges", None)
    in_space = {row["key"] for row in shown["observation_space"]}
    assert {key for key in keys.values() if key is not None} <= in_space


def test_show_resolves_shape_dtype_and_bounds_of_every_field(capsys):
    assert main(["contract", "show", "door_open", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    fields = {(row["sensor"], row["field"]): row for row in shown["fields"]}
    camera, depth = fields["camera", "image"], fields["depth", "image"]
    assert (camera["shape"], camera["dtype"], camera["low"], camera["high"]) == ([96, 96, 3], "uint8", 0, 255)
    assert (depth["shape"], depth["dtype"], depth["no_return"]) == ([64, 64, 1], "float32", 100)
    assert (fields["joints", "velocity"]["shape"], fields["handle", "position"]["shape"]) == ([6], [3])
    spaces = {row["key"]: row for row in shown["observation_space"]}
    assert spaces["camera_image"] == {
        "key": "camera_image", "shape": [96, 96, 3], "dtype": "uint8", "low": 0, "high": 255
    }  # fmt: skip


@pytest.mark.parametrize(("second", "shown"), [(-2, -2.0), ("-.inf", None)])
def test_show_prints_bounds_per_component(write, capsys, second, shown):
    assert main(["contract", "show", write(changed(f"{FIELD}.low", [-3, second])), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    spaces = {row["key"]: row for row in found["observation_space"]}
    assert (spaces["joints_position"]["low"], spaces["joints_position"]["high"]) == ([-3.0, shown], 4.0)
    assert found["fields"][0]["low"] == [-3, second]


def test_show_prints_a_table_per_section(small, capsys):
    assert main(["contract", "show", small]) == 0
    out = capsys.readouterr().out
    for title in ("observation space", "limits after margins", "sensors", "safety", "task"):
        assert any(line.strip() == title for line in out.splitlines())
    assert "[-0.98, 1.98]" in out
    assert "[a, b]" in out  # not interpreted as markup


def test_show_of_two_actuators_names_both_action_parts(write, capsys):
    arm = document()["actuators"]["arm"]
    halves = {
        name: {**arm, "topic": name, "joints": {joint: arm["joints"][joint]}}
        for name, joint in (("left", "a"), ("right", "b"))
    }
    assert main(["contract", "show", write(changed("actuators", halves)), "--json"]) == 0
    assert [row["actuator"] for row in json.loads(capsys.readouterr().out)["action_space"]] == ["left", "right"]


def test_show_works_without_ros_and_mujoco(small):
    code = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(['rclpy', 'mujoco', 'std_msgs', 'sensor_msgs']))\n"
        "from embodied_env.cli.main import main\n"
        "sys.exit(main(['contract', 'show', sys.argv[1]]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, small], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


# --------------------------------------------------------------------------------------------------------- images


def test_image_is_saved_under_contract_name(tmp_path, capsys):
    image = pytest.importorskip("PIL.Image", reason="needs the extra images")
    status = main(["contract", "picture", "arm_reach", "--out", str(tmp_path / "pictures")])
    if status == 2 and "rendering" in capsys.readouterr().err:
        pytest.skip("needs off-screen rendering")
    assert status == 0
    with image.open(tmp_path / "pictures" / "arm_reach.png") as picture:
        assert picture.size == (640, 480)
        assert picture.convert("L").resize((32, 24)).getextrema()[0] < 150  # the image is not empty


@pytest.mark.parametrize(
    "ros",
    [["--ros-args", "-r", "__node:=simulator"], ["--ros-args", "--", "--json"], ["--ros-args", "-p", "a:=1", "--"]],
)
def test_ros_args_from_launch_are_ignored(ros, capsys):
    assert main(["contract", "fingerprint", "arm_reach", *ros]) == 0
    assert load_contract("arm_reach").fingerprint in capsys.readouterr().out


@pytest.mark.parametrize("path", ["safety.watchdog.hold_steps", "sensors.joints.max_age_s", "backends.real.relay"])
def test_keys_lists_the_keys_of_a_path_with_bounds_and_rules(path, capsys):
    assert main(["contract", "keys", path, "--json"]) == 0
    (key,) = json.loads(capsys.readouterr().out)
    parts = zip(key["name"].split("."), path.split("."), strict=True)
    assert all(part in ("<name>", name) for part, name in parts)
    assert key.keys() == {"name", "type", "unit", "default", "rule", "meaning"}
    assert key["meaning"]


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("sensrs", "sensrs: unknown key 'sensrs'"),
        ("sensors.joints.topics", "sensors.joints.topics: unknown key 'topics'"),
        ("safety.load.arm.hold", "safety.load: unknown key 'load'"),
        ("episode.kind.x", "episode.kind.x: unknown key 'x' (none is declared)"),
    ],
)
def test_keys_names_the_unknown_part_of_a_path(path, problem, capsys):
    assert main(["contract", "keys", path]) == 2
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("mujoco_ros", "mujoco"),
        pytest.param("simulation_interfaces", "gazebo", marks=pytest.mark.needs("gazebo")),
    ],
)
def test_keys_of_a_backend_with_the_profile_of_another(alias, name, capsys):
    assert main(["contract", "keys", f"backends.{alias}.step_timeout_s", "--json"]) == 0
    (key,) = json.loads(capsys.readouterr().out)
    assert key["name"] == f"backends.{name}.step_timeout_s"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("chunk.length", ("integer in [1, 10000]", "required")),
        ("outputs.action.parts[0].threshold.at", ("number in [-1e+12, 1e+12]", "required")),
    ],
)
def test_keys_of_a_policy_file(path, expected, capsys):
    assert main(["policy", "keys", path, "--json"]) == 0
    (key,) = json.loads(capsys.readouterr().out)
    assert (key["type"], key["default"]) == expected
