"""The requests to a controller manager, and what it leaves unanswered."""

import threading

import pytest
import ros_domains

pytest.importorskip("rclpy", reason="needs rclpy")

from rclpy.executors import SingleThreadedExecutor

from embodied_env.errors import BackendNotReadyError
from embodied_env.ros.transport.node import RosNode
from embodied_env.timing.clock import SteadyClock

pytestmark = pytest.mark.ros

MANAGER = "/manager"


class SlowManager:
    """A controller manager that answers a switch when it is released."""

    def __init__(self, node):
        from controller_manager_msgs.msg import ControllerState
        from controller_manager_msgs.srv import ListControllers, SwitchController

        self.release, self.timeouts = threading.Event(), []

        def switch(request, response):
            self.timeouts.append(request.timeout.sec * 10**9 + request.timeout.nanosec)
            self.release.wait(10.0)
            response.ok = True
            return response

        def listed(_, response):
            response.controller = [ControllerState(name="forward", state="inactive")]
            return response

        node.create_service(ListControllers, f"{MANAGER}/list_controllers", listed)
        node.create_service(SwitchController, f"{MANAGER}/switch_controller", switch)


@pytest.fixture
def manager(message_package):
    message_package("controller_manager_msgs")
    ros = RosNode("manager", namespace="/", clock=SteadyClock(), domain_id=ros_domains.FOR_MODULES)
    executor = SingleThreadedExecutor(context=ros.node.context)
    executor.add_node(ros.node)
    manager = SlowManager(ros.node)
    thread = threading.Thread(target=executor.spin)
    thread.start()
    yield manager
    manager.release.set()
    executor.shutdown()
    thread.join()
    ros.close()


def test_a_switch_has_the_time_limit_of_the_contract_and_an_end(manager):
    from embodied_env.extensions.runner.controller_switch import RunnerControllers, switch_controllers

    controllers = RunnerControllers(activate=("forward",), manager=MANAGER, timeout_s=0.3)
    options = {"name": "switch", "namespace": "/", "domain_id": ros_domains.FOR_MODULES}
    with pytest.raises(BackendNotReadyError, match="switch_controller did not respond in time"):
        switch_controllers(controllers, **options)
    manager.release.set()
    switch_controllers(controllers, **options)
    assert manager.timeouts == [300_000_000] * 2
