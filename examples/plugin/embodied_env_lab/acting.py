"""A policy, an action stage, and the contract block with the settings of the stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from embodied_env.contract import Contract
from embodied_env.core.action_stage import StagedAction
from embodied_env.core.contract_blocks import ContractBlock, load_block
from embodied_env.core.types import CommandState, Snapshot


def make_gain(location: str, contract: Contract, *, trust: bool = False) -> Any:
    """Return the policy ``lab_gain``, which always acts with the value in its address."""
    return lambda observation: np.full(contract.action_space.shape or (), float(location))


@dataclass(frozen=True, kw_only=True)
class MirrorSettings:
    """The keys of the block ``lab_mirror``."""

    gain: float = 1.0


BLOCK = ContractBlock(schema=MirrorSettings, action_stage="lab_mirror")


class Mirror:
    """Moves the robot the other way round."""

    def __init__(self, contract: Contract) -> None:
        self._gain = load_block(contract, "lab_mirror").gain

    def reset(self) -> None:
        """Begin an episode."""

    def apply(self, action: Any, snapshot: Snapshot, commanded: CommandState) -> StagedAction | None:
        """Return the opposite of an array, and any other action, such as NoAction, unchanged."""
        if not isinstance(action, np.ndarray):
            return None
        return StagedAction(action=-self._gain * action, account={"gain": self._gain})

    def close(self) -> None:
        """Free nothing."""
