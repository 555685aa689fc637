"""Who writes, and when: at once, or in a thread of its own; and what was lost on the way."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

Job = Callable[[], None]

MOST_BYTES = 64 * 2**20
"""Of what waits to be written in real time; what comes beyond it is dropped."""

MOST_JOBS = 20_000
PATIENCE_S = 10.0
"""How long `finish` waits for a disk that does not answer."""


class Worker(Protocol):
    """Does jobs in the order in which they come. A job must not raise."""

    def put(self, job: Job, size: int = 0) -> bool:
        """Do `job` now or later; it keeps `size` bytes until then. False: there is no room, it is never done."""
        ...

    def finish(self, job: Job) -> bool:
        """Do everything that waits, then `job`, the last. False: it did not come to that in time."""
        ...


class AtOnce:
    """Does each job in the caller's thread, before `put` returns: who waits for nobody may wait for the disk."""

    def put(self, job: Job, size: int = 0) -> bool:  # noqa: ARG002 - nothing is kept
        """Do it."""
        job()
        return True

    def finish(self, job: Job) -> bool:
        """Do it."""
        job()
        return True


class Aside:
    """Does jobs in a thread of its own; `put` never waits. The thread begins with the first job."""

    def __init__(
        self, *, most_bytes: int = MOST_BYTES, most_jobs: int = MOST_JOBS, patience_s: float = PATIENCE_S
    ) -> None:
        """Keep at most so much that waits."""
        self._most_bytes, self._most_jobs, self._patience_s = most_bytes, most_jobs, patience_s
        self._changed = threading.Condition()
        self._jobs: deque[tuple[Job, int]] = deque()
        self._bytes = 0
        self._is_finishing = False
        self._thread: threading.Thread | None = None

    def put(self, job: Job, size: int = 0) -> bool:
        """Leave it to the thread, unless too much waits there."""
        with self._changed:
            is_full = len(self._jobs) >= self._most_jobs or self._bytes + size > self._most_bytes
            if self._is_finishing or (is_full and self._jobs):
                return False
            self._add(job, size)
        return True

    def finish(self, job: Job) -> bool:
        """Leave it to the thread as the last, and wait for its end, but not for ever. Later calls do nothing."""
        with self._changed:
            if not self._is_finishing:
                self._add(job, 0)
                self._is_finishing = True
                self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join(self._patience_s)
        return thread is None or not thread.is_alive()

    def _add(self, job: Job, size: int) -> None:
        self._jobs.append((job, size))
        self._bytes += size
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="embodied_env recorder", daemon=True)
            self._thread.start()
        self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._jobs and not self._is_finishing:
                    self._changed.wait()
                if not self._jobs:
                    return
                job, size = self._jobs[0]
            job()
            with self._changed:  # what is being written counts as waiting
                self._jobs.popleft()
                self._bytes -= size


class Losses:
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
