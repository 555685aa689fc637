"""The Progress protocol: how a long analysis reports how far it has come."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives how far an analysis has come."""

    def start(self, task: str, total: int | None) -> None:
        """Start the next task, of `total` parts if known."""
        ...

    def advance(self, parts: int = 1) -> None:
        """Add finished parts."""
        ...


class NoProgress:
    """Ignores the progress."""

    def start(self, task: str, total: int | None) -> None:
        """Do nothing."""

    def advance(self, parts: int = 1) -> None:
        """Do nothing."""
