"""Print text of unknown origin (a run, a contract, a policy) with control characters escaped."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO

from embodied_env.errors import escaped

if TYPE_CHECKING:
    from rich.console import Console

_PIPE_WIDTH = 200  # columns, if stdout is not a terminal


def printable(text: str) -> str:
    r"""Escape control characters, bidirectional controls and lone surrogates, ESC as ``\u001b``.

    Newlines and tabs stay. The result for JSON text is JSON of the same value.
    """
    return escaped(text, keep="\n\t")


def say(text: object, *, file: TextIO | None = None, flush: bool = False) -> None:
    """Print `text` to `file` (default: stdout)."""
    print(printable(str(text)), file=sys.stdout if file is None else file, flush=flush)


class PrintableFormatter(logging.Formatter):
    """Formats log messages, which may contain text of a file or a server, for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the message with control characters escaped."""
        return printable(super().format(record))


def make_console(**options: Any) -> Console:  # noqa: ANN401 - rich's options
    """Return a rich console for tables and progress bars that prints brackets in text as they are."""
    from rich.console import Console
    from rich.segment import Segment

    class PrintableConsole(Console):
        def render(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - rich's signature
            for text, style, control in super().render(*args, **options):
                yield Segment(text if control else printable(text), style, control)

    return PrintableConsole(**{"markup": False, "emoji": False, **options})


@contextlib.contextmanager
def stdout_tables() -> Iterator[Console]:
    """Give a console for tables, and write them to stdout at the end; wide if that is not a terminal."""
    console = make_console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False)
    with console.capture() as captured:  # sys.stdout raises BrokenPipeError; rich would exit
        yield console
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in captured.get().splitlines())  # escaped by the console
