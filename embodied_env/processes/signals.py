"""Brake and close at the end of the program, and defer signals in critical sections.

Ctrl-C raises KeyboardInterrupt, and exit handlers run. SIGTERM, and SIGHUP when a terminal or an SSH session closes,
would end the program at once, so they raise SystemExit, unless the program handles or ignores them. The interpreter
joins other threads before it runs exit handlers; until then the watchdog's thread closes
(`safety.watchdog.WatchdogThread`). Against SIGKILL or a hanging program only another process helps: the relay, or the
controller's own timeout.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import weakref
from _signal import getsignal  # type: ignore[import-not-found] # without the enum of `signal.getsignal`, which takes 2 us
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NoReturn, Protocol

_EXIT_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_DEFERRED = tuple(sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}))  # those that may have a handler

_depth = 0  # both are used by the main thread only: it alone runs handlers
_waiting: list[Callable[[], Any]] = []


class _DeferringHandler:
    """Calls the original handler, at once or when the deferral ends."""

    def __init__(self, handler: Callable[[int, FrameType | None], Any]) -> None:
        self._handler = handler

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if _depth:
            _waiting.append(lambda: self._handler(number, frame))
        else:
            self._handler(number, frame)


class deferred_signals(contextlib.ContextDecorator):  # noqa: N801 - used like a function, with `with` and as a decorator
    """Defer the Python handlers of all signals during a short section of the main thread.

    The program's handlers are wrapped, not replaced. In other threads it has no effect.
    """

    def _recreate_cm(self) -> deferred_signals:
        return deferred_signals()  # calls of a decorated function may overlap in threads

    def __enter__(self) -> None:
        global _depth  # noqa: PLW0603 - a process has one set of handlers
        self._is_main = threading.current_thread() is threading.main_thread()
        if not self._is_main:
            return
        if not _depth:
            for number in _DEFERRED:
                handler = getsignal(number)
                if callable(handler) and not isinstance(handler, _DeferringHandler):
                    signal.signal(number, _DeferringHandler(handler))
        _depth += 1  # last, so that a handler that raises before this leaves nothing deferred

    def __exit__(self, *_: object) -> None:
        global _depth  # noqa: PLW0603 - as above
        if not self._is_main:
            return
        _depth -= 1
        while _waiting and not _depth:
            _waiting.pop(0)()


class Closable(Protocol):
    """An object that must be closed."""

    def close(self) -> None:
        """Brake and release resources (idempotent)."""


_open: weakref.WeakKeyDictionary[Closable, bool] = weakref.WeakKeyDictionary()
os.register_at_fork(after_in_child=_open.clear)  # only the parent closes them


def close_at_exit(thing: Closable, *, aside: bool = False) -> None:
    """Close `thing` at interpreter exit if it still exists, in a thread if `aside`."""
    if not _open:
        atexit.unregister(_close_all)
        atexit.register(_close_all)
        _close_at_exit_of_worker()
    _open[thing] = aside


def call_together(calls: Sequence[Callable[[], object]]) -> list[Exception | SystemExit]:
    """Run `calls` in parallel threads, wait for all, and return the exceptions.

    Without threads, as in exit handlers of Python 3.12, they run one after another.
    """
    errors: list[Exception | SystemExit] = []

    def run(call: Callable[[], object]) -> None:
        try:
            call()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the other calls run all the same
            errors.append(error)

    threads = []
    for call in calls[1:]:
        thread = threading.Thread(target=run, args=(call,), name="embodied_env closing")
        try:
            thread.start()
        except RuntimeError:
            run(call)
        else:
            threads.append(thread)
    for call in calls[:1]:
        run(call)
    for thread in threads:
        thread.join()
    return errors


def exit_on_sigterm() -> None:
    """Let SIGTERM and SIGHUP end the program like ``sys.exit``, unless handled or ignored."""
    if threading.current_thread() is threading.main_thread():
        for number in _EXIT_SIGNALS:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, terminate)


class Terminated(SystemExit):
    """The exit by a signal, unlike a call of `sys.exit` in the code of a user."""


def terminate(number: int, _frame: object) -> NoReturn:
    """Exit with status 128 + number when a signal arrives, 143 for SIGTERM."""
    raise Terminated(128 + number)


_exit_of_worker: Any = None


def _close_at_exit_of_worker() -> None:
    """Register once with multiprocessing, whose forked workers run no exit handlers."""
    global _exit_of_worker  # noqa: PLW0603 - one per process
    util = sys.modules.get("multiprocessing.util")
    if util is not None and not (_exit_of_worker is not None and _exit_of_worker.still_active()):
        _exit_of_worker = util.Finalize(None, _close_all, exitpriority=0)


def _close_all() -> None:
    with deferred_signals():  # a second Ctrl-C must not cut the braking short
        things = list(_open.items())
        _open.clear()
        here = [thing.close for thing, aside in things if not aside]
        errors: list[Exception | SystemExit] = []

        def close_here() -> None:
            errors.extend(error for close in here for error in call_together([close]))

        errors += call_together([close_here, *(thing.close for thing, aside in things if aside)])
    if errors:
        raise BaseExceptionGroup("not everything could be closed at exit", errors)
