"""Sensor delay relative to the joints, estimated from motion alone."""

import functools
from dataclasses import replace

import numpy as np
import pytest
from plants import simulated

from embodied_env.extensions.calibration.sensor_delay import (
    MoveSamples,
    SensorLag,
    combine_evidence,
    estimate_lag,
    stamp_latency,
)

RNG = np.random.default_rng(0)


@functools.cache
def moves():
    return simulated(np.random.default_rng(1), dead_s=0.03, filter_s=0.04, moves=6)


def seen(delay_s, *, noise=1e-4, integral=False, every_s=0.02):
    found = []
    for move in moves():
        stamped_s = np.arange(RNG.uniform(0.0, every_s), move.read_s[-1], every_s)
        motion = (
            np.concatenate([[0.0], np.cumsum((move.readings[1:] + move.readings[:-1]) / 2.0 * np.diff(move.read_s))])
            if integral
            else move.readings
        )
        x = np.interp(stamped_s - delay_s, move.read_s, motion)
        values = np.stack([0.4 * x - 0.1 * x**2, 0.2 * x, np.full_like(x, 7.0)], axis=1)
        found.append(MoveSamples(stamped_s=stamped_s, values=values + noise * RNG.normal(size=values.shape)))
    return found


@pytest.mark.parametrize("delay_s", [pytest.param(each, marks=pytest.mark.long) for each in (-0.02, 0.0, 0.2)] + [0.03])
@pytest.mark.parametrize("integral", [False, True])
def test_delay_of_a_moving_sensor_is_found(delay_s, integral):
    noise = 1e-6 if integral else 1e-4
    found = estimate_lag(moves(), seen(delay_s, integral=integral, noise=noise), 0.6, integrated=integral)
    assert isinstance(found, SensorLag)
    assert abs(found.delay_s - delay_s) <= max(2.0 * found.half_s, 0.001)
    assert found.half_s < 0.01


def test_constant_sensor_has_no_delay():
    still = [MoveSamples(stamped_s=each.stamped_s, values=np.ones((len(each.stamped_s), 2))) for each in seen(0.0)]
    assert estimate_lag(moves(), still, 0.6, integrated=False) == "none of its fields change"


def test_noise_is_not_detected_as_motion():
    found = estimate_lag(moves(), seen(0.0, noise=10.0), 0.6, integrated=False)
    assert isinstance(found, str)
    assert "the joints explain at most" in found


def test_fields_with_different_delays_have_no_common_delay():
    """The same holds for accidental correlation with the joints."""
    early, late = seen(0.0), seen(0.15)
    mixed = [(early, late)[i % 2][i] for i in range(len(moves()))]
    assert "no delay that is common" in str(estimate_lag(moves(), mixed, 0.6, integrated=False))


def test_joint_with_little_effect_on_the_sensor_does_not_distort_the_estimate():
    both = seen(0.02, noise=1e-6)
    late = seen(0.2, noise=0.0)[0]
    both[0] = replace(late, values=1e-4 * late.values + 1e-5 * RNG.normal(size=late.values.shape))
    found = estimate_lag(moves(), both, 0.6, integrated=False)
    assert abs(found.delay_s - 0.02) <= found.half_s


def test_few_readings_are_not_enough():
    assert "too few readings" in str(estimate_lag(moves(), seen(0.0, every_s=0.5), 0.6, integrated=False))


STAMPS = stamp_latency(np.full(50, 0.004))
LATE = SensorLag(delay_s=0.02, half_s=0.001, correlation=0.99, moves=6)
IN_TIME = SensorLag(delay_s=0.0005, half_s=0.001, correlation=0.99, moves=6)


def test_hidden_delay_is_added_to_the_stamp_latency():
    found = combine_evidence(STAMPS, LATE, is_stamped=True)
    assert found.value_s == pytest.approx(0.024)
    assert found.method == "stamp+xcorr"
    assert found.low_s <= 0.0231
    assert found.high_s >= 0.0249


def test_accurate_stamps_are_trusted():
    found = combine_evidence(STAMPS, IN_TIME, is_stamped=True)
    assert (found.value_s, found.method) == (0.004, "stamp")
    assert found.high_s == pytest.approx(0.004 + 0.0015)  # delays that motion does not exclude


def test_no_estimate_without_stamps_and_motion():
    found = combine_evidence(STAMPS, "none of its fields change", is_stamped=False)
    assert found == "its messages have no acquisition stamp, and none of its fields change"
