"""P-numbers are those of the table in `test_gate_chain_properties`."""

import dataclasses
import functools
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from arbiter_bench import ArbiterBench
from gate_actions import bits, flat, mapped, same_command
from hypothesis import assume, example, given
from hypothesis import strategies as st
from safety_strategies import (
    NOT_FINITE,
    actions_of,
    admissible,
    any_actions,
    as_joint_limits,
    bounds,
    contract_of,
    examples,
    finite_vectors,
    gates,
    joint_limits,
    malformed_values,
    plain_contract,
    reference_at,
    rounding,
    safe_states,
    steps_of_time,
    stopping_excess,
)

from embodied_env.contract import JointLimits, Margins
from embodied_env.core.code_types import Severity
from embodied_env.core.types import Finding
from embodied_env.errors import ContractError
from embodied_env.safety.gate import SafetyGate
from embodied_env.safety.joint_limits import JointBounds, brake_velocity
from embodied_env.timing.clock import NS_PER_S


@functools.cache
def moderate_vectors(size: int):
    return finite_vectors(size).filter(lambda v: (np.abs(v) < 1e50).all())


def arrays_in(action) -> list[np.ndarray]:
    if isinstance(action, np.ndarray):
        return [action]
    return [part for part in dict.values(action) if isinstance(part, np.ndarray)] if isinstance(action, dict) else []


# -------------------------------------------------------------------------------------------------------------- any action


def test_p2_rounding_far_from_zero_stays_in_the_action_space():
    limits = JointLimits(position=(-1e6, 1e6), velocity=1e-6, acceleration=1e3)
    gate = SafetyGate(contract_of(limits))
    reference = reference_at((123456.7, 1e-6))
    approved = gate.brake(reference, 1e-3, Finding(gate="watchdog", severity=Severity.HOLD, code="wd.hold"))
    assert gate.layout.scale.low <= approved.report.applied <= gate.layout.scale.high
    for action in ([0.9], [-0.9], [2.0]):
        applied = gate.judge(action, reference, 0.04).report.applied
        assert gate.layout.scale.low <= applied <= gate.layout.scale.high


@examples(40)
@given(gates(), st.data())
def test_p2_an_action_outside_its_space_is_clipped_first(g, data):
    action = data.draw(actions_of(g.contract))
    requested, scale = flat(g.gate, action), g.gate.layout.scale
    outside = (requested < scale.low) | (requested > scale.high)
    found = [f for f in g.gate.judge(action, g.reference, g.dt).report.findings if f.gate == "space_box"]
    assert [f.joints for f in found] == [
        tuple(n for n, out in zip(g.gate.layout.joints, outside, strict=True) if out)
    ] * bool(outside.any())
    if found:
        edges = np.where(requested < scale.low, scale.low, scale.high)
        assert bits(found[0].after) == bits(found[0].limit) == bits(edges[outside])


@examples(40)
@given(gates(joints=2), st.data())
def test_agent_command_and_report_share_no_array_that_can_be_written(g, data):
    """They are the reference of the next step, so writing to one would bypass the gate."""
    action = data.draw(any_actions(g.contract))
    arrays = arrays_in(action)
    before = [array.tobytes() for array in arrays]
    for array in arrays:
        array.setflags(write=False)
    approved = g.gate.judge(action, g.reference, g.dt)
    report = approved.report
    assert [array.tobytes() for array in arrays] == before
    for array in (approved.values, report.applied_si, report.velocity_si, report.applied, report.requested):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0.0
        assert not any(np.shares_memory(array, given) for given in arrays)


@examples(40)
@given(gates(), st.data())
def test_malformed_action_brakes_with_a_finding(g, data):
    size = g.gate.layout.size
    action = data.draw(malformed_values(size))
    approved = g.gate.judge(action, g.reference, g.dt)
    braked = g.gate.brake(g.reference, g.dt, Finding(gate="watchdog", severity=Severity.HOLD, code="wd.hold"))
    assert bits(approved.values) == bits(braked.values)
    assert approved.report.disposition is Severity.HOLD
    assert [finding.gate for finding in approved.report.findings] == ["form"]


# ------------------------------------------------------------------------------------------------------ limits, at the gate


@examples(30)
@given(gates(), st.data())
def test_p6_replaying_the_applied_action_gives_the_same_command_without_findings(g, data):
    once = g.gate.judge(data.draw(actions_of(g.contract)), g.reference, g.dt)
    twice = g.gate.judge(g.gate.layout.as_action(once.report.applied), g.reference, g.dt)
    for i, b in enumerate(g.bounds):
        slack = rounding(b, g.reference.positions[i], once.values[i], once.report.velocity_si[i], g.dt) * g.dt
        assert abs(twice.values[i] - once.values[i]) <= slack
    assert twice.report.findings == ()


@examples(40)
@given(gates(), st.lists(st.floats(-1.0, 1.0), min_size=4, max_size=4))
def test_p7_an_admissible_action_passes_bit_for_bit_without_findings(g, parts):
    """Each joint tries some velocity, and brakes, which is always admissible, where that one is not."""
    reference, scale = g.reference, g.gate.layout.scale
    target = np.empty(g.gate.layout.size)
    for i, b in enumerate(g.bounds):
        x, v = float(reference.positions[i]), float(reference.velocities[i])
        fastest = b.velocity_high if parts[i] > 0.0 else -b.velocity_low
        w = parts[i] * min(fastest, abs(v) + b.acceleration * g.dt)
        if not admissible(x, v, Fraction(w), b, g.dt):
            w = brake_velocity(v, b, g.dt)
        target[i] = min(max(x + w * g.dt, b.low), b.high)
    action = scale.from_si(np.where(g.gate.layout.is_delta, target - reference.positions, target))
    assume(((scale.low <= action) & (action <= scale.high)).all())
    approved = g.gate.judge(g.gate.layout.as_action(action), reference, g.dt)
    assert approved.report.findings == ()
    assert not approved.report.intervened
    assert bits(approved.report.applied) == bits(action)
    assert bits(approved.values) == bits(mapped(g.gate, action, reference))


# ------------------------------------------------------------------------------------------------------------- the report


@examples(50)
@given(gates(), st.data())
def test_p12_the_limit_of_a_finding_is_binding(g, data):
    approved = g.gate.judge(data.draw(actions_of(g.contract)), g.reference, g.dt)
    for finding in approved.report.findings:
        for name in finding.joints if finding.gate == "joint_limits" else ():
            i = g.gate.layout.joints.index(name)
            b, v, w = g.bounds[i], float(g.reference.velocities[i]), float(approved.report.velocity_si[i])
            reached = float(approved.values[i])
            slack = 4.0 * rounding(b, float(g.reference.positions[i]), reached, w, g.dt)
            changed = abs(w - v)
            at_limit = {
                "vel.limit": w in (b.velocity_low, b.velocity_high),
                "acc.limit": min(abs(changed - b.acceleration * g.dt), abs(changed - b.deceleration * g.dt), abs(w))
                <= slack,
                "pos.limit": stopping_excess(reached, w, b) >= -Fraction(slack * (g.dt + abs(w) / b.deceleration)),
            }
            assert at_limit[finding.code]


# ------------------------------------------------------------------------------------------------------- configuration


WRONG = (math.nan, math.inf, -1.0, 0.0)
WRONG_LIMITS = [
    *({key: value} for key in ("velocity", "acceleration", "deceleration") for value in WRONG),
    *(
        {"position": pair}
        for pair in ((2.0, 2.0), (2.0, 1.0), (math.nan, 2.0), (-1.0, math.nan), (-math.inf, math.inf))
    ),
]
WRONG_MARGINS = [
    {key: value}
    for key in ("position", "velocity", "acceleration")
    for value in WRONG
    if (key, value) != ("position", 0.0)
]


@pytest.mark.parametrize("wrong", WRONG_LIMITS, ids=str)
def test_p18_an_invalid_limit_is_rejected_and_changes_nothing(wrong):
    gate, reference = SafetyGate(plain_contract(joints=3)), reference_at((0.1, 0.2), (0.0, 0.0), (-2.0, 0.0))
    before = gate.judge([0.5, -0.5, -0.5], reference, 0.05)
    for at in range(3):
        limits = [joint_limits()] * 3
        limits[at] = dataclasses.replace(limits[at], **wrong)
        with pytest.raises(ContractError, match=f"j{at}"):
            contract_of(*limits)
    assert same_command(before, gate.judge([0.5, -0.5, -0.5], reference, 0.05))


@pytest.mark.parametrize("wrong", WRONG_MARGINS, ids=str)
def test_p18_an_invalid_margin_is_rejected(wrong):
    with pytest.raises(ContractError, match="margins"):
        plain_contract(margins=Margins(**{"position": 0.0, "velocity": 1.0, "acceleration": 1.0, **wrong}))


def test_p18_margins_that_leave_no_range_are_rejected():
    with pytest.raises(ContractError, match=r"safety\.margins\.position"):
        plain_contract(margins=Margins(position=2.0, velocity=1.0, acceleration=1.0))


@examples(25)
@given(bounds(continuous=False), st.floats(0.0, 0.4), st.floats(0.01, 1.0), st.floats(0.01, 1.0), st.data())
def test_margins_keep_every_command_inside_the_limits(b, inset, speed, strength, data):
    margin = inset * (b.high - b.low)
    contract = contract_of(as_joint_limits(b), margins=Margins(position=margin, velocity=speed, acceleration=strength))
    inner = JointBounds(
        low=b.low + margin,
        high=b.high - margin,
        velocity_low=b.velocity_low * speed,
        velocity_high=b.velocity_high * speed,
        acceleration=b.acceleration * strength,
        deceleration=b.deceleration * strength,
    )
    state = data.draw(safe_states(inner))
    approved = SafetyGate(contract).judge(data.draw(finite_vectors(1)), reference_at(state), 0.05)
    reached, w = float(approved.values[0]), float(approved.report.velocity_si[0])
    slack = rounding(inner, state[0], reached, w, 0.05)
    assert inner.low <= reached <= inner.high
    assert inner.velocity_low <= w <= inner.velocity_high
    assert abs(w) - abs(state[1]) <= inner.acceleration * 0.05 + slack
    assert abs(state[1]) - abs(w) <= inner.deceleration * 0.05 + slack


# ----------------------------------------------------------------------------------------------------------- many joints


@examples(25)
@given(
    st.lists(bounds(continuous=False), min_size=1, max_size=12),
    st.sampled_from(["position_delta", "position"]),
    st.sampled_from(["normalized", "physical"]),
    st.data(),
)
def test_p22_joints_are_judged_independently(limits, command, scale, data):
    joints = [as_joint_limits(b) for b in limits]
    states = [data.draw(safe_states(b)) for b in limits]
    action = data.draw(finite_vectors(len(limits)))
    together = SafetyGate(contract_of(*joints, command=command, scale=scale)).judge(action, reference_at(*states), 0.05)
    found = {(finding.code, joint) for finding in together.report.findings for joint in finding.joints}
    for i, joint in enumerate(joints):
        alone = SafetyGate(contract_of(joint, command=command, scale=scale)).judge(
            action[i : i + 1], reference_at(states[i]), 0.05
        )
        assert bits(together.values[i : i + 1]) == bits(alone.values)
        assert bits(together.report.velocity_si[i : i + 1]) == bits(alone.report.velocity_si)
        assert bits(together.report.applied[i : i + 1]) == bits(alone.report.applied)
        assert {code for code, name in found if name == f"j{i}"} == {f.code for f in alone.report.findings}


@examples(20)
@given(st.integers(2, 5), st.data())
def test_p22_two_actuators_are_judged_like_one_of_all_joints(size, data):
    limits = [joint_limits()] * size
    split = data.draw(st.integers(1, size - 1))
    action = data.draw(finite_vectors(size))
    reference = reference_at(*[(0.1 * i, 0.0) for i in range(size)])
    apart = SafetyGate(contract_of(*limits, split=split))
    parts = {"arm": action[split:], "base": action[:split]}  # the order of a dict is not that of the joints
    assert same_command(
        apart.judge(parts, reference, 0.05), SafetyGate(contract_of(*limits)).judge(action, reference, 0.05)
    )
    assert list(apart.layout.as_action(action)["base"]) == list(action[:split])


@examples(20)
@given(finite_vectors(2), st.sampled_from(["position_delta", "position"]))
def test_unnormalised_actions_equal_normalised_ones_in_si_units(action, command):
    normalised = SafetyGate(plain_contract(command=command))
    physical = SafetyGate(plain_contract(command=command, scale="physical"))
    reference = reference_at((0.5, 0.3), (-2.0, 0.0))
    inside = np.clip(action, -1.0, 1.0)
    si = normalised.layout.scale.to_si(inside)
    one, other = normalised.judge(inside, reference, 0.05), physical.judge(si, reference, 0.05)
    assert bits(one.values) == bits(other.values)
    assert bits(other.report.applied) == bits(
        np.where(physical.layout.is_delta, normalised.layout.scale.to_si(one.report.applied), one.values)
    ) or np.allclose(other.report.applied, normalised.layout.scale.to_si(one.report.applied), rtol=0, atol=1e-15)


# ------------------------------------------------------------------------------------------------------------- monitoring


@examples(40)
@given(gates(mode="monitor"), st.data())
def test_monitoring_reports_like_enforcing_and_modifies_nothing(g, data):
    action = data.draw(actions_of(g.contract, moderate_vectors))
    enforcing = SafetyGate(
        dataclasses.replace(g.contract, safety=dataclasses.replace(g.contract.safety, mode="enforce"))
    )
    found = g.gate.judge(action, g.reference, g.dt)
    wanted = enforcing.judge(action, g.reference, g.dt)
    requested = flat(g.gate, action)
    assert bits(found.report.applied) == bits(requested)
    assert bits(found.values) == bits(mapped(g.gate, requested, g.reference))
    assert not found.report.intervened
    assert found.report.disposition <= Severity.LIMIT
    assert not any(found.report.guaranteed.values())
    boxed = [f for f in wanted.report.findings if f.gate == "space_box"]
    assert [(f.code, f.joints) for f in found.report.findings if f.gate == "space_box"] == [
        (f.code, f.joints) for f in boxed
    ]
    if not boxed:
        assert [(f.gate, f.code, f.joints) for f in found.report.findings] == [
            (f.gate, f.code, f.joints) for f in wanted.report.findings
        ]


@examples(25)
@given(gates(mode="monitor"), st.data())
def test_monitoring_still_brakes_for_a_malformed_action(g, data):
    approved = g.gate.judge(data.draw(malformed_values(g.gate.layout.size)), g.reference, g.dt)
    assert approved.report.disposition is Severity.HOLD
    assert approved.report.intervened
    assert (np.abs(approved.report.velocity_si) <= np.abs(g.reference.velocities)).all()


def _rides():
    """Draw a gate that monitors, and legs of (part of the control period, action)."""
    parts = st.one_of(st.just(1.0), st.floats(0.001, 1.0))
    return gates(joints=3, mode="monitor").flatmap(
        lambda g: st.tuples(st.just(g), st.lists(st.tuples(parts, actions_of(g.contract)), min_size=1, max_size=10))
    )


@examples(25)
@given(_rides())
@example((None, None))
def test_monitoring_neither_stops_for_limits_nor_publishes_non_finite_values(ride):
    g, legs = ride
    if g is None:  # the longest sequence: huge, then refused, then huge again
        contract = plain_contract(mode="monitor", scale="physical")
        reference, legs = (
            reference_at((0.0, 0.0), (0.0, 0.0)),
            [(1.0, np.full(2, v)) for v in (1e308, 1e90, -1e308, 1e90)],
        )
    else:
        contract, reference = g.contract, g.reference
    gate = SafetyGate(contract)
    for part, action in legs:
        approved = gate.judge(action, reference, part * contract.control_period_s)
        assert approved.report.disposition <= Severity.HOLD
        assert np.isfinite(approved.values).all()
        assert np.isfinite(approved.report.velocity_si).all()
        assert gate.latched is None
        reference = dataclasses.replace(reference, positions=approved.values, velocities=approved.report.velocity_si)


# ------------------------------------------------------------------------------------------------------------ the arbiter


@examples(60)
@given(
    st.lists(st.tuples(st.integers(0, 4 * NS_PER_S), finite_vectors(2)), min_size=1, max_size=10),
    bounds(),
    steps_of_time,
)
def test_p23_a_step_after_any_pause_moves_at_most_one_period(legs, b, period):
    command = "position" if math.isfinite(b.low) else "position_delta"  # any distance can be requested
    contract = contract_of(as_joint_limits(b), as_joint_limits(b), command=command, control_period_s=period)
    bench = ArbiterBench(contract)
    middle = 0.0 if not math.isfinite(b.low) else (b.low + b.high) / 2
    bench.arbiter.reset(np.full(2, middle), 0)
    for pause_ns, action in legs:
        before = bench.arbiter.reference.positions
        approved = bench.publish(action, after_ns=pause_ns)
        dt = min(pause_ns / NS_PER_S, period)
        for x, reached in zip(before.tolist(), approved.values.tolist(), strict=True):
            slack = rounding(b, x, reached, b.fastest, dt) * dt if dt else 0.0
            assert abs(reached - x) <= b.fastest * dt + slack
        assert approved.report.disposition < Severity.STOP


@examples(25)
@given(st.lists(st.tuples(st.integers(0, 10 * NS_PER_S), finite_vectors(2)), min_size=1, max_size=8))
def test_p23_the_wall_clock_has_no_effect_in_lockstep(legs):
    contract = plain_contract()

    def run(*, pauses: bool):
        bench = ArbiterBench(contract, free_running=False)
        for pause_ns, action in legs:
            bench.publish(action, after_ns=pause_ns if pauses else 0)
        return bench.sent

    assert all(same_command(*pair) for pair in zip(run(pauses=True), run(pauses=False), strict=True))


@examples(25)
@given(bounds(continuous=True), st.floats(-1.0, 1.0), st.sampled_from([0.008, 0.05]))
def test_p10_stopping_a_free_running_robot_ends_at_rest_within_limits(b, part, period):
    assume(b.fastest / (b.deceleration * period) <= 200)
    contract = contract_of(as_joint_limits(b), control_period_s=period)
    bench = ArbiterBench(contract)
    for _ in range(5):
        bench.publish([part], after_ns=round(period * NS_PER_S))
    moving = len(bench.sent)
    bench.arbiter.brake_to_rest(Finding(gate="latch", severity=Severity.HOLD, code="latch.stop"))
    speeds = [abs(float(command.report.velocity_si[0])) for command in bench.sent[moving - 1 :]]
    assert speeds == sorted(speeds, reverse=True)
    assert speeds[-1] == 0.0
    slack = rounding(b, 0.0, 0.0, b.fastest, period)
    assert all(a - c <= b.deceleration * period + slack for a, c in itertools.pairwise(speeds))


def test_non_finite_values_are_rejected_in_every_component():
    gate, reference = SafetyGate(plain_contract(joints=3)), reference_at(*[(0.0, 0.5)] * 3)
    for bad in NOT_FINITE:
        for at in range(3):
            gate.reset()
            action = np.zeros(3)
            action[at] = bad
            report = gate.judge(action, reference, 0.05).report
            assert [finding.code for finding in report.findings] == ["form.nan"]
            assert math.isnan(report.requested[at]) or math.isinf(report.requested[at])
