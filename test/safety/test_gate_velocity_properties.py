"""Velocity commands drive twists, wheels, and joints with and without position limits."""

import dataclasses

import numpy as np
import pytest
from arbiter_bench import HOLD, ArbiterBench
from gate_actions import MIXED as CONTRACT
from hypothesis import given
from hypothesis import strategies as st
from safety_strategies import bounds, examples, finite_vectors, rounding, steps_of_time
from single_joint import limit_velocity, velocity_interval

from embodied_env.contract import load_contract
from embodied_env.core.code_types import Severity
from embodied_env.core.types import CommandState
from embodied_env.safety.gate import SafetyGate
from embodied_env.safety.joint_limits import brake_velocity, joint_bounds, limit_violation, lowered_velocity

LAYOUT = SafetyGate(CONTRACT).layout
LIMITS = LAYOUT.limits
AXES = LAYOUT.is_velocity


def reference(velocities=(0.0, 0.0, 0.0, 0.0), positions=(0.0, 0.0, 0.0, 0.0)) -> CommandState:
    return CommandState(positions=np.array(positions), velocities=np.array(velocities), seq=0, epoch=0)


def as_action(vector):
    return LAYOUT.as_action(np.asarray(vector, dtype=np.float64))


def velocities() -> st.SearchStrategy[np.ndarray]:
    """Draw velocities within the limits, from which the gate may start."""
    parts = st.lists(st.floats(-1.0, 1.0), min_size=4, max_size=4)
    return parts.map(
        lambda part: np.array(part) * np.where(np.array(part) < 0.0, -LIMITS.velocity_low, LIMITS.velocity_high)
    )


@examples(80)
@given(finite_vectors(4), velocities())
def test_published_velocity_keeps_speed_and_acceleration(action, before):
    approved = SafetyGate(CONTRACT).judge(as_action(action), reference(before), 0.1)
    assert ((approved.values >= LIMITS.velocity_low) & (approved.values <= LIMITS.velocity_high))[AXES].all()
    most = np.maximum(LIMITS.acceleration, LIMITS.deceleration) * 0.1
    assert (np.abs(approved.values - before)[AXES] <= most[AXES] * (1 + 1e-12)).all()


@examples(80)
@given(velocities(), st.lists(st.floats(-1.0, 1.0), min_size=4, max_size=4))
def test_admissible_velocity_is_published_bit_for_bit(before, parts):
    action = as_action([*parts[:2], 0.5 * parts[2], 0.0])
    approved = SafetyGate(CONTRACT).judge(action, reference(before), 10.0)  # enough time for every change
    wanted = LAYOUT.scale.to_si(np.concatenate([np.atleast_1d(part) for part in action.values()]))
    assert approved.values[:2].tobytes() == wanted[:2].tobytes()
    np.testing.assert_array_equal(approved.report.applied[:2], np.concatenate(list(action.values()))[:2])


@examples(60)
@given(bounds(), st.floats(-1.0, 1.0), st.floats(0.0, 1.0), steps_of_time, st.floats(-3.0, 3.0))
def test_nearest_admissible_velocity_is_chosen(b, part, at, dt, fail_if_read):
    x = 0.0 if not np.isfinite(b.low) else b.low + at * (b.high - b.low)
    v = part * (b.velocity_high if part > 0.0 else -b.velocity_low)
    lower, upper = velocity_interval(x, v, b, dt)
    step = limit_velocity(x, v, fail_if_read * b.fastest, b, dt)
    if lower <= upper:
        nearest = min(max(fail_if_read * b.fastest, lower), upper)
        assert step.velocity == pytest.approx(nearest, rel=1e-14, abs=1e-15 * abs(v))
        assert (step.code == "") == (step.velocity == fail_if_read * b.fastest)
    else:
        slack = rounding(b, x, step.position, v, dt)
        assert abs(step.velocity) <= max(abs(brake_velocity(v, b, dt)), abs(lower), abs(upper)) + slack


@pytest.mark.parametrize(
    ("high", "position", "velocity", "desired"), [(0.0, 0.0, -0.05, 1e-119), (-3.5e-282, -2e-120, -4e-119, 0.5)]
)
def test_rounding_does_not_move_a_joint_out_of_its_range(high, position, velocity, desired):
    b = dataclasses.replace(joint_bounds(LIMITS)[2], low=-1.0, high=high)
    step = limit_velocity(position, velocity, desired, b, 0.1)
    assert step.velocity == pytest.approx(0.0, abs=1e-100)
    assert limit_violation(position, velocity, step.position, step.velocity, b, 0.1) == ""


@pytest.mark.parametrize("bad", [np.full(2, np.nan), np.full(2, np.inf), np.zeros(3), "stop"])
def test_malformed_action_brakes_a_moving_joint(bad):
    before = np.array([0.9, -1.5, 0.2, 0.0])
    action = {**as_action(np.zeros(4)), "base": bad}
    approved = SafetyGate(CONTRACT).judge(action, reference(before), 0.1)
    assert approved.report.disposition is Severity.HOLD
    slowed = np.maximum(0.0, np.abs(before) - LIMITS.deceleration * 0.1)
    np.testing.assert_allclose(np.abs(approved.values[AXES]), slowed[AXES])
    assert (approved.values * before >= 0.0).all()


def test_joint_stops_before_its_limit_by_its_measured_position():
    gate, position, velocity = SafetyGate(CONTRACT), 0.0, 0.0
    for _ in range(200):
        state = reference((0.0, 0.0, velocity, 0.0), (0.0, 0.0, position, 0.0))
        approved = gate.judge(as_action([0.0, 0.0, 0.475, 0.0]), state, 0.1)
        velocity = float(approved.values[2])
        position += 0.1 * velocity
        assert position <= LIMITS.position_high[2] + 1e-12
    assert position == pytest.approx(LIMITS.position_high[2], abs=1e-3)
    assert velocity == pytest.approx(0.0, abs=1e-3)


def test_measured_position_beyond_its_limit_holds():
    gate = SafetyGate(CONTRACT)
    approved = gate.judge(as_action([0.0, 0.0, 0.4, 0.0]), reference((0, 0, 0.4, 0), (0, 0, 1.2, 0)), 0.1)
    assert approved.report.disposition is Severity.HOLD
    assert approved.values[2] == pytest.approx(0.4 - LIMITS.deceleration[2] * 0.1)
    assert gate.latched is None


def test_hold_is_zero_velocity_and_the_last_position():
    gate = SafetyGate(CONTRACT)
    held = gate.hold_action(reference((0.3, 0.2, 0.1, 0.0), (0.0, 0.0, 0.5, 1.5)))
    approved = gate.judge(as_action(held), reference((0.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.5, 1.5)), 0.1)
    np.testing.assert_allclose(approved.values, [0.0, 0.0, 0.0, 1.5])
    assert approved.report.disposition is Severity.PASS


class World(ArbiterBench):
    """A free-running world that takes commands."""

    def __init__(self, **options):
        super().__init__(CONTRACT, **options)

    def step(self, action):
        self.publish(as_action(action), after_ns=100_000_000)


def test_commanded_velocity_is_kept_after_a_pause():
    world = World()
    for _ in range(10):
        world.step([1.0, 0.0, 0.0, 0.0])
    world.clock.advance_ns(5_000_000_000)
    with world.arbiter.exclusive as (state, dt_s):
        assert state.velocities[0] == pytest.approx(LIMITS.fastest[0])  # it was never commanded to stop
        assert dt_s == pytest.approx(0.1)


NOTHING = (np.full(4, np.nan), np.full(4, np.inf))
_SPEEDS = st.one_of(st.sampled_from([0.0, -0.0, 1e-9]), st.floats(-3.0, 3.0))


def driven(**options):
    """Return a world whose base and rail move at their limits, and whose arm follows while it is commanded."""
    world = World(**options)
    for _ in range(20):
        world.step([1.0, -1.0, 0.475, 0.0])
    assert (np.abs(world.sent[-1].values[AXES]) >= 0.99 * LIMITS.fastest[AXES]).all()
    return world


def speeds(command):
    return command.values[AXES].tolist()


@examples(200)
@given(bounds(), st.floats(-1.0, 1.0), _SPEEDS, st.floats(0.0, 5.0), st.floats(-1.0, 1.0), st.floats(0.001, 0.5))
def test_reference_after_a_gap_is_nearer_to_the_true_velocity_and_never_faster_or_reversed(
    b, part, u, age, change, period
):
    published, true = part * b.fastest, u * b.fastest
    measured = true - change * max(b.acceleration, b.deceleration) * age
    settled, lowered = (
        lowered_velocity(published, measured, age, b, settled=each, period_s=period) for each in (True, False)
    )
    for each in (settled, lowered):
        assert abs(each) <= abs(published)
        assert each * published >= 0.0
    slack = 1e-9 * (abs(published) + abs(measured))
    assert abs(lowered - true) <= abs(published - true) + slack
    sign = np.copysign(1.0, published)
    assert sign * lowered >= min(abs(published), sign * true) - slack


@examples(100)
@given(bounds(), st.floats(-1.0, 1.0), _SPEEDS, st.floats(0.001, 0.5))
def test_unresponsive_joint_counts_as_at_rest_only_if_one_period_stops_it(b, part, m, period):
    published, measured = part * b.fastest, m * b.fastest
    lowered = lowered_velocity(published, measured, 0.0, b, settled=True, period_s=period)
    assert abs(lowered - measured) <= abs(published - measured) * (1 + 1e-12)
    if abs(lowered) < abs(measured) and lowered * measured > 0.0:
        assert abs(lowered) == abs(published)  # never raised
    elif lowered == 0.0 and measured * published > 0.0:
        assert abs(measured) <= b.deceleration * period


@pytest.mark.parametrize("measured", [np.nan, np.inf, -np.inf])
def test_unknown_velocity_changes_nothing(measured):
    b = joint_bounds(LIMITS)[0]
    assert lowered_velocity(0.5, measured, 0.0, b, settled=True, period_s=0.1) == 0.5
    assert lowered_velocity(0.5, 0.0, np.nan, b, settled=True, period_s=0.1) == 0.5
    assert lowered_velocity(0.5, 0.0, np.inf, b, settled=False, period_s=0.1) == 0.5


@pytest.mark.parametrize(("timeout_s", "pause_s"), [(0.5, 0.6), (0.5, 0.9), (0.5, 1e6), (0.15, 0.16)])
def test_braking_after_the_controller_timeout_publishes_zero(timeout_s, pause_s):
    """A timeout shorter than three periods applies, too."""
    world = driven(downstream_timeout_s=timeout_s)
    world.clock.advance_ns(round(pause_s * 1e9))
    assert speeds(world.arbiter.brake(HOLD)) == [0.0, 0.0, 0.0]
    world.arbiter.brake_to_rest(HOLD)
    assert speeds(world.sent[-1]) == [0.0, 0.0, 0.0]


def test_braking_before_the_controller_timeout_starts_from_the_published_velocity():
    world = driven(downstream_timeout_s=0.5)
    last = world.sent[-1].values
    world.clock.advance_ns(450_000_000)
    slowed = np.sign(last) * np.maximum(0.0, np.abs(last) - LIMITS.deceleration * 0.1)
    np.testing.assert_allclose(speeds(world.arbiter.brake(HOLD)), slowed[AXES])


def test_joint_measured_at_rest_stays_at_rest_despite_noise():
    noise = np.array([0.005, -0.004, 0.003, np.nan])
    world = driven(measured_velocities=lambda: (noise, np.array([0.1, 0.1, 0.1, np.inf])))
    world.clock.advance_ns(900_000_000)
    assert speeds(world.arbiter.brake(HOLD)) == [0.0, 0.0, 0.0]


def test_noise_does_not_lower_a_following_joint():
    measured = []
    world = driven(measured_velocities=lambda: (measured[0], np.array([0.05, 0.05, 0.05, np.inf])))
    before = world.sent[-1].values
    measured.append(before - 0.01)
    world.clock.advance_ns(900_000_000)
    with world.arbiter.exclusive as (state, _):
        assert state.velocities[AXES].tolist() == before[AXES].tolist()
        assert state.before_gap is None


def test_old_reading_changes_nothing():
    world = driven(measured_velocities=lambda: (np.zeros(4), np.full(4, 0.85)))
    before = world.sent[-1].values
    world.clock.advance_ns(900_000_000)
    with world.arbiter.exclusive as (state, _):
        assert abs(state.velocities[0]) == abs(before[0])  # 2 m/s^2 for 0.85 s is beyond 1 m/s


def test_reading_after_the_start_of_braking_is_used():
    readings = [NOTHING, NOTHING]
    world = driven(measured_velocities=lambda: readings.pop(0) if readings else (np.zeros(4), np.full(4, 0.01)))
    world.clock.advance_ns(900_000_000)
    assert speeds(world.arbiter.brake(HOLD)) != [0.0, 0.0, 0.0]
    world.clock.advance_ns(50_000_000)
    world.arbiter.brake(HOLD)
    world.clock.advance_ns(50_000_000)
    assert speeds(world.arbiter.brake(HOLD)) == [0.0, 0.0, 0.0]


def test_measured_velocities_are_not_read_without_a_gap():
    def fail_if_read():
        raise AssertionError

    world = driven(measured_velocities=fail_if_read, downstream_timeout_s=0.5)
    world.arbiter.brake(HOLD)


def test_gap_is_reported_with_the_velocity_used():
    world = driven(downstream_timeout_s=0.5)
    last = world.sent[-1].values
    world.clock.advance_ns(900_000_000)
    with world.arbiter.exclusive as (state, dt_s):
        report = world.gate.judge(as_action(np.zeros(4)), state, dt_s).report
    (finding,) = [each for each in report.findings if each.code == "vel.gap"]
    assert finding.joints == ("linear.x", "angular.z", "rail")
    assert finding.before.tolist() == last[AXES].tolist()
    assert finding.after.tolist() == [0.0, 0.0, 0.0]
    assert report.disposition is Severity.PASS
    world.step(np.zeros(4))
    world.step(np.zeros(4))
    assert not world.sent[-1].report.findings


_PAUSES = st.one_of(st.floats(0.0, 0.2), st.sampled_from([0.3, 0.35, 0.5, 0.51]), st.floats(0.2, 3.0))


@examples(60)
@given(st.lists(st.tuples(_PAUSES, st.booleans(), st.floats(-1.0, 1.0)), min_size=1, max_size=25), st.floats(0.0, 0.2))
def test_braking_never_starts_a_robot_with_a_timeout(steps, lag_s):
    """The plant follows the active command with a first-order lag, and stops after 0.5 s without one."""
    world, true, in_force = World(downstream_timeout_s=0.5), 0.0, 0.0
    for pause_s, brakes, fail_if_read in steps:
        pause_ns = round(pause_s * 1e9)
        for held_ns, command in ((min(pause_ns, 500_000_000), in_force), (max(0, pause_ns - 500_000_000), 0.0)):
            true = command + (true - command) * (
                np.exp(-held_ns / 1e9 / lag_s) if lag_s > 1e-3 else 0.0 if held_ns else 1.0
            )
        world.clock.advance_ns(pause_ns)
        in_force = 0.0 if pause_ns > 500_000_000 else in_force
        if brakes:
            world.arbiter.brake(HOLD)
        else:
            with world.arbiter.exclusive as (state, dt_s):
                world.arbiter.send(world.gate.judge(as_action([fail_if_read, 0.0, 0.0, 0.0]), state, dt_s))
        now = float(world.sent[-1].values[0])
        dt_s = min(pause_ns / 1e9, 0.1)
        if brakes:
            assert abs(now) <= abs(in_force)
            assert abs(now) <= max(0.0, abs(in_force) - LIMITS.deceleration[0] * dt_s) + 1e-9
        assert abs(now) - abs(in_force) <= LIMITS.acceleration[0] * dt_s + 1e-9
        in_force = now


def test_measured_position_is_used_for_velocity_joints_only():
    world = World()
    world.arbiter.update_measured(np.array([7.0, 7.0, 0.25, 7.0]), np.zeros(4))
    assert world.arbiter.reference.positions[2:].tolist() == [0.25, 0.0]


def test_old_measurement_narrows_the_limits():
    world = World()
    world.arbiter.update_measured(np.array([0.0, 0.0, 0.25, 0.0]), np.array([0.0, 0.0, 0.5, 9.0]))
    slack = world.arbiter.reference.slack
    np.testing.assert_allclose(slack, [0.0, 0.0, 0.5 * LIMITS.fastest[2], 0.0])


def test_joint_with_a_lost_sensor_brakes_before_its_limit():
    gate, truth, velocity = SafetyGate(CONTRACT), 0.0, 0.0
    for step in range(200):
        slack = np.array([0.0, 0.0, LIMITS.fastest[2] * 0.1 * step, 0.0])  # measured once, at zero
        state = dataclasses.replace(reference((0.0, 0.0, velocity, 0.0)), slack=slack)
        approved = gate.judge(as_action([0.0, 0.0, 0.475, 0.0]), state, 0.1)
        velocity = float(approved.values[2])
        truth += 0.1 * velocity
        assert truth <= LIMITS.position_high[2]
    assert velocity == 0.0
    assert gate.latched is None


def test_position_is_guaranteed_only_if_certainly_inside():
    gate, hold = SafetyGate(CONTRACT), as_action(np.zeros(4))
    for state, known in (
        (reference(), True),
        (dataclasses.replace(reference(), slack=np.array([0.0, 0.0, 2.0, 0.0])), False),
        (reference(positions=(0.0, 0.0, 1.3, 0.0)), False),
        (reference(positions=(0.0, 0.0, 0.0, 2.2)), False),
    ):
        assert gate.judge(hold, state, 0.1).report.guaranteed["position"] is known


def test_repeating_the_applied_action_is_not_clipped():
    gate, rng = SafetyGate(CONTRACT), np.random.default_rng(0)
    for _ in range(500):
        before = np.clip(rng.uniform(-1.0, 1.0, 4) * LIMITS.fastest, LIMITS.velocity_low, np.inf) * [1, 1, 1, 0]
        state = reference(before)
        applied = gate.judge(as_action(rng.uniform(-1.0, 1.0, 4)), state, 0.1).report.applied
        again = gate.judge(LAYOUT.as_action(applied), state, 0.1).report
        if (again.applied[:2] == applied[:2]).all():
            assert not [f for f in again.findings if {"linear.x", "angular.z"} & set(f.joints)]


def test_monitored_velocity_is_published_unchanged():
    safety = dataclasses.replace(CONTRACT.safety, mode="monitor")
    gate = SafetyGate(dataclasses.replace(CONTRACT, safety=safety))
    approved = gate.judge(as_action([1.0, 0.0, 0.0, 0.0]), reference(), 0.1)
    assert approved.values[0] == LIMITS.fastest[0]
    assert [finding.code for finding in approved.report.findings] == ["acc.limit"]
    assert load_contract("arm_reach").safety.mode == "enforce"
