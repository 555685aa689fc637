"""`SimulatorBackend` over MuJoCo, which steps, resets and places bodies by services."""

import contextlib
import dataclasses
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs rclpy")

from grippers import gripper_contract, gripper_text
from rclpy.duration import Duration
from service_stepping import RESTART, stepped_world
from std_srvs.srv import Trigger

import embodied_env
from embodied_env.backends.backend_registry import make_backend
from embodied_env.errors import BackendNotReadyError
from embodied_env.messages.message_types import message_class
from embodied_env.ros.transport.node import RosNode
from embodied_env.ros.transport.qos import RELIABLE
from embodied_env.testing import BackendContract
from embodied_env.timing.clock import SteadyClock

pytestmark = [pytest.mark.ros, pytest.mark.usefixtures("stepped_by_services")]

PATIENCE_S = 30.0
PROFILE = {
    "world": "arm_reach",
    "step_s": 0.05,
    "settle_steps": 1,
    "reset": "world",
    "draws": {"target": {"entity": "target"}},
}


def arm_with(**profile):
    contract = embodied_env.load_contract("arm_reach")
    return dataclasses.replace(contract, backends={**contract.backends, "gazebo": {**PROFILE, **profile}})


@pytest.fixture(scope="module")
def simulated(lasting_domain):
    """Start one simulator for most tests, and yield its domain."""
    with lasting_domain() as domain_id, stepped_world(arm_with()):
        yield domain_id


@pytest.fixture(scope="module")
def foreign_node(simulated):
    """Another client of the same simulator."""
    node = RosNode("foreign_node", namespace="/", clock=SteadyClock(), domain_id=simulated)
    yield lambda name: node.receiver.call(Trigger, name, Trigger.Request(), PATIENCE_S, lambda: None)
    node.close()


@contextlib.contextmanager
def attached(contract, **options):
    """Make an environment, and close it at the end."""
    env = embodied_env.make(contract, backend="gazebo", **options)
    try:
        yield env
    finally:
        env.close()


@pytest.fixture(scope="module")
def env(simulated):
    with attached(arm_with(), domain_id=simulated) as made:
        made.reset(seed=0)
        yield made


class TestSimulatorBackend(BackendContract):
    """The public conformance suite, with one backend for all tests but those that end it."""

    contract = arm_with()
    domain_id: int
    kept: Any

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def one_backend(cls, simulated):
        cls.clock, cls.domain_id = SteadyClock(), simulated
        with BackendContract.opened(cls()) as cls.kept:
            cls().reset(cls.kept)
            yield

    def make_backend(self, clock):
        return make_backend("gazebo", self.contract, clock=clock, domain_id=self.domain_id)

    @contextlib.contextmanager
    def opened(self):
        yield self.kept


def test_values_drawn_by_the_seed_are_set_in_the_world(env):
    observation, info = env.reset(seed=3)
    assert info["reset"]["seed_applied"] == -1
    np.testing.assert_allclose(observation["target_position"], info["reset"]["sampled"]["target"], atol=1e-12)
    again, _ = env.reset(seed=3)
    np.testing.assert_array_equal(again["target_position"], observation["target_position"])


def test_a_reset_option_is_set_in_the_world(env):
    wanted = np.array([-0.5, 0.1, 0.3])
    observation, _ = env.reset(seed=3, options={"target": wanted})
    np.testing.assert_allclose(observation["target_position"], wanted, atol=1e-12)


def test_the_arm_follows_its_commands(env):
    before, _ = env.reset(seed=3)
    for _ in range(20):
        after, *_ = env.step(np.array([0.5, 0, 0, 0, 0, 0]))
    assert after["joints_position"][0] > before["joints_position"][0] + 0.2


def test_a_reading_from_the_far_future_is_reported_and_the_next_reset_works(env, simulated):
    env.reset(seed=3)
    node = RosNode("forger", namespace="/", clock=SteadyClock(), domain_id=simulated)
    try:
        joints = node.node.create_publisher(message_class("sensor_msgs/msg/JointState"), "joint_states", RELIABLE)
        assert node.wait_until(lambda: joints.get_subscription_count() > 0, PATIENCE_S)
        stamped = joints.msg_type()
        stamped.header.stamp.sec = 2**31 - 1  # in the year 2038
        joints.publish(stamped)
        assert joints.wait_for_all_acked(Duration(seconds=PATIENCE_S))
    finally:
        node.close()
    *_, truncated, info = env.step(np.zeros(6))
    assert (truncated, info["end_reason"]) == (True, "backend_lost:future_reading")
    env.reset(seed=4)
    assert env.step(np.zeros(6))[-1]["end_reason"] == ""


def test_a_reset_recovers_from_a_lost_episode(env, foreign_node):
    env.reset(seed=3)
    foreign_node(RESTART)
    *_, info = env.step(np.zeros(6))
    assert info["end_reason"] == "backend_lost:extra_steps"
    env.reset(seed=4)
    assert env.step(np.zeros(6))[-1]["end_reason"] == ""


def test_missing_simulator_services_are_named(domain_id):
    with (
        attached(arm_with(), reset_timeout_s=0.3) as env,
        pytest.raises(BackendNotReadyError, match="no service /simulator/step_once"),
    ):
        env.reset(seed=1)


def test_an_unknown_entity_is_reported_by_name(simulated):
    with (
        attached(arm_with(draws={"target": {"entity": "targett"}}), domain_id=simulated) as env,
        pytest.raises(BackendNotReadyError, match=r"refused: .* for targett: "),
    ):
        env.reset(seed=1)


def test_homing_of_a_soft_reset_passes_the_gate(domain_id):
    home = {"j1": 0.3, "j2": -1.0, "j3": 1.2, "j4": -0.5, "j5": -1.0, "j6": 0.2}
    contract = arm_with(reset="soft", home=home)
    with stepped_world(contract) as world, attached(contract) as env:
        world.reset(1, {})
        observation, info = env.reset(seed=3)
    np.testing.assert_allclose(observation["joints_position"], list(home.values()), atol=0.02)
    assert (info["reset"]["level"], info["reset"]["routine"]) == ("soft", "home")
    np.testing.assert_allclose(observation["target_position"], info["reset"]["sampled"]["target"], atol=1e-12)


def test_a_topic_carries_the_goals_of_a_gripper(domain_id, tmp_path):
    contract = gripper_contract(tmp_path, gripper_text(scale="physical"))
    profile = {**PROFILE, "draws": {}, "world": "grasp"}
    contract = dataclasses.replace(contract, backends={**contract.backends, "gazebo": profile})
    with stepped_world(contract), attached(contract, domain_id=domain_id) as env:
        env.reset(seed=0)
        for _ in range(15):
            observation, *_, info = env.step({"arm": np.array([0.2]), "gripper": np.array([0.8])})
    assert observation["joints_position"][1] == pytest.approx(0.8, abs=0.05)
    assert info["action"]["applied"]["gripper"] == 0.8
    assert "annotations" not in info
