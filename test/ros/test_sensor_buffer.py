"""What the middleware's numbers and the stamps say was lost, repeated, or out of order."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs rclpy")

from embodied_env.backends.ros.node import Arrival
from embodied_env.backends.ros.sensors import SensorBuffer
from embodied_env.contract import FieldSpec, SensorSpec
from embodied_env.sim.messages import to_message
from embodied_env.transition import Quality

pytestmark = pytest.mark.ros

SENSOR = SensorSpec(
    topic="topic",
    type="geometry_msgs/msg/PointStamped",
    fields={"position": FieldSpec(unit="m", low=-1.0, high=1.0)},
    max_age_s=1.0,
)


def arrival(*, stamp_ns, number, values=(1.0, 2.0, 3.0)):
    return Arrival(
        key="point",
        message=to_message(SENSOR, {"position": np.array(values)}, stamp_ns),
        info={"source_timestamp": 10, "received_timestamp": 20, "publication_sequence_number": number},
        arrival_ns=30,
        arrival_system_ns=40,
    )


@pytest.fixture
def buffer():
    return SensorBuffer("point", SENSOR)


def test_before_the_first_message_there_is_no_sample(buffer):
    assert buffer.sample() is None


def test_a_sample_carries_every_stamp(buffer):
    buffer.put(arrival(stamp_ns=5, number=1))
    sample = buffer.sample()
    assert (sample.stamp_ns, sample.arrival_ns, sample.arrival_system_ns) == (5, 30, 40)
    assert (sample.source_ns, sample.received_ns) == (10, 20)


def test_a_gap_in_the_numbers_is_lost_messages(buffer):
    buffer.put(arrival(stamp_ns=5, number=1))
    buffer.put(arrival(stamp_ns=6, number=4))
    assert buffer.sample().lost == 2


def test_counts_are_since_the_last_sample(buffer):
    buffer.put(arrival(stamp_ns=5, number=1))
    buffer.put(arrival(stamp_ns=6, number=4))
    buffer.sample()
    assert buffer.sample().lost == 0


def test_an_older_stamp_is_counted_and_not_taken(buffer):
    buffer.put(arrival(stamp_ns=6, number=1))
    buffer.put(arrival(stamp_ns=5, number=2, values=(9.0, 9.0, 9.0)))
    sample = buffer.sample()
    assert (sample.reordered, sample.stamp_ns, sample.values["position"][0]) == (1, 6, 1.0)


def test_the_same_stamp_again_is_a_duplicate(buffer):
    buffer.put(arrival(stamp_ns=6, number=1))
    buffer.put(arrival(stamp_ns=6, number=2))
    assert buffer.sample().duplicated == 1


def test_clearing_forgets_the_reading_but_not_the_numbering(buffer):
    buffer.put(arrival(stamp_ns=6, number=1))
    buffer.clear()
    assert buffer.sample() is None
    buffer.put(arrival(stamp_ns=7, number=5))
    assert buffer.sample().lost == 0


def test_a_message_without_a_stamp_is_named(buffer):
    buffer.put(arrival(stamp_ns=0, number=1))
    assert buffer.sample().quality is Quality.ZERO_STAMP


def test_a_malformed_message_is_an_invalid_sample_with_its_reason():
    joints = SensorSpec(
        topic="joints",
        type="sensor_msgs/msg/JointState",
        fields={"position": FieldSpec(unit="rad", low=-1.0, high=1.0, joints=("a", "b"))},
        max_age_s=1.0,
    )
    buffer = SensorBuffer("joints", joints)
    message = to_message(joints, {"position": np.zeros(2)}, 5)
    message.name = ["a", "c"]
    info = {"source_timestamp": 1, "received_timestamp": 2, "publication_sequence_number": 1}
    buffer.put(Arrival(key="joints", message=message, info=info, arrival_ns=1, arrival_system_ns=1))
    sample = buffer.sample()
    assert sample.quality is Quality.INVALID
    assert "position of b is missing" in sample.reason
