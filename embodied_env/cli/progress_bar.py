"""Progress bars on stderr, drawn only where stderr is a terminal."""

from __future__ import annotations

import sys
from typing import Any, Self

from embodied_env.core.progress import Progress
from embodied_env.core.terminal import make_console


class ProgressBar(Progress):
    """A bar for one task at a time."""

    def __init__(self, task: str = "", total: int | None = None) -> None:
        """Create the bar; `total` is the number of parts of `task`, if known."""
        self._bar: Any = None  # rich is imported only where it draws
        if sys.stderr.isatty():
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as RichProgress

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = RichProgress(*columns, console=make_console(stderr=True), transient=True)
            self._task = self._bar.add_task(task, total=total)

    def __enter__(self) -> Self:
        """Draw nothing yet: an operator may be asked something before the first report."""
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def start(self, task: str, total: int | None) -> None:
        """Start the next task, of `total` parts; None: unknown."""
        if self._bar is not None:
            self._bar.start()
            self._bar.reset(self._task, description=task, total=total)

    def advance(self, parts: int = 1) -> None:
        """Add `parts` finished parts."""
        if self._bar is not None:
            self._bar.advance(self._task, parts)

    def update(self, finished: int, total: int | None = None) -> None:
        """Set the number of finished parts, and the total if it is known now."""
        if self._bar is not None:
            self._bar.start()
            self._bar.update(self._task, completed=finished, total=total)
