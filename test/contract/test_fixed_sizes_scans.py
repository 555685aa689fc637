"""Resampling of scans to fixed angles, against a loop over all rays."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import changed, document, parse

from embodied_env.contract.fixed_sizes import resample_scan, target_angles
from embodied_env.contract.sensor_schema import AngleRange, ResampleSpec
from embodied_env.errors import ContractError
from embodied_env.messages.declaration import Field, InvalidReadingError, Window
from embodied_env.messages.ranges import settle_ranges

INF, NAN = math.inf, math.nan
TURN = math.tau
ROUNDING = 2e-5  # of the angles of a scan, on either side


def distance(a, b):
    return abs(math.remainder(a - b, TURN))


def angles_of(first, increment, count):
    return [float(np.float32(first)) + float(np.float32(increment)) * ray for ray in range(count)]


returns = st.sampled_from([0.5, 1.0, 2.0, 3.5, INF, -INF, NAN])
grids = st.integers(1, 40) | st.tuples(st.floats(-6, 6), st.floats(0.1, TURN), st.integers(2, 40)).map(
    lambda drawn: AngleRange(min_rad=drawn[0], max_rad=drawn[0] + drawn[1], count=drawn[2])
)
scans = st.tuples(
    st.lists(returns, min_size=1, max_size=60), st.floats(-7, 7), st.floats(0.01, 0.5), st.sampled_from([1, -1])
)


@given(scan=scans, grid=grids)
def test_nearest_is_a_ray_at_the_smallest_distance(scan, grid):
    values, first, increment, sign = scan
    rays, spec = angles_of(first, sign * increment, len(values)), ResampleSpec(angles=grid)
    found = resample_scan(np.array(values, np.float32), first, sign * increment, spec)
    for angle, value in zip(target_angles(spec)[0], found, strict=True):
        distances = [distance(angle, ray) for ray in rays]
        least = min(distances)
        nearest = [v for v, away in zip(values, distances, strict=True) if away <= least + 1e-9]
        if least <= increment - ROUNDING:
            assert any(value == v or (math.isnan(value) and math.isnan(v)) for v in nearest)
        elif least > increment + ROUNDING:
            assert math.isnan(value)


@given(scan=scans, grid=grids)
def test_min_is_the_smallest_return_of_the_rays_around(scan, grid):
    values, first, increment, sign = scan
    rays, spec = angles_of(first, sign * increment, len(values)), ResampleSpec(angles=grid, method="min")
    angles, step = target_angles(spec)
    half = max(step, increment) / 2
    found = resample_scan(np.array(values, np.float32), first, sign * increment, spec)
    for angle, value in zip(angles, found, strict=True):
        least = [
            min((v for v, ray in zip(values, rays, strict=True) if distance(angle, ray) <= reach and not math.isnan(v)),
                default=NAN)
            for reach in (half - ROUNDING, half, half + ROUNDING)
        ]  # fmt: skip
        assert any(value == v or (math.isnan(value) and math.isnan(v)) for v in least)


def rays(resample=None, **declared):
    angles = None if resample is None else functools.partial(resample_scan, spec=resample)
    return Field(sensor="s", name="ranges", shape=(4,), dtype=np.dtype(np.float32), resample=angles, **declared)


@pytest.mark.parametrize(
    ("measured", "read"), [(8.0000005, 8.0), (8.07, 8.0), (8.1, 9.5), (20.0, 9.5), (0.4951, 9.5), (INF, 9.0)]
)
def test_a_range_just_above_the_maximum_is_the_maximum_and_one_beyond_it_is_not_measured(measured, read):
    ranges = np.array([1.0, measured], np.float32)
    assert settle_ranges(rays(no_return=9.0, nan=9.5), ranges, Window(0.5, 8.0)).tolist() == [1.0, read]


def test_the_rules_for_missing_values_apply_after_resampling():
    field = rays(ResampleSpec(angles=4, method="min"), no_return=9.0, nan=0.0)
    raw = np.array([0.0, 1.0, INF, -INF, NAN, 20.0, NAN, INF], np.float32)  # 0 and 20 m are out of range
    assert settle_ranges(field, raw, Window(0.5, 8.0, 0.0, TURN / 8)).tolist() == [1.0, 0.5, 0.5, 9.0]


@pytest.mark.parametrize(
    ("values", "first", "increment", "problem"),
    [
        ([], 0.0, 0.1, r"ranges cannot be resampled: 0 rays \(expected 1 to 1000000\)"),
        ([1.0] * 1_000_001, 0.0, 0.1, r"1000001 rays \(expected 1 to 1000000\)"),
        ([1.0, 2.0], 0.0, 0.0, "invalid angles of 2 rays: angle_min 0, angle_increment 0 "),
        ([1.0], NAN, 0.1, "invalid angles of 1 rays: angle_min nan"),
        ([1.0], 0.0, INF, "invalid angles of 1 rays: "),
        ([1.0, 2.0], 1e38, 0.1, "invalid angles of 2 rays: angle_min 1e.38, angle_increment 0.1 "),
        ([1.0, 2.0], 0.0, -7.0, "invalid angles of 2 rays: angle_min 0, angle_increment -7 "),
    ],
)
def test_invalid_angles_are_reported(values, first, increment, problem):
    field, window = rays(ResampleSpec(angles=4)), Window(0.0, 9.0, first, increment)
    with pytest.raises(InvalidReadingError, match=problem):
        settle_ranges(field, np.array(values, np.float32), window)


# ------------------------------------------------------------------------------------------------ the contract's key

LASER = {
    "topic": "scan",
    "type": "sensor_msgs/msg/LaserScan",
    "max_age_s": 0.5,
    "fields": {"ranges": {"unit": "m", "low": 0.0, "high": 9.0, "shape": [360]}},
}


def with_laser(path="", value=None, field="ranges"):
    source = changed("sensors.laser", LASER)
    if field != "ranges":
        source = changed(f"sensors.laser.fields.{field}", LASER["fields"]["ranges"], source)
    return changed(f"sensors.laser.fields.{field}.{path}", value, source) if path else source


def test_the_observation_has_the_declared_angles():
    contract = parse(with_laser("resample", {"angles": 24, "method": "min"}))
    assert contract.observation_space["laser_ranges"].shape == (24,)
    assert contract.fingerprint != parse(with_laser()).fingerprint
    grid = {"min_rad": -1.5, "max_rad": 1.5, "count": 7}
    assert parse(with_laser("resample", {"angles": grid})).observation_space["laser_ranges"].shape == (7,)


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("ranges", {"angles": 0}, "resample.angles: 0 (expected at least 1"),
        ("ranges", {"angles": {"min_rad": 0, "max_rad": 1, "count": 1}}, "resample.angles.count: 1 (expected"),
        ("ranges", {"angles": {"min_rad": 1, "max_rad": 1, "count": 5}}, "angles: 1.0 (expected above min_rad"),
        ("ranges", {"angles": {"min_rad": 0, "max_rad": 7, "count": 5}}, "angles: 7.0 (expected above min_rad"),
        ("intensities", {"angles": 5, "method": "min"}, "resample.method: 'min' (expected nearest for intensities)"),
    ],
)
def test_invalid_angles_of_a_contract_are_refused(field, value, problem):
    with pytest.raises(ContractError) as caught:
        parse(with_laser("resample", value, field))
    assert problem in str(caught.value)


def test_only_a_scan_is_resampled():
    with pytest.raises(ContractError, match=r"resample: position \(expected a field of a sensor_msgs/msg/LaserScan\)"):
        parse(changed("sensors.tcp.fields.position.resample", {"angles": 5}, document()))
