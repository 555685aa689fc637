"""Judge ordinary actions of several slots as arrays, bit for bit as each slot's gate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embodied_env.contract import FloatArray
from embodied_env.contract.required_sensors import required_sensors
from embodied_env.core.code_table import CODES, GATES
from embodied_env.core.code_types import Quality, Severity
from embodied_env.core.measured_joints import nearest_turn
from embodied_env.core.types import Finding
from embodied_env.extensions.vector.batched_limiter import BatchedLimiter
from embodied_env.extensions.vector.batched_types import (
    ApprovedCommandBatch,
    BoolArray,
    CommandStateBatch,
    GateReportBatch,
    SafetyContextBatch,
)
from embodied_env.safety.command_limiter import CommandLimiter
from embodied_env.safety.findings import limit_findings, modification, rate_finding, sorted_by_gate
from embodied_env.safety.gate import SafetyGate
from embodied_env.safety.interlocks.force import ForceGate
from embodied_env.safety.interlocks.latency import LatencyGate
from embodied_env.safety.interlocks.observation import JUDGED_BY_AGE, ObservationGate
from embodied_env.safety.interlocks.tracking import TrackingGate

_BATCHED = (ObservationGate, TrackingGate, ForceGate, LatencyGate)  # in lockstep no latency exceeds its budget
"""Interlocks with a batched form below, without which a slot is judged by its own gate."""

_INTERVENTION, _BOX, _JERK = (GATES.index(gate) for gate in ("intervention", "space_box", "jerk"))
_RATE, _CODE_NAMES = CODES["rate.intervention"], {number: code for code, number in CODES.items()}
_IS_JUDGED_BY_AGE = np.array([quality in JUDGED_BY_AGE for quality in Quality])
_NO_STEP = -1  # entry of a window that is not full
_Row = list[float]  # by joint
_BELOW = 1.0 - 1e-9  # a force is known up to the rounding of its norm


class BatchedGate:
    """Judges one action per slot within one contract's limits, as the slots' own gates would.

    The state of a slot is in its own gate, except the counts and commands of its interlocks between `load` and `store`.

    Attributes:
        intervention_share: the share of changed steps of each slot over the contract's window, shape (n_slots,).
    """

    def __init__(self, gates: Sequence[SafetyGate]) -> None:
        """Load every slot from its gate, of lockstep worlds of one contract that `supports` allows."""
        self._gates, self._contract = gates, gates[0].contract
        layout = gates[0].layout
        self._turns, self._joints = layout.turns, layout.joints
        limiter = CommandLimiter(self._contract, filters={}, fixed_rate=True, limits_elsewhere=False)
        self._limiter = BatchedLimiter(limiter)
        self._max_age_s = {name: self._contract.sensors[name].max_age_s for name in required_sensors(self._contract)}
        found = [each for gate in gates for each in gate.interlocks]
        self._observation = [each for each in found if isinstance(each, ObservationGate)]
        self._tracking = [each for each in found if isinstance(each, TrackingGate)]
        self._changed = np.zeros((self._contract.safety.intervention.window_steps, len(gates)), dtype=np.int8)
        self.intervention_share = np.zeros(len(gates))
        self._are_clean = np.ones(len(gates), dtype=np.bool_)
        self._in_a_row = np.zeros(len(gates), dtype=np.int64)  # steps with a tracking error
        spec = self._contract.safety.tracking
        self._sent = np.zeros((0 if spec is None else spec.delay_steps + 1, len(gates), layout.size))  # newest last
        for slot in range(len(gates)):
            self.load(slot)
        self._before = self._in_a_row, self._sent, self._changed  # the last step

    @staticmethod
    def supports(gate: SafetyGate) -> bool:
        """Return whether such a gate can be batched, with the limits of `_BATCHED` and no filters."""
        safety = gate.contract.safety
        is_plain = safety.mode == "enforce" and safety.workspace is None and not safety.gates
        return is_plain and all(isinstance(each, _BATCHED) for each in gate.interlocks)

    def load(self, slot: int) -> None:
        """Read the state of the slot's own gate, after it has judged an action or was reset."""
        self._are_clean[slot] = self._gates[slot].is_ordinary and not self._observation[slot].in_a_row
        rate = self._gates[slot].interventions
        self._changed[:, slot] = [_NO_STEP] * (len(self._changed) - len(rate.window)) + list(rate.window)
        self.intervention_share[slot] = rate.share
        if self._tracking:
            tracking = self._tracking[slot]
            self._in_a_row[slot] = tracking.in_a_row
            self._sent[:, slot] = np.nan  # none
            if tracking.sent:
                self._sent[-len(tracking.sent) :, slot] = tracking.sent

    def store(self, slot: int, *, undo: bool = False) -> None:
        """Write the state back to the slot's own gate, before it judges an action or is read.

        `undo`: the state before the last `judge`, which decided the slot; its own gate then judges the action again.
        """
        in_a_row, all_sent, changed = self._before if undo else (self._in_a_row, self._sent, self._changed)
        self._gates[slot].interventions.restore(bool(each) for each in changed[:, slot] if each != _NO_STEP)
        if self._tracking:
            tracking = self._tracking[slot]
            tracking.in_a_row = int(in_a_row[slot])
            tracking.sent.clear()
            tracking.sent.extend(sent.tolist() for sent in all_sent[:, slot] if not np.isnan(sent[0]))

    def judge(
        self,
        actions: FloatArray,
        reference: CommandStateBatch,
        dt_s: float,
        context: SafetyContextBatch,
        candidates: BoolArray,
    ) -> ApprovedCommandBatch:
        """Return a command within every limit for each ordinary slot of `candidates`.

        The other slots are not decided, and their state is as before. An ordinary slot has a finite action, no latch,
        the contract's own limits, no finding of an interlock that refuses or counts, and feasible limits.

        Args:
            actions: shape (n_slots, n_joints), parsed; never written.
            reference: the last published commands.
            dt_s: the control period.
            context: what the interlocks judge.
            candidates: the slots to decide, shape (n_slots,).
        """
        is_decided = candidates & np.isfinite(actions).all(axis=1)
        with np.errstate(all="ignore"):  # values of the other slots may be invalid
            is_decided &= self._are_passed(context) & (dt_s > 0.0)
            are_hit, is_brief = self._find_tracking_errors(context.measured, reference.positions)
            report, is_sound = self._limiter.limit(actions, reference, dt_s)
        is_decided &= is_brief & is_sound & self._judge_interventions(report)
        self._count(reference.positions, are_hit, report.intervened, is_decided)
        return ApprovedCommandBatch(values=report.applied_si, is_decided=is_decided, report=report)

    def findings(self, report: GateReportBatch, rows: BoolArray) -> dict[int, tuple[Finding, ...]]:
        """Return the findings of `rows` in the last `judge`, as their own gates would."""
        vectors = report.requested, report.boxed, report.target, report.smooth, report.applied_si
        values = list(zip(*[vector.tolist() for vector in vectors], strict=True))
        found: list[int] = np.flatnonzero(rows & report.code.any(axis=1)).tolist()
        return {slot: self._findings(report, slot, *values[slot]) for slot in found}

    def _findings(
        self, report: GateReportBatch, slot: int, requested: _Row, boxed: _Row, target: _Row, smooth: _Row, sent: _Row
    ) -> tuple[Finding, ...]:
        joints, codes, found = self._joints, report.code[slot], list[Finding]()
        if codes[_INTERVENTION]:
            changed = self._before[-1][:, slot]  # it is full
            found.append(rate_finding(np.count_nonzero(changed == 1) / len(changed), len(changed), Severity.PASS))
        if codes[_BOX]:
            found.append(modification("space_box", "box.clip", joints, requested, boxed))
        if codes[_JERK]:
            found.append(modification("jerk", "jerk.limit", joints, target, smooth))
        limited = {
            joint: (_CODE_NAMES[code], sent[joint]) for joint, code in enumerate(report.limited[slot].tolist()) if code
        }
        return sorted_by_gate(found + limit_findings(joints, smooth, sent, limited))

    def _are_passed(self, context: SafetyContextBatch) -> BoolArray:
        """Return the slots whose interlocks, except tracking, find and count nothing."""
        safety = self._contract.safety
        passed = self._are_clean.copy()
        for name, max_age_s in self._max_age_s.items():
            age_s = context.ages_s[name]
            passed &= _IS_JUDGED_BY_AGE[context.qualities[name]]
            passed &= (age_s >= -safety.observation.future_tolerance_s) & (age_s <= max_age_s)
        for name, force in safety.forces.items():
            passed &= context.forces[name] <= force.limit * _BELOW
        return passed

    def _find_tracking_errors(self, measured: FloatArray, commanded: FloatArray) -> tuple[BoolArray, BoolArray]:
        """Return the slots with a tracking error, and those where it is too short for a finding."""
        if not self._tracking:
            return np.zeros(len(measured), dtype=np.bool_), np.ones(len(measured), dtype=np.bool_)
        highest = lowest = commanded
        for sent in self._sent[1:]:
            highest, lowest = np.fmax(highest, sent), np.fmin(lowest, sent)
        gate = self._tracking[0]
        measured = nearest_turn(measured, commanded, self._turns)
        are_near = (measured - highest <= gate.above) & (lowest - measured <= gate.below)
        are_hit = ~(are_near | ~gate.is_checked).all(axis=1)
        return are_hit, ~are_hit | (self._in_a_row + 1 < gate.spec.debounce_steps)

    def _judge_interventions(self, report: GateReportBatch) -> BoolArray:
        """Report the shares above `warn_share`, and return the slots that they do not stop."""
        spec = self._contract.safety.intervention
        share = np.where(self._changed[0] != _NO_STEP, self.intervention_share, 0.0)  # 0: the window is not full
        report.code[:, _INTERVENTION] = np.where(share > spec.warn_share, _RATE, 0)
        return share <= (1.0 if spec.stop_share is None else spec.stop_share)

    def _count(self, commanded: FloatArray, are_hit: BoolArray, intervened: BoolArray, is_decided: BoolArray) -> None:
        self._before = self._in_a_row, self._sent, self._changed
        if self._tracking:
            sent = np.concatenate((self._sent[1:], commanded[None]))
            self._sent = sent if is_decided.all() else np.where(is_decided[:, None], sent, self._sent)
            self._in_a_row = np.where(is_decided, np.where(are_hit, self._in_a_row + 1, 0), self._in_a_row)
        self._changed = np.where(is_decided, np.concatenate((self._changed[1:], intervened[None])), self._changed)
        counted = np.count_nonzero(self._changed != _NO_STEP, axis=0)
        self.intervention_share = np.count_nonzero(self._changed == 1, axis=0) / np.maximum(counted, 1)


def states_after(
    before: CommandStateBatch, approved: ApprovedCommandBatch, is_velocity: BoolArray
) -> CommandStateBatch:
    """Return the references after `before` once `approved` was published.

    They are undefined where it is not decided.
    """
    velocities = approved.report.velocity_si
    return CommandStateBatch(
        positions=np.where(is_velocity, before.positions, approved.values),
        velocities=velocities,
        accelerations=(velocities - before.velocities) / approved.report.dt_s,
        slack=before.slack,
    )
