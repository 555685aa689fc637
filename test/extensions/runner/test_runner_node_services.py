"""The runner without its interface package, and killed in each state."""

import math
import os
import signal

import pytest
from held_executor import FLAT_KB, resident_kb

pytest.importorskip("rclpy", reason="needs rclpy")

from rcl_interfaces.srv import GetParameters, SetParameters
from rclpy.parameter import Parameter
from robot_rig import ATTEMPTS
from sensor_msgs.msg import JointState
from std_srvs.srv import Trigger

import embodied_env
from embodied_env.record.run_repair import repair_run

AT_REST = 0.02  # rad/s

pytestmark = [pytest.mark.ros, pytest.mark.kills, pytest.mark.realtime]


@pytest.fixture
def make_rig(message_package, tmp_path):
    """Return a function that starts a robot and a runner."""
    message_package("embodied_env_interfaces")
    message_package("controller_manager_msgs")
    from runner_rig import RunnerRig

    made = []

    def make(*options, **more):
        made.append(RunnerRig(tmp_path, *options, **more))
        return made[-1]

    yield make
    for rig in made:
        rig.close()


def record_speeds(client):
    """Return the greatest speeds of the joints, which grow with each message."""
    speeds = []
    client.node.create_subscription(
        JointState, "joint_states", lambda message: speeds.append(max(map(abs, message.velocity))), 10
    )
    return speeds


def set_parameters(client, **values):
    parameters = [Parameter(f"goal.{name}", value=value).to_parameter_msg() for name, value in values.items()]
    return [
        each.successful for each in client.call(SetParameters, "runner/set_parameters", parameters=parameters).results
    ]


def run_to_speed(rig):
    """Run a goal, again after a stall of the machine has ended it, until the robot moves."""
    for _ in range(ATTEMPTS):
        rig.first, run = len(rig.commands), rig.client.status.get("run")
        assert rig.client.call(Trigger, "runner/run").success

        def has_ended(run=run):
            return not rig.client.status["running"] and rig.client.status.get("run") != run

        rig.client.wait_until(lambda: rig.speed() > 0.7 or has_ended())
        if not has_ended():
            return
    raise AssertionError(f"{ATTEMPTS} goals ended early: {rig.client.status}")


def test_services_and_parameters_do_the_same_without_the_interfaces_and_behind_a_relay(make_rig):
    """The shutdown at its end is final, though the controllers are not switched back."""
    from runner_rig import BLOCK, SHUTDOWN, Manager

    rig = make_rig("--autostart", has_types=False, has_relay=True, blocks={"runner": BLOCK})
    manager, client = Manager(rig.monitor.ros.node), rig.client
    client.wait_until(lambda: client.status.get("state") == "active", timeout_s=90.0)
    offers = client.call(GetParameters, "runner/get_parameters", names=["offers"]).values[0].string_array_value
    assert offers == client.status["offers"] == ["runner/run", "runner/instruct", "runner/stop"]
    assert set_parameters(client, seconds=600.0) == [True]
    assert set_parameters(client, seconds="long") == [False]
    run_to_speed(rig)
    again = client.call(Trigger, "runner/run")
    assert (again.success, "one at a time" in again.message) == (False, True)
    stopped = client.call(Trigger, "runner/stop")
    assert (stopped.success, stopped.message) == (True, "at rest")
    client.wait_until(lambda: rig.speed() == 0.0)  # the last command may arrive after the answer
    client.wait_until(lambda: not client.status["running"])
    assert client.status["message"] == "stopped by ~/stop"
    assert client.status["end_reason"] == "policy_lost:stopped by ~/stop"
    assert set_parameters(client, limit_joints=["j1"], limit_velocities=[1.0]) == [True] * 2
    refused = client.call(Trigger, "runner/run")
    assert (refused.success, "limits of a goal with a relay" in refused.message) == (False, True)
    manager.refuses = True
    assert not client.change(SHUTDOWN)
    assert client.state() == "finalized"
    client.wait_until(lambda: client.status["state"] == "finalized")
    assert "refused to switch controllers: activate trajectory" in client.status["reason"]
    assert "the runner is finalized" in client.call(Trigger, "runner/run").message
    os.kill(rig.process.pid, signal.SIGHUP)
    rig.process.wait(30.0)
    assert rig.process.exit_code == 0, rig.process.stderr_tail()


@pytest.mark.long
def test_behind_a_relay_a_goal_is_canceled_and_the_relay_brakes_after_a_kill(make_rig):
    from runner_rig import ACTIVATE, CONFIGURE

    rig = make_rig(has_relay=True)
    client = rig.client
    client.wait_until(lambda: client.change(CONFIGURE), timeout_s=90.0)
    client.wait_until(lambda: client.change(ACTIVATE), timeout_s=90.0)
    handle = rig.run_to_full_speed()
    client.answer(handle.cancel_goal_async())
    assert client.result(handle)[0] == rig.CANCELED
    rig.check_braked()
    rig.run_to_full_speed()
    rig.kill()
    client.wait_until(lambda: rig.speed() == 0.0)  # the relay repeats the last command, where the robot has stopped


@pytest.mark.long
@pytest.mark.parametrize("state", ["unconfigured", "inactive", "active", "running"])
def test_a_runner_that_is_killed_leaves_a_robot_at_rest_that_the_next_one_drives(make_rig, state):
    from runner_rig import CONFIGURE, SUCCEEDED

    rig = make_rig()
    moving = record_speeds(rig.client)
    if state == "inactive":
        assert rig.client.change(CONFIGURE)
    elif state != "unconfigured":
        rig.activate()
    if state == "running":
        rig.run_to_full_speed()
    rig.kill()
    sent = len(rig.commands)
    moving.clear()
    rig.client.wait_until(lambda: len(moving) > 10 and max(moving[-5:]) < AT_REST)
    runs = sorted(path.parent for path in rig.folder.glob("*/manifest.json"))
    assert len(runs) == (state == "running")
    for run in runs:  # it has no end, and every row that was flushed
        rows = list(embodied_env.read_run(run).rows())
        assert 0 < len(rows) <= sent
        assert not any(row["info"]["end_reason"] for row in rows)
        repair_run(run)
        assert len(list(embodied_env.read_run(run).rows())) == len(rows)
    rig.restart()
    rig.client.wait_until(lambda: rig.client.status.get("state") == "unconfigured", timeout_s=60.0)
    assert len(rig.commands) <= sent + 1  # one may have been on its way
    rig.activate()
    assert rig.client.run(seconds=0.3)[0] == SUCCEEDED


@pytest.mark.long
def test_a_hundred_goals_need_no_more_memory(make_rig):
    from runner_rig import SUCCEEDED

    rig = make_rig()
    rig.activate()
    sizes = []
    for _ in range(100):
        status, result = rig.client.run(seconds=0.2)
        assert status == SUCCEEDED, result
        sizes.append(resident_kb(rig.process.pid)[1])
    assert max(sizes[80:]) - max(sizes[20:40]) < FLAT_KB, sizes
    assert math.isfinite(rig.client.feedback[-1].oldest_reading_s)


@pytest.mark.long
def test_a_cancel_during_a_reset_and_a_shutdown_during_a_cancel_answer(make_rig):
    from runner_rig import CANCELED, SHUTDOWN

    rig = make_rig()
    rig.activate()
    handle = rig.client.send(seconds=60.0)
    rig.client.answer(handle.cancel_goal_async())
    status, result = rig.client.result(handle)
    assert (status, result.message) == (CANCELED, "canceled")
    handle = rig.run_to_full_speed()
    future, canceled = handle.get_result_async(), handle.cancel_goal_async()
    assert rig.client.change(SHUTDOWN)
    rig.check_braked()
    assert rig.client.answer(canceled).goals_canceling
    assert rig.client.answer(future).status == CANCELED
    assert rig.client.state() == "finalized"
    assert not rig.client.send().accepted
    rig.client.wait_until(lambda: "the runner is finalized" in rig.client.status["reason"])
