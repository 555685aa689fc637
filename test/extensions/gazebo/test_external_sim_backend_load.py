"""Messages that a step takes through rclpy while Gazebo publishes everything at every step of physics."""

import contextlib
import dataclasses
from collections import Counter

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs rclpy")

from geometry_msgs.msg import PoseStamped
from simulator_stand_ins import STAND_INS, RosGzStandIn, hosted, stamp_of

import embodied_env

pytestmark = pytest.mark.ros

ARM = embodied_env.load_contract("arm_reach")
PROFILE = {"world": "toy", "step_s": 0.001, "reset": "world", "settle_steps": 50}
STEPS = 10
MOST_PER_STEP = 80  # a tenth of the 809 of a real server before only the newest messages were taken


class BusyArm(RosGzStandIn):
    """The world of arm_reach without publishing rates, in which a paused JointStatePublisher repeats its message."""

    def __init__(self, faults):
        super().__init__(faults)
        self._poses = [self.node.create_publisher(PoseStamped, topic, 10) for topic in ("tcp_pose", "target_pose")]

    def _publish_joints(self):
        super()._publish_joints()
        for x, publisher in enumerate(self._poses):
            message = PoseStamped()
            message.pose.position.x = 0.5 * x
            message.header.stamp = stamp_of(self.world.now_ns)
            message.pose.orientation.w = 1.0
            publisher.publish(message)

    def _publish_clock(self, times=1):
        super()._publish_clock(times)
        if self.world.paused and not self.world.pending:
            super()._publish_joints()


@pytest.fixture
def env(request, domain_id, message_package, monkeypatch):
    """An environment with a busy simulator, of which a parameter is the pace, s per iteration."""
    message_package("ros_gz_interfaces")
    monkeypatch.setitem(STAND_INS, "busy", BusyArm)
    monkeypatch.setattr(BusyArm, "pace_s", getattr(request, "param", BusyArm.pace_s))
    profile = {**PROFILE, "sources": {"true_distance": {"distance": ["tcp", "target"]}}}
    contract = dataclasses.replace(ARM, backends={"gazebo": profile})
    with hosted("busy"), contextlib.closing(embodied_env.make(contract, backend="gazebo")) as made:
        made.reset(seed=0)
        yield made


def test_a_step_takes_the_clock_and_the_newest_reading_of_each_sensor(env):
    taken = Counter()
    env.unwrapped.feed.sink = lambda message: taken.update([message.topic] * (not message.is_ours))
    for _ in range(STEPS):
        *_, info = env.step(np.zeros(6))
        assert (info["end_reason"], {each["age_s"] for each in info["sensors"].values()}) == ("", {0.0})
    env.unwrapped.feed.sink = None
    assert set(taken) == {"/clock", "/joint_states", "/tcp_pose", "/target_pose"}
    assert sum(taken.values()) / STEPS < MOST_PER_STEP, taken


@pytest.mark.parametrize("env", [0.0012], indirect=True)
def test_the_first_reset_in_a_throttled_world_warns_once(env, caplog):
    env.reset(seed=1)
    records = [*caplog.get_records("setup"), *caplog.records]
    (warning,) = [record.getMessage() for record in records if "throttled" in record.getMessage()]
    assert "launch gazebo real_time_factor:=0" in warning
