"""A progress bar on stderr for verbs that read a run."""

from __future__ import annotations

import sys
from typing import Any, Self

from embodied_env.core.terminal import make_console


class ProgressBar:
    """A bar on stderr, where that is a terminal; see `embodied_env.analysis.progress.Progress`."""

    def __init__(self) -> None:
        """Create the bar without a task."""
        self._bar: Any = None  # rich is imported only where it draws
        if sys.stderr.isatty():
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=make_console(stderr=True), transient=True)
            self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> Self:
        """Show the bar."""
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()

    def start(self, task: str, total: int | None) -> None:
        """Start the next task, of `total` parts; None: not known."""
        if self._bar is not None:
            self._bar.reset(self._task, description=task, total=total)

    def advance(self, parts: int = 1) -> None:
        """Add `parts` finished parts."""
        if self._bar is not None:
            self._bar.advance(self._task, parts)
