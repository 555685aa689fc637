"""The safety gate of several slots: judges ordinary actions as arrays, bit for bit as the gate of each slot would."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embodied_env.core.batches import ApprovedCommandBatch, BoolArray, CommandStateBatch, SafetyContextBatch
from embodied_env.core.types import FloatArray
from embodied_env.safety.gate import SafetyGate


class BatchedGate:
    """Judges one action per slot within the limits of one contract, as the slots' own gates would.

    The state of a slot is in its own gate, except between `load` and `store`.
    """

    def __init__(self, gates: Sequence[SafetyGate]) -> None:
        """Load every slot. `gates` has one gate per slot, all of the same contract."""
        self._gates = tuple(gates)

    @property
    def intervention_share(self) -> FloatArray:
        """The share of changed steps of each slot over the contract's window, shape (n_slots,)."""
        return np.array([gate.intervention_share for gate in self._gates])

    def load(self, slot: int) -> None:
        """Read the state of the slot's own gate, after it has judged an action or was reset."""

    def store(self, slot: int) -> None:
        """Write the state back to the slot's own gate, before it judges an action or is read."""

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
        raise NotImplementedError
