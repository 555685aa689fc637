"""Signals are held back while C++ runs Python: there an exception is swallowed, or comes out as another.

rclpy converts messages through pybind11. A KeyboardInterrupt that rises in such a conversion is lost in a RuntimeError,
so that nobody knows that the program was asked to end.
"""

from __future__ import annotations

import signal
import threading
from _signal import getsignal  # type: ignore[import-not-found] # what `signal.getsignal` wraps in an enum: that takes 2 us, twice for each hold
from collections.abc import Callable
from contextlib import ContextDecorator
from types import FrameType
from typing import Any

_HELD = tuple(sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}))  # those that may have a handler

_depth = 0  # both are touched by the main thread alone: it alone runs handlers
_waiting: list[Callable[[], Any]] = []


class _Holding:
    """A handler that hands on to the one that was there, at once or when the hold ends."""

    def __init__(self, handler: Callable[[int, FrameType | None], Any]) -> None:
        self._handler = handler

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if _depth:
            _waiting.append(lambda: self._handler(number, frame))
        else:
            self._handler(number, frame)


class held_interrupts(ContextDecorator):  # noqa: N801 - used like a function, with `with` and as a decorator
    """Delay the Python handlers of all signals until this ends, for moments only; no effect outside the main thread.

    The handlers that a program has at the time stay in force: they are wrapped, not replaced.
    """

    def _recreate_cm(self) -> held_interrupts:
        return held_interrupts()  # a call of its own: calls of a decorated function may overlap in threads

    def __enter__(self) -> None:
        """Begin to hold."""
        global _depth  # noqa: PLW0603 - a process has one set of handlers
        self._counts = threading.current_thread() is threading.main_thread()
        if not self._counts:
            return
        if not _depth:
            _wrap_handlers()
        _depth += 1  # last: a handler that raises before this leaves no hold behind

    def __exit__(self, *_: object) -> None:
        """Run the handlers that waited."""
        if self._counts:
            _release()


def _wrap_handlers() -> None:
    for number in _HELD:
        handler = getsignal(number)
        if callable(handler) and not isinstance(handler, _Holding):
            signal.signal(number, _Holding(handler))


def _release() -> None:
    global _depth  # noqa: PLW0603 - as above
    _depth -= 1
    while _waiting and not _depth:
        _waiting.pop(0)()
