"""Auxiliary topics of a simulator are stamped entity poses, forces that show contacts, and echoes of commands."""

from typing import Any

import pytest

pytest.importorskip("rclpy", reason="needs rclpy")

from geometry_msgs.msg import WrenchStamped
from nav_msgs.msg import Odometry
from std_msgs.msg import Float64MultiArray

from embodied_env.contract import load_contract
from embodied_env.extensions.gazebo.derived_sensors import CommandEchoes, EntityTopics
from embodied_env.extensions.gazebo.external_sim_profile import load_simulator_profile
from embodied_env.ros.transport.receiver import ReceivedMessage


def topics_of(name) -> EntityTopics:
    contract = load_contract(name)
    topics = EntityTopics(load_simulator_profile(contract, "gazebo")[0])
    receiver: Any = NoMessages()
    topics.subscribe(receiver)
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


def force(x, stamp_ns) -> WrenchStamped:
    message = WrenchStamped()
    message.header.stamp.sec, message.header.stamp.nanosec = divmod(stamp_ns, 1_000_000_000)
    message.wrench.force.x = x
    return message


def test_a_pose_from_before_the_end_of_the_step_is_missing_and_named():
    auxiliary = topics_of("door_open")
    auxiliary.add(arrival("/state/tcp", odometry(1.0, 40)))
    auxiliary.add(arrival("/state/lever_end", odometry(2.0, 50)))
    assert auxiliary.missing(50, 50) == ["tcp/odometry"]


def test_the_newest_pose_is_used_regardless_of_later_messages():
    auxiliary = topics_of("door_open")
    for x, stamp_ns in ((1.0, 50), (9.0, 40)):
        auxiliary.add(arrival("/state/tcp", odometry(x, stamp_ns)))
    assert auxiliary.states()["tcp"].position[0] == 1.0


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


@pytest.mark.parametrize(("force_n", "is_contact"), [(0.01, False), (0.5, False), (0.6, True), (float("nan"), True)])
def test_a_force_above_the_threshold_is_a_contact(force_n, is_contact):
    auxiliary = topics_of("cart_goal")
    auxiliary.add(arrival("/force/collision", force(force_n, 40)))
    assert auxiliary.contacts() == ({"collision"} if is_contact else set())


def test_a_contact_earlier_in_the_step_is_reported_once():
    auxiliary = topics_of("cart_goal")
    for force_n, stamp_ns in ((7000.0, 40), (0.01, 50)):
        auxiliary.add(arrival("/force/collision", force(force_n, stamp_ns)))
    assert auxiliary.contacts() == {"collision"}
    assert auxiliary.contacts() == set()


def test_contacts_from_before_a_reset_are_dropped():
    auxiliary = topics_of("cart_goal")
    auxiliary.add(arrival("/force/collision", force(9.0, 40)))
    auxiliary.clear()
    assert auxiliary.contacts() == set()


def test_a_force_sensor_that_publishes_nothing_more_is_missing():
    auxiliary = topics_of("cart_goal")
    auxiliary.add(arrival("/force/collision", force(0.01, 40)))
    assert "ground_truth/shell_force" in auxiliary.missing(50, 50)
    auxiliary.add(arrival("/force/collision", force(0.01, 50)))
    assert "ground_truth/shell_force" not in auxiliary.missing(50, 50)


def test_only_the_repeated_values_of_the_newest_command_are_its_echo():
    echoes = CommandEchoes(load_contract("arm_reach"), {"arm": "echo"})
    for value in (1.0, 2.0):
        echoes.expect("arm", Float64MultiArray(data=[value] * 6))
    assert echoes.add(arrival("/echo/arm", Float64MultiArray(data=[1.0] * 6)))
    assert echoes.missing() == ["echo"]
    assert echoes.add(arrival("/echo/arm", Float64MultiArray(data=[2.0] * 6)))
    assert echoes.missing() == []
