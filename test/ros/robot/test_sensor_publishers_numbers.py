"""The publishers of a topic, separated by the numbers and joint names of its messages."""

import itertools

import pytest

pytest.importorskip("rclpy", reason="needs rclpy")

from sensor_msgs.msg import JointState

from embodied_env.ros.robot.sensor_publishers import TopicPublishers
from embodied_env.ros.transport.receiver import ReceivedMessage
from embodied_env.timing.clock import NS_PER_S

pytestmark = pytest.mark.ros

ARM, FINGER, ALL = ("j1", "j2"), ("finger",), ("j1", "j2", "finger")
STAMPS_NS = itertools.count(1)


def receive(publishers, *numbers, names=ARM, at=0.0, source_ns=None):
    """Add messages of these publication numbers, and return the states after each, without reasons."""
    states = []
    for number in numbers:
        info = {"publication_sequence_number": number, "source_timestamp": source_ns or next(STAMPS_NS)}
        message = JointState(name=list(names), position=[at] * len(names))
        publishers.add(
            ReceivedMessage(key="joints", message=message, info=info, arrival_ns=NS_PER_S, arrival_system_ns=0)
        )
        states.append(publishers.state.status)
    return states


@pytest.fixture
def publishers():
    return TopicPublishers(is_by_joint=True, step={"j1": 0.05})


@pytest.mark.parametrize(
    ("numbers", "states"),
    [
        ([500, 1, 501], ["ok", "unclear", "contention"]),  # they alternate
        ([500, 501, 9000, 502], ["ok", "ok", "ok", "contention"]),  # a higher start
        ([500, 9000, 503, 9001], ["ok", "ok", "unclear", "contention"]),  # with losses
        ([7, 7, 8, 8], ["ok", "unclear", "contention", "contention"]),
        ([500, 3, 504], ["ok", "unclear", "contention"]),  # a lower start
        ([500, 1, 2, 3, 501], ["ok", "unclear", "unclear", "restarted", "contention"]),  # the first one is slow
        ([500, 1, 2, 3, 4, 5], ["ok", "unclear", "unclear", "restarted", "restarted", "restarted"]),  # a restart
        ([500, 2, 4, 5], ["ok", "unclear", "unclear", "restarted"]),  # a restart with losses
        ([5, 6, 9, 10], ["ok"] * 4),  # only losses
    ],
)
def test_numbers_that_do_not_rise_hold_and_are_explained_two_messages_later(publishers, numbers, states):
    assert receive(publishers, *numbers) == states


def test_a_message_out_of_order_is_left_to_the_number_of_publishers(publishers):
    assert receive(publishers, 5, 7) + receive(publishers, 6, source_ns=1) == ["ok"] * 3
    assert publishers.needs_count


def test_disjoint_names_are_separate_publishers_whatever_their_numbers(publishers):
    for number in (1, 2, 3):
        receive(publishers, 500 + number)
        receive(publishers, number, names=FINGER)
    assert (publishers.state.status, publishers.separate) == ("ok", 2)


def test_one_publisher_with_two_kinds_of_messages_is_not_two(publishers):
    for number in range(1, 9, 2):
        receive(publishers, number)
        receive(publishers, number, source_ns=1)  # sent again
        receive(publishers, number + 1, names=FINGER)
    assert (publishers.state.status, publishers.separate) == ("ok", 1)


def test_a_third_publisher_of_all_joints_is_contention(publishers):
    for number in (1, 2):
        receive(publishers, 500 + number)
        receive(publishers, number, names=FINGER)
    assert receive(publishers, 9000, names=ALL) == ["contention"]


def test_without_numbers_names_and_the_number_of_publishers_decide(publishers):
    receive(publishers, None, None)
    receive(publishers, None, names=FINGER)
    assert (publishers.state.status, publishers.separate, publishers.needs_count) == ("ok", 2, True)


@pytest.mark.parametrize(("number", "at", "jumps"), [(2, 1.0, False), (9, 0.04, False), (9, 1.0, True)])
def test_a_joint_in_two_places_is_a_jump_where_the_numbers_do_not_continue(publishers, number, at, jumps):
    receive(publishers, 1)
    receive(publishers, number, at=at)
    assert bool(publishers.jump(NS_PER_S)) == jumps
    assert not publishers.jump(3 * NS_PER_S)


def test_begin_ends_a_conflict(publishers):
    receive(publishers, 500, 1, 2, 3)
    publishers.begin()
    assert receive(publishers, 4, 5) == ["ok", "ok"]


def test_names_without_end_are_not_stored_and_leave_it_to_the_number_of_publishers(publishers):
    for number in range(200):
        receive(publishers, number + 1, names=(f"j{number}",))
    assert len(publishers._streams) == 64
    assert publishers.needs_count
