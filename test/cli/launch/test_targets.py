"""The processes in the table of launch targets, for the values of their arguments."""

from pathlib import Path

import pytest
import yaml

from embodied_env.cli.launch.targets import TARGETS
from embodied_env.errors import ContractError, MissingDependencyError, UsageError
from embodied_env.ros.transport.fastdds import PROFILE, VARIABLES


def roles(name, **given):
    return [spec.role for spec in TARGETS[name].processes(given)]


def words(name, role, **given):
    (spec,) = [spec for spec in TARGETS[name].processes(given) if spec.role == role]
    return list(spec.arguments)


def test_sim_with_policy_evaluates_on_that_simulator():
    assert (roles("sim"), roles("sim", policy="hold")) == (["simulator"], ["simulator", "evaluation"])
    evaluation = words("sim", "evaluation", policy="hold")
    assert evaluation[:4] == ["evaluate", "arm_reach", "--backend", "mujoco_ros"]
    assert "--policy=hold" in evaluation
    assert "--attach" in evaluation


@pytest.mark.parametrize(("name", "given"), [("real", {}), ("evaluate", {"backend": "real"})])
def test_robot_is_dry_run_unless_armed(name, given):
    assert "--dry-run" in words(name, "evaluation", **given)
    assert "--dry-run" not in words(name, "evaluation", armed="arm_reach", **given)
    assert "--dry-run" not in words("evaluate", "evaluation", backend="fake")


MOVING = [
    ("real", {}),
    ("runner", {}),
    *((name, {"backend": "real"}) for name in ("evaluate", "train")),
    ("evaluate", {"backend": "mine"}),
]


@pytest.mark.parametrize(("name", "given"), MOVING)
@pytest.mark.parametrize("armed", ["true", "1", "cart_goal", "none"])
def test_an_argument_of_another_package_arms_no_robot(name, given, armed):
    """Included launch files inherit the arguments of the including one."""
    with pytest.raises(UsageError, match=r"armed:=.*expected one of: false, arm_reach"):
        TARGETS[name].processes({**given, "armed": armed})


@pytest.mark.parametrize(("name", "backend"), [("train", "real"), ("train", "mine"), ("evaluate", "mine")])
def test_a_backend_without_a_dry_run_must_be_armed(name, backend):
    with pytest.raises(UsageError, match=rf"not armed: '{backend}' .*armed:=arm_reach"):
        TARGETS[name].processes({"backend": backend})
    TARGETS[name].processes({"backend": backend, "armed": "arm_reach"})


@pytest.mark.parametrize("armed", ["False", "no", "0"])
def test_a_robot_is_not_armed_by_another_spelling_of_false(armed):
    assert "--dry-run" in words("real", "evaluation", armed=armed)


def test_robot_has_relay_unless_disabled():
    assert roles("real") == ["relay", "evaluation"]
    assert "--relay" in words("real", "evaluation")
    assert roles("real", relay="false") == ["evaluation"]
    assert "--relay" not in words("real", "evaluation", relay="false")


def test_a_runner_is_configured_and_activated_only_if_it_is_armed():
    assert roles("runner") == ["relay", "runner"]
    assert "--autostart" not in words("runner", "runner")
    assert "--autostart" in words("runner", "runner", armed="arm_reach")
    assert words("runner", "runner", relay="false", policy="hold")[:3] == ["runner", "arm_reach", "--policy=hold"]
    with pytest.raises(UsageError, match=r"several policies: .*expected one"):
        TARGETS["runner"].processes({"policy": "[hold, scripted]"})


def test_robot_and_relay_take_the_options_of_an_emulator_and_of_its_inputs():
    given = {"emulator": "true", "ignore_input": "mode, drive"}
    ignoring = ["--ignore-input=mode", "--ignore-input=drive"]
    assert words("real", "evaluation", **given)[-3:] == ["--emulator", *ignoring]
    assert words("real", "relay", **given)[2:5] == ["--confirm-chosen", *ignoring]  # an emulator needs no confirmation
    assert words("relay", "relay", ignore_input="mode")[2:3] == ["--ignore-input=mode"]
    evaluation = words("evaluate", "evaluation", backend="real", confirm_chosen="true", **given)
    assert evaluation[-4:] == ["--emulator", "--confirm-chosen", *ignoring]


def test_relay_has_time_to_brake():
    (relay,) = TARGETS["relay"].processes({})
    (server,) = TARGETS["sim"].processes({})
    assert relay.grace_s > server.grace_s


def test_gazebo_starts_paused_with_bridge_and_evaluation(packages):
    given = {"contract": str(packages)}
    assert roles("gazebo", **given) == ["gazebo", "bridge", "evaluation"]
    server, bridge, evaluation = TARGETS["gazebo"].processes(given)
    assert server.arguments[2:6] == ("gz", "sim", "-s", "--headless-rendering")
    assert "-r" not in server.arguments
    assert "-s" not in words("gazebo", "gazebo", **given, headless="false")
    assert server.arguments[-1] == str(packages.parent / "gazebo" / "arm.sdf")
    assert server.folder == str(packages.parent / "gazebo")
    assert bridge.arguments[-1] == f"config_file:={packages.parent / 'gazebo' / 'arm.bridge.yaml'}"
    assert evaluation.arguments[3] == "gazebo"


@pytest.mark.parametrize(("factor", "option"), [("none", []), ("0", ["-z", "1000000000.0"]), ("2", ["-z", "2000.0"])])
def test_gazebo_runs_at_a_real_time_factor_by_its_physics_step(packages, factor, option):
    contract = yaml.safe_load(packages.read_text())
    contract["backends"]["gazebo"] = {"world": "arm", "step_s": 0.001}
    packages.write_text(yaml.safe_dump(contract))
    arguments = words("gazebo", "gazebo", contract=str(packages), real_time_factor=factor)
    assert list(arguments[6:-1]) == option


def test_bridge_and_training_get_large_segments_only_for_images(packages, tmp_path, monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "learn.py").write_text("")
    given = {"contract": str(packages), "script": str(tmp_path / "learn.py"), "python": "py"}
    assert [words("gazebo", role, **given)[0] for role in ("bridge", "training")] == [
        str(tmp_path / "lib" / "ros_gz_bridge" / "parameter_bridge"), "py",
    ]  # fmt: skip
    camera = {
        "topic": "camera/image_raw", "type": "sensor_msgs/msg/Image", "encoding": "rgb8", "max_age_s": 1.0,
        "fields": {"image": {"unit": "1", "low": 0, "high": 255, "shape": [480, 640, 3]}},
    }  # fmt: skip
    large = yaml.safe_load(packages.read_text())
    large["sensors"]["camera"] = camera
    packages.write_text(yaml.safe_dump(large))
    settings = [f"{name}={PROFILE}" for name in VARIABLES]
    for role in ("bridge", "training"):
        assert words("gazebo", role, **given)[:3] == ["env", *settings]


def test_gazebo_finds_systems_of_ros_packages(packages, monkeypatch):
    monkeypatch.setenv("GZ_SIM_SYSTEM_PLUGIN_PATH", "/mine")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/ros/lib")
    setting = words("gazebo", "gazebo", contract=str(packages))[1]
    assert setting == "GZ_SIM_SYSTEM_PLUGIN_PATH=/mine:/opt/ros/lib"


def test_gazebo_starts_ros2_control_if_the_world_has_its_files(packages):
    worlds = packages.parent / "gazebo"
    (worlds / "arm.urdf").write_text("")
    (worlds / "arm.controllers.yaml").write_text("controller_manager:\n  a: 1\nsteering:\n  b: 1\n")
    given = {"contract": str(packages)}
    assert roles("gazebo", **given) == ["gazebo", "bridge", "description", "controllers", "evaluation"]
    description, controllers = words("gazebo", "description", **given), words("gazebo", "controllers", **given)
    assert description[1:] == [str(worlds / "arm.urdf"), "--ros-args", "-p", "use_sim_time:=true"]
    assert controllers[1:] == [
        "steering", "--param-file", str(worlds / "arm.controllers.yaml"),
        "--switch-timeout", "60", "--service-call-timeout", "65",
    ]  # fmt: skip


def test_spawner_waits_longer_without_a_stepping_process(packages):
    (packages.parent / "gazebo" / "arm.controllers.yaml").write_text("steering:\n  b: 1\n")
    spawner = words("gazebo", "controllers", contract=str(packages), policy="none")
    assert spawner[spawner.index("--switch-timeout") + 1] == "3600"


@pytest.mark.parametrize("contract", ["arm_reach", "cart_goal", "door_open"])
def test_gazebo_starts_with_every_shipped_contract(packages, contract):
    given = {"contract": contract, "headless": "false"}
    rest = ["description", "controllers"] if contract == "arm_reach" else []
    assert roles("gazebo", **given) == ["gazebo", "bridge", *rest, "evaluation"]
    server = TARGETS["gazebo"].processes(given)[0]
    assert Path(server.folder, f"{contract}.sdf").is_file()


def test_gazebo_with_script_trains(packages, tmp_path):
    (tmp_path / "learn.py").write_text("")
    given = {"contract": str(packages), "script": str(tmp_path / "learn.py"), "python": "py"}
    assert roles("gazebo", **given) == ["gazebo", "bridge", "training"]
    script = words("gazebo", "training", **given, script_args="--steps '1 000'", seed="4")
    assert script[:2] == ["py", str(tmp_path / "learn.py")]
    assert script[2:] == [
        str(packages), "--backend", "gazebo", "--seed", "4", "--out", "runs", "--steps", "1 000",
    ]  # fmt: skip


def test_example_is_found_by_name(tmp_path, monkeypatch):
    example = tmp_path / "share" / "embodied_env" / "examples" / "learn_it.py"
    example.parent.mkdir(parents=True)
    example.write_text("")
    monkeypatch.setenv("AMENT_PREFIX_PATH", str(tmp_path))
    assert str(example) in words("train", "training", script="learn_it.py")


@pytest.mark.parametrize(
    ("name", "given", "error", "problem"),
    [
        ("sim", {"polcy": "hold"}, UsageError, "'polcy' .*contract, namespace"),
        ("real", {"armed": "yes"}, UsageError, "armed:=yes .*false, arm_reach"),
        ("sim", {"namespace": "a b"}, UsageError, "'/a b'"),
        ("real", {"contract": "arm_rech"}, ContractError, "did you mean 'arm_reach'"),
        ("train", {"script": "nowhere.py"}, UsageError, "no such script: nowhere.py"),
        ("gazebo", {"world": "/no.sdf", "policy": "hold"}, UsageError, "no such file: world:=/no.sdf"),
        ("gazebo", {"real_time_factor": "-1"}, UsageError, "real_time_factor:=-1 .*from 0 to 1000"),
        ("gazebo", {"real_time_factor": "fast"}, UsageError, "real_time_factor:=fast .*from 0 to 1000"),
    ],
)
def test_invalid_argument_is_named_with_expected_values(name, given, error, problem):
    with pytest.raises(error, match=problem):
        TARGETS[name].processes(given)


def test_missing_bridge_is_named_with_its_package(packages, monkeypatch):
    monkeypatch.setenv("AMENT_PREFIX_PATH", "")
    with pytest.raises(MissingDependencyError, match=r"apt install ros-.*-ros-gz-bridge"):
        TARGETS["gazebo"].processes({"contract": str(packages)})


def test_a_policy_is_trusted_only_where_the_user_asks():
    given = {"policy": "sb3:policy.zip"}
    (plain,), (trusted,) = (TARGETS["evaluate"].processes({**given, **more}) for more in ({}, {"trust_policy": "true"}))
    assert "--trust-policy" not in plain.arguments
    assert "--trust-policy" in trusted.arguments


@pytest.mark.parametrize(("spelled", "count"), [("True", 1), ("yes", 1), ("1", 1), ("FALSE", 0), ("off", 0)])
def test_a_flag_is_spelled_as_in_python_or_yaml(spelled, count):
    assert words("evaluate", "evaluation", report=spelled).count("--report") == count


def test_several_policies_are_a_yaml_list_with_their_files():
    given = {"policy": "[onnx:p.onnx, 'm:f(1, \"a\")', hold]", "policy_file": "[p.yaml, none]"}
    assert words("evaluate", "evaluation", **given)[4:8] == [
        "--policy=onnx:p.onnx", "--policy-file=p.yaml", '--policy=m:f(1, "a")', "--policy=hold",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"policy": "[hold"}, r"policy:=\[hold \(expected"),
        ({"policy": "[1]"}, r"policy:=\[1\] \(expected"),
        ({"policy_file": "[a.yaml, b.yaml]"}, r"policy_file:=.*at most one for each of the policies: scripted"),
    ],
)
def test_a_wrong_list_of_policies_is_named(given, problem):
    with pytest.raises(UsageError, match=problem):
        TARGETS["evaluate"].processes(given)


def test_our_nodes_get_ros_arguments_and_their_namespace(tmp_path):
    file = tmp_path / "p.yaml"
    file.write_text("")
    given = {"namespace": "robot_1/", "log_level": "warn", "params_file": str(file)}
    for spec in TARGETS["real"].processes(given):
        ros = ["--ros-args", "--log-level", "warn", "--params-file", str(file), "-r", "__ns:=/robot_1"]
        assert spec.command()[-7:] == ros
    (plain, _) = TARGETS["real"].processes({})
    assert "--ros-args" not in plain.command()
