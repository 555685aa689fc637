"""Where the calls of a policy are made: in a thread of their own, or at once."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

from embodied_env.core.policy import policy_errors
from embodied_env.errors import PolicyError

Call = Callable[[], Any]
CLOSE_TIMEOUT_S = 60.0
"""Limit of the call that is running when the thread is stopped; longer than the limits of policy servers."""


class PolicyThread:
    """Makes calls in one thread, one after the other; a daemon, so that a hanging policy lets the program end."""

    def __init__(self) -> None:
        """Start nothing."""
        self._calls: SimpleQueue[tuple[Call, Future[Any]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, call: Call) -> Future[Any]:
        """Make `call` after all earlier ones; what it raises is the PolicyError of the future."""
        if self._thread is None or not self._thread.is_alive():  # as in a fork
            self._thread = threading.Thread(target=_make_calls, args=(self._calls,), name="policy", daemon=True)
            self._thread.start()
            weakref.finalize(self, self._calls.put, None)
        future: Future[Any] = Future()
        self._calls.put((call, future))
        return future

    def stop(self) -> None:
        """Wait for the call that is running, and join the thread; raises PolicyError if it hangs. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._calls.put(None)
            thread.join(CLOSE_TIMEOUT_S)
            if thread.is_alive():
                raise PolicyError(f"policy not stopped: its call has not returned for {CLOSE_TIMEOUT_S:g} s")


class CallingThread:
    """Makes each call at once, in the thread of the caller."""

    def submit(self, call: Call) -> Future[Any]:
        """Make `call`."""
        future: Future[Any] = Future()
        future.set_result(call())
        return future

    def stop(self) -> None:
        """Do nothing."""


def _make_calls(calls: SimpleQueue[tuple[Call, Future[Any]] | None]) -> None:
    while (item := calls.get()) is not None:
        call, future = item
        try:
            with policy_errors("policy", "its thread"):
                future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - the caller waits for it
            future.set_exception(error)
        del item, call, future  # until the next call, what they refer to
