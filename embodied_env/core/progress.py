"""Receivers of the progress of a long analysis."""

from __future__ import annotations


class Progress:
    """Receives the progress of an analysis; this base class ignores it."""

    def start(self, task: str, total: int | None) -> None:
        """Start the next task, of `total` parts if known."""

    def advance(self, parts: int = 1) -> None:
        """Add finished parts."""


NO_PROGRESS = Progress()
