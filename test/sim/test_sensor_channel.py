import math
from typing import Any

import numpy as np
import pytest

from embodied_env.contract.sensor_schema import FieldSpec, SensorSpec
from embodied_env.core.types import Sample
from embodied_env.sim.sensor_channel import SensorChannel
from embodied_env.sim.sensor_reader import SensorOutput
from embodied_env.sim.world_profile import Contact, Source

PERIOD_NS = 100_000_000
ORIGIN_NS = 300_000_000
POSITION = FieldSpec(unit="m", low=-9.0, high=9.0)
ORIENTATION = FieldSpec(unit="1", low=-1.0, high=1.0)
COVARIANCE = FieldSpec(unit="1", low=-1.0, high=1.0)
IDENTITY = np.array([0.0, 0.0, 0.0, 1.0])


def spec(kind: str = "geometry_msgs/msg/PoseStamped", **changes: Any) -> SensorSpec:
    given = {"fields": {"position": POSITION, "orientation": ORIENTATION}, "max_age_s": 1.0, **changes}
    return SensorSpec(topic="pose", type=kind, **given)


def channel_of(sensor: SensorSpec | None = None, name: str = "pose", **source: Any) -> SensorChannel:
    return SensorChannel(name, sensor or spec(), Source(**source), PERIOD_NS)


def measured(mark: float = 0.0, **extras: Any) -> SensorOutput:
    return SensorOutput(values={"position": np.full(3, mark), "orientation": IDENTITY.copy()}, extras=extras)


def begun(channel: SensorChannel, seed: int = 0, first: SensorOutput | None = None) -> SensorChannel:
    channel.begin(seed, ORIGIN_NS, first or measured())
    return channel


def newest(channel: SensorChannel) -> Sample:
    assert channel.newest is not None
    return channel.newest


def run(channel: SensorChannel, periods: int, substeps: int = 10) -> list[Sample]:
    """Step `periods` after the reset, and return the readings, whose position is the period of their acquisition."""
    seen = []
    for k in range(1, periods + 1):
        start_ns = ORIGIN_NS + (k - 1) * PERIOD_NS
        for substep in range(1, substeps + 1):
            now_ns = start_ns + PERIOD_NS * substep // substeps
            if now_ns >= channel.due_ns:
                channel.capture(now_ns, measured(float(k)))
        channel.deliver(start_ns + PERIOD_NS)
        seen.append(newest(channel))
    return seen


def after_reset_ms(readings: list[Sample]) -> list[int]:
    return [(reading.stamp_ns - ORIGIN_NS) // 1_000_000 for reading in readings]


def many(channel: SensorChannel, count: int, first: SensorOutput) -> list[Sample]:
    """Return `count` equal readings."""
    begun(channel, first=first)
    readings = []
    for k in range(1, count + 1):
        channel.capture(ORIGIN_NS + k * PERIOD_NS, first)
        channel.deliver(ORIGIN_NS + k * PERIOD_NS)
        readings.append(newest(channel))
    return readings


def test_a_due_time_truncated_to_nanoseconds_is_served_once() -> None:
    channel = begun(channel_of(spec(rate_hz=30.0)))  # due at 66 666 666.67 ns, and the physics reaches ...666
    taken = []
    for substep in range(1, 31):
        now_ns = ORIGIN_NS + PERIOD_NS * substep // 30
        if now_ns >= channel.due_ns:
            channel.capture(now_ns, measured())
            taken.append(substep)
    assert taken == [10, 20, 30]


def test_the_first_reading_is_immediate_despite_delay_and_dropout() -> None:
    reading = newest(begun(channel_of(delay_s=10.0, dropout=0.999), first=measured(7.0)))
    assert (reading.stamp_ns, reading.seq, reading.values["position"][0]) == (ORIGIN_NS, 0, 7.0)


def test_a_pending_reading_is_dropped_at_a_reset() -> None:
    channel = begun(channel_of(delay_s=0.2))
    run(channel, 1)
    channel.begin(1, ORIGIN_NS + 2 * PERIOD_NS, measured(-1.0))
    for periods in (2, 10):
        channel.deliver(ORIGIN_NS + periods * PERIOD_NS)
        assert newest(channel).values["position"][0] == -1.0


def test_a_reset_restarts_the_due_times() -> None:
    channel = begun(channel_of(spec(rate_hz=4.0)))
    channel.begin(1, ORIGIN_NS + PERIOD_NS, measured())
    assert channel.due_ns == pytest.approx(ORIGIN_NS + PERIOD_NS + 250_000_000, abs=1)


def newest_seq(channel: SensorChannel, count: int) -> int:
    return many(channel, count, measured())[-1].seq


def test_dropout_loses_its_share_of_the_readings() -> None:
    arrived = newest_seq(channel_of(dropout=0.3), 5000)
    assert abs(arrived / 5000 - 0.7) < 5 * math.sqrt(0.3 * 0.7 / 5000)


def test_due_times_continue_after_a_lost_reading() -> None:
    sensor = spec(rate_hz=4.0)
    lossy = sorted({*after_reset_ms(run(begun(channel_of(sensor, dropout=0.5)), 100))})
    sound = sorted({*after_reset_ms(run(begun(channel_of(sensor)), 100))})
    assert set(lossy) < set(sound)


def test_position_noise_has_zero_mean_and_the_declared_deviation() -> None:
    readings = many(channel_of(noise={"position": 0.2}), 4000, measured(1.0))
    errors = np.array([reading.values["position"] for reading in readings]) - 1.0
    assert np.abs(errors.mean(axis=0)).max() < 5 * 0.2 / math.sqrt(4000)
    np.testing.assert_allclose(errors.std(axis=0), 0.2, rtol=0.06)


def test_orientation_noise_has_the_declared_deviation_about_each_axis() -> None:
    readings = many(channel_of(noise={"orientation": 0.05}), 4000, measured())
    quaternions = np.array([reading.values["orientation"] for reading in readings])
    np.testing.assert_allclose(np.linalg.norm(quaternions, axis=1), 1.0, rtol=1e-12)
    turned_rad = 2.0 * quaternions[:, :3]  # small angles
    np.testing.assert_allclose(turned_rad.std(axis=0), 0.05, rtol=0.06)
    assert np.abs(turned_rad.mean(axis=0)).max() < 5 * 0.05 / math.sqrt(4000)


def test_orientation_noise_rotates_the_measured_orientation() -> None:
    tipped = np.array([1.0, 0.0, 0.0, 0.0])  # half a turn about x
    first = SensorOutput(values={"position": np.zeros(3), "orientation": tipped}, extras={})
    for reading in many(channel_of(noise={"orientation": 0.05}), 100, first):
        assert abs(reading.values["orientation"] @ tipped) > math.cos(0.15)  # half of the angle between them


def test_a_field_named_orientation_that_is_not_a_quaternion_has_additive_noise() -> None:
    heading = FieldSpec(unit="rad", low=-9.0, high=9.0, path="heading.orientation", dtype="float32")
    channel = channel_of(spec("any/msg/Heading", fields={"orientation": heading}), noise={"orientation": 0.1})
    first = SensorOutput(values={"orientation": np.ones(1, dtype=np.float32)}, extras={})
    errors = [reading.values["orientation"][0] - 1.0 for reading in many(channel, 1000, first)]
    assert np.std(errors) == pytest.approx(0.1, rel=0.1)


def scan_of(*ranges: float, deviation: float) -> np.ndarray:
    """Return 200 noisy scans of true distances `ranges`, for a scanner from 0.5 m to 8 m, shape (200, n)."""
    scan = FieldSpec(unit="m", shape=(len(ranges),), low=0.0, high=9.0)
    channel = channel_of(spec("sensor_msgs/msg/LaserScan", fields={"ranges": scan}), noise={"ranges": deviation})
    values = {"ranges": np.array(ranges, dtype=np.float32)}
    first = SensorOutput(values=values, extras={"range_min_m": 0.5, "range_max_m": 8.0})
    return np.array([reading.values["ranges"] for reading in many(channel, 200, first)])


def test_noisy_ranges_stay_within_the_scanners_limits() -> None:
    scans = scan_of(0.51, 7.99, deviation=0.5)
    assert (scans.min(), scans.max()) == (0.5, 8.0)


def test_noise_does_not_change_values_out_of_range() -> None:
    scans = scan_of(math.inf, -math.inf, math.nan, deviation=0.5)
    np.testing.assert_array_equal(scans, np.tile([np.inf, -np.inf, np.nan], (200, 1)))


def test_noise_makes_no_distance_negative() -> None:
    distance = FieldSpec(unit="m", low=0.0, high=9.0)
    channel = channel_of(spec("sensor_msgs/msg/Range", fields={"range": distance}), noise={"range": 0.5})
    first = SensorOutput(values={"range": np.array([0.01], dtype=np.float32)}, extras={})
    assert min(reading.values["range"][0] for reading in many(channel, 100, first)) == 0.0


def positions(channel: SensorChannel, seed: int, count: int = 20) -> bytes:
    begun(channel, seed)
    return b"".join(reading.values["position"].tobytes() for reading in run(channel, count))


def noisy_channel(name: str = "pose", **changes: Any) -> SensorChannel:
    return channel_of(spec(**changes), name, noise={"position": 0.1}, dropout=0.3, delay_s=0.1)


def test_two_sensors_have_different_errors() -> None:
    assert positions(noisy_channel("a"), 3) != positions(noisy_channel("b"), 3)


def test_a_lost_reading_does_not_shift_the_noise() -> None:
    lossy = begun(channel_of(noise={"position": 0.1}, dropout=0.5))
    sound = {reading.stamp_ns: reading for reading in run(begun(channel_of(noise={"position": 0.1})), 50)}
    for reading in run(lossy, 50)[5:]:
        assert reading.values["position"].tobytes() == sound[reading.stamp_ns].values["position"].tobytes()


POSE_COVARIANCE = "geometry_msgs/msg/PoseWithCovarianceStamped"


def covariance(**changes: Any) -> np.ndarray:
    extras = changes.pop("extras", {})
    channel = begun(channel_of(spec(POSE_COVARIANCE), **changes), first=measured(**extras))
    return np.asarray(channel.extras["covariance"])


def test_the_covariance_is_that_of_the_noise() -> None:
    expected = np.diag([0.09, 0.09, 0.09, 0.01, 0.01, 0.01])
    np.testing.assert_allclose(covariance(noise={"position": 0.3, "orientation": 0.1}), expected.ravel())


def test_noise_adds_to_the_covariance_of_an_instrument() -> None:
    own = np.arange(36.0)
    expected = own + np.diag([0.25, 0.25, 0.25, 0.0, 0.0, 0.0]).ravel()
    np.testing.assert_allclose(covariance(noise={"position": 0.5}, extras={"covariance": own}), expected)


def test_a_declared_covariance_is_a_field() -> None:
    fields = {"position": POSITION, "covariance": COVARIANCE}
    channel = channel_of(spec(POSE_COVARIANCE, fields=fields), noise={"position": 0.3})
    reading = newest(begun(channel, first=SensorOutput(values={"position": np.zeros(3)}, extras={})))
    np.testing.assert_array_equal(reading.values["covariance"], channel.extras["covariance"])


def test_a_message_without_a_covariance_gets_none() -> None:
    assert dict(begun(channel_of(noise={"position": 0.3})).extras) == {}


def bump(**source: Any) -> SensorChannel:
    fields = {"data": FieldSpec(unit="1", low=0, high=1)}
    sensor = spec("std_msgs/msg/Bool", fields=fields, timeline="receive")
    return begun(channel_of(sensor, contact=Contact(body="base"), **source), first=contact(0))


def contact(value: int) -> SensorOutput:
    return SensorOutput(values={"data": np.array([value], dtype=np.int8)}, extras={})


def reported(channel: SensorChannel, *touches: int) -> int:
    """Return the reported value of these readings of one control period."""
    for i, value in enumerate(touches, start=1):
        channel.capture(ORIGIN_NS + i, contact(value))
    channel.deliver(ORIGIN_NS + PERIOD_NS)
    return int(newest(channel).values["data"][0])


def test_a_contact_pending_at_a_reset_is_dropped() -> None:
    channel = bump(dropout=0.5)
    channel._rng = ScriptedRandom(0.0)
    reported(channel, 1)
    channel.begin(1, ORIGIN_NS, contact(0))
    channel._rng = ScriptedRandom(0.9)
    assert reported(channel, 0) == 0


class ScriptedRandom:
    def __init__(self, *draws: float) -> None:
        self._draws = list(draws)

    def random(self) -> float:
        return self._draws.pop(0)


def test_a_reading_without_values_keeps_its_reason() -> None:
    first = SensorOutput(values={}, extras={}, problem="x does not fit")
    reading = newest(begun(channel_of(noise={"position": 0.1}), first=first))
    assert (reading.values, reading.reason) == ({}, "x does not fit")
