"""Calls of a policy in a thread of its own, with a time limit for those that are awaited."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

from embodied_env.core.policy import policy_errors
from embodied_env.errors import PolicyError

STOP_TIMEOUT_S = 10.0
"""Time limit of the call that is running when the thread is stopped; an awaited call has that of `wait`."""

Call = Callable[[], Any]
_Queue = SimpleQueue[tuple[Call, Future[Any]] | None]


class PolicyCalls:
    """Calls a policy in a daemon thread, so that the program can end while it hangs."""

    def __init__(self, *, in_thread: bool, timeout_s: float) -> None:
        """Start nothing until `submit`, which without a thread makes the call itself."""
        self._in_thread, self._timeout_s = in_thread, timeout_s
        self._thread = threading.Thread()  # not started
        self._queue: _Queue = SimpleQueue()
        self._submitted: deque[Future[Any]] = deque()
        self._is_abandoned = False  # a call that has not returned is not awaited again

    @property
    def is_running(self) -> bool:
        """Whether the thread runs, after `stop` in a call that hangs."""
        return self._thread.is_alive()

    def submit(self, call: Call) -> Future[Any]:
        """Make `call` after all earlier ones."""
        future: Future[Any] = Future()
        if not self._in_thread:
            future.set_result(call())
            return future
        if not self.is_running:  # as in a fork
            self._queue, self._submitted, self._is_abandoned = SimpleQueue(), deque(), False
            self._thread = threading.Thread(target=_make_calls, args=(self._queue,), name="policy", daemon=True)
            self._thread.start()
            weakref.finalize(self, self._queue.put, None)
        self._submitted.append(future)
        self._queue.put((call, future))
        return future

    def check(self) -> None:
        """Raise the error of a call since the last check, as PolicyError."""
        while self._submitted and self._submitted[0].done():
            self._submitted.popleft().result()

    def wait(self, future: Future[Any]) -> Any:  # noqa: ANN401 - of the call
        """Return the result, or raise the PolicyError of earlier calls or of a missing answer."""
        try:
            futures.wait([future], self._timeout_s)
        finally:
            self._is_abandoned = not future.done()  # also after an interrupt
        if self._is_abandoned:
            raise _hanging(self._timeout_s)
        self.check()
        return future.result()

    def stop(self) -> None:
        """Join the thread after the call, idempotently, or raise PolicyError if it hangs."""
        self._queue.put(None)
        if self.is_running:
            self._thread.join(0.0 if self._is_abandoned else STOP_TIMEOUT_S)
        if self.is_running and not self._is_abandoned:
            self._is_abandoned = True
            raise _hanging(STOP_TIMEOUT_S)


def _hanging(limit_s: float) -> PolicyError:
    return PolicyError(f"policy hangs: no answer for {limit_s:g} s (expected one); correct it, or warm it up at load")


def _make_calls(queue: _Queue) -> None:
    while (item := queue.get()) is not None:
        call, future = item
        try:
            with policy_errors("policy", "its thread"):
                future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised by `check`
            future.set_exception(error)
        del item, call, future  # until the next call, what they refer to
