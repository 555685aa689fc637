"""However a program ends, what moves by itself is braked first: at exit, on SIGTERM, and on SIGHUP.

Ctrl-C needs nothing: it raises KeyboardInterrupt, and the interpreter comes by here on its way out. SIGTERM, and SIGHUP
when a terminal or an SSH session closes, would end the program at once, so they raise SystemExit, unless the program
handles or ignores them. Threads that run on after the main thread are waited for before exit handlers run: until then
the thread of the watchdog closes (`safety.watchdog.WatchdogThread`). Against SIGKILL, or a program that hangs, only
another process helps: the relay, or the controller's own timeout.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import weakref
from _signal import getsignal  # type: ignore[import-not-found] # what `signal.getsignal` wraps in an enum: that takes 2 us, twice for each hold
from collections.abc import Callable, Sequence
from contextlib import ContextDecorator
from types import FrameType
from typing import Any, NoReturn, Protocol

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


class deferred_signals(ContextDecorator):  # noqa: N801 - used like a function, with `with` and as a decorator
    """Delay the Python handlers of all signals until this ends, for moments only; no effect outside the main thread.

    The handlers that a program has at the time stay in force: they are wrapped, not replaced.
    """

    def _recreate_cm(self) -> deferred_signals:
        return deferred_signals()  # a call of its own: calls of a decorated function may overlap in threads

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


_EXIT_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class Closable(Protocol):
    """Something that must be closed."""

    def close(self) -> None:
        """Bring it to rest and free it. Idempotent."""
        ...


_open: weakref.WeakKeyDictionary[Closable, bool] = weakref.WeakKeyDictionary()
os.register_at_fork(after_in_child=_open.clear)  # they are the parent's to close


def close_at_exit(thing: Closable, *, aside: bool = False) -> None:
    """Close `thing` when the interpreter exits, if it still lives then; `aside`: it may be in a thread of its own."""
    if not _open:
        atexit.unregister(_close_all)
        atexit.register(_close_all)
        _close_at_exit_of_worker()
    _open[thing] = aside


def call_together(calls: Sequence[Callable[[], object]]) -> list[Exception]:
    """Make `calls` at the same time, each in its own thread; return what they raised when all have ended.

    Where no thread can be started, as in exit handlers of Python 3.12, they are made one after another.
    """
    errors: list[Exception] = []

    def make(call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - the others are made all the same
            errors.append(error)

    threads = []
    for call in calls[1:]:
        thread = threading.Thread(target=make, args=(call,), name="embodied_env closing")
        try:
            thread.start()
        except RuntimeError:
            make(call)
        else:
            threads.append(thread)
    for call in calls[:1]:
        make(call)
    for thread in threads:
        thread.join()
    return errors


def exit_on_sigterm() -> None:
    """Let SIGTERM and SIGHUP end this program like ``sys.exit``, each where nothing handles or ignores it yet."""
    if threading.current_thread() is threading.main_thread():
        for number in _EXIT_SIGNALS:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, terminate)


def terminate(number: int, _frame: object) -> NoReturn:
    """End like ``sys.exit(128 + number)``, 143 for SIGTERM: a handler of signals."""
    sys.exit(128 + number)


_exit_of_worker: Any = None


def _close_at_exit_of_worker() -> None:
    """Register with multiprocessing, once in a process: its workers that were forked run no exit handlers."""
    global _exit_of_worker  # noqa: PLW0603 - a process has one
    util = sys.modules.get("multiprocessing.util")
    if util is not None and not (_exit_of_worker is not None and _exit_of_worker.still_active()):
        _exit_of_worker = util.Finalize(None, _close_all, exitpriority=0)


def _close_all() -> None:
    with deferred_signals():  # a second Ctrl-C must not cut the braking short
        things = list(_open.items())
        _open.clear()
        here = [thing.close for thing, aside in things if not aside]
        errors = call_together([lambda: _call_each(here), *(thing.close for thing, aside in things if aside)])
    if errors:
        raise ExceptionGroup("not everything could be closed at exit", errors)


def _call_each(calls: Sequence[Callable[[], object]]) -> None:
    """Make `calls` one after another; raise what they raised when all have ended."""
    if errors := [error for call in calls for error in call_together([call])]:
        raise ExceptionGroup("not everything could be closed at exit", errors)
