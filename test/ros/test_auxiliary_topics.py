"""Auxiliary topics of a simulator: stamped entity poses, and events."""

from __future__ import annotations

import pytest

pytest.importorskip("rclpy", reason="needs rclpy")

from nav_msgs.msg import Odometry
from std_msgs.msg import Bool

from embodied_env.contract import load_contract
from embodied_env.ros.external_sim.auxiliary_topics import EntityTopics
from embodied_env.ros.external_sim.backend_profile import load_simulator_profile
from embodied_env.ros.receiver import ReceivedMessage


def topics_of(name) -> EntityTopics:
    contract = load_contract(name)
    topics = EntityTopics(contract, load_simulator_profile(contract, "gazebo")[0])
    topics.subscribe(NoMessages())
    return topics


class NoMessages:
    def subscribe(self, *args, **options): ...


def arrival(key, message) -> ReceivedMessage:
    info = {"publication_sequence_number": 1, "source_timestamp": 1, "received_timestamp": 1}
    return ReceivedMessage(key=key, message=message, info=info, arrival_ns=0, arrival_system_ns=0)


def odometry(x, stamp_ns) -> Odometry:
    message = Odometry()
    message.header.stamp.sec, message.header.stamp.nanosec = divmod(stamp_ns, 1_000_000_000)
    message.pose.pose.position.x = x
    message.pose.pose.orientation.w = 1.0
    return message


def test_the_topics_of_the_profile_are_read_with_their_types():
    topics = {topic.topic: topic.type for topic in topics_of("cart_goal").topics.values()}
    assert topics == {
        "ground_truth/pose": "geometry_msgs/msg/PoseStamped",
        "ground_truth/goal_pose": "geometry_msgs/msg/PoseStamped",
        "ground_truth/collision": "std_msgs/msg/Bool",
    }


def test_a_pose_from_before_the_end_of_the_step_is_missing_and_named():
    auxiliary = topics_of("door_open")
    auxiliary.add(arrival("/state/tcp", odometry(1.0, 40)))
    auxiliary.add(arrival("/state/lever_end", odometry(2.0, 50)))
    assert auxiliary.missing(50, 50) == ["tcp/odometry"]


def test_the_newest_pose_is_used_regardless_of_later_messages():
    auxiliary = topics_of("door_open")
    for x, stamp_ns in ((1.0, 50), (9.0, 40)):
        auxiliary.add(arrival("/state/tcp", odometry(x, stamp_ns)))
    state = auxiliary.states()["tcp"]
    assert (state.position[0], state.stamp_ns) == (1.0, 50)


def test_a_pose_from_before_a_clock_rewind_is_dropped():
    auxiliary = topics_of("door_open")
    auxiliary.add(arrival("/state/tcp", odometry(1.0, 5_000)))
    assert "tcp/odometry" in auxiliary.missing(10, 10)
    assert "tcp" not in auxiliary.states()


def test_a_pose_without_a_rotation_is_rejected():
    auxiliary = topics_of("door_open")
    message = odometry(1.0, 50)
    message.pose.pose.orientation.w = 0.0
    auxiliary.add(arrival("/state/tcp", message))
    assert "tcp" not in auxiliary.states()


def test_an_event_is_reported_once():
    auxiliary = topics_of("cart_goal")
    auxiliary.add(arrival("/event/collision", Bool(data=True)))
    assert auxiliary.events() == {"collision"}
    assert auxiliary.events() == set()


def test_messages_from_before_a_reset_are_dropped():
    auxiliary = topics_of("cart_goal")
    auxiliary.add(arrival("/event/collision", Bool(data=True)))
    auxiliary.clear()
    assert auxiliary.events() == set()


def test_a_sensor_message_is_not_an_auxiliary_message():
    assert not topics_of("cart_goal").add(arrival("imu", Bool()))
