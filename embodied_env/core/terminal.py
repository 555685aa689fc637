"""Print text of unknown origin with control characters escaped, and report progress."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self, TextIO

from embodied_env.errors import escaped

if TYPE_CHECKING:
    from rich.console import Console

LINE_PERIOD_S = 10.0  # time between two lines of progress
_PIPE_WIDTH = 200  # columns, if stdout is not a terminal


def printable(text: str) -> str:
    r"""Escape control characters, bidirectional controls and lone surrogates, ESC as ``\u001b``.

    Newlines and tabs stay. The result for JSON text is JSON of the same value.
    """
    return escaped(text, keep="\n\t")


def say(text: object, *, file: TextIO | None = None, flush: bool = False) -> None:
    """Print `text` to `file`, by default stdout."""
    print(printable(str(text)), file=sys.stdout if file is None else file, flush=flush)


class PrintableFormatter(logging.Formatter):
    """Formats log messages, which may contain text of a file or a server, for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the message with control characters escaped."""
        return printable(super().format(record))


def make_console(**options: Any) -> Console:  # noqa: ANN401 - rich's options
    """Return a rich console for tables and bars that prints brackets as they are."""
    from rich.console import Console
    from rich.segment import Segment

    class PrintableConsole(Console):
        def render(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - rich's signature
            for text, style, control in super().render(*args, **options):
                yield Segment(text if control else printable(text), style, control)

    return PrintableConsole(**{"markup": False, "emoji": False, **options})


@contextlib.contextmanager
def stdout_tables() -> Iterator[Console]:
    """Give a console for tables, and write them to stdout, in full width if no terminal."""
    console = make_console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False)
    with console.capture() as captured:  # sys.stdout raises BrokenPipeError; rich would exit
        yield console
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in captured.get().splitlines())  # escaped by the console


def print_tables(sections: Mapping[str, Any]) -> None:
    """Print a table of rows, or of keys and values, for each section."""
    from rich.table import Table

    with stdout_tables() as console:
        for title, section in sections.items():
            rows = _key_values(section) if isinstance(section, Mapping) else section
            columns = list(dict.fromkeys(key for row in rows for key in row))
            table = Table(*columns, title=title, title_justify="left")
            for row in rows:
                table.add_row(*(_cell(row.get(column)) for column in columns))
            console.print(table if rows else f"{title}: none")


def without_empty_columns(section: Any) -> Any:  # noqa: ANN401 - JSON types
    """Drop the columns of a table that no row has set."""
    if isinstance(section, Mapping):
        return section
    used = {key for row in section for key, value in row.items() if value is not None}
    return [{key: value for key, value in row.items() if key in used} for row in section]


def _key_values(mapping: Mapping[str, Any], prefix: str = "") -> list[dict[str, Any]]:
    """Flatten nested settings into rows of a dotted key and a value."""
    rows: list[dict[str, Any]] = []
    for key, value in mapping.items():
        nested = isinstance(value, dict) and value
        rows += _key_values(value, f"{prefix}{key}.") if nested else [{"key": prefix + key, "value": value}]
    return rows


def _cell(value: object) -> str:
    """Format a value with six digits, and equal values of a list once with their count."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        items = [_cell(item) for item in value]
        equal = len(items) > 1 and len(set(items)) == 1
        return f"{len(items)} x {items[0]}" if equal else f"[{', '.join(items)}]"
    if value is None:
        return "-"
    return value if isinstance(value, str) else json.dumps(value)


class Progress:
    """Receives the progress of an analysis, which this base class ignores."""

    def start(self, task: str, total: int | None) -> None:
        """Start the next task, of `total` parts if known."""

    def advance(self, parts: int = 1) -> None:
        """Add finished parts."""


NO_PROGRESS = Progress()


class ProgressLines:
    """Prints a line on stderr every `LINE_PERIOD_S` where it is no terminal and shows no bar."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._is_on = clock, not sys.stderr.isatty()
        self._start_s = self._last_s = clock()

    def show(self, describe: Callable[[], str]) -> None:
        """Print what `describe` returns, with the time since the start, once in each period."""
        if self._is_on and (now_s := self._clock()) - self._last_s >= LINE_PERIOD_S:
            self._last_s = now_s
            say(f"{describe()}, {now_s - self._start_s:.0f} s", file=sys.stderr, flush=True)


class ProgressBar(Progress):
    """A bar on stderr for one task at a time, or lines where stderr is not a terminal."""

    def __init__(
        self, task: str = "", total: int | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._task, self._total, self._finished = task, total, 0
        self._lines = ProgressLines(clock)
        self._bar: Any = None  # rich is imported only where it draws
        if sys.stderr.isatty():
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as RichProgress

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = RichProgress(*columns, console=make_console(stderr=True), transient=True)
            self._row = self._bar.add_task(task, total=total)

    def __enter__(self) -> Self:
        return self  # nothing is drawn yet: an operator may be asked something before the first report

    def __exit__(self, *_: object) -> None:
        self.pause()

    def pause(self) -> None:
        """Remove the bar until the next report, since an operator may be asked something."""
        if self._bar is not None:
            self._bar.stop()

    def start(self, task: str, total: int | None) -> None:
        """Start the next task of `total` parts, or None for an unknown number."""
        self._task, self._total, self._finished = task, total, 0
        if self._bar is not None:
            self._bar.start()
            self._bar.reset(self._row, description=task, total=total)
        self._lines.show(self._describe)

    def advance(self, parts: int = 1) -> None:
        """Add `parts` finished parts."""
        self._finished += parts
        if self._bar is not None:
            self._bar.advance(self._row, parts)
        self._lines.show(self._describe)

    def update(self, finished: int, total: int | None = None) -> None:
        """Set the number of finished parts, and the total if it is known now."""
        self._finished, self._total = finished, self._total if total is None else total
        if self._bar is not None:
            self._bar.start()
            self._bar.update(self._row, completed=finished, total=total)
        self._lines.show(self._describe)

    def _describe(self) -> str:
        total = "" if self._total is None else f" of {self._total:,}"
        return f"{self._task}: {self._finished:,}{total}" if self._finished or total else self._task
