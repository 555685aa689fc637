"""Who is told how far the making of a page has come."""

from __future__ import annotations

from typing import Protocol


class Watcher(Protocol):
    """Told how far it has come."""

    def doing(self, what: str, total: int | None) -> None:
        """`what` begins, in `total` parts if that is known."""
        ...

    def done(self, parts: int) -> None:
        """`parts` of it are done."""
        ...


class Unwatched:
    """Nobody looks."""

    def doing(self, what: str, total: int | None) -> None:
        """Nothing."""

    def done(self, parts: int) -> None:
        """Nothing."""
