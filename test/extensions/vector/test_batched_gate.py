"""The batched gate decides as the gate of each slot, bit for bit, which `drive` compares over sequences of steps."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from gate_actions import BACKWARDS, FORWARDS, MIXED, with_jerk
from grippers import TOPIC, gripper_contract, gripper_text
from hypothesis import given
from hypothesis import strategies as st
from safety_strategies import (
    ODD_NUMBERS,
    as_joint_limits,
    bounds,
    contract_of,
    examples,
    finite_vectors,
    gates,
    joint_limits,
    situations,
    with_safety,
)
from single_joint import limit_joint, limit_velocity, velocity_interval

from embodied_env import load_contract
from embodied_env.contract.actuator_schema import EffectiveLimits, JointLimits
from embodied_env.contract.contract_loader import shipped_files
from embodied_env.contract.required_sensors import required_sensors
from embodied_env.contract.safety_schema import Intervention, ObservationAge
from embodied_env.core.code_table import CODES
from embodied_env.core.code_types import Quality, Severity
from embodied_env.core.types import CommandState, Finding, SafetyContext, SensorStatus
from embodied_env.errors import InternalFaultError
from embodied_env.extensions.vector.batched_gate import BatchedGate, states_after
from embodied_env.extensions.vector.batched_limiter import BatchedBounds, BatchedLimiter, keep_limits, limit_joint_batch
from embodied_env.extensions.vector.batched_types import CommandStateBatch, SafetyContextBatch
from embodied_env.safety.approved_commands import state_after
from embodied_env.safety.findings import gate_arrays
from embodied_env.safety.gate import SafetyGate
from embodied_env.safety.interlocks.force import ForceLimit
from embodied_env.safety.interlocks.latency import LatencyBudget
from embodied_env.safety.interlocks.tracking import Tracking
from embodied_env.safety.joint_limits import limit_violation

SLOTS = 3
STRICT = {
    "tracking": Tracking(tolerance=0.05, delay_steps=2, debounce_steps=3, stop_steps=5),
    "observation": ObservationAge(stop_steps=4),
    "latency": LatencyBudget(budget_s=0.15, misses=2, window_steps=3, action="hold"),
    "intervention": Intervention(window_steps=2, warn_share=0.5),
    "forces": {"joints": ForceLimit(field="position", limit=1.0)},
}
ARRAY_GATES = {"space_box", "jerk", "joint_limits", "intervention"}


def counters(gate: SafetyGate) -> list:
    """Return the state of a gate and of its interlocks, with the window, the commands and counts."""
    found = [str(gate.latched), gate._malformed_in_a_row, list(gate.interventions.window), gate.interventions.share]
    for interlock in gate.interlocks:
        found += [getattr(interlock, "in_a_row", 0), *getattr(interlock, "sent", ())]
    return found


def is_ordinary(gate: SafetyGate) -> bool:
    """Return whether the batched gate may decide the next step of a gate."""
    first: Any = gate.interlocks[0]
    return gate.is_ordinary and not first.in_a_row


def draw_actions(rng, size: int, faults: float) -> np.ndarray:
    """Draw a row per slot that is ordinary, small, at the bounds, odd, or not finite."""
    kinds = [rng.uniform(-1.5, 1.5, size), rng.uniform(-0.1, 0.1, size), rng.choice([-1.0, 1.0], size)]
    kinds += [rng.choice(ODD_NUMBERS, size), np.full(size, rng.choice([np.nan, np.inf]) if faults else 0.0)]
    return np.array([kinds[rng.choice(5, p=[0.4, 0.2, 0.15, 0.2, 0.05])] for _ in range(SLOTS)])


def draw_context(contract, rng, measured: np.ndarray, faults: float) -> SafetyContext:
    def value(fine, *faulty):
        return faulty[rng.integers(len(faulty))] if rng.random() < faults else fine

    ages_s = (0.1, 0.2, -0.005, -1.0, np.nan, np.inf)
    sensors = required_sensors(contract)
    return SafetyContext(
        sensors={n: SensorStatus(quality=value(Quality.OK, *Quality), age_s=value(0.0, *ages_s)) for n in sensors},
        measured=measured + value(0.0, 1e-3, 5.0, np.nan),
        action_age_s=0.0,
        latency_s=0.0,
        forces={name: value(0.5, 0.9, 0.9, 0.9, 2.0, np.nan) for name in contract.safety.forces},
    )


def stacked(contexts: list[SafetyContext]) -> SafetyContextBatch:
    names, forces = contexts[0].sensors, contexts[0].forces
    return SafetyContextBatch(
        qualities={n: np.array([each.sensors[n].quality for each in contexts], np.int8) for n in names},
        ages_s={n: np.array([each.sensors[n].age_s for each in contexts]) for n in names},
        forces={n: np.array([each.forces[n] for each in contexts]) for n in forces},
        measured=np.array([each.measured for each in contexts]),
    )


def draw_states(layout, rng, *, outside: bool) -> list[CommandState]:
    """Draw the last command of each slot, at rest within its range, or any."""
    limits, shape = layout.limits, (SLOTS, layout.size)
    low, high = (np.where(np.isfinite(ends), ends, 0.0) for ends in (limits.position_low, limits.position_high))
    fastest = np.where(layout.is_goal | (not outside), 0.0, np.minimum(limits.fastest, 1e9))
    positions = low + (high - low) * rng.choice([0.0, 1.0, rng.random(), 1.5 if outside else 0.5], shape)
    velocities = fastest * rng.choice([0.0, 1.0, rng.uniform(-1.2, 1.2)], shape)
    slack = 0.01 * fastest * layout.is_velocity * rng.random(shape)
    states = zip(positions, velocities, slack if slack.any() else [None] * SLOTS, np.zeros(shape), strict=True)
    return [CommandState(positions=x, velocities=v, slack=s, accelerations=a, seq=0, epoch=0) for x, v, s, a in states]


def drive(contract, seed: int, *, outside: bool = False, steps: int = 6, faults: float = 0.0) -> float:
    """Compare both gates over steps, and return the share of steps that the batched gate decided."""
    rng, dt_s, decided = np.random.default_rng(seed), contract.control_period_s, 0
    truth, own = ([SafetyGate(contract) for _ in range(SLOTS)] for _ in range(2))
    batched, layout, trail = BatchedGate(own), own[0].layout, []
    offsets = 5.0 * (rng.random(SLOTS) < faults)
    states, actions = draw_states(layout, rng, outside=outside), draw_actions(rng, layout.size, faults)
    for _ in range(steps):
        actions = np.where(rng.random((SLOTS, 1)) < 0.5, draw_actions(rng, layout.size, faults), actions)
        candidates = rng.random(SLOTS) >= 0.5 * faults
        trail = [*trail[-3:], [state.positions for state in states]]
        measured = trail[rng.integers(len(trail))]  # commands take up to three steps to act
        contexts = [draw_context(contract, rng, x + off, faults) for x, off in zip(measured, offsets, strict=True)]
        parts = [each.name for each in dataclasses.fields(CommandStateBatch)]
        before = {part: [getattr(state, part) for state in states] for part in parts}
        batch = CommandStateBatch(
            **{part: None if rows[0] is None else np.array(rows) for part, rows in before.items()}
        )
        may_be_decided = candidates & [is_ordinary(gate) for gate in truth]
        approved = batched.judge(actions, batch, dt_s, stacked(contexts), candidates)
        after = states_after(batch, approved, layout.is_velocity)
        for i, (state, context) in enumerate(zip(states, contexts, strict=True)):
            action = layout.as_action(actions[i])
            try:
                single = truth[i].judge(action, state, dt_s, context)
            except InternalFaultError:
                assert not approved.is_decided[i]
                return 0.0
            report, rows = single.report, approved.report
            is_plain = report.disposition < Severity.HOLD and {f.gate for f in report.findings} <= ARRAY_GATES
            assert approved.is_decided[i] == (may_be_decided[i] and is_plain and is_ordinary(truth[i]))
            states[i] = state_after(state, single, layout.is_velocity)
            if approved.is_decided[i]:
                decided += 1
                for name in ("requested", "applied", "applied_si", "velocity_si"):
                    assert getattr(rows, name)[i].tobytes() == getattr(report, name).tobytes(), name
                assert approved.values[i].tobytes() == single.values.tobytes()
                for name in ("positions", "velocities", "accelerations"):
                    assert getattr(after, name)[i].tobytes() == getattr(states[i], name).tobytes(), name
                assert [each[i].tolist() for each in (rows.severity, rows.code)] == [
                    a.tolist() for a in gate_arrays(report.findings)
                ]
                assert (rows.disposition[i], rows.intervened[i]) == (report.disposition, report.intervened)
                assert {name: kept[i] for name, kept in rows.guaranteed.items()} == report.guaranteed
            if not approved.is_decided[i] or rng.random() < 0.2:
                batched.store(i, undo=bool(approved.is_decided[i]))
                own[i].judge(action, state, dt_s, context)
                batched.load(i)
            assert batched.intervention_share[i] == truth[i].interventions.share
            if rng.random() < 0.3:
                batched.store(i)
                assert counters(own[i]) == counters(truth[i])
                batched.load(i)
    return decided / (steps * SLOTS)


def _contract(kind: str, limits: list, scale: str, jerk: float, g):
    if kind == "velocity":
        return contract_of(*map(as_joint_limits, limits), command="velocity", scale=scale)
    return {"mixed": MIXED, "jerk": with_jerk(g, jerk)}.get(kind, g.contract)


CONTRACTS = st.builds(
    _contract,
    st.sampled_from(["position", "position", "jerk", "velocity", "mixed"]),
    st.lists(bounds(), min_size=1, max_size=3),
    st.sampled_from(["normalized", "physical"]),
    st.sampled_from([0.05, 1.0, 20.0]),
    gates(joints=3),
)


@examples(100)
@given(
    st.lists(situations(quick=True), min_size=8, max_size=8),
    st.booleans(),
    st.one_of(st.floats(-4e-15, 4e-15), st.floats(-2.0, 2.0)),
)
def test_array_formulas_equal_the_scalar_ones(each, is_velocity, part):
    """Row 0 has states of the safe set, row 1 others, rows 2 and 3 those whose bounds meet up to rounding."""
    dt_s, bound_list = each[0].dt, [one.b for one in each]
    names = ("low", "high", "velocity_low", "velocity_high", "acceleration", "deceleration")
    low, high, *others = (np.array([getattr(b, name) for b in bound_list]) for name in names)
    rest = dict(zip(names[2:], others, strict=True), jerk=np.full(8, np.inf))
    limits = EffectiveLimits(joints=(), position_low=low, position_high=high, **rest)
    x, v = (np.array([[getattr(one, name) for one in each]] * 4) for name in "xv")
    x[1], v[1] = x[1] + part * v[1] * dt_s, v[1] * (1.0 + part)
    outside = np.nextafter([high, low], [[np.inf], [-np.inf]])
    x[2:] = np.where(np.isinf(outside), x[2:], outside)
    v[2:] = limits.deceleration * dt_s * (1.0 + 1e-15) * np.array([[1.0], [-1.0]])
    edges = [velocity_interval(one.x, one.v, one.b, dt_s) for one in each]
    targets = [one.aim.target(one.x, ends, one.b, dt_s) for one, ends in zip(each, edges, strict=True)]
    wanted = np.clip([targets] * 4, -1e50, 1e50)
    wanted = (wanted - x) / dt_s if is_velocity else wanted
    batched = BatchedBounds(limits, np.full(8, is_velocity), None)
    with np.errstate(all="ignore"):
        steps = limit_joint_batch(x, v, wanted, batched, dt_s)
        wrong = steps.positions + part * dt_s, steps.velocities + part
        ends = (steps[:2], wrong, (steps.positions, wrong[1]))
        kept = [keep_limits(x, v, after, velocities, batched, dt_s) for after, velocities in ends]
    for at in np.ndindex(x.shape):
        state, b = (float(x[at]), float(v[at])), bound_list[at[1]]
        single = (limit_velocity if is_velocity else limit_joint)(*state, float(wanted[at]), b, dt_s)
        assert steps.are_feasible[at] == (single.code != "limits.infeasible")
        if steps.are_feasible[at]:
            found = float(steps.positions[at]), float(steps.velocities[at])
            assert [value.hex() for value in found] == [value.hex() for value in single[:2]]
            assert steps.codes[at] == CODES[single.code]
            moved, ahead = (float(rows[at]) for rows in wrong)
            for are_kept, after in zip(kept, (single[:2], (moved, ahead), (single[0], ahead)), strict=True):
                assert are_kept[at] == (limit_violation(*state, *after, b, dt_s) == "")


@examples(60)
@given(gates(joints=3), st.data())
def test_maps_of_actions_equal_the_scalar_ones(g, data):
    limiter, scale = g.gate._limiter, g.gate.layout.scale
    batched, size = BatchedLimiter(limiter), g.gate.layout.size
    rows = [data.draw(finite_vectors(size)), scale.low, scale.high, *np.nextafter([scale.low, scale.high], 0.0)]
    actions = np.array([limiter.boxed(row) for row in np.array(rows).tolist()])
    reference = CommandStateBatch(
        **{name: getattr(g.reference, name)[None] for name in ("positions", "velocities")}, accelerations=actions
    )
    targets = batched._target(actions, reference)
    back = batched._as_action(targets, reference)
    for i, action in enumerate(actions.tolist()):
        target = limiter.target(action, g.reference)
        assert targets[i].tobytes() == np.array(target).tobytes()
        assert back[i].tobytes() == np.array(limiter.as_action(target, g.reference)).tobytes()


@pytest.mark.parametrize("limits", [FORWARDS, BACKWARDS])
def test_the_actions_that_hold_one_way_joints_are_kept_as_by_single_gates(limits):
    rng, contract = np.random.default_rng(3), contract_of(limits, command="position")
    gate, zeros = SafetyGate(contract), np.zeros((60, 1))
    positions = rng.uniform(gate.limits.position_low, gate.limits.position_high, (60, 1))
    states = [CommandState(positions=row, velocities=zeros[0], seq=0, epoch=0) for row in positions]
    holds = np.array([gate.hold_action(state) for state in states])
    reference = CommandStateBatch(positions=positions, velocities=zeros, accelerations=zeros)
    batched, _ = BatchedLimiter(gate._limiter).limit(holds, reference, 0.05)
    single = [SafetyGate(contract).judge(*each, 0.05).values for each in zip(holds, states, strict=True)]
    assert batched.applied_si.tolist() == np.array(single).tolist()
    assert not batched.intervened.any()


@examples(60)
@given(CONTRACTS, st.integers(0, 2**32 - 1), st.booleans(), st.sampled_from([0.0, 0.05, 0.2]))
def test_every_decided_row_equals_the_gate_of_its_slot(contract, seed, outside, faults):
    drive(with_safety(contract, **STRICT), seed, outside=outside, faults=faults)


@pytest.mark.parametrize("scale", ["binary", "normalized"])
def test_goals_of_a_gripper_are_decided(tmp_path, scale):
    assert drive(gripper_contract(tmp_path, gripper_text(scale=scale)), 1, steps=20) > 0.9


def test_grippers_turning_joints_and_own_tolerances_are_tracked_alike(tmp_path):
    turning = JointLimits(position=None, velocity=1.0, acceleration=4.0)
    keys: dict = {"tracking": Tracking(debounce_steps=1, stop_steps=2, joints={"j2": 0.3}, actuators={"gripper": 0.1})}
    contracts = [contract_of(turning, turning, command="position_delta", tracking=Tracking(debounce_steps=1))]
    for text in (gripper_text(TOPIC), gripper_text(TOPIC).replace("open: 0.8, closed: 0.0", "open: 0.0, closed: 0.8")):
        made = gripper_contract(tmp_path, text)
        contracts.append(dataclasses.replace(made, safety=dataclasses.replace(made.safety, **keys)))
    for contract in contracts:
        assert sum(drive(contract, seed, faults=0.3) for seed in range(20)) > 0.0


@pytest.mark.parametrize("name", sorted(shipped_files()))
def test_random_actions_from_rest_are_decided(name):
    assert drive(load_contract(name), 2, steps=20) > 0.9


def test_a_latch_changed_limits_and_a_stopping_share_are_not_decided():
    changed = Intervention(window_steps=1, warn_share=0.1, stop_share=0.2)
    own = [SafetyGate(contract_of(joint_limits(), intervention=changed)) for _ in range(4)]
    own[0].latch(Finding(gate="latch", severity=Severity.STOP, code="latch.stop"))
    own[1].change_limits({"j0": dataclasses.replace(joint_limits(), velocity=0.5)})
    own[2].interventions.count(intervened=True)
    rows = np.zeros((4, 1))
    context = SafetyContextBatch(
        qualities={"joints": np.zeros(4, np.int8)}, ages_s={"joints": np.zeros(4)}, measured=rows
    )
    reference = CommandStateBatch(positions=rows, velocities=rows, accelerations=rows)
    decided = BatchedGate(own).judge(rows, reference, 0.05, context, np.ones(4, np.bool_)).is_decided
    assert decided.tolist() == [False, False, False, True]
