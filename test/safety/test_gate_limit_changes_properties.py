"""When limits are tightened in motion, the published rate changes no faster than allowed in any state."""

import dataclasses

import numpy as np
import pytest
from arbiter_bench import HOLD, ArbiterBench
from hypothesis import given
from hypothesis import strategies as st
from safety_strategies import bounds, contract_of, examples, safe_state
from single_joint import velocity_interval

from embodied_env.contract import JointLimits
from embodied_env.core.code_types import Severity
from embodied_env.core.types import CommandState
from embodied_env.safety.joint_limits import braking_bounds, is_in_safe_set

PERIOD_S = 0.05
OWN = JointLimits(position=(-2.0, 2.0), velocity=3.0, acceleration=4.0, deceleration=8.0, jerk=None)


class Robot(ArbiterBench):
    """A gate and an arbiter in lockstep, and every published command."""

    def __init__(self, *limits, **options):
        super().__init__(contract_of(*(limits or (OWN,)), **options), free_running=False)
        self.size = self.gate.layout.size
        self.begin()

    def begin(self, positions=None):
        self.start = np.zeros(self.size) if positions is None else np.array(positions)
        self.sent.clear()
        self.gate.reset()
        self.arbiter.reset(self.start, 0)

    def step(self, action):
        if self.gate.has_velocity:
            self.arbiter.update_measured(self.positions(), np.zeros(self.size))
        return self.publish(np.full(self.size, action)).report

    def positions(self):
        """Return the positions that the velocities lead to, for a plant without lag."""
        return (
            self.start + PERIOD_S * np.sum([command.values for command in self.sent], axis=0)
            if self.sent
            else self.start
        )

    def rates(self):
        """Return the velocity of each step from the published values alone, shape (n_steps + 1, n_joints)."""
        if self.gate.has_velocity:
            return np.array([np.zeros(self.size), *(command.values for command in self.sent)])
        values = np.array([self.start, *(command.values for command in self.sent)])
        return np.vstack([np.zeros(self.size), np.diff(values, axis=0) / PERIOD_S])


def check_rates(robot, limits=OWN):
    """Assert that no published rate changes faster than acceleration and deceleration allow."""
    rates = robot.rates()
    before, after = rates[:-1], rates[1:]
    faster = (np.abs(after) - np.abs(before)) / PERIOD_S
    assert faster.max() <= limits.acceleration + 1e-6
    assert -faster.min() <= (limits.deceleration or limits.acceleration) + 1e-6
    crossing = before * after < 0.0
    assert (np.abs(after - before)[crossing] <= max(limits.acceleration, limits.deceleration) * PERIOD_S + 1e-9).all()


def change(robot, **limits):
    return robot.gate.change_limits({f"j{i}": dataclasses.replace(OWN, **limits) for i in range(robot.size)})


COMMANDS = ["position_delta", "position", "velocity"]
_RANGES = (
    st.tuples(st.floats(-2.0, 2.0), st.floats(-2.0, 2.0)).map(sorted).filter(lambda ends: ends[1] - ends[0] > 0.01)
)
_CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "position": _RANGES.map(tuple),
        "velocity": st.floats(0.01, 3.0) | st.tuples(st.floats(-3.0, -0.01) | st.just(0.0), st.floats(0.01, 3.0)),
    },
)
_ACTIONS = st.lists(st.one_of(st.sampled_from([1.0, -1.0, 0.0]), st.floats(-1.0, 1.0)), min_size=1, max_size=25)


@examples(80)
@given(
    st.sampled_from(COMMANDS), _ACTIONS, st.lists(st.tuples(_CHANGES, _ACTIONS, st.booleans()), min_size=1, max_size=3)
)
def test_tightening_in_any_state_never_brakes_faster_than_allowed(command, first, changes):
    robot = Robot(OWN, command=command)
    for action in first:
        robot.step(action)
    limits = {}
    for narrower, actions, brakes in changes:
        limits = {**limits, **narrower}
        try:
            change(robot, **limits)
        except ValueError:
            continue
        for action in actions:
            if brakes:
                robot.arbiter.brake(HOLD)
            else:
                report = robot.step(action)
                assert report.disposition < Severity.STOP
    check_rates(robot)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("narrower", [{"position": (-0.2, 0.2)}, {"position": (-1.9, -1.0)}, {"velocity": 0.3}])
def test_joint_at_full_speed_brakes_into_narrower_limits(command, narrower):
    robot = Robot(OWN, command=command)
    if command != "velocity":
        robot.begin([-1.5])
    while abs(robot.rates()[-1, 0]) < 0.99 * 2.0:
        robot.step(1.0)
    assert change(robot, **narrower)
    first = robot.step(1.0)
    assert [finding.joints for finding in first.findings if finding.code == "limits.tightened"] == [("j0",)]
    assert not first.guaranteed["position"]
    assert not first.guaranteed["velocity"]
    assert first.guaranteed["acceleration"]
    for _ in range(100):
        last = robot.step(0.0 if command == "velocity" and "position" in narrower else 1.0)
    check_rates(robot)
    if "velocity" in narrower:
        assert abs(robot.rates()[-1, 0]) <= 0.3 + 1e-9
        assert "limits.tightened" not in [finding.code for finding in last.findings]
        assert last.guaranteed["velocity"]
    else:
        assert robot.rates()[-1, 0] == pytest.approx(0.0, abs=1e-6)


def test_joint_beyond_its_new_range_is_reported_until_it_is_inside():
    robot = Robot()
    robot.begin([1.0])
    change(robot, position=(-0.5, 0.5))
    report = robot.step(0.0)
    assert [finding.code for finding in report.findings] == ["limits.tightened"]
    assert report.disposition is Severity.PASS
    assert not report.guaranteed["position"]
    for _ in range(60):
        report = robot.step(-1.0)
    assert report.guaranteed["position"]
    assert "limits.tightened" not in [finding.code for finding in report.findings]
    check_rates(robot)


def test_a_jerk_limited_joint_brakes_into_narrower_limits_without_delay():
    limits = dataclasses.replace(OWN, jerk=20.0)
    robot = Robot(limits)
    for _ in range(40):
        robot.step(0.5)
        if robot.rates()[-1, 0] > 1.0:
            break
    robot.gate.change_limits({"j0": dataclasses.replace(limits, velocity=0.2, position=(-2.0, 0.9))})
    for _ in range(60):
        assert robot.step(1.0).disposition < Severity.STOP
    check_rates(robot)


@pytest.mark.parametrize("key", ["acceleration", "deceleration", "jerk"])
def test_changed_accelerations_have_no_effect_in_motion(key):
    robot = Robot(dataclasses.replace(OWN, jerk=50.0))
    for _ in range(12):
        robot.step(1.0)
    changes: dict = {"jerk": 50.0, key: 1.0}
    assert not robot.gate.change_limits({"j0": dataclasses.replace(OWN, **changes)})
    for _ in range(12):
        robot.step(-1.0)
    check_rates(robot)


@examples(150)
@given(
    bounds().filter(lambda b: np.isfinite(b.low)),
    st.tuples(st.floats(0.0, 1.0), st.floats(-1.0, 1.0)),
    st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.floats(0.01, 1.0)),
    st.floats(0.001, 0.2),
)
def test_widened_limits_allow_full_braking_within_the_previous_limits(b, parts, narrower, dt):
    x, v = safe_state(b, parts)
    ends = sorted(b.low + part * (b.high - b.low) for part in narrower[:2])
    slower = {"velocity_low": narrower[2] * b.velocity_low, "velocity_high": narrower[2] * b.velocity_high}
    narrow = dataclasses.replace(b, low=ends[0], high=ends[1], **slower)
    widened = braking_bounds(x, v, narrow, b, dt)
    assert b.low <= widened.low <= narrow.low
    assert narrow.high <= widened.high <= b.high
    assert narrow.velocity_high <= widened.velocity_high <= b.velocity_high
    assert narrow.velocity_low >= widened.velocity_low >= b.velocity_low
    lower, upper = velocity_interval(x, v, widened, dt)
    slack = 1e-6 * b.fastest + 1e-9 * b.extent / dt
    if narrow.low <= x <= narrow.high:
        assert lower - upper <= slack
    if v > 0.0 and not is_in_safe_set(x, v, narrow):
        assert lower >= v - b.deceleration * dt - (0.0 if v > b.deceleration * dt else b.acceleration * dt) - slack


def test_limits_are_strict_after_a_reset():
    robot = Robot()
    change(robot, velocity=0.5)
    robot.begin()
    moving = CommandState(positions=np.zeros(1), velocities=np.array([2.0]), seq=0, epoch=0)
    report = robot.gate.judge(np.ones(1), moving, PERIOD_S).report
    assert report.disposition is Severity.STOP  # a reference beyond them can only be a fault
