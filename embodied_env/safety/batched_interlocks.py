"""The interlocks of several slots as arrays: they pass ordinary contexts, and leave all others to the slots' own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from embodied_env.contract import FloatArray
from embodied_env.core.batches import BoolArray, SafetyContextBatch
from embodied_env.safety.gate import SafetyGate
from embodied_env.safety.interlocks import (
    JUDGED_BY_AGE,
    ActionAgeGate,
    ForceGate,
    Interlock,
    LatencyGate,
    ObservationGate,
    TrackingGate,
)

_BELOW = 1.0 - 1e-9  # a force is known up to the rounding of its norm
_Kind = TypeVar("_Kind", bound=Interlock)


class BatchedInterlocks:
    """Passes the slots whose own interlocks would give no finding. A slot's state is here between `load` and `store`.

    A slot that counts failed readings or late commands is not passed, so these counts stay in its own interlocks.
    """

    def __init__(self, gates: Sequence[SafetyGate], size: int) -> None:
        """Load the state of every slot; `size`: the number of joints."""
        self._observation = _of_kind(gates, ObservationGate)
        self._latency = _of_kind(gates, LatencyGate)
        self._tracking = _of_kind(gates, TrackingGate)
        self._max_action_age_s = _of_kind(gates, ActionAgeGate)[0].max_age_s
        self._force_limits = _of_kind(gates, ForceGate)[0].limits
        self._are_clean = np.ones(len(gates), dtype=np.bool_)
        self._steps = np.zeros(len(gates), dtype=np.int64)  # since `load`, in time
        self._in_a_row = np.zeros(len(gates), dtype=np.int64)  # steps with a tracking error
        self._sent_count = np.zeros(len(gates), dtype=np.int64)
        if self._tracking:
            self._most_sent = self._tracking[0].spec.delay_steps + 1
            self._sent = np.zeros((self._most_sent, len(gates), size))  # the last commands, the newest last
            self._by_position = np.array(self._tracking[0].by_position)
            self._tolerances = np.array(self._tracking[0].tolerances)
        for slot in range(len(gates)):
            self.load(slot)

    def load(self, slot: int) -> None:
        """Read the state of a slot's own interlocks."""
        self._are_clean[slot] = not (self._observation[slot].in_a_row or any(self._latency[slot].missed))
        self._steps[slot] = 0
        if self._tracking:
            tracking = self._tracking[slot]
            self._in_a_row[slot], self._sent_count[slot] = tracking.in_a_row, len(tracking.sent)
            if tracking.sent:
                self._sent[-len(tracking.sent) :, slot] = tracking.sent

    def store(self, slot: int) -> None:
        """Write the state back to the slot's own interlocks."""
        latency = self._latency[slot]
        if latency.spec.budget_s is not None:
            latency.missed.extend([False] * min(int(self._steps[slot]), latency.spec.window_steps))
        self._steps[slot] = 0
        if self._tracking:
            tracking = self._tracking[slot]
            tracking.in_a_row = int(self._in_a_row[slot])
            tracking.sent.clear()
            tracking.sent.extend(self._sent[self._most_sent - self._sent_count[slot] :, slot].copy())

    def are_passed(self, context: SafetyContextBatch) -> BoolArray:
        """Return the slots without a finding, tracking aside."""
        observation, latency = self._observation[0], self._latency[0].spec
        passed = self._are_clean & (context.action_age_s <= self._max_action_age_s)
        if latency.budget_s is not None:
            passed &= context.latency_s <= latency.budget_s
        for name, max_age_s in observation.max_age_s.items():
            quality, age_s = context.qualities[name], context.ages_s[name]
            passed &= np.logical_or.reduce([quality == judged for judged in JUDGED_BY_AGE])
            passed &= (age_s >= -observation.future_tolerance_s) & (age_s <= max_age_s)
        for name, limit in self._force_limits.items():
            passed &= context.forces[name] <= limit * _BELOW
        return passed

    def track(self, measured: FloatArray, commanded: FloatArray) -> tuple[BoolArray, BoolArray]:
        """Return the slots with a tracking error, and those in which it is too short to be a finding."""
        if not self._tracking or not self._by_position.any():
            return np.zeros(len(measured), dtype=np.bool_), np.ones(len(measured), dtype=np.bool_)
        for row in np.flatnonzero(self._sent_count < self._most_sent):  # they repeat the oldest
            self._sent[: self._most_sent - self._sent_count[row], row] = (
                self._sent[-self._sent_count[row], row] if self._sent_count[row] else commanded[row]
            )
        highest, lowest = commanded, commanded
        for sent in self._sent[1:]:
            highest, lowest = np.maximum(highest, sent), np.minimum(lowest, sent)
        above, below = measured - highest, lowest - measured
        errors = np.where(above > below, above, below)
        are_near = (errors < 0.0) | (errors <= self._tolerances) | ~self._by_position
        are_hit = ~are_near.all(axis=1)
        return are_hit, ~are_hit | (self._in_a_row + 1 < self._tracking[0].spec.debounce_steps)

    def advance(self, commanded: FloatArray, are_hit: BoolArray, slots: BoolArray) -> None:
        """Count the step of `slots`, whose last published commands are `commanded`."""
        self._steps += slots
        if not self._tracking:
            return
        self._in_a_row = np.where(slots, np.where(are_hit, self._in_a_row + 1, 0), self._in_a_row)
        self._sent_count = np.minimum(self._sent_count + slots, self._most_sent)
        sent = np.concatenate((self._sent[1:], commanded[None]))
        self._sent = sent if slots.all() else np.where(slots[:, None], sent, self._sent)


def _of_kind(gates: Sequence[SafetyGate], kind: type[_Kind]) -> list[_Kind]:
    return [interlock for gate in gates for interlock in gate.interlocks if isinstance(interlock, kind)]
