"""The batched gate decides as the gate of each slot, bit for bit; `drive` compares them over sequences of steps."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from grippers import gripper_contract, gripper_text
from hypothesis import given
from hypothesis import strategies as st
from safety_strategies import (
    ODD_NUMBERS,
    as_joint_limits,
    bounds,
    calm,
    contract_of,
    examples,
    gates,
    joint_limits,
    plain_contract,
    reference_at,
    with_safety,
)
from test_gate_chain_properties import with_jerk
from test_velocity_properties import CONTRACT as MIXED

from embodied_env import load_contract
from embodied_env.contract.loader import shipped_files
from embodied_env.contract.safety_schema import ForceLimit, Intervention, LatencyBudget, ObservationAge, Tracking
from embodied_env.core.batches import CommandStateBatch, SafetyContextBatch
from embodied_env.core.codes import Quality, Severity
from embodied_env.core.types import CommandState, Finding, SafetyContext, SensorStatus
from embodied_env.errors import InternalFaultError
from embodied_env.safety import SafetyGate
from embodied_env.safety.approved_commands import state_after, states_after
from embodied_env.safety.batched_gate import BatchedGate
from embodied_env.safety.findings import gate_arrays
from embodied_env.safety.interlocks import required_sensors

SLOTS = 3
STRICT = {
    "tracking": Tracking(tolerance=0.05, delay_steps=2, debounce_steps=2, stop_steps=4),
    "observation": ObservationAge(stop_steps=4),
    "latency": LatencyBudget(budget_s=0.15, misses=2, window_steps=3, action="hold"),
    "intervention": Intervention(window_steps=2, warn_share=0.5),
}
VECTORS = ("requested", "applied", "applied_si", "velocity_si")


def counters(gate: SafetyGate) -> list:
    """Return the state of a gate and of its interlocks."""
    rate = gate.interventions
    found = [str(gate.latched), gate._malformed_in_a_row, list(rate._window), rate.share, rate.judged_share]
    for interlock in gate.interlocks:
        found += [getattr(interlock, "in_a_row", None), list(getattr(interlock, "missed", ()))]
        found += [sent.tolist() for sent in getattr(interlock, "sent", ())]
    return found


def is_ordinary(gate: SafetyGate) -> bool:
    """Return whether the next step of a gate may be decided by the batched one."""
    counted = [getattr(each, "missed", ()) or getattr(each, "in_a_row", 0) for each in gate.interlocks]
    _, _, observation, _, *_, latency = counted
    return gate.is_ordinary and not observation and not any(latency or ())


def draw_actions(rng, size: int) -> np.ndarray:
    kinds = [rng.uniform(-1.5, 1.5, size), rng.uniform(-0.1, 0.1, size), rng.choice([-1.0, 1.0], size)]
    kinds += [rng.choice(ODD_NUMBERS, size), np.full(size, rng.choice([0.0, np.nan, np.inf]))]
    return np.array([kinds[rng.choice(5, p=[0.4, 0.2, 0.15, 0.2, 0.05])] for _ in range(SLOTS)])


def draw_context(contract, rng, measured: np.ndarray, faults: float) -> SafetyContext:
    """Return the context of one slot, with a share of faults."""

    def value(fine, *faulty):
        return faulty[rng.integers(len(faulty))] if rng.random() < faults else fine

    ages = (0.1, 0.2, -0.005, -1.0, np.nan, np.inf)
    return SafetyContext(
        sensors={
            name: SensorStatus(quality=value(Quality.OK, *Quality), age_s=value(0.0, *ages))
            for name in required_sensors(contract)
        },
        measured=measured + value(0.0, 1e-3, 5.0, np.nan),
        action_age_s=value(0.0, 0.01, 10.0),
        latency_s=value(0.0, 0.1, 0.2),
        forces={name: value(0.5, 2.0, np.nan) for name in contract.safety.forces},
    )


def stacked(contexts: list[SafetyContext]) -> SafetyContextBatch:
    first = contexts[0]
    sensors = {name: [each.sensors[name] for each in contexts] for name in first.sensors}
    return SafetyContextBatch(
        qualities={name: np.array([s.quality for s in each], np.int8) for name, each in sensors.items()},
        ages_s={name: np.array([s.age_s for s in each]) for name, each in sensors.items()},
        measured=np.array([each.measured for each in contexts]),
        action_age_s=np.array([each.action_age_s for each in contexts]),
        latency_s=np.array([each.latency_s for each in contexts]),
        forces={name: np.array([each.forces[name] for each in contexts]) for name in first.forces},
    )


def batch_of(states: list[CommandState]) -> CommandStateBatch:
    zeros = np.zeros_like(states[0].positions)
    return CommandStateBatch(
        positions=np.array([state.positions for state in states]),
        velocities=np.array([state.velocities for state in states]),
        accelerations=np.array([zeros if state.accelerations is None else state.accelerations for state in states]),
        slack=None if states[0].slack is None else np.array([state.slack for state in states]),
    )


def assert_decided_as(batch, slot: int, report) -> None:
    """Assert that a row of a batched report equals a report, bit for bit."""
    for name in VECTORS:
        assert getattr(batch, name)[slot].tobytes() == getattr(report, name).tobytes(), name
    severity, code = gate_arrays(report)
    assert batch.severity[slot].tolist() == severity.tolist()
    assert batch.code[slot].tolist() == code.tolist()
    assert (batch.disposition[slot], batch.intervened[slot]) == (report.disposition, report.intervened)
    assert {name: bool(kept[slot]) for name, kept in batch.guaranteed.items()} == dict(report.guaranteed)


def drive(contract, rng, states: list[CommandState], *, steps: int = 6, faults: float = 0.0) -> float:
    """Compare both gates over steps; return the share of steps that the batched gate decided."""
    truth, own = ([SafetyGate(contract) for _ in range(SLOTS)] for _ in range(2))
    batched, layout, dt_s = BatchedGate(own), own[0].layout, contract.control_period_s
    decided = 0
    for _ in range(steps):
        actions = draw_actions(rng, layout.size)
        contexts = [draw_context(contract, rng, state.positions, faults) for state in states]
        candidates = rng.random(SLOTS) >= 0.5 * faults
        before = batch_of(states)
        were_ordinary = [is_ordinary(gate) for gate in truth]
        approved = batched.judge(actions, before, dt_s, stacked(contexts), candidates)
        after = states_after(before, approved, layout.is_velocity)
        for i in range(SLOTS):
            action = layout.as_action(actions[i])
            try:
                single = truth[i].judge(action, states[i], dt_s, contexts[i])
            except InternalFaultError:
                assert not approved.is_decided[i]
                return 0.0
            kinds = {f.gate for f in single.report.findings} <= {"space_box", "jerk", "joint_limits", "intervention"}
            is_plain = candidates[i] and were_ordinary[i] and is_ordinary(truth[i]) and kinds
            assert approved.is_decided[i] == (is_plain and single.report.disposition < Severity.HOLD)
            states[i] = state_after(states[i], single, layout.is_velocity)
            if approved.is_decided[i]:
                decided += 1
                assert approved.values[i].tobytes() == single.values.tobytes()
                assert_decided_as(approved.report, i, single.report)
                assert (states[i].positions.tobytes(), states[i].accelerations.tobytes()) == (
                    after.positions[i].tobytes(),
                    after.accelerations[i].tobytes(),
                )
            else:
                batched.store(i)
                own[i].judge(action, dataclasses.replace(states[i], **parts_of(before, i)), dt_s, contexts[i])
                batched.load(i)
            assert batched.intervention_share[i] == truth[i].intervention_share
        if rng.random() < 0.3:
            for i in range(SLOTS):
                batched.store(i)
                assert counters(own[i]) == counters(truth[i])
                batched.load(i)
    return decided / (steps * SLOTS)


def parts_of(batch: CommandStateBatch, slot: int) -> dict:
    parts = dataclasses.asdict(batch)
    return {name: None if part is None else part[slot] for name, part in parts.items()}


def draw_states(contract, rng, *, outside: bool) -> list[CommandState]:
    """Return a state per slot: in the safe set at rest, or any."""
    layout = SafetyGate(contract).layout
    limits, size = layout.limits, layout.size
    low, high = (np.where(np.isfinite(ends), ends, 0.0) for ends in (limits.position_low, limits.position_high))
    fastest = np.where(layout.is_goal, 0.0, limits.velocity)
    states = []
    for _ in range(SLOTS):
        parts = rng.choice([0.0, 1.0, rng.random(), 1.5 if outside else 0.5], size)
        velocities = fastest * rng.choice([0.0, 1.0, rng.uniform(-1.2, 1.2)], size) * outside
        slack = 0.01 * fastest * layout.is_velocity * rng.random(size)
        states.append(
            CommandState(
                positions=low + (high - low) * parts,
                velocities=velocities,
                seq=0,
                epoch=0,
                slack=slack if outside and layout.is_velocity.any() else None,
            )
        )
    return states


def _contract(kind: str, limits: list, scale: str, jerk: float | None, g):
    contract = g.contract
    if kind == "velocity":
        contract = contract_of(*map(as_joint_limits, limits), command="velocity", scale=scale)
    elif kind == "mixed":
        return MIXED
    return contract if jerk is None else with_jerk(g, jerk) if kind == "position" else contract


CONTRACTS = st.builds(
    _contract,
    st.sampled_from(["position", "position", "position", "velocity", "mixed"]),
    st.lists(bounds(), min_size=1, max_size=3),
    st.sampled_from(["normalized", "physical"]),
    st.sampled_from([None, None, 0.05, 1.0, 20.0]),
    gates(joints=3),
)


@examples(60)
@given(CONTRACTS, st.integers(0, 2**32 - 1), st.booleans(), st.sampled_from([0.0, 0.0, 0.1]))
def test_every_decided_row_equals_the_gate_of_its_slot(contract, seed, outside, faults):
    rng = np.random.default_rng(seed)
    forces = {"joints": ForceLimit(field="position", limit=1.0)}
    drive(
        with_safety(contract, **STRICT, forces=forces), rng, draw_states(contract, rng, outside=outside), faults=faults
    )


@pytest.mark.parametrize("scale", ["binary", "normalized"])
def test_goals_of_a_gripper_are_decided(tmp_path, scale):
    contract = gripper_contract(tmp_path, gripper_text(scale=scale))
    rng = np.random.default_rng(1)
    assert drive(contract, rng, draw_states(contract, rng, outside=False), steps=20) > 0.8


@pytest.mark.parametrize("name", sorted(shipped_files()))
def test_random_actions_on_shipped_contracts_are_decided(name):
    contract, rng = load_contract(name), np.random.default_rng(2)
    assert drive(contract, rng, draw_states(contract, rng, outside=False), steps=20) > 0.9


def test_what_the_gates_own_is_not_decided():
    gates_ = [SafetyGate(plain_contract()) for _ in range(SLOTS)]
    gates_[0].change_limits({"j0": dataclasses.replace(joint_limits(), velocity=0.5)})
    gates_[1].latch(Finding(gate="latch", severity=Severity.STOP, code="latch.stop"))
    rest = [reference_at((0.0, 0.0), (0.0, 0.0))] * SLOTS
    context = stacked([calm(state) for state in rest])
    decided = BatchedGate(gates_).judge(np.zeros((SLOTS, 2)), batch_of(rest), 0.05, context, np.ones(SLOTS, np.bool_))
    assert decided.is_decided.tolist() == [False, False, True]
