"""The protocol of action stages, which may replace an action before the safety gate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import gymnasium

from embodied_env.core.types import CommandState, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedAction:
    """The action in place of the one that a stage received, and an account in JSON types."""

    action: Any  # in the contract's action space after the last stage, or `NoAction`
    account: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class ActionStage(Protocol):
    """Replaces or translates actions, and makes the robot hold for a step in which it raises."""

    def reset(self) -> None:
        """Begin an episode."""
        ...

    def apply(self, action: Any, snapshot: Snapshot, commanded: CommandState) -> StagedAction | None:  # noqa: ANN401
        """Return None to let the action pass unchanged.

        `action` is a copy of what the agent or the stage before returned, of any type. `snapshot` is a copy of
        the readings that the agent acted on, `commanded` one of the last published command.
        """
        ...

    def close(self) -> None:
        """Free everything (idempotent)."""
        ...


@runtime_checkable
class TranslatingStage(ActionStage, Protocol):
    """A stage that receives actions of a space of its own."""

    action_space: gymnasium.Space[Any]
