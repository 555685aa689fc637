"""Properties of the whole chain, with safety context, command filters and jerk limits.

The properties by number. A test that checks some of them has their numbers in its name.

====  ==========================================================================================================
P1    finite values only
P2    actions and commands in the action space
P3    speed and acceleration within their limits, at any dt
P4    positions within their range
P5    an admissible velocity always exists
P6    idempotent: the applied action is not changed again
P7    identity: an admissible action is not changed
P8    nearest: nothing nearer to the target is admissible
P9    monotone: a larger target never gives a smaller position
P10   rest is reached in time
P11   motion inwards is never blocked
P12   the report is sound
P13   no further gate lowers the disposition
P14   a latch is cleared by nothing but a reset, or an operator
P15   the watchdog brakes in time
P16   numbers increase across threads
P17   nothing crosses a reset
P18   an invalid configuration is rejected, and tighter limits nest
P19   one trace gives one report
P20   two worlds give one report
P22   many joints behave like single ones
P23   a pause allows no larger step
====  ==========================================================================================================
"""

import copy
import dataclasses
import itertools
import math
import threading
import time
from fractions import Fraction

import numpy as np
import pytest
from gate_actions import bits, contents_of, flat, mapped, same_command, with_jerk
from hypothesis import assume, given
from hypothesis import strategies as st
from safety_strategies import (
    ScriptedFilter,
    actions_of,
    any_actions,
    bounds,
    calm,
    command_filters,
    contexts,
    contract_of,
    examples,
    finite_vectors,
    gates,
    magnitudes,
    plain_contract,
    rebuilt,
    reference_at,
    rounding,
    stopping_excess,
    with_safety,
)
from scripted_tasks import NoParameters, Running

from embodied_env import load_contract
from embodied_env.backends.backend_registry import make_backend
from embodied_env.backends.fake_backend import FakeBackend
from embodied_env.contract import JointLimits, parse_contract
from embodied_env.contract.safety_schema import Intervention, Nonfinite, ObservationAge, WatchdogSpec
from embodied_env.core.code_table import CODE_TABLE, GATES
from embodied_env.core.code_types import Severity
from embodied_env.core.types import CommandState, Finding, SentCommand
from embodied_env.envs.stepper import Stepper
from embodied_env.safety.approved_commands import merge_relay_report
from embodied_env.safety.arbiter import Arbiter
from embodied_env.safety.command_filters import FilterDecision
from embodied_env.safety.gate import SafetyGate
from embodied_env.safety.interlocks.force import ForceLimit
from embodied_env.safety.interlocks.latency import LatencyBudget
from embodied_env.safety.interlocks.tracking import Tracking
from embodied_env.safety.publishing import make_publishing
from embodied_env.timing.clock import ManualClock, SteadyClock

STRICT: dict = {
    "tracking": Tracking(tolerance=0.05, delay_steps=1, debounce_steps=1, stop_steps=4),
    "observation": ObservationAge(stop_steps=4),
    "latency": LatencyBudget(budget_s=0.15, misses=1, action="hold"),
    "forces": {"joints": ForceLimit(field="position", limit=1.0)},
    "nonfinite": Nonfinite(stop_after=2),
}
SLOW = FilterDecision(severity=Severity.LIMIT, share=0.5)
LAX = {"tracking": None, "latency": LatencyBudget(), "forces": {}}


def worst_before_filters(report) -> Severity:
    found = (f.severity for f in report.findings if f.gate not in ("plugins", "workspace", "post_condition"))
    return max(found, default=Severity.PASS)


def next_reference(reference: CommandState, approved, dt: float) -> CommandState:
    velocities = approved.report.velocity_si
    return dataclasses.replace(
        reference,
        positions=approved.values,
        velocities=velocities,
        seq=approved.seq,
        accelerations=(velocities - reference.velocities) / dt,
    )


_PARTS = st.one_of(st.just(1.0), st.floats(0.001, 1.0))


def _legs(g, draw_actions, *, latching: bool, most: int = 8):
    leg = st.tuples(_PARTS, draw_actions(g.contract), contexts(g.gate.layout.size, latching=latching))
    return st.lists(leg, min_size=1, max_size=most)


def rides(
    draw_actions=any_actions, *, latching: bool = True, refusing: bool = True, joints: int = 3, mode: str = "enforce"
):
    """Draw a gate, command filters, and legs of (part of the control period, action, context)."""
    return gates(joints=joints, mode=mode).flatmap(
        lambda g: st.tuples(st.just(g), command_filters(refusing=refusing), _legs(g, draw_actions, latching=latching))
    )


# --------------------------------------------------------------------------------------------------- limits in any context


@examples(120)
@given(
    rides(lambda contract: any_actions(contract) | actions_of(contract)), st.one_of(st.none(), magnitudes(1e-2, 1e2))
)
def test_p1_to_p4_p12_p14_every_step_keeps_the_limits_and_the_latch_and_is_accounted_for(ride, jerk):
    """Filters and jerk limits never break another limit, for any dt, action and context."""
    g, make_command_filters, legs = ride
    contract = g.contract if jerk is None else with_jerk(g, jerk)
    gate = SafetyGate(with_safety(contract, **STRICT), filters=make_command_filters())
    reference, longest = g.reference, np.zeros(gate.layout.size)
    for part, action, beside in legs:
        dt = part * contract.control_period_s
        was_latched = gate.latched
        approved = gate.judge(action, reference, dt, beside(reference))
        assert contract.action_space.contains(gate.layout.as_action(approved.report.applied))
        for i, b in enumerate(g.bounds):
            x, v = float(reference.positions[i]), float(reference.velocities[i])
            reached, w = float(approved.values[i]), float(approved.report.velocity_si[i])
            slack = 2.0 * rounding(b, x, reached, w, dt)
            longest[i] = max(longest[i], slack * dt)
            assert b.low <= reached <= b.high
            assert b.velocity_low <= w <= b.velocity_high
            assert abs(w - v) <= max(b.acceleration, b.deceleration) * dt + slack
            assert abs(v) - abs(w) <= b.deceleration * dt + slack
            assert abs(w) - abs(v) <= b.acceleration * dt + slack
            assert abs(reached - x - w * dt) <= slack * dt
            allowed = 2.0 * longest[i] + abs(w) / b.deceleration * slack
            assert stopping_excess(reached, w, b) <= Fraction(float(allowed))
        _check_latch(gate, was_latched, reference, approved)
        _check_report(gate, action, reference, approved, dt)
        reference = next_reference(reference, approved, dt)


def _check_latch(gate, was_latched, reference, approved) -> None:
    report = approved.report
    assert (gate.latched is not None) == (was_latched is not None or report.disposition >= Severity.STOP)
    if was_latched is not None:
        assert gate.latched.severity >= was_latched.severity
        assert report.disposition >= was_latched.severity
        assert (np.abs(report.velocity_si) <= np.abs(reference.velocities)).all()


def _check_report(gate, action, reference, approved, dt) -> None:
    report = approved.report
    assert report.disposition == max((finding.severity for finding in report.findings), default=Severity.PASS)
    assert report.intervened == (report.disposition >= Severity.LIMIT)
    assert not {"limits.infeasible", "fault.internal"}.intersection(finding.code for finding in report.findings)
    places = [GATES.index(finding.gate) for finding in report.findings]
    assert places == sorted(places)
    declared = [each for each in report.findings if each.gate != "workspace"]  # a drawn filter has any severity
    assert all(each.severity <= CODE_TABLE[each.code].severity for each in declared)
    if report.disposition >= Severity.HOLD:
        braked = SafetyGate(gate.contract).brake(reference, dt, Finding(gate="latch", severity=Severity.HOLD, code=""))
        assert bits(approved.values) == bits(braked.values)
    else:
        _check_telescope(gate, action, reference, approved)


def _check_telescope(gate, action, reference, approved) -> None:
    """Check that the findings lead from the request to the published command without a gap."""
    value = flat(gate, action)
    requested = mapped(gate, value, reference)
    fired = [finding for finding in approved.report.findings if finding.severity >= Severity.LIMIT]
    for finding in fired:
        if finding.gate != "space_box" and value is not requested:
            value = requested = mapped(gate, value, reference)
        at = [gate.layout.joints.index(name) for name in finding.joints]
        assert bits(value[at]) == bits(finding.before)
        assert bits(finding.after - finding.before) == bits(finding.margin)
        assert (finding.margin != 0.0).all()
        value[at] = finding.after
    if value is not requested:
        value = mapped(gate, value, reference)
    assert bits(value) == bits(approved.values)
    if not fired:
        assert bits(approved.report.applied) == bits(flat(gate, action))


@examples(40)
@given(gates(joints=3), st.data())
def test_p7_a_faultless_context_changes_nothing(g, data):
    action = data.draw(any_actions(g.contract))
    without = g.gate.judge(copy.deepcopy(action), g.reference, g.dt)
    strict = rebuilt(g, {"fence": ScriptedFilter([None])}, **STRICT)
    assert same_command(without, strict.judge(copy.deepcopy(action), g.reference, g.dt, calm(g.reference)))


@examples(30)
@given(gates(joints=3), st.data())
def test_p10_refused_actions_bring_the_robot_to_rest_in_time(g, data):
    """A stale observation brakes the robot within |v| / (D dt) steps for any action."""
    gate = rebuilt(g, **{**STRICT, "observation": ObservationAge(stop_steps=10**6)})
    reference, dt = g.reference, g.dt
    ticks = max(
        math.ceil(Fraction(abs(float(v))) / (Fraction(b.deceleration) * Fraction(dt)))
        for v, b in zip(reference.velocities, g.bounds, strict=True)
    )
    assume(ticks <= 100)
    action = data.draw(actions_of(g.contract))
    for _ in range(ticks):
        approved = gate.judge(action, reference, dt, calm(reference, sensors={}))
        assert approved.report.disposition is Severity.HOLD
        assert all(b.low <= x <= b.high for b, x in zip(g.bounds, approved.values, strict=True))
        assert (np.abs(approved.report.velocity_si) <= np.abs(reference.velocities)).all()
        reference = next_reference(reference, approved, dt)
    assert (np.abs(reference.velocities) <= ticks * 1e-15 * np.abs(g.reference.velocities)).all()


# ------------------------------------------------------------------------------------------------------------ the report


@examples(60)
@given(gates(joints=3), st.data())
def test_p13_adding_a_gate_never_lowers_the_disposition(g, data):
    """Compare two chains, one of which has all gates of the other and more, in a safe state.

    Where a gate refuses, the filters are skipped: then the gates before the filters are compared.
    """
    action = data.draw(any_actions(g.contract))
    beside = data.draw(contexts(g.gate.layout.size))(g.reference)
    few = data.draw(command_filters())
    more = data.draw(command_filters())
    keep = data.draw(st.sets(st.sampled_from(sorted(LAX))))
    lax = {key: value for key, value in LAX.items() if key not in keep}
    smaller = rebuilt(g, few(), **{**STRICT, **lax})
    larger = rebuilt(g, {**{f"more_{name}": shaper for name, shaper in more().items()}, **few()}, **STRICT)
    low = smaller.judge(copy.deepcopy(action), g.reference, g.dt, beside).report
    high = larger.judge(copy.deepcopy(action), g.reference, g.dt, beside).report
    if worst_before_filters(high) >= Severity.HOLD:
        assert worst_before_filters(low) <= worst_before_filters(high)
    else:
        assert low.disposition <= high.disposition


@examples(60)
@given(gates(joints=2), st.data())
def test_p13_a_malformed_action_hides_no_other_finding(g, data):
    """The form gate is one more gate, so what refuses a valid action refuses a malformed one as severely."""
    beside = data.draw(contexts(g.gate.layout.size))(g.reference)
    good, bad = (
        rebuilt(g, **STRICT).judge(action, g.reference, g.dt, beside).report
        for action in (data.draw(actions_of(g.contract)), None)
    )
    assert bad.disposition >= good.disposition
    wrong = {finding.code for finding in good.findings if finding.severity >= Severity.HOLD}
    assert wrong - {"latch.stop", "latch.estop"} <= {finding.code for finding in bad.findings}


@examples(40)
@given(gates(joints=2), st.data())
def test_p13_relay_findings_are_added_to_local_findings(g, data):
    """The report of a relayed command keeps all findings of both sides."""
    near = rebuilt(g, data.draw(command_filters())(), **STRICT)
    far = rebuilt(g, data.draw(command_filters())())
    beside = data.draw(contexts(g.gate.layout.size))(g.reference)
    here = near.judge(data.draw(any_actions(g.contract)), g.reference, g.dt, beside)
    there = far.limit(here.values, g.reference, g.dt)
    both = merge_relay_report(here, there.report)
    assert both.report.disposition == max(here.report.disposition, there.report.disposition)
    assert both.report.intervened == (here.report.intervened or there.report.intervened)
    assert sorted(f.code for f in both.report.findings) == sorted(
        f.code for f in (*here.report.findings, *there.report.findings)
    )
    assert bits(both.values) == bits(there.values) == bits(both.report.applied_si)
    assert bits(both.report.velocity_si) == bits(there.report.velocity_si)
    assert both.report.requested.tobytes() == here.report.requested.tobytes()
    assert (both.seq, both.epoch) == (here.seq, here.epoch)
    other = dataclasses.replace(there.report, applied_si=there.values + 1.0)  # a relay seldom changes a drawn command
    assert bits(merge_relay_report(here, other).values) == bits(other.applied_si)


def test_p12_the_reference_is_what_the_relay_published():
    """With a relay, the limits of the next step start from what the relay published, not from what it received."""
    contract = plain_contract()
    gate, relay = (
        SafetyGate(contract, limits_elsewhere=True),
        SafetyGate(contract, filters={"slow": ScriptedFilter([SLOW])}),
    )

    def send(command):
        answer = relay.limit(command.values, reference_at((0.0, 0.0), (0.0, 0.0)), 0.05)
        return SentCommand(seq=command.seq, values=answer.values, report=answer.report)

    arbiter = Arbiter(send, gate, make_publishing(gate), clock=ManualClock(), free_running=False)
    arbiter.reset(np.zeros(2), 0)
    with arbiter.exclusive as (reference, dt_s):
        asked = gate.judge([1.0, -1.0], reference, dt_s)
        answer = arbiter.send(asked)
    assert np.abs(answer.values).max() < np.abs(asked.values).max()
    assert bits(arbiter.reference.positions) == bits(answer.values)
    assert bits(arbiter.reference.velocities) == bits(answer.report.velocity_si)
    assert bits(arbiter.reference.accelerations) == bits(answer.report.velocity_si / 0.05)


@examples(40)
@given(gates(joints=2), command_filters(), st.data())
def test_p14_relayed_commands_are_latched_like_actions(g, make_command_filters, data):
    """The relay's method `limit` obeys the latch, sets one, and keeps every limit."""
    gate = rebuilt(g, make_command_filters())
    reference = g.reference
    for target in data.draw(st.lists(finite_vectors(gate.layout.size), min_size=1, max_size=5)):
        was = gate.latched
        approved = gate.limit(target, reference, g.dt)
        assert (gate.latched is not None) == (was is not None or approved.report.disposition >= Severity.STOP)
        if was is not None:
            assert approved.report.disposition is was.severity
            assert (np.abs(approved.report.velocity_si) <= np.abs(reference.velocities)).all()
        for i, b in enumerate(g.bounds):
            assert b.low <= approved.values[i] <= b.high
            assert b.velocity_low <= approved.report.velocity_si[i] <= b.velocity_high
        reference = next_reference(reference, approved, g.dt)


@examples(25)
@given(gates(), st.sampled_from([0.0, -0.0, -1e-9, -1.0, math.nan, -math.inf]), st.data())
def test_p23_last_command_is_repeated_with_zero_dt_for_an_action_and_a_relayed_command(g, dt, data):
    relayed = g.gate.limit(data.draw(finite_vectors(g.gate.layout.size)), g.reference, dt)
    for approved in (g.gate.judge(data.draw(any_actions(g.contract)), g.reference, dt), relayed):
        assert bits(approved.values) == bits(g.reference.positions)
        assert bits(approved.report.velocity_si) == bits(g.reference.velocities)
        assert approved.report.disposition is Severity.HOLD


@examples(25)
@given(gates(joints=2), st.sampled_from([math.nan, math.inf, -math.inf, 1e101]), st.data())
def test_p1_a_non_finite_relayed_command_brakes(g, bad, data):
    target = np.zeros(g.gate.layout.size)
    target[data.draw(st.integers(0, target.size - 1))] = bad
    approved = g.gate.limit(target, g.reference, g.dt)
    assert approved.report.disposition is Severity.HOLD
    assert [finding.code for finding in approved.report.findings] == ["form.nan"]
    assert np.isfinite(approved.values).all()
    assert (np.abs(approved.report.velocity_si) <= np.abs(g.reference.velocities)).all()


@examples(40)
@given(rides(), st.data())
def test_p17_p19_one_trace_gives_one_report_and_a_reset_clears_all_state_of_the_episode(ride, data):
    """After any history, a clear and a reset, the gate has the counts, latches and commands of a new one."""
    g, make_command_filters, legs = ride
    used, twin, new = (rebuilt(g, make_command_filters(), **STRICT) for _ in range(3))
    _check_equal(used, twin, g, legs)
    used.clear_estop()
    used.reset()
    _check_equal(used, new, g, data.draw(_legs(g, any_actions, latching=True, most=4)))


def _check_equal(one, other, g, legs) -> None:
    """Check that two gates approve and report the same."""
    reference = g.reference
    for part, action, beside in legs:
        dt = part * g.contract.control_period_s
        first, second = (gate.judge(copy.deepcopy(action), reference, dt, beside(reference)) for gate in (one, other))
        assert same_command(first, second)
        assert first.report.guaranteed == second.report.guaranteed
        assert one.interventions.share == other.interventions.share
        reference = next_reference(reference, first, dt)


COUNTED: dict = {
    "silent sensors": ([0.0], {"sensors": {}}),
    "tracking errors": ([0.0], {"measured": np.ones(1)}),
    "misses of the budget": ([0.0], {"latency_s": 1.0}),
    "malformed actions": ([math.nan], {}),
    "interventions": ([9.0], {}),
}


@pytest.mark.parametrize("steps", [1, 2, 3, 5])
@pytest.mark.parametrize("what", COUNTED)
def test_p17_counts_are_cleared_by_a_reset(what, steps):
    """After steps, a reset and the same steps, the gate reports what a new gate reports."""
    action, changes = COUNTED[what]
    settings: dict = {
        "tracking": Tracking(tolerance=0.05, delay_steps=2, debounce_steps=2, stop_steps=4),
        "observation": ObservationAge(stop_steps=3),
        "latency": LatencyBudget(budget_s=0.1, misses=3, window_steps=5, action="hold"),
        "nonfinite": Nonfinite(stop_after=3),
        "intervention": Intervention(window_steps=4, stop_share=0.5),
    }
    used, new = (SafetyGate(plain_contract(joints=1, **settings)) for _ in range(2))
    away, here = reference_at((1.5, 0.0)), reference_at((0.0, 0.0))
    for _ in range(steps):
        used.judge(action, away, 0.05, calm(away, **changes))
    used.reset()
    for _ in range(6):
        beside = calm(here, **changes)
        assert same_command(used.judge(action, here, 0.05, beside), new.judge(action, here, 0.05, beside))
        assert used.interventions.share == new.interventions.share


# ------------------------------------------------------------------------------------------------------------ monitoring


@examples(40)
@given(rides(actions_of, mode="monitor", joints=2))
def test_monitoring_refuses_only_for_safety_inputs_and_malformed_actions(ride):
    g, make_command_filters, legs = ride
    gate = rebuilt(g, make_command_filters(), **STRICT)
    reference, asserted = g.reference, False
    for part, action, beside in legs:
        dt, safety_context = part * g.contract.control_period_s, beside(reference)
        asserted = asserted or any(not state.is_ok for state in safety_context.estops.values())
        report = gate.judge(action, reference, dt, safety_context).report
        if asserted:
            assert report.disposition >= Severity.STOP
            assert (np.abs(report.velocity_si) <= np.abs(reference.velocities)).all()
        else:
            form = [finding for finding in report.findings if finding.gate == "form"]
            assert report.disposition <= (Severity.HOLD if form else Severity.LIMIT)
            assert gate.latched is None


# ------------------------------------------------------------------------------------------------------------------ jerk


def _smooth_rides():
    """Draw a joint with A = D, a jerk limit and a fixed step, and its requests in each step."""
    return st.tuples(
        bounds(continuous=True),
        magnitudes(1e-2, 1e2),
        st.sampled_from([0.001, 0.01, 0.05, 0.2]),
        st.lists(st.tuples(st.floats(-1.5, 1.5), st.integers(1, 12)), min_size=1, max_size=12),
    )


@examples(80)
@given(_smooth_rides())
def test_jerk_speed_and_acceleration_limits_hold_in_free_motion(ride):
    """|j| <= J (1 + 1e-6) holds from rest with constant dt.

    Only at rest may an acceleration end at once, as the limiter documents.
    """
    b, part, dt, legs = ride
    acceleration = b.acceleration
    jerk = part * acceleration / dt
    limits = JointLimits(
        position=None, velocity=(b.velocity_low, b.velocity_high), acceleration=acceleration, jerk=jerk
    )
    gate = SafetyGate(contract_of(limits, control_period_s=dt))
    reference = dataclasses.replace(reference_at((0.0, 0.0)), accelerations=np.zeros(1))
    for action in itertools.chain.from_iterable([u] * count for u, count in legs):
        approved = gate.judge([action], reference, dt)
        v, w = float(reference.velocities[0]), float(approved.report.velocity_si[0])
        change = (w - v) / dt - float(reference.accelerations[0])
        slack = 4e-9 * b.fastest / dt + rounding(b, 0.0, float(approved.values[0]), w, dt) / dt
        keeps = abs(change) <= jerk * dt * (1 + 1e-6) + slack
        assert keeps or v == 0.0
        assert b.velocity_low <= w <= b.velocity_high
        assert abs(w - v) <= acceleration * dt + rounding(b, 0.0, float(approved.values[0]), w, dt)
        if approved.report.guaranteed["jerk"]:
            assert keeps
        reference = next_reference(reference, approved, dt)


@examples(60)
@given(rides(latching=False), magnitudes(1e-2, 1e2))
def test_guaranteed_jerk_is_kept(ride, part):
    """Also near the ends of the range, through zero, while braking and with scaled commands."""
    g, make_command_filters, legs = ride
    contract = with_jerk(g, part)
    gate = SafetyGate(with_safety(contract, **STRICT), filters=make_command_filters())
    dt = contract.control_period_s
    reference = dataclasses.replace(g.reference, accelerations=np.zeros(gate.layout.size))
    for _, action, beside in legs:
        approved = gate.judge(action, reference, dt, beside(reference))
        changes = (approved.report.velocity_si - reference.velocities) / dt - reference.accelerations
        allowed = gate.layout.limits.jerk * dt + 2e-9 * gate.layout.limits.fastest / dt
        kept = bool((np.abs(changes) <= allowed * (1 + 1e-9)).all())
        assert kept or not approved.report.guaranteed["jerk"]
        reference = next_reference(reference, approved, dt)


@examples(40)
@given(gates(joints=2), magnitudes(1e-2, 1e2), st.data())
def test_robot_braked_to_rest_stays_at_rest_on_hold(g, part, data):
    """Remaining deceleration must not move it, least of all backwards."""
    gate = SafetyGate(with_jerk(g, part))
    dt = g.contract.control_period_s
    reference = dataclasses.replace(g.reference, accelerations=np.zeros(gate.layout.size))
    for action in data.draw(st.lists(actions_of(g.contract), max_size=4)):
        reference = next_reference(reference, gate.judge(action, reference, dt), dt)
    hold = Finding(gate="watchdog", severity=Severity.HOLD, code="wd.hold")
    for _ in range(200):
        if not reference.velocities.any():
            break
        reference = next_reference(reference, gate.brake(reference, dt, hold), dt)
    assume(not reference.velocities.any())
    approved = gate.judge(gate.layout.as_action(gate.hold_action(reference)), reference, dt)
    for b, x, w in zip(g.bounds, reference.positions.tolist(), approved.report.velocity_si.tolist(), strict=True):
        assert abs(w) <= rounding(b, x, x, 0.0, dt)


# -------------------------------------------------------------------------------------------------- one gate in two worlds


class StartsAt(FakeBackend):
    def __init__(self, contract, *, start, **options):
        super().__init__(contract, **options)
        self._start = start

    def reset(self, request, deadline_ns):
        first = super().reset(request, deadline_ns)
        self._positions = self._start.copy()
        return dataclasses.replace(self._snapshot(), reset=first.reset)


def _reports(contract, backend, actions):
    stepper = Stepper(contract, backend, Running(contract, NoParameters()), clock=ManualClock())
    try:
        stepper.reset(world_seed=3, options=None, seeded=True)
        start = stepper._arbiter.reference.positions.copy()
        reports = []
        for action in actions:
            stepper.begin(copy.deepcopy(action))
            reports.append(stepper.finish().report)
        return start, reports
    finally:
        stepper.close()


def test_p20_one_trace_through_two_backends_gives_the_same_reports():
    """The simulated arm lags and the fake one does not, but while both follow, the reports are the same."""
    contract = with_safety(load_contract("arm_reach"), nonfinite=Nonfinite(stop_after=9))
    draw = np.random.default_rng(20)
    actions = [draw.uniform(-1.3, 1.3, 6) * draw.choice([0.05, 1.0]) for _ in range(60)]
    actions[10] = [math.nan] * 6
    actions[20] = np.zeros(5)
    actions[30] = np.full(6, 1e308)
    start, simulated = _reports(contract, make_backend("mujoco", contract, clock=ManualClock()), actions)
    _, faked = _reports(contract, StartsAt(contract, clock=ManualClock(), start=start), actions)
    for one, other in zip(simulated, faked, strict=True):
        assert bits(one.applied_si) == bits(other.applied_si)
        assert bits(one.velocity_si) == bits(other.velocity_si)
        assert bits(one.applied) == bits(other.applied)
        assert contents_of(one) == contents_of(other)
        assert (one.disposition, one.intervened, one.guaranteed) == (
            other.disposition,
            other.intervened,
            other.guaranteed,
        )
    assert {f.code for report in faked for f in report.findings} >= {"form.nan", "form.shape", "box.clip", "acc.limit"}


# ------------------------------------------------------------------------------------------------- steps, watchdog, close


def stops(backend):
    return [command.report.disposition >= Severity.STOP for command in backend.sent]


def test_p16_sequence_numbers_increase_across_step_watchdog_input_and_close():
    contract = plain_contract(
        control_period_s=0.002, watchdog=WatchdogSpec(hold_steps=1, stop_steps=10**6), tracking=None
    )
    backend = FakeBackend(contract, clock=SteadyClock(), free_running=True)
    stepper = Stepper(contract, backend, Running(contract, NoParameters()), clock=SteadyClock())
    go, errors = threading.Event(), []

    def toggle():
        go.wait(30.0)
        backend.estop_states = {"door": "active"}

    def close():
        go.wait(30.0)
        end_s = time.monotonic() + 30.0
        while not any(stops(backend)) and time.monotonic() < end_s:
            time.sleep(0.001)
        stepper.close()

    threads = [threading.Thread(target=work) for work in (toggle, close)]
    stepper.reset(world_seed=1, options=None, seeded=True)
    for thread in threads:
        thread.start()
    try:
        for step in range(200):
            stepper.begin([1.0, -1.0])
            stepper.finish()
            if step == 5:
                go.set()
    except Exception as error:  # the episode ends, or the environment is closed, at any moment
        errors.append(error)
    go.set()
    for thread in threads:
        thread.join(60.0)
    numbers = [command.seq for command in backend.sent]
    assert numbers == sorted(set(numbers))
    assert len(numbers) >= 5
    assert len(errors) == 1
    latched = stops(backend).index(True)
    speeds = [float(np.abs(command.report.velocity_si).max()) for command in backend.sent[latched:]]
    assert speeds == sorted(speeds, reverse=True)


# ------------------------------------------------------------------------------------------------------ adversarial steps

STORMS = """
contract: embodied_env/1
name: storm
version: 1
control_period_s: 0.05
episode: {horizon_steps: 10}
sensors:
  joints: {topic: joint_states, type: sensor_msgs/msg/JointState, max_age_s: 1.0,
    fields: {position: {joints: [a, b], unit: rad, low: -9, high: 9}}}
actuators:
  arm: {topic: arm, type: std_msgs/msg/Float64MultiArray, command: COMMAND, scale: SCALE, joints: {
    a: {position: [-6.28, 6.28], velocity: 3.1, acceleration: 8.0, deceleration: 10.0},
    b: {position: [-0.3, 0.4], velocity: 2.0, acceleration: 20.0, deceleration: 5.0, jerk: 100.0}}}
safety: {nonfinite: {stop_after: 1000000000}}
task: {type: reach}
"""
TWIST = """
  arm: {topic: arm, type: geometry_msgs/msg/Twist, command: twist, scale: SCALE, joints: {
    linear.x: {position: null, velocity: 1.0, acceleration: 2.0, deceleration: 4.0, unit: m},
    angular.z: {position: null, velocity: 2.0, acceleration: 5.0, jerk: 60.0}}}
safety:"""


def storm_contract(command: str, scale: str):
    text = STORMS
    if command == "twist":
        text = text.replace(text[text.index("\n  arm:") : text.index("safety:") + len("safety:")], TWIST)
    return parse_contract(text.replace("COMMAND", command).replace("SCALE", scale))


def _maximal(step, draw, scale):
    return scale.high


def _alternating(step, draw, scale):
    return scale.high if step // 7 % 2 else scale.low


def _random(step, draw, scale):
    return draw.uniform(-1.5, 1.5, scale.high.size) * scale.high


def _interleaved(step, draw, scale):
    action = _random(step, draw, scale) * draw.choice([1.0, 1e6, 1e300])
    if draw.random() < 0.3:
        action[draw.integers(scale.high.size)] = draw.choice([math.nan, math.inf, -math.inf, 5e-324])
    return action


AGENTS = {"max": _maximal, "alternating": _alternating, "random": _random, "NaN-laced": _interleaved}
COMMANDS = [
    ("position_delta", "normalized"),
    ("position", "physical"),
    ("velocity", "normalized"),
    ("twist", "physical"),
]


def storm(command: str, scale: str, agent: str, *, steps: int, jittered: bool) -> None:
    """Let an adversary act on the gate, and check the limits by differentiating the published positions.

    The bound is `rounding_of_velocity` over the extent of the joint's range for each velocity, and
    twice that for a difference of two. Speed and position never exceed their limits at all.
    """
    contract = storm_contract(command, scale)
    gate, draw = SafetyGate(contract, filters={"fence": ScriptedFilter([None])}), np.random.default_rng(steps)
    limits, is_velocity, act = gate.layout.limits, gate.layout.is_velocity, AGENTS[agent]
    known = np.isfinite(limits.position_low)
    extent = np.where(known, np.maximum(np.abs(limits.position_low), np.abs(limits.position_high)), 0.0)
    reference, truth = reference_at((0.0, 0.0), (0.0, 0.0)), np.zeros(2)
    velocities = np.zeros(2)
    for step in range(steps):
        dt = contract.control_period_s * (draw.uniform(0.01, 1.0) if jittered else 1.0)
        approved = gate.judge(act(step, draw, gate.layout.scale), reference, dt, calm(reference))
        before, truth = truth, np.where(is_velocity, truth + approved.values * dt, approved.values)
        after = np.where(is_velocity, approved.values, (truth - before) / dt)
        slack = 8.0 * np.finfo(float).eps * (4.0 * extent / dt + limits.fastest)
        assert np.isfinite(approved.values).all()
        assert approved.report.disposition < Severity.STOP
        assert (truth >= limits.position_low - is_velocity * 1e-9)[known].all()
        assert (truth <= limits.position_high + is_velocity * 1e-9)[known].all()
        assert (np.abs(approved.report.velocity_si) <= limits.fastest).all()
        assert (np.abs(after) <= limits.fastest + slack).all()
        assert (np.abs(after) - np.abs(velocities) <= limits.acceleration * dt + 2.0 * slack).all()
        assert (np.abs(velocities) - np.abs(after) <= limits.deceleration * dt + 2.0 * slack).all()
        velocities = after
        moved = next_reference(reference, approved, dt)
        reference = dataclasses.replace(moved, positions=np.where(is_velocity & ~known, 0.0, truth))


@pytest.mark.parametrize("steps", [150, pytest.param(31_250, marks=pytest.mark.long)])  # 10^6 in all 32 storms
@pytest.mark.parametrize("jittered", [False, True], ids=["fixed dt", "jittered dt"])
@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize(("command", "scale"), COMMANDS)
def test_no_limit_is_exceeded_in_adversarial_steps(command, scale, agent, jittered, steps):
    storm(command, scale, agent, steps=steps, jittered=jittered)
