"""Test doubles: an observer that stores transitions, and commands approved by the real gate."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from embodied_env.contract import Contract
from embodied_env.core.types import ApprovedCommand, Transition
from embodied_env.safety import CommandState, SafetyGate


@dataclass
class SpyObserver:
    """Stores every transition."""

    seen: list[Transition] = field(default_factory=list)

    def observe(self, transition: Transition) -> None:
        """Store the transition."""
        self.seen.append(transition)


def approve(contract: Contract, action: Any, *, positions: Any = None, seq: int = 0, epoch: int = 0) -> ApprovedCommand:  # noqa: ANN401
    """Pass `action` through the real gate, from rest at `positions` (default: zeros)."""
    gate = SafetyGate(contract)
    start = np.zeros(gate.layout.size) if positions is None else np.asarray(positions, dtype=np.float64)
    reference = CommandState(positions=start, velocities=np.zeros_like(start), seq=seq, epoch=epoch)
    return gate.judge(action, reference, contract.control_period_s)
