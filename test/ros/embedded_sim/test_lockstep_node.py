"""The node that hosts the world, in this process, with faulty worlds."""

import contextlib

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs rclpy")

from hosted_simulator import NAMESPACE, hosted_simulator
from std_srvs.srv import Trigger

import embodied_env
from embodied_env.errors import BackendLostError, BackendNotReadyError
from embodied_env.messages.message_types import message_class
from embodied_env.ros.embedded_sim.base_node import node_with_executor
from embodied_env.ros.embedded_sim.lockstep_node import SimulatorNode
from embodied_env.ros.transport.node import RosNode
from embodied_env.ros.wire.simulator_protocol import RESET_SERVICE, STEP_TOPIC
from embodied_env.sim.world import World
from embodied_env.timing.clock import SteadyClock

pytestmark = pytest.mark.ros

CONTRACT = embodied_env.load_contract("arm_reach")


class UnstableWorld(World):
    """A world that diverges at its third step."""

    steps = 0

    def step(self, commands=()):
        self.steps += 1
        if self.steps == 3:
            raise BackendLostError("sim_unstable", "diverged on purpose")
        super().step(commands)


class BrokenWorld(World):
    """A world that cannot be reset."""

    def reset(self, seed, options):
        raise BackendLostError("sim_unstable", "no reset on purpose")


@pytest.fixture
def hosted(domain_id):
    """Return a function that hosts a world of the given class in a thread, and returns an environment over it."""
    with contextlib.ExitStack() as stack:
        yield lambda *given: stack.enter_context(hosted_simulator(CONTRACT, *given))


def test_an_unstable_simulation_ends_the_episode_at_once_with_its_reason(hosted):
    env = hosted(UnstableWorld)
    env.reset(seed=1)
    results = [env.step(np.zeros(6)) for _ in range(3)]
    assert [r[-1]["end_reason"] for r in results] == ["", "", "backend_lost:sim_unstable"]
    assert results[-1][3] is True


def test_a_world_that_cannot_be_reset_is_an_error_with_its_reason(hosted):
    env = hosted(BrokenWorld)
    with pytest.raises(BackendNotReadyError, match="no reset on purpose"):
        env.reset(seed=1)


def test_a_reset_without_its_parameters_is_rejected(hosted):
    hosted(World)
    foreign_node = RosNode("foreign_node", namespace=NAMESPACE, clock=SteadyClock())
    response = foreign_node.receiver.call(Trigger, RESET_SERVICE, Trigger.Request(), 30.0, lambda: None)
    foreign_node.close()
    assert not response.success
    assert "reset.epoch" in response.message


def run_by_an_executor(contract, world, *, namespace, stop):
    """Do what `run_simulator` does, without rclpy's wait set."""

    def make(context):
        return SimulatorNode(contract, world, namespace=namespace, context=context)

    with node_with_executor(contract, make) as (_, executor):
        while not stop.is_set():
            executor.spin_once(timeout_sec=0.05)


def test_an_executor_alone_drives_the_node(hosted):
    env, alone = hosted(World, run_by_an_executor), embodied_env.make("arm_reach", backend="mujoco")
    for each in (env, alone):
        each.reset(seed=1)
    action = np.linspace(-1.0, 1.0, 6)
    observations = [[each.step(action)[0] for _ in range(3)] for each in (env, alone)]
    for one, other in zip(*observations, strict=True):
        assert {key: value.tobytes() for key, value in one.items()} == {k: v.tobytes() for k, v in other.items()}
    alone.close()


def test_invalid_bytes_are_ignored(hosted):
    env = hosted(World)
    env.reset(seed=1)
    foreign_node = RosNode("foreign_node", namespace=NAMESPACE, clock=SteadyClock())
    (actuator,) = CONTRACT.actuators.values()
    topics = {actuator.topic: message_class(actuator.type), STEP_TOPIC: message_class("std_msgs/msg/Int64MultiArray")}
    for topic, kind in topics.items():
        publisher = foreign_node.node.create_publisher(kind, topic, 10)
        assert foreign_node.wait_until(publisher.get_subscription_count, 10.0)
        for junk in (b"\x00\x01\x00\x00", b"\x00\x01\x00\x00" + b"\xff" * 40):
            publisher.publish(junk)
    foreign_node.close()
    results = [env.step(np.zeros(6)) for _ in range(2)]
    assert [result[-1]["end_reason"] for result in results] == ["", ""]


def test_simulated_time_is_published_and_never_goes_back(hosted):
    from rosgraph_msgs.msg import Clock

    env = hosted(World)
    listener = RosNode("listener", namespace=NAMESPACE, clock=SteadyClock())
    listener.receiver.subscribe("clock", Clock, "clock")
    assert listener.wait_until(lambda: listener.node.count_publishers("clock") > 0, 10.0)
    for seed in range(2):
        env.reset(seed=seed)
        env.step(np.zeros(6))
    stamps = []
    while arrivals := listener.receiver.receive(0.3):
        stamps += [a.message.clock.sec * 10**9 + a.message.clock.nanosec for a in arrivals]
    listener.close()
    assert len(stamps) >= 3
    assert stamps == sorted(stamps)
