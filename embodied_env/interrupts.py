"""Signals are held back while C++ runs Python: there an exception is swallowed, or comes out as another.

rclpy converts messages through pybind11. A KeyboardInterrupt that rises in such a conversion is lost in a RuntimeError,
so that nobody knows that the program was asked to end.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_HELD = (signal.SIGINT, signal.SIGTERM)

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


@contextmanager
def held_interrupts() -> Iterator[None]:
    """Let no handler of SIGINT and SIGTERM run before this ends, for moments only. Outside the main thread nothing.

    The handlers that a program has at the time stay in force: they are wrapped, not replaced.
    """
    global _depth  # noqa: PLW0603 - a process has one set of handlers
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _depth += 1
    try:
        for number in _HELD:
            handler = signal.getsignal(number)
            if callable(handler) and not isinstance(handler, (_Holding, signal.Handlers)):
                signal.signal(number, _Holding(handler))
        yield
    finally:
        _depth -= 1
        while _waiting and not _depth:
            _waiting.pop(0)()
