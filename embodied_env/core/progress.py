"""How a long analysis reports how far it has come."""

from __future__ import annotations


class Progress:
    """Receives how far an analysis has come; this base class ignores it."""

    def start(self, task: str, total: int | None) -> None:
        """Start the next task, of `total` parts if known."""

    def advance(self, parts: int = 1) -> None:
        """Add finished parts."""


NO_PROGRESS = Progress()
