"""The level of each status follows from the steps by the documented rule."""

from dataclasses import replace

import numpy as np
import pytest

import embodied_env
from embodied_env.core.code_types import Quality
from embodied_env.ros.robot.diagnostics import THRESHOLDS, DiagnosticLevel, Diagnostics, periodicity
from embodied_env.testing import SpyObserver
from embodied_env.timing.clock import NS_PER_S, ManualClock

ARM = embodied_env.load_contract("arm_reach")


@pytest.fixture(scope="module")
def transitions():
    """Return a normal step, one held for a malformed action, and one that ended the episode."""
    spy = SpyObserver()
    env = embodied_env.make(ARM, backend="fake", clock="virtual", observers=[spy])
    env.reset(seed=1)
    for action in (np.zeros(6), np.full(6, np.nan), np.full(6, np.nan), np.full(6, np.nan)):
        env.step(action)
    env.close()
    return spy.seen


@pytest.fixture
def bench():
    clock = ManualClock(start_ns=NS_PER_S)
    return Diagnostics(ARM, clock), clock


def levels(health):
    return {status.name: status.level for status in health.publishable()}


def with_info(transition, **changes):
    return replace(transition, info={**transition.info, **changes})


def with_quality(transition, quality):
    sensors = {**transition.info["sensors"]}
    sensors["tcp"] = {**sensors["tcp"], "quality": int(quality)}
    return with_info(transition, sensors=sensors)


NAMES = ("gates", "latency", "sensors", "periodicity")
ALL_STALE = dict.fromkeys(NAMES, DiagnosticLevel.STALE)
ALL_OK = dict.fromkeys(NAMES, DiagnosticLevel.OK)


def test_before_the_first_step_everything_is_stale(bench):
    assert levels(bench[0]) == ALL_STALE


def test_the_first_normal_step_is_ok_and_published_at_once(bench, transitions):
    health, _ = bench
    health.publishable()
    assert health.add(transitions[0])
    assert levels(health) == ALL_OK
    assert not health.add(transitions[0])


def test_a_hold_is_a_warning_published_at_once_and_only_once(bench, transitions):
    health, _ = bench
    health.add(transitions[0])
    health.publishable()
    assert health.add(transitions[1])
    gates = health.publishable()[0]
    assert (gates.level, gates.message, gates.values["code.form.nan"]) == (DiagnosticLevel.WARN, "HOLD", "1")
    assert not health.add(transitions[1])


def test_a_level_drops_with_the_next_message(bench, transitions):
    health, _ = bench
    health.add(transitions[1])
    health.publishable()
    assert not health.add(transitions[0])
    assert levels(health) == ALL_OK


def test_an_error_after_a_stop_outlasts_the_episode(bench, transitions):
    health, clock = bench
    health.add(transitions[0])
    health.publishable()
    assert health.add(transitions[3])
    assert health.publishable()[0].message == "ended: safety_stop:form.repeated"
    clock.advance_ns(100 * NS_PER_S)
    assert levels(health)["gates"] is DiagnosticLevel.ERROR


def test_without_steps_the_status_becomes_stale(bench, transitions):
    health, clock = bench
    health.add(transitions[0])
    clock.advance_ns(NS_PER_S)
    assert levels(health) == ALL_OK
    clock.advance_ns(1)
    assert levels(health) == ALL_STALE


@pytest.mark.parametrize("quality", [q for q in Quality if q not in (Quality.OK, Quality.OUT_OF_RANGE)])
def test_a_bad_reading_is_a_warning_with_the_sensor_name(bench, transitions, quality):
    health, _ = bench
    health.add(with_quality(transitions[0], quality))
    health.add(transitions[0])
    sensors = health.publishable()[2]
    assert (sensors.level, sensors.message, sensors.values["tcp.bad"]) == (DiagnosticLevel.WARN, "tcp", "1")


def test_a_sensor_gap_that_ended_the_episode_is_an_error(bench, transitions):
    health, _ = bench
    health.add(with_info(transitions[0], end_reason="sensor_gap:tcp"))
    assert levels(health)["sensors"] is DiagnosticLevel.ERROR


def test_missed_deadlines_are_counted_per_message_and_across_resets(bench, transitions):
    health, _ = bench
    for total, expected in ((2, "2"), (5, "3"), (5, "0"), (1, "1")):
        health.add(with_info(transitions[0], latency={**transitions[0].info["latency"], "missed_deadlines": total}))
        latency = health.publishable()[1]
        assert latency.values["missed_deadlines"] == expected
        assert latency.level is (DiagnosticLevel.OK if expected == "0" else DiagnosticLevel.WARN)


def test_times_are_reported_as_percentiles_without_missing_values(bench, transitions):
    health, _ = bench
    for time_s in (0.01, 0.02, 0.03, float("nan")):
        latency = {**transitions[0].info["latency"], "obs_to_command_s": time_s}
        health.add(with_info(transitions[0], latency=latency))
    values = health.publishable()[1].values
    assert float(values["obs_to_command_s.p50"]) == pytest.approx(0.02)
    assert float(values["obs_to_command_s.p95"]) == pytest.approx(0.029)


@pytest.mark.parametrize(
    ("rates_hz", "level"),
    [
        ([20.0, 20.0], DiagnosticLevel.OK),
        ([15.5, 15.5], DiagnosticLevel.OK),
        ([14.5, 14.5], DiagnosticLevel.WARN),
        ([31.0, 31.0], DiagnosticLevel.ERROR),
        ([14.5, 25.5], DiagnosticLevel.WARN),  # of its deviation
        ([9.5, 30.5], DiagnosticLevel.ERROR),
        ([0.001], DiagnosticLevel.ERROR),
    ],
)
def test_the_rate_has_the_thresholds_of_ros2_control(rates_hz, level):
    status = periodicity([1.0 / rate for rate in rates_hz], 20.0, THRESHOLDS)
    assert status.level is level
    assert float(status.values["rate_hz"]) == pytest.approx(np.mean(rates_hz))
    assert status.values["diagnostics.threshold.periodicity.mean_error.warn"] == "5.0"


def test_the_rate_of_the_steps_is_that_since_the_last_message(bench, transitions):
    health, _ = bench
    for period_s, expected in ((0.05, DiagnosticLevel.OK), (0.1, DiagnosticLevel.ERROR), (0.05, DiagnosticLevel.OK)):
        latency = {**transitions[0].info["latency"], "period_s": period_s, "quality": {}}
        health.add(with_info(transitions[0], latency=latency))
        mean_error = {name: 1.0 if name.endswith("error.error") else value for name, value in THRESHOLDS.items()}
        assert health.publishable(mean_error)[-1].level is expected
