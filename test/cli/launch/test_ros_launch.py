"""The launch files describe the processes of the table, tested with stand-ins for launch."""

import signal
import sys

import launch_stand_in as launching
import pytest

from embodied_env.cli.launch.targets import TARGETS
from embodied_env.errors import MissingDependencyError, UsageError


@pytest.fixture(autouse=True)
def ours(monkeypatch):
    """Our module with the stand-ins."""
    return launching.install(monkeypatch)


@pytest.fixture(params=TARGETS)
def target(request):
    return TARGETS[request.param]


@pytest.fixture
def given(target, packages, tmp_path):
    """Return argument values with which each target can start here."""
    script = tmp_path / "learn.py"
    script.write_text("")
    values = {"contract": str(packages), "python": sys.executable}
    return {**values, "script": str(script)} if target.name == "train" else values


def test_launch_starts_supervised_processes_of_the_table(target, given):
    specs = target.processes(given)
    actions = launching.launched(target.name, **given).started
    for spec in specs:
        action, command = actions[spec.role], spec.supervised_command()
        assert action.command[: len(command)] == command
        assert action.command[len(command) :] == ["--ros-args"] * bool(spec.module)
        assert isinstance(action, launching.Node) == bool(spec.module)
        assert action.settings["cwd"] == (spec.folder or ".")
        assert (action.name, action.settings["output"]) == (spec.role, "both")
    assert list(actions) == [spec.role for spec in specs]


def test_launch_waits_for_the_supervisor_before_sigkill(target, given):
    actions = launching.launched(target.name, **given).started
    for spec in target.processes(given):
        assert float(actions[spec.role].settings["sigkill_timeout"]) >= spec.longest_end_s >= 3 * spec.grace_s


def test_every_argument_has_default_and_description(target):
    description = launching.description_of(target.name).entities
    declared = [each for each in description if isinstance(each, launching.DeclareLaunchArgument)]
    of_launch = ["shutdown_on_exit", "respawn"]
    assert [each.name for each in declared] == [*(each.name for each in target.arguments), *of_launch]
    for argument, each in zip(target.arguments, declared, strict=False):
        assert each.default_value == argument.default
        assert each.description.startswith(argument.description)
        assert all(value in each.description for value in argument.allowed)


def test_every_target_has_exactly_one_launch_file():
    assert {file.name for file in launching.FOLDER.glob("*.py")} == {f"{name}.launch.py" for name in TARGETS}


def test_missing_launch_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "launch_ros", None)
    monkeypatch.delitem(sys.modules, "launch_ros.actions")
    monkeypatch.delitem(sys.modules, launching.OURS)
    with pytest.raises(MissingDependencyError, match=r"apt install ros-.*-launch-ros"):
        launching.description_of("sim")


def test_a_process_without_an_action_is_not_forgotten(ours):
    target = ours.RosTarget("sim")
    description = launching.LaunchDescription([*target.arguments(), target.node("simulator")])
    include = launching.IncludeLaunchDescription(description, {"policy": "hold"})
    with pytest.raises(UsageError, match="without an action for: evaluation"):
        launching.Context(launching.LaunchDescription([include]))


def test_an_interpreter_that_does_not_exist_starts_nothing():
    with pytest.raises(UsageError, match="python:=/no/such/python"):
        launching.launched("sim", python="/no/such/python")


@pytest.mark.parametrize("namespace", ["/a", "a", "none"])
def test_launch_joins_the_namespace_to_a_pushed_one(namespace):
    (action,) = launching.launched("sim", namespace=namespace).started.values()
    assert action.settings["namespace"] == namespace.replace("none", "")
    assert not any("__ns" in word for word in action.command)


def test_end_of_work_shuts_down():
    assert isinstance(launching.launched("sim", policy="hold").exits("evaluation", 0), launching.Shutdown)


@pytest.mark.parametrize(
    ("role", "status", "is_shutdown"), [("evaluation", 1, False), ("simulator", 0, False), ("evaluation", 137, True)]
)
def test_failed_work_and_an_early_end_of_the_simulator_fail_the_launch(ours, role, status, is_shutdown):
    launch = launching.launched("sim", policy="hold")
    launch.is_shutdown = is_shutdown
    with pytest.raises(ours.ProcessFailedError, match=f"{role} exited with status {status}"):
        launch.exits(role, status)


def test_exit_during_shutdown_is_not_a_failure():
    launch = launching.launched("sim", policy="hold")
    launch.is_shutdown = True
    assert launch.exits("simulator", 137) is None


def test_controller_spawner_may_exit(ours, packages):
    (packages.parent / "gazebo" / "arm.controllers.yaml").write_text("controller_manager:\n  a: 1\nsteering:\n  b: 1\n")
    assert launching.launched("gazebo", contract=str(packages)).exits("controllers", 0) is None
    with pytest.raises(ours.ProcessFailedError):
        launching.launched("gazebo", contract=str(packages)).exits("controllers", 1)


@pytest.mark.parametrize(("role", "other", "status"), [("evaluation", "relay", 1), ("relay", "evaluation", 0)])
def test_the_end_of_an_included_file_ends_its_own_processes_only(role, other, status):
    launch = launching.included("real")
    of_another = launching.included("real").started[other]
    with launching.running(launch.started[other]) as process:
        follows = launch.exits(role, status)
        assert process.wait() == -signal.SIGUSR2
    assert isinstance(follows.event, launching.ShutdownProcess)
    matches = follows.event.process_matcher
    assert [matches(launch.started[other]), matches(of_another)] == [True, False]
    assert launch.exits(other, 0) is None


@pytest.mark.parametrize("start", ["launched", "included"])
def test_shutdown_on_exit_decides_alike_at_any_level(start):
    for value, kind in (("True", launching.Shutdown), ("no", launching.EmitEvent)):
        launch = getattr(launching, start)("evaluate", shutdown_on_exit=value)
        assert isinstance(launch.exits("evaluation", 0), kind)


def test_a_process_that_respawns_ends_nothing():
    launch = launching.included("real", respawn="true")
    assert [launch.started[role].settings["respawn"] for role in ("relay", "evaluation")] == ["true", "false"]
    assert launch.exits("relay", 137) is None
    follows = launch.exits("evaluation", 0)
    assert follows.event.process_matcher(launch.started["relay"])


def test_only_the_user_arms_a_robot_without_the_name_of_the_contract():
    """Included launch files inherit the arguments of the including one."""
    assert "--dry-run" not in launching.launched("real", armed="True").started["evaluation"].command
    with pytest.raises(UsageError, match=r"armed:=True .*arm_reach"):
        launching.included("real", armed="True")
