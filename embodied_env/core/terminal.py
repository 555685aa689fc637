"""Printing of text that may come from a run, a contract or a policy: control characters are shown escaped."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, TextIO

from embodied_env.core.printable import printable

if TYPE_CHECKING:
    from rich.console import Console


def say(text: object, *, file: TextIO | None = None, flush: bool = False) -> None:
    """Print `text` on `file` (default: stdout)."""
    print(printable(str(text)), file=sys.stdout if file is None else file, flush=flush)


def make_console(**options: Any) -> Console:  # noqa: ANN401 - rich's options
    """Return a console of rich for tables and bars; brackets in a text are text, not markup."""
    console: Console = _console_class()(**{"markup": False, "emoji": False, **options})
    return console


@functools.cache
def _console_class() -> Any:  # noqa: ANN401 - a class that is made when rich is needed
    from rich.console import Console
    from rich.segment import Segment

    class PrintableConsole(Console):
        def render(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - as rich declares it
            for text, style, control in super().render(*args, **options):
                yield Segment(text if control else printable(text), style, control)

    return PrintableConsole
