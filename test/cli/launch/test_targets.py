"""The launch files describe the processes in the table of launch targets, tested with stand-ins for launch."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path

import pytest
import yaml
from shipped_contracts import changed_text

from embodied_env.cli.launch.ros_launch import ProcessFailedError, describe_launch
from embodied_env.cli.launch.targets import TARGETS
from embodied_env.errors import ContractError, MissingDependencyError, UsageError
from embodied_env.ros.transport.fastdds import PROFILE, VARIABLES

LAUNCH = Path(__file__).parents[3] / "launch"


class Recorded:
    """Any class of launch: stores its arguments."""

    def __init__(self, *arguments, **keywords):
        self.arguments, self.keywords = arguments, keywords


class LaunchConfiguration(Recorded):
    def perform(self, context):
        return context.given[self.arguments[0]]


class Node(Recorded):
    pass


class ExecuteProcess(Recorded):
    pass


class Shutdown(Recorded):
    pass


class OpaqueFunction(Recorded):
    pass


class DeclareLaunchArgument(Recorded):
    pass


@pytest.fixture(params=TARGETS)
def target(request):
    return TARGETS[request.param]


@pytest.fixture
def packages(monkeypatch, tmp_path):
    """Programs of the ROS packages that Gazebo needs, and a world beside a readable contract."""
    for package, program in (
        ("ros_gz_bridge", "parameter_bridge"),
        ("robot_state_publisher", "robot_state_publisher"),
        ("controller_manager", "spawner"),
    ):
        file = tmp_path / "lib" / package / program
        file.parent.mkdir(parents=True)
        file.write_text("")
    monkeypatch.setenv("AMENT_PREFIX_PATH", str(tmp_path))
    worlds = tmp_path / "config" / "gazebo"
    worlds.mkdir(parents=True)
    contract = tmp_path / "config" / "arm.yaml"
    contract.write_text(changed_text("arm_reach"))
    for name in ("arm.sdf", "arm.bridge.yaml"):
        (worlds / name).write_text("")
    return contract


@pytest.fixture
def given(target, packages, tmp_path):
    """Return argument values with which each target can start here."""
    script = tmp_path / "learn.py"
    script.write_text("")
    values = {argument.name: argument.default for argument in target.arguments}
    values |= {"contract": str(packages)}
    return {**values, "script": str(script)} if target.name == "train" else values


@pytest.fixture
def launch(monkeypatch):
    names = {
        "launch": {"LaunchDescription": Recorded},
        "launch.actions": {
            "DeclareLaunchArgument": DeclareLaunchArgument,
            "ExecuteProcess": ExecuteProcess,
            "OpaqueFunction": OpaqueFunction,
            "Shutdown": Shutdown,
        },
        "launch.substitutions": {"LaunchConfiguration": LaunchConfiguration},
        "launch_ros": {},
        "launch_ros.actions": {"Node": Node},
    }
    for module_name, attributes in names.items():
        module = types.ModuleType(module_name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, module_name, module)


@pytest.fixture
def description(target, launch):
    spec = importlib.util.spec_from_file_location(f"{target.name}_launch", LAUNCH / f"{target.name}.launch.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.generate_launch_description().arguments[0]


def started(description, given):
    (start,) = [entity for entity in description if isinstance(entity, OpaqueFunction)]
    return start.keywords["function"](types.SimpleNamespace(given=given))


def command(action):
    if isinstance(action, Node):
        return [action.keywords["executable"], *action.keywords["arguments"]]
    return action.keywords["cmd"]


def test_launch_starts_supervised_processes_of_the_table(target, description, given):
    given = {**given, "python": "/some/python"}
    specs = target.processes(given)
    actions = started(description, given)
    assert [command(action) for action in actions] == [spec.supervised_command("/some/python") for spec in specs]
    assert [isinstance(action, Node) for action in actions] == [bool(spec.module) for spec in specs]
    assert [action.keywords["cwd"] or "" for action in actions] == [spec.folder for spec in specs]


def test_launch_waits_for_the_supervisor_before_sigkill(target, description, given):
    for action, spec in zip(started(description, given), target.processes(given), strict=True):
        assert float(action.keywords["sigkill_timeout"]) >= spec.longest_end_s >= 3 * spec.grace_s


def test_every_argument_has_default_and_description(target, description):
    declared = {e.arguments[0]: e.keywords for e in description if isinstance(e, DeclareLaunchArgument)}
    assert list(declared) == [argument.name for argument in target.arguments]
    assert all(keywords["default_value"] and keywords["description"] for keywords in declared.values())
    assert {name: tuple(k["choices"] or ()) for name, k in declared.items()} == {
        argument.name: argument.allowed for argument in target.arguments
    }


def test_every_target_has_exactly_one_launch_file():
    assert {file.name for file in LAUNCH.glob("*.py")} == {f"{name}.launch.py" for name in TARGETS}


def test_missing_launch_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "launch", None)
    with pytest.raises(MissingDependencyError, match=r"apt install ros-.*-launch-ros"):
        describe_launch(TARGETS["sim"])


# -------------------------------------------------------------------------------------------- exit of a process


def exits(launch, name="gazebo", **given):
    """Return the handler of a process exit, by role."""
    target = TARGETS[name]
    values = {**{argument.name: argument.default for argument in target.arguments}, **given}
    actions = started(describe_launch(target).arguments[0], values)
    roles = [spec.role for spec in target.processes(values)]
    handlers = dict(zip(roles, [action.keywords["on_exit"] for action in actions], strict=True))

    def ended(role, status, *, is_shutdown=False):
        event, context = types.SimpleNamespace(returncode=status), types.SimpleNamespace(is_shutdown=is_shutdown)
        return handlers[role](event, context)

    return ended


def test_end_of_work_shuts_down(launch):
    assert isinstance(exits(launch, "sim", policy="hold")("evaluation", 0), Shutdown)


def test_failed_work_fails_the_launch(launch):
    with pytest.raises(ProcessFailedError, match="evaluation exited with status 1"):
        exits(launch, "sim", policy="hold")("evaluation", 1)


def test_simulator_exit_before_work_fails_the_launch(launch):
    with pytest.raises(ProcessFailedError, match="simulator exited with status 0"):
        exits(launch, "sim", policy="hold")("simulator", 0)


def test_exit_during_shutdown_is_not_a_failure(launch):
    assert isinstance(exits(launch, "sim", policy="hold")("simulator", 130, is_shutdown=True), Shutdown)


def test_interrupted_work_is_a_failure(launch):
    """The end of another evaluation in the same launch, and Ctrl-C, shut down all of it."""
    with pytest.raises(ProcessFailedError, match="evaluation exited with status 130"):
        exits(launch, "sim", policy="hold")("evaluation", 130, is_shutdown=True)


def test_controller_spawner_may_exit(launch, packages):
    (packages.parent / "gazebo" / "arm.controllers.yaml").write_text("controller_manager:\n  a: 1\nsteering:\n  b: 1\n")
    ended = exits(launch, contract=str(packages))
    assert ended("controllers", 0) is None
    with pytest.raises(ProcessFailedError):
        ended("controllers", 1)


# ----------------------------------------------------------------------------------------- table of targets


def roles(name, **given):
    return [spec.role for spec in TARGETS[name].processes(given)]


def words(name, role, **given):
    (spec,) = [spec for spec in TARGETS[name].processes(given) if spec.role == role]
    return list(spec.arguments)


def test_sim_without_policy_is_only_the_simulator():
    assert roles("sim") == ["simulator"]


def test_sim_with_policy_evaluates_on_that_simulator():
    assert roles("sim", policy="hold") == ["simulator", "evaluation"]
    evaluation = words("sim", "evaluation", policy="hold", namespace="/a")
    assert evaluation[:4] == ["evaluate", "arm_reach", "--backend", "mujoco_ros"]
    assert "--policy=hold" in evaluation
    assert "--attach" in evaluation
    assert evaluation[evaluation.index("--namespace") + 1] == "/a"


@pytest.mark.parametrize(("name", "given"), [("real", {}), ("evaluate", {"backend": "real"})])
def test_robot_is_dry_run_unless_armed(name, given):
    assert "--dry-run" in words(name, "evaluation", **given)
    assert "--dry-run" not in words(name, "evaluation", armed="arm_reach", **given)
    assert "--dry-run" not in words("evaluate", "evaluation", backend="fake")


MOVING = [
    ("real", {}),
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


def test_robot_has_relay_unless_disabled():
    assert roles("real") == ["relay", "evaluation"]
    assert "--relay" in words("real", "evaluation")
    assert roles("real", relay="false") == ["evaluation"]
    assert "--relay" not in words("real", "evaluation", relay="false")


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
    assert server.arguments[-1] == str(packages.parent / "gazebo" / "arm.sdf")
    assert server.folder == str(packages.parent / "gazebo")
    assert bridge.arguments[-1] == f"config_file:={packages.parent / 'gazebo' / 'arm.bridge.yaml'}"
    assert evaluation.arguments[3] == "gazebo"


def test_gazebo_with_gui_is_not_headless(packages):
    assert "-s" not in words("gazebo", "gazebo", contract=str(packages), headless="false")


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
        ("sim", {"namespace": "a"}, UsageError, "'a'"),
        ("real", {"contract": "arm_rech"}, ContractError, "did you mean 'arm_reach'"),
        ("train", {"script": "nowhere.py"}, UsageError, "no such script: nowhere.py"),
        ("gazebo", {"world": "/no.sdf", "policy": "hold"}, UsageError, "no such file: world:=/no.sdf"),
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


def test_a_policy_file_is_passed_on():
    (process,) = TARGETS["evaluate"].processes({"policy": "onnx:p.onnx", "policy_file": "p.yaml"})
    assert "--policy-file=p.yaml" in process.arguments
