"""A joint that moves in one direction only never moves back by a target, braking, a filter or changed limits."""

import dataclasses
import math

import numpy as np
import pytest
from arbiter_bench import HOLD
from gate_actions import BACKWARDS, FORWARDS
from hypothesis import given
from hypothesis import strategies as st
from safety_strategies import FunctionFilter, any_time, contract_of, examples, safe_state, situations
from single_joint import limit_joint, limit_velocity, velocity_interval

from embodied_env.contract import JointLimits
from embodied_env.core.code_types import Severity
from embodied_env.core.types import CommandState
from embodied_env.safety.approved_commands import state_after
from embodied_env.safety.command_filters import FilterDecision
from embodied_env.safety.gate import SafetyGate
from embodied_env.safety.joint_limits import braking_bounds, joint_bounds, limit_violation

PERIOD_S = 0.05
WAYS = np.array([1.0, -1.0])


def one_way(b, way: float):
    """Return bounds that allow motion in one direction only."""
    low, high = (0.0, b.fastest) if way > 0.0 else (-b.fastest, 0.0)
    return dataclasses.replace(b, velocity_low=low, velocity_high=high)


@examples(80)
@given(situations(quick=True), st.sampled_from([1.0, -1.0]), st.tuples(st.floats(0.0, 1.0), st.floats(-1.0, 1.0)))
def test_no_target_moves_a_one_way_joint_back_not_even_by_rounding(s, way, parts):
    b = one_way(s.b, way)
    x, v = safe_state(b, parts)
    target = float(np.clip(s.aim.target(x, velocity_interval(x, v, b, s.dt), b, s.dt), -1e99, 1e99))
    for step in (limit_joint(x, v, target, b, s.dt), limit_velocity(x, v, (target - x) / s.dt, b, s.dt)):
        assert step.velocity * way >= 0.0
        assert (step.position - x) * way >= 0.0
        assert limit_violation(x, v, step.position, step.velocity, b, s.dt) == ""


@pytest.mark.parametrize("back", [1e-18, 1e-12, 1e-3, 1.0])
def test_the_check_of_the_result_tolerates_no_motion_against_the_only_direction(back):
    forwards, backwards = joint_bounds(contract_limits(FORWARDS, BACKWARDS))
    assert "velocity" in limit_violation(0.0, 0.0, 0.0, -back, forwards, 1.0)
    assert "velocity" in limit_violation(0.0, 0.0, 0.0, back, backwards, 1.0)
    both = dataclasses.replace(forwards, velocity_low=-0.2)
    assert limit_violation(0.0, -0.2, -0.2, -0.2, both, 1.0) == ""
    assert "outside [-0.2, 1.0]" in limit_violation(0.0, -0.3, -0.3, -0.3, both, 1.0)


def contract_limits(*limits):
    return SafetyGate(contract_of(*limits)).layout.limits


def test_a_target_that_is_back_by_rounding_only_is_not_kept():
    """Without the limit by direction it would be kept, as another joint may be a rounding error off."""
    b = joint_bounds(contract_limits(FORWARDS))[0]
    back = math.nextafter(1.0, 0.0)
    assert limit_joint(1.0, 0.0, back, b, PERIOD_S) == (1.0, 0.0, "vel.limit", 1.0)
    assert limit_velocity(1.0, 0.2, -1e-18, b, PERIOD_S)[1:3] == (0.0, "vel.limit")
    slow = dataclasses.replace(b, velocity_low=-1e-9)
    assert limit_joint(1.0, 0.0, back, slow, 1e-9).position == back


@pytest.mark.parametrize("way", WAYS)
def test_a_jerk_limited_one_way_joint_comes_to_rest_as_soon_as_any_other(way):
    def steps_to_rest(*velocity):
        limits = JointLimits(position=None, velocity=velocity, acceleration=4.0, jerk=20.0)
        gate = SafetyGate(contract_of(limits, command="velocity", scale="physical"))
        state = CommandState(positions=np.zeros(1), velocities=np.zeros(1), seq=0, epoch=0)
        for step in range(200):
            command = gate.judge(np.array([way if step < 100 else 0.0]), state, PERIOD_S)
            assert command.report.guaranteed["jerk"]
            state = state_after(state, command, gate.layout.is_velocity)
            if step > 100 and not state.velocities.any():
                return step - 100
        return None

    assert steps_to_rest(*((0.0, 1.0) if way > 0.0 else (-1.0, 0.0))) == steps_to_rest(-1.0, 1.0) == 11


_TICKS = st.lists(st.tuples(st.floats(-2.0, 2.0), any_time, st.booleans()), min_size=1, max_size=30)


@pytest.mark.parametrize("scale", ["normalized", "physical"])
@pytest.mark.parametrize("command", ["position", "position_delta", "velocity"])
@examples(30)
@given(_TICKS, st.sampled_from([None, 20.0, 400.0]), st.sampled_from([None, 0.3]))
def test_no_action_braking_jerk_or_filter_moves_a_one_way_joint_back(command, scale, ticks, jerk, share):
    limits = (dataclasses.replace(each, jerk=jerk) for each in (FORWARDS, BACKWARDS))
    contract = contract_of(*limits, command=command, scale=scale, control_period_s=1.0)
    slow = FunctionFilter(lambda _: FilterDecision(severity=Severity.LIMIT, share=share, detail="slow"))
    gate = SafetyGate(contract, filters={} if share is None else {"slow": slow}, fixed_rate=False)
    state = CommandState(positions=np.array([-1.0, 1.0]), velocities=np.zeros(2), seq=0, epoch=0)
    for action, dt_s, brakes in ticks:
        judged = gate.brake(state, dt_s, HOLD) if brakes else gate.judge(np.full(2, action), state, dt_s)
        after = state_after(state, judged, gate.layout.is_velocity)
        assert judged.report.disposition < Severity.STOP
        assert (judged.report.velocity_si * WAYS >= 0.0).all()
        assert ((after.positions - state.positions) * WAYS >= 0.0).all()
        state = after


@examples(60)
@given(st.floats(-1.0, 0.0), st.floats(0.001, 0.2))
def test_a_joint_that_moves_back_when_this_is_forbidden_brakes_and_then_never_does(velocity, dt_s):
    before, after = joint_bounds(contract_limits(dataclasses.replace(FORWARDS, velocity=1.0), FORWARDS))
    x, v = 0.0, velocity
    for _ in range(1000):
        widened = braking_bounds(x, v, after, before, dt_s)
        step = limit_joint(x, v, x - 1.0, widened, dt_s)
        assert step.velocity == pytest.approx(min(0.0, v + after.deceleration * dt_s), abs=1e-9)
        assert limit_violation(x, v, step.position, step.velocity, widened, dt_s) == ""
        if v >= 0.0:
            assert step.position == x
            break
        x, v = step.position, step.velocity
    assert v >= 0.0


def test_forbidding_reverse_applies_at_once_and_allowing_it_from_the_next_reset():
    both = dataclasses.replace(FORWARDS, velocity=1.0)
    gate = SafetyGate(contract_of(both))
    assert gate.change_limits({"j0": dataclasses.replace(both, velocity=(-0.2, 1.0))})
    assert gate.change_limits({"j0": FORWARDS})
    assert not gate.change_limits({"j0": BACKWARDS})
    assert (gate.limits.velocity_low[0], gate.limits.velocity_high[0]) == (0.0, 1.0)
    gate.reset()
    assert (gate.limits.velocity_low[0], gate.limits.velocity_high[0]) == (-1.0, 0.0)


def test_scaled_limits_are_scaled_in_both_directions():
    gate = SafetyGate(contract_of(dataclasses.replace(FORWARDS, velocity=(-0.2, 1.0))))
    with gate.scaled_velocity_limits(0.5):
        assert (gate.limits.velocity_low[0], gate.limits.velocity_high[0]) == (-0.1, 0.5)
    assert (gate.limits.velocity_low[0], gate.limits.velocity_high[0]) == (-0.2, 1.0)


@pytest.mark.parametrize("limits", [FORWARDS, BACKWARDS])
@pytest.mark.parametrize("seed", range(60))
def test_the_action_that_holds_a_one_way_joint_is_kept(limits, seed):
    """The action maps onto a position that may be a rounding error behind, to which the joint could not move."""
    rng = np.random.default_rng(seed)
    low, high = sorted(rng.uniform(-3.0, 3.0, 2).tolist())
    gate = SafetyGate(contract_of(dataclasses.replace(limits, position=(low, high)), command="position"))
    positions = rng.uniform(gate.limits.position_low, gate.limits.position_high)
    state = CommandState(positions=positions, velocities=np.zeros(1), seq=0, epoch=0)
    hold = gate.hold_action(state)
    report = gate.judge(hold, state, PERIOD_S).report
    assert report.findings == ()
    moved = report.applied_si - state.positions
    assert 0.0 <= (moved[0] if limits is FORWARDS else -moved[0]) < 1e-14
