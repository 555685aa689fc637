"""The thread that writes a run, the queue before it, and what was lost on the way.

In real time nobody waits for it: what finds no room is dropped. In lockstep the step waits for room, since the world
waits too, and `WriterThread.drain` waits for all that was handed over. A disk that does not answer is waited for, but
not for
ever.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Protocol

Job = Callable[[], None]


class EncodableJob(Protocol):
    """A job of which a part, that needs nothing but the processor, can be done before."""

    def prepare(self) -> None:
        """Do that part now, once; it must not raise."""
        ...

    def __call__(self) -> None:
        """Do the job."""
        ...


MOST_BYTES = 64 * 2**20
"""Of what waits to be written; what comes beyond it is dropped in real time, and waits in lockstep."""

MOST_JOBS = 20_000
MOST_JOBS_IN_LOCKSTEP = 64
"""So many rows, at most, are lost by a SIGKILL."""

PATIENCE_S = 10.0
"""How long a disk may do nothing before it counts as one that does not answer."""

GATHER_S = 0.01
"""How long the thread lets jobs come together where the stepping thread never waits: to take turns costs both."""

_BATCH = 16  # jobs that are settled together


class WriterThread:
    """Does jobs in a thread of its own, in the order in which they come. The thread begins with the first.

    A job must not raise, and waits until it is settled: `settle` is called in the thread behind every few jobs, and
    behind the last that is there. After a fork all that waited is done, and the child begins anew with a thread of its
    own.
    """

    def __init__(
        self,
        settle: Job | None = None,
        *,
        waits: bool = False,
        gather_s: float = 0.0,
        most_bytes: int = MOST_BYTES,
        most_jobs: int = MOST_JOBS,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Keep at most so much that waits.

        `waits`: `put` waits for room, as long as the thread gets on. `gather_s`: so long the thread waits for a few
        jobs to come together, unless somebody waits for it.
        """
        self._settle = settle or _nothing
        self._waits, self._gather_s = waits, gather_s
        self._most_bytes, self._most_jobs, self._patience_s = most_bytes, most_jobs, patience_s
        self._is_finishing = False
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        # A lock that its owner may take again: a finalizer that calls `retire` may run wherever it is held.
        self._lock = threading.RLock()
        self._work = threading.Condition(self._lock)
        self._progress = threading.Condition(self._lock)
        self._jobs: deque[tuple[Job, int]] = deque()
        self._held: tuple[EncodableJob, int] | None = None
        self._bytes = self._handed = self._done = 0
        self._progress_count = 0  # grows whenever the thread gets on
        self._gave_up_at = -1  # the beat after which nobody waits any more, until there is another
        self._is_idle = False
        self._waiting = 0  # threads that wait for this one
        self._thread: threading.Thread | None = None

    def submit(self, job: Job, size: int = 0, *, overtakes: bool = False) -> bool:
        """Leave `job` to the thread; it keeps `size` bytes until then. False: there is no room, it is never done.

        `overtakes`: it may be done before what is held.
        """
        with self._lock:
            if not overtakes:
                self._submit_deferred()
            if not self._takes(size):
                return False
            self._reserve(size)
            self._leave(job, size)
        return True

    def defer(self, job: EncodableJob, size: int = 0) -> bool:
        """Take `job` like `put`, but keep it back until `go_on`, or until it is waited for, or another job comes."""
        with self._lock:
            self._submit_deferred()
            if not self._takes(size):
                return False
            self._reserve(size)
            self._held = job, size
        return True

    def encode_deferred(self) -> None:
        """Prepare what is held, in the thread that calls, and leave it to the other: when there is nothing else to do.

        Threads of Python take turns: what is prepared here does not hold up who comes back from a wait.
        """
        held = self._held
        if held is not None:
            held[0].prepare()
            with self._lock:
                self._submit_deferred()

    def wait_idle(self) -> bool:
        """Wait until everything that was put is settled. False: the thread does not get on."""
        with self._lock:
            self._submit_deferred()
            handed = self._handed
            if self._done >= handed or self._thread is threading.current_thread():
                return True
            return self._wait_until(lambda: self._done >= handed)

    def finish(self, job: Job) -> bool:
        """Leave `job` to the thread as the last, and wait for its end. Later calls only wait.

        False: the thread does not get on.
        """
        with self._lock:
            if not self._is_finishing:
                self._submit_deferred()
                self._reserve(0)
                self._leave(job, 0)
                self.finish_when_empty()
            thread = self._thread
        if thread is None:
            return True
        beats = -1
        while thread.is_alive() and beats != self._progress_count:
            beats = self._progress_count
            thread.join(self._patience_s)
        return not thread.is_alive()

    def finish_when_empty(self) -> None:
        """Let the thread end when nothing waits any more. Takes no time."""
        with self._lock:
            self._submit_deferred()
            self._is_finishing = True
            self._work.notify()

    def after_fork(self) -> None:
        """In a child after a fork: the thread is the parent's, and so is what waits."""
        self._begin()

    # ------------------------------------------------------------------------------------------------- with the lock

    def _takes(self, size: int) -> bool:
        """Tell whether there is room, or comes to be."""
        if self._is_finishing:
            return False
        if self._has_room(size):
            return True
        self._submit_deferred()
        return self._waits and self._wait_until(lambda: self._has_room(size))

    def _submit_deferred(self) -> None:
        """Leave to the thread what is held."""
        held, self._held = self._held, None
        if held is not None:
            self._leave(*held)

    def _has_room(self, size: int) -> bool:
        waiting = self._handed - self._done
        return not waiting or (waiting < self._most_jobs and self._bytes + size <= self._most_bytes)

    def _wait_until(self, is_so: Callable[[], bool]) -> bool:
        """Wait as long as the thread gets on; who gave up once does not wait again before it does."""
        while not is_so():
            beats = self._progress_count
            if beats == self._gave_up_at:
                return False
            self._waiting += 1
            self._work.notify()
            try:
                self._progress.wait(self._patience_s)
            finally:
                self._waiting -= 1
            if beats == self._progress_count:
                self._gave_up_at = beats
        return True

    def _reserve(self, size: int) -> None:
        self._handed += 1
        self._bytes += size

    def _leave(self, job: Job, size: int) -> None:
        self._jobs.append((job, size))
        if self._is_idle or len(self._jobs) == _BATCH:
            self._is_idle = False
            self._work.notify()
        elif self._thread is None:
            self._thread = threading.Thread(target=self._run, name="embodied_env recorder", daemon=True)
            self._thread.start()

    # --------------------------------------------------------------------------------------------------- in the thread

    def _run(self) -> None:
        while batch := self._take():
            for job, _ in batch:
                job()
                self._progress_count += 1
            self._settle()
            with self._lock:
                self._progress_count += 1
                self._done += len(batch)
                self._bytes -= sum(size for _, size in batch)
                self._progress.notify_all()

    def _take(self) -> list[tuple[Job, int]]:
        """Return what is done next, and settled together; nothing at the end."""
        with self._lock:
            while not self._jobs and not self._is_finishing:
                self._is_idle = True
                self._work.wait()
            if self._gather_s and not self._has_to_go_on():
                self._work.wait_for(self._has_to_go_on, self._gather_s)
            return [self._jobs.popleft() for _ in range(min(_BATCH, len(self._jobs)))]

    def _has_to_go_on(self) -> bool:
        return self._is_finishing or self._waiting > 0 or len(self._jobs) >= _BATCH


def _nothing() -> None:
    """Settle nothing."""


_all: weakref.WeakSet[WriterThread] = weakref.WeakSet()


def _drain_all() -> None:
    for worker in list(_all):
        worker.wait_idle()


def _begin_all_anew() -> None:
    for worker in list(_all):
        worker.after_fork()


os.register_at_fork(before=_drain_all, after_in_child=_begin_all_anew)
atexit.register(_drain_all)  # for a run that nobody closed, and whose environment is gone


class LossCounter:
    """What of a run could not be written, and why. Any thread may call."""

    def __init__(self) -> None:
        """Begin with nothing lost."""
        self._lock = threading.Lock()
        self.problem = ""
        self.rows = 0
        self.messages = 0

    @property
    def complete(self) -> bool:
        """Nothing was lost, and nothing went wrong."""
        return not self.problem

    def note(self, problem: str, *, rows: int = 0, messages: int = 0) -> None:
        """Count what is lost; the first problem is kept."""
        with self._lock:
            self.problem = self.problem or problem
            self.rows += rows
            self.messages += messages

    def as_json(self) -> dict[str, bool | int]:
        """Return the counts, for manifest and summary."""
        with self._lock:
            return {"complete": self.complete, "lost_rows": self.rows, "lost_messages": self.messages}
