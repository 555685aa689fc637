"""The runner without its interface package, and killed in each state."""

import math

import pytest
from held_executor import FLAT_KB, resident_kb

pytest.importorskip("rclpy", reason="needs rclpy")

from rcl_interfaces.srv import GetParameters, SetParameters
from rclpy.parameter import Parameter
from std_srvs.srv import Trigger

pytestmark = [pytest.mark.ros, pytest.mark.kills, pytest.mark.realtime]


@pytest.fixture
def make_rig(message_package, tmp_path):
    """Return a function that starts a robot and a runner."""
    message_package("embodied_env_interfaces")
    from runner_rig import RunnerRig

    made = []

    def make(*options, **more):
        made.append(RunnerRig(tmp_path, *options, **more))
        return made[-1]

    yield make
    for rig in made:
        rig.close()


def set_parameters(client, **values):
    parameters = [Parameter(f"goal.{name}", value=value).to_parameter_msg() for name, value in values.items()]
    return [
        each.successful for each in client.call(SetParameters, "runner/set_parameters", parameters=parameters).results
    ]


def test_services_and_parameters_do_the_same_without_the_interfaces(make_rig):
    rig = make_rig("--autostart", has_types=False)
    client = rig.client
    client.wait_until(lambda: client.status.get("state") == "active", timeout_s=90.0)
    offers = client.call(GetParameters, "runner/get_parameters", names=["offers"]).values[0].string_array_value
    assert offers == client.status["offers"] == ["runner/run", "runner/stop"]
    assert set_parameters(client, seconds=600.0, limit_joints=["j1"], limit_velocities=[1.0]) == [True] * 3
    assert set_parameters(client, seconds="long") == [False]
    assert client.call(Trigger, "runner/run").success
    again = client.call(Trigger, "runner/run")
    assert (again.success, "one at a time" in again.message) == (False, True)
    client.wait_until(lambda: rig.speed() > 0.7)
    stopped = client.call(Trigger, "runner/stop")
    assert (stopped.success, stopped.message) == (True, "at rest")
    sent = len(rig.commands)
    client.wait_until(lambda: not client.status["running"])
    assert client.status["message"] == "stopped by ~/stop"
    assert client.status["end_reason"] == "policy_lost:stopped by ~/stop"
    assert len(rig.commands) == sent
    assert set_parameters(client, limit_velocities=[99.0]) == [True]
    refused = client.call(Trigger, "runner/run")
    assert (refused.success, "limit not tighter" in refused.message) == (False, True)


@pytest.mark.long
@pytest.mark.parametrize("state", ["unconfigured", "inactive", "active", "running"])
def test_a_runner_that_is_killed_leaves_a_robot_at_rest_that_the_next_one_drives(make_rig, state):
    from runner_rig import CONFIGURE, SUCCEEDED

    rig = make_rig()
    if state == "inactive":
        assert rig.client.change(CONFIGURE)
    elif state != "unconfigured":
        rig.activate()
    if state == "running":
        rig.run_to_full_speed()
    rig.kill()
    sent = len(rig.commands)
    rig.start()
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
def test_shutdown_and_a_cancel_during_a_reset_answer(make_rig):
    from runner_rig import ABORTED, CANCELED, SHUTDOWN

    rig = make_rig()
    rig.activate()
    handle = rig.client.send(seconds=60.0)
    rig.client.answer(handle.cancel_goal_async())
    status, result = rig.client.result(handle)
    assert (status, result.message) == (CANCELED, "canceled")
    handle = rig.run_to_full_speed()
    future = handle.get_result_async()
    assert rig.client.change(SHUTDOWN)
    rig.check_braked()
    assert rig.client.answer(future).status == ABORTED
    assert rig.client.state() == "finalized"
    assert not rig.client.send().accepted
    rig.client.wait_until(lambda: "the runner is finalized" in rig.client.status["reason"])
