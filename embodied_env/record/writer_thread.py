"""Run the jobs of a recorder in a background thread, in order, with a bounded queue.

In real time `WriterThread.submit` never blocks: it refuses a job if the queue is full. In lockstep it blocks until
there is room, because the world waits too. Every wait is bounded: a thread that makes no progress within the stall
timeout counts as stalled.
"""

from __future__ import annotations

import atexit
import math
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable

Job = Callable[[], None]
MAX_BYTES = 64 * 2**20  # bytes that the queued jobs may keep alive
MAX_JOBS = 20_000
MAX_JOBS_IN_LOCKSTEP = 64  # the number of rows that wait to be written at most
STALL_TIMEOUT_S = 10.0  # without progress, after which the disk does not respond
FLUSH_PERIOD_S = 0.1  # until a written row is passed to the operating system, and survives a SIGKILL
GATHER_S = 0.01  # time to gather a batch of jobs in lockstep: each switch between threads delays both
_BATCH = 16  # jobs that are run together


class WriterThread:
    """Runs jobs, which must not raise, in one background thread that starts with the first job.

    `settle` is called in the thread at most `settle_every_s` after a job, and by `wait_idle`. A job takes room in the
    queue until it has run. Before a fork all jobs are settled, and the child starts with a new thread.
    """

    def __init__(  # noqa: PLR0913 - the bounds of the queue
        self,
        settle: Job = lambda: None,
        *,
        settle_every_s: float = 0.0,
        blocks: bool = False,
        gather_s: float = 0.0,
        max_bytes: int = MAX_BYTES,
        max_jobs: int = MAX_JOBS,
        stall_timeout_s: float = STALL_TIMEOUT_S,
        users: int = 1,
    ) -> None:
        """Bound the queue for `users`, and with `blocks` let `submit` wait for room."""
        self._settle, self._settle_every_s = settle, settle_every_s
        self._blocks, self._gather_s = blocks, gather_s
        self._max_bytes, self._max_jobs, self._stall_timeout_s = max_bytes, max_jobs, stall_timeout_s
        self._is_closing, self._users = False, users
        self.start_over()
        _writers.add(self)

    def start_over(self) -> None:
        """Drop thread and queue, which belong to the parent process after a fork."""
        self._lock = threading.RLock()  # reentrant: a finalizer may call `close_when_idle` wherever it is held
        self._wakeup, self._has_run = threading.Condition(self._lock), threading.Condition(self._lock)
        self._jobs: queue.SimpleQueue[tuple[Job, int]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._n_submitted = self._n_run = self._n_bytes = self._n_waiters = 0
        self._progress = 0  # grows with every job
        self._stalled_at = -1  # the progress at which a waiter gave up; no wait until it has grown

    def submit(self, job: Job, size: int = 0) -> bool:
        """Queue `job`, which keeps `size` bytes alive, or return False without room for it."""
        with self._lock:
            if self._is_closing:
                return False
            if not self._has_room(size) and not (self._blocks and self._wait_until(lambda: self._has_room(size))):
                return False
            self._enqueue(job, size)
        return True

    def wait_idle(self) -> bool:
        """Wait until all jobs so far are settled, or return False if the thread is stalled."""
        return self._thread is None or self.run(self._settle)

    def run(self, job: Job) -> bool:
        """Run `job` after earlier jobs and wait for it, or return False if the thread is stalled."""
        with self._lock:
            if self._thread is threading.current_thread():
                return True
            if not self._is_closing:
                self._enqueue(job, 0)
            target = self._n_submitted
            return self._wait_until(lambda: self._n_run >= target)

    def close(self, last: Job) -> bool:
        """Run the last job of a user, which settles, and return False if the thread is stalled."""
        self._users -= 1
        if self._users > 0:
            return self.run(last)
        with self._lock:
            self._close_queue(last)
            self._wakeup.notify()
            thread = self._thread
        progress = -1
        while thread is not None and thread.is_alive():
            if progress == self._progress:
                return False
            progress = self._progress
            thread.join(self._stall_timeout_s)
        return True

    def close_when_idle(self) -> None:
        """Refuse further jobs and let the thread end after the queued ones, without blocking."""
        with self._lock:
            self._close_queue(self._settle)

    def _enqueue(self, job: Job, size: int) -> None:
        """Queue a job, which requires the lock."""
        self._n_submitted += 1
        self._n_bytes += size
        self._jobs.put((job, size))
        if self._jobs.qsize() >= _BATCH - 1:
            self._wakeup.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="embodied_env recorder", daemon=True)
            self._thread.start()

    def _has_room(self, size: int) -> bool:
        n_pending = self._n_submitted - self._n_run
        return not n_pending or (n_pending < self._max_jobs and self._n_bytes + size <= self._max_bytes)

    def _wait_until(self, is_done: Callable[[], bool]) -> bool:
        """Wait while the thread makes progress, which requires the lock."""
        while not is_done():
            progress = self._progress
            if progress == self._stalled_at:
                return False
            self._n_waiters += 1
            self._wakeup.notify()
            try:
                self._has_run.wait(self._stall_timeout_s)
            finally:
                self._n_waiters -= 1
            if progress == self._progress:
                self._stalled_at = progress
        return True

    def _close_queue(self, last: Job) -> None:
        if not self._is_closing:
            self._enqueue(last, 0)
            self._is_closing = True

    def _run(self) -> None:
        due_s = math.inf  # when the jobs that have run must be settled
        is_last = False
        while not is_last:
            batch = self._next_batch(due_s - time.monotonic())
            for job, _ in batch:
                job()
                self._progress += 1
            now_s = time.monotonic()
            due_s = min(due_s, now_s + self._settle_every_s)
            with self._lock:
                self._n_run += len(batch)
                self._n_bytes -= sum(size for _, size in batch)
                self._progress += 1
                self._has_run.notify_all()
                is_last = self._is_closing and self._n_run == self._n_submitted
            if now_s >= due_s and not is_last:  # the last job settles
                self._settle()
                self._progress += 1
                due_s = math.inf

    def _next_batch(self, timeout_s: float) -> list[tuple[Job, int]]:
        """Return the next jobs, or none after the timeout."""
        try:
            batch = [self._jobs.get(timeout=None if timeout_s == math.inf else max(0.0, timeout_s))]
        except queue.Empty:
            return []
        if self._gather_s:
            with self._lock:
                self._wakeup.wait_for(self._is_urgent, self._gather_s)
        while len(batch) < _BATCH and not self._jobs.empty():
            batch.append(self._jobs.get())
        return batch

    def _is_urgent(self) -> bool:
        return self._is_closing or self._n_waiters > 0 or self._jobs.qsize() >= _BATCH - 1


_writers: weakref.WeakSet[WriterThread] = weakref.WeakSet()


def _for_each_writer(call: Callable[[WriterThread], object]) -> None:
    for writer in list(_writers):
        call(writer)


os.register_at_fork(
    before=lambda: _for_each_writer(WriterThread.wait_idle),
    after_in_child=lambda: _for_each_writer(WriterThread.start_over),
)
atexit.register(_for_each_writer, WriterThread.wait_idle)  # for a run that was never closed
