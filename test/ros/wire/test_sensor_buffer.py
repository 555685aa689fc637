"""Lost, duplicated and reordered messages, detected by sequence numbers and stamps."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs rclpy")

from stamped_robot import MS, StampedRobot

from embodied_env.contract import FieldSpec, SensorSpec
from embodied_env.core.code_types import Quality
from embodied_env.errors import BackendNotReadyError
from embodied_env.ros.embedded_sim.message_encoder import to_message
from embodied_env.ros.transport.receiver import ReceivedMessage
from embodied_env.ros.wire.sensor_buffer import SensorBuffer
from embodied_env.ros.wire.stamp_translation import ArrivalAges
from embodied_env.timing.clock import NS_PER_S

pytestmark = pytest.mark.ros

SENSOR = SensorSpec(
    topic="topic",
    type="geometry_msgs/msg/PointStamped",
    fields={"position": FieldSpec(unit="m", low=-1.0, high=1.0)},
    max_age_s=1.0,
)


def received(message, number, source_ns=10, received_ns=20):
    stamps = {"source_timestamp": source_ns, "received_timestamp": received_ns}
    info = {**stamps, "publication_sequence_number": number}
    return ReceivedMessage(key="it", message=message, info=info, arrival_ns=30, arrival_system_ns=40)


def arrival(*, stamp_ns, number, values=(1.0, 2.0, 3.0), **stamps):
    return received(to_message(SENSOR, {"position": np.array(values)}, stamp_ns), number, **stamps)


@pytest.fixture
def buffer():
    return SensorBuffer("point", SENSOR)


def test_a_sample_carries_every_stamp(buffer):
    buffer.add(arrival(stamp_ns=5, number=1))
    sample = buffer.sample()
    assert (sample.stamp_ns, sample.arrival_ns, sample.arrival_system_ns) == (5, 30, 40)
    assert (sample.source_ns, sample.received_ns) == (10, 20)


def test_a_gap_in_the_sequence_numbers_counts_as_lost(buffer):
    buffer.add(arrival(stamp_ns=5, number=1))
    buffer.add(arrival(stamp_ns=6, number=4))
    assert [buffer.sample().lost, buffer.sample().lost] == [2, 0]


def test_an_older_and_a_repeated_stamp_are_counted_and_dropped(buffer):
    buffer.add(arrival(stamp_ns=6, number=1))
    buffer.add(arrival(stamp_ns=5, number=2, values=(9.0, 9.0, 9.0)))
    buffer.add(arrival(stamp_ns=6, number=3, values=(9.0, 9.0, 9.0)))
    sample = buffer.sample()
    assert (sample.reordered, sample.duplicated) == (1, 1)
    assert (sample.stamp_ns, sample.values["position"][0]) == (6, 1.0)


def test_clearing_drops_the_reading_but_not_the_numbering(buffer):
    buffer.add(arrival(stamp_ns=6, number=1))
    buffer.clear()
    assert buffer.sample() is None
    buffer.add(arrival(stamp_ns=7, number=5))
    assert buffer.sample().lost == 0


def test_a_message_without_a_stamp_is_reported(buffer):
    buffer.add(arrival(stamp_ns=0, number=1))
    assert buffer.sample().quality is Quality.ZERO_STAMP


# ------------------------------------------------------------------------------------------ stamps ahead of the clock


class StampedBuffer(StampedRobot):
    """A buffer that checks stamps, and a robot on our host that publishes every 50 ms."""

    def __init__(self, *, sensor=SENSOR, **options):
        super().__init__(**options)
        self.buffer, self.number = SensorBuffer("point", sensor, self.stamping), 0

    def publish(self, *, header_ns=None, ahead_s=0.0):
        """Publish a message stamped now, or `ahead_s` later, and return the newest sample."""
        self.clock.steady_ns += 50 * MS
        self.number += 1
        now_ns = self.clock.system_ns()
        self.watch.check_pair(self.clock.now_ns(), now_ns)
        header_ns = now_ns + round(ahead_s * NS_PER_S) if header_ns is None else header_ns
        self.buffer.add(
            dataclasses.replace(
                arrival(stamp_ns=header_ns, number=self.number, source_ns=now_ns, received_ns=now_ns),
                arrival_ns=self.clock.now_ns(),
                arrival_system_ns=now_ns,
            )
        )
        return self.buffer.sample()


def test_a_translated_sample_keeps_its_header_stamp():
    judged = StampedBuffer()
    sample = judged.publish(ahead_s=-0.01)
    assert sample.header_ns == judged.clock.system_ns() - 10 * MS == sample.stamp_ns
    assert (sample.stamp_quality, sample.transport_quality, sample.suspect_clock) == (Quality.OK, Quality.OK, "")


@pytest.mark.parametrize("step_s", [10, -10])
def test_a_step_back_of_utc_does_not_freeze_a_sensor(step_s):
    judged = StampedBuffer()
    before = judged.publish()
    judged.clock.ahead_ns += step_s * NS_PER_S
    after = judged.publish()
    assert (after.seq, after.reordered, after.duplicated, after.quality) == (1, 0, 0, Quality.OK)
    assert after.stamp_ns - before.stamp_ns == 50 * MS


@pytest.mark.parametrize("step_s", [10, -10])
def test_a_message_from_before_a_utc_step_is_never_fresh_and_does_not_block_later_ones(step_s):
    judged = StampedBuffer()
    judged.publish()
    late_ns = judged.clock.system_ns() + 40 * MS
    judged.clock.ahead_ns += step_s * NS_PER_S
    late = judged.publish(header_ns=late_ns)
    assert late.reordered == 1 if step_s > 0 else late.quality is Quality.FUTURE
    assert judged.publish().quality is Quality.OK


def test_a_future_stamp_is_replaced_by_the_next_message():
    judged = StampedBuffer()
    judged.publish()
    future = judged.publish(ahead_s=3600.0)
    assert (future.quality, future.suspect_clock) == (Quality.FUTURE, "epoch")
    assert "3600.000 s after its arrival" in future.reason
    assert judged.publish().quality is Quality.OK


def test_a_future_stamp_does_not_become_fresh_with_time():
    judged = StampedBuffer()
    judged.publish(ahead_s=1.0)
    judged.clock.steady_ns += NS_PER_S
    assert judged.buffer.sample().quality is Quality.FUTURE


def test_an_older_stamp_is_dropped_after_a_future_one():
    judged = StampedBuffer()
    newest = judged.publish()
    judged.publish(ahead_s=3600.0)
    assert judged.publish(header_ns=newest.header_ns - 1).reordered == 1


def test_a_repeated_future_stamp_is_a_duplicate():
    judged = StampedBuffer()
    future = judged.publish(ahead_s=3600.0)
    assert judged.publish(header_ns=future.header_ns).duplicated == 1


def test_ages_at_arrival_place_stamps_on_the_steady_clock():
    """A newer stamp of UTC that was set back is not an older reading, and a stamp ahead of its arrival gives way."""
    buffer, samples = SensorBuffer("point", SENSOR, ArrivalAges(1.0)), []
    for place, (utc_s, steady_s, age_s) in enumerate([(100, 7, 0.5), (40, 8, 0.5), (41, 9, -2.0)]):
        found = arrival(stamp_ns=round((utc_s - age_s) * NS_PER_S), number=place + 1)
        found.arrival_ns, found.arrival_system_ns = steady_s * NS_PER_S, utc_s * NS_PER_S
        buffer.add(found)
        samples.append(buffer.newest())
    assert [sample.stamp_ns for sample in samples] == [6_500_000_000, 7_500_000_000, 11 * NS_PER_S]
    assert [sample.quality for sample in samples] == [Quality.OK, Quality.OK, Quality.FUTURE]
    late = arrival(stamp_ns=37 * NS_PER_S, number=4)
    late.arrival_ns, late.arrival_system_ns = 10 * NS_PER_S, 42 * NS_PER_S
    buffer.add(late)
    assert (buffer.newest(), buffer.sample().reordered) == (samples[2], 1)


def test_without_required_stamps_the_publication_time_is_used():
    judged = StampedBuffer(require_stamp=False)
    samples = [judged.publish(header_ns=0) for _ in range(3)]
    assert [sample.seq for sample in samples] == [0, 1, 2]
    assert {(sample.quality, sample.stamp_quality) for sample in samples} == {(Quality.OK, Quality.FALLBACK_SOURCE)}


def test_timeline_receive_uses_the_arrival_time():
    judged = StampedBuffer(sensor=dataclasses.replace(SENSOR, timeline="receive"))
    for header_ns in (5, 5, 3):
        sample = judged.publish(header_ns=header_ns)
        assert sample.stamp_ns == judged.watch.now_ns()
    assert (sample.seq, sample.duplicated, sample.reordered) == (2, 0, 0)


def test_simulated_stamps_are_not_compared_with_the_middleware():
    judged = StampedBuffer(simulated=True)
    judged.simulated.on_clock(100 * MS, judged.clock.now_ns())
    sample = judged.publish(header_ns=90 * MS)
    assert (sample.stamp_ns, sample.header_ns, sample.quality) == (90 * MS, None, Quality.OK)


def test_clear_readings_keeps_the_counts():
    judged = StampedBuffer()
    judged.publish()
    judged.buffer.clear_readings()
    assert judged.buffer.sample() is None
    assert judged.publish(ahead_s=-60.0).seq == 1


# ------------------------------------------------------------------------------------------- messages without a stamp

TOUCH = SensorSpec(
    topic="touch",
    type="std_msgs/msg/Bool",
    fields={"data": FieldSpec(unit="1", low=0, high=1)},
    max_age_s=1.0,
    timeline="receive",
)


def touch(*, number, value=1):
    return received(to_message(TOUCH, {"data": np.array([value], dtype=np.int8)}, 0), number)


@pytest.fixture
def unstamped():
    return SensorBuffer("touch", TOUCH)


def test_an_unstamped_message_gets_the_stamp_of_its_sequence_number(unstamped):
    unstamped.add(touch(number=1))
    assert unstamped.sample() is None
    assert not unstamped.assign_stamp(stamp_ns=70, number=2)  # it has not arrived
    assert unstamped.assign_stamp(stamp_ns=70, number=1)
    sample = unstamped.sample()
    assert (sample.stamp_ns, sample.seq, sample.quality) == (70, 0, Quality.OK)
    assert sample.values["data"].tolist() == [1]


def test_a_repeated_unstamped_message_is_not_a_new_reading(unstamped):
    unstamped.add(touch(number=1, value=1))
    unstamped.assign_stamp(stamp_ns=70, number=1)
    unstamped.add(touch(number=2, value=1))
    assert unstamped.assign_stamp(stamp_ns=70, number=2)
    assert (unstamped.sample().stamp_ns, unstamped.sample().seq) == (70, 0)


def test_a_message_of_an_earlier_epoch_is_dropped(unstamped):
    unstamped.add(touch(number=1, value=1))
    unstamped.clear()
    assert not unstamped.assign_stamp(stamp_ns=70, number=2)
    unstamped.add(touch(number=2, value=0))
    assert unstamped.assign_stamp(stamp_ns=70, number=2)
    assert unstamped.sample().values["data"].tolist() == [0]


def test_a_message_of_another_publisher_is_not_used(unstamped):
    for number in range(1, 200):
        unstamped.add(touch(number=1000 + number, value=0))  # another publisher has its own sequence numbers
    unstamped.add(touch(number=7, value=1))
    assert unstamped.assign_stamp(stamp_ns=70, number=7)
    assert unstamped.sample().values["data"].tolist() == [1]
    unstamped.add(touch(number=1300, value=0))
    assert not unstamped.assign_stamp(stamp_ns=80, number=8)


def test_unstamped_messages_need_sequence_numbers(unstamped):
    with pytest.raises(BackendNotReadyError, match=r"needs publication sequence numbers.*rmw_fastrtps_cpp"):
        unstamped.add(touch(number=None))


def test_a_stamped_sensor_waits_for_its_header_stamp(buffer):
    buffer.add(arrival(stamp_ns=5, number=1))
    assert buffer.assign_stamp(stamp_ns=5, number=1)
    assert not buffer.assign_stamp(stamp_ns=6, number=1)


def test_a_malformed_message_is_an_invalid_sample_without_values_and_with_its_reason():
    spec = dataclasses.replace(SENSOR, frame="map")
    buffer = SensorBuffer("point", spec)
    buffer.add(arrival(stamp_ns=5, number=1))
    sample = buffer.sample()
    assert (sample.quality, dict(sample.values)) == (Quality.INVALID, {})
    assert "map" in sample.reason
