"""The safety gate of several slots: judges ordinary actions as arrays, bit for bit as the gate of each slot would."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embodied_env.contract import Contract, FloatArray
from embodied_env.core.batches import (
    ApprovedCommandBatch,
    BoolArray,
    CommandStateBatch,
    GateReportBatch,
    SafetyContextBatch,
)
from embodied_env.core.codes import CODES
from embodied_env.safety.approved_commands import approve_commands
from embodied_env.safety.batched_interlocks import BatchedInterlocks
from embodied_env.safety.batched_limiter import BatchedLimiter
from embodied_env.safety.command_limiter import CommandLimiter
from embodied_env.safety.findings import GATES
from embodied_env.safety.gate import SafetyGate

_INTERVENTION, _RATE = GATES.index("intervention"), CODES["rate.intervention"]


class BatchedGate:
    """Judges one action per slot within the limits of one contract, as the slots' own gates would.

    The state of a slot is in its own gate, except between `load` and `store`.
    """

    def __init__(self, gates: Sequence[SafetyGate]) -> None:
        """Load every slot. `gates` has one gate per slot, all of lockstep worlds of the same contract.

        Raises:
            ValueError: unless `supports` their contract.
        """
        self._gates = tuple(gates)
        contract = gates[0].contract
        if not self.supports(contract):
            raise ValueError(f"contract without batched gate: {contract.name} (expected one that `supports` allows)")
        limiter = CommandLimiter(contract, filters={}, fixed_rate=True, limits_elsewhere=False)
        self._limiter = BatchedLimiter(limiter)
        self._interlocks = BatchedInterlocks(gates, gates[0].layout.size)
        self._rates = [gate.interventions for gate in gates]
        self._spec = self._rates[0].spec

    @staticmethod
    def supports(contract: Contract) -> bool:
        """Return whether this gate can decide slots of `contract`: it enforces limits, without filters."""
        safety = contract.safety
        return safety.mode == "enforce" and safety.workspace is None and not safety.gates

    @property
    def intervention_share(self) -> FloatArray:
        """The share of changed steps of each slot over the contract's window, shape (n_slots,)."""
        return np.array([rate.share for rate in self._rates])

    def load(self, slot: int) -> None:
        """Read the state of the slot's own gate, after it has judged an action or was reset."""
        self._interlocks.load(slot)

    def store(self, slot: int) -> None:
        """Write the state back to the slot's own gate, before it judges an action or is read."""
        self._interlocks.store(slot)

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
        the contract's own limits, no finding of an interlock that refuses or counts, no filter, and a state from which
        the limits are feasible.

        Args:
            actions: shape (n_slots, n_joints), parsed; never written.
            reference: the last published commands.
            dt_s: the control period, above 0.
            context: what the interlocks judge.
            candidates: the slots to decide, shape (n_slots,).
        """
        is_ordinary = candidates & [gate.is_ordinary for gate in self._gates] & np.isfinite(actions).all(axis=1)
        is_ordinary &= dt_s > 0.0
        with np.errstate(all="ignore"):  # of the other slots
            is_ordinary &= self._interlocks.are_passed(context)
            are_hit, is_near = self._interlocks.track(context.measured, reference.positions)
            report, is_sound = self._limiter.limit(actions, reference, dt_s)
        is_ordinary &= is_near & is_sound
        is_ordinary &= self._judge_interventions(report)
        self._interlocks.advance(reference.positions, are_hit, is_ordinary)
        changes = zip(self._rates, is_ordinary.tolist(), report.intervened.tolist(), strict=True)
        for rate, is_decided, is_changed in changes:
            if is_decided:
                rate.count(intervened=is_changed)
        return approve_commands(report, is_decided=is_ordinary)

    def _judge_interventions(self, report: GateReportBatch) -> BoolArray:
        """Report the shares above `warn_share` (`InterventionRate.check`); return the slots that they do not stop."""
        share = np.where([rate.is_full for rate in self._rates], self.intervention_share, 0.0)
        report.code[:, _INTERVENTION] = np.where(share > self._spec.warn_share, _RATE, 0)
        return share <= (1.0 if self._spec.stop_share is None else self._spec.stop_share)
