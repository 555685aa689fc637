"""The requests to a controller manager that leaves them unanswered or refuses them."""

import threading
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("rclpy", reason="needs rclpy")

from rclpy.executors import SingleThreadedExecutor

from embodied_env.errors import BackendNotReadyError
from embodied_env.extensions.runner.controller_switch import RunnerControllers, repeat_switch, switch_controllers
from embodied_env.extensions.runner.policy_runner import PolicyRunner, RunnerOptions
from embodied_env.ros.transport.node import RosNode
from embodied_env.timing.clock import NS_PER_S, SteadyClock, VirtualClock

pytestmark = pytest.mark.ros

MANAGER = "/manager"
PATIENCE_S = 30.0


class StubManager:
    """A controller manager that answers a switch when it is released, and refuses some."""

    def __init__(self, node):
        from controller_manager_msgs.msg import ControllerState
        from controller_manager_msgs.srv import ListControllers, SwitchController

        self.release, self.timeouts, self.state, self.refusals = threading.Event(), [], "inactive", 0

        def switch(request, response):
            self.timeouts.append(request.timeout.sec * 10**9 + request.timeout.nanosec)
            self.release.wait(PATIENCE_S)
            self.refusals -= 1
            response.ok = self.refusals < 0
            if response.ok:
                self.state = "active" if request.activate_controllers else "inactive"
            return response

        def listed(_, response):
            response.controller = [ControllerState(name="forward", state=self.state)]
            return response

        node.create_service(ListControllers, f"{MANAGER}/list_controllers", listed)
        node.create_service(SwitchController, f"{MANAGER}/switch_controller", switch)


@pytest.fixture
def manager(message_package, domain_id):
    message_package("controller_manager_msgs")
    ros = RosNode("manager", namespace="/", clock=SteadyClock())
    executor = SingleThreadedExecutor(context=ros.node.context)
    executor.add_node(ros.node)
    manager = StubManager(ros.node)
    thread = threading.Thread(target=executor.spin)
    thread.start()
    yield manager
    manager.release.set()
    executor.shutdown()
    thread.join()
    ros.close()


def problem_of(controllers, options):
    """Return why a switch failed, without the name of the manager, or ""."""
    try:
        switch_controllers(controllers, **options)
    except BackendNotReadyError as error:
        return str(error).rpartition("/")[2]
    return ""


def test_a_switch_has_the_time_limit_of_the_contract_and_an_end(manager):
    controllers = RunnerControllers(activate=("forward",), manager=MANAGER, timeout_s=1.5)
    options: dict = {"name": "switch", "namespace": "/"}
    expected, end = "switch_controller did not respond in time", time.monotonic() + PATIENCE_S
    while (found := problem_of(controllers, options)) != expected:  # a busy machine discovers the manager late
        assert time.monotonic() < end, found
    manager.release.set()
    while found := problem_of(controllers, options):
        assert time.monotonic() < end, found
    assert set(manager.timeouts) == {1_500_000_000}
    assert manager.state == "active"


def test_a_switch_back_that_a_manager_leaves_unanswered_is_not_repeated_after_the_deadline():
    clock, called_ns = VirtualClock(), []

    def hang():
        called_ns.append(clock.now_ns())
        clock.sleep_until_ns(clock.now_ns() + 6 * NS_PER_S)
        raise BackendNotReadyError("no response")

    deadline_ns = clock.now_ns() + 11 * NS_PER_S
    expected = "^controllers not switched back by attempt 2: no response; run it by hand$"
    with pytest.raises(BackendNotReadyError, match=expected):
        repeat_switch(hang, clock, deadline_ns, remedy="run it by hand")
    assert len(called_ns) == 2


def test_a_refused_switch_back_is_repeated_and_tried_again_at_the_next_deactivation(manager):
    robot = {"node_name": "runner", "namespace": "/"}
    runner = PolicyRunner(RunnerOptions(contract="arm_reach", policy="hold", robot=robot))
    runner._switched = RunnerControllers(activate=("forward",), manager=MANAGER, timeout_s=PATIENCE_S)
    manager.state, manager.refusals = "active", 99
    manager.release.set()
    expected = (
        "controllers not switched back by attempt 3: /manager refused to switch controllers: activate none, "
        "deactivate forward .*; run ros2 control switch_controllers -c /manager --deactivate forward$"
    )
    with pytest.raises(BackendNotReadyError, match=expected):
        runner.deactivate("it ends")
    assert len(manager.timeouts) == 3
    manager.refusals = 1
    for _ in range(2):  # the second has nothing left to switch
        runner.deactivate("it ends")
        assert (manager.state, len(manager.timeouts)) == ("inactive", 5)


def test_an_activation_without_a_request_to_switch_has_nothing_to_switch_back(manager, monkeypatch):
    robot = {"node_name": "runner", "namespace": "/cell"}
    runner = PolicyRunner(RunnerOptions(contract="arm_reach", policy="hold", robot=robot))
    runner._profile = SimpleNamespace(active={})
    runner._controllers = RunnerControllers(activate=("foward",), manager=MANAGER, timeout_s=PATIENCE_S)
    monkeypatch.setattr(runner, "_check_robot", lambda _: None)
    with pytest.raises(BackendNotReadyError, match=r"^/manager has no controller foward \(expected one of: forward\)$"):
        runner.activate()
    assert runner._switched is None
    runner._controllers = RunnerControllers(activate=("forward",), manager="absent", timeout_s=0.1)
    with pytest.raises(BackendNotReadyError, match=r"^service /cell/absent/list_controllers is not available$"):
        runner.activate()
    with pytest.raises(BackendNotReadyError, match=r"run ros2 control switch_controllers -c /cell/absent --deactivate"):
        runner._switch(runner._controllers, back=True)
