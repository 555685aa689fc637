"""Distribute episodes to workers one by one, and repeat those of workers that end or hang."""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from embodied_env.errors import BackendError, BackendNotReadyError, UsageError
from embodied_env.extensions.evaluation.local_workers import GRACE_S, SHORT_GRACE_S, Worker, WorkerPool, error_from
from embodied_env.record.run import read_run
from embodied_env.ros.transport.setup_checks import check_domain_id

MOST_ATTEMPTS = 3
"""Attempts at one episode, and at starting a worker."""

DOMAINS = 102
"""Number of ROS domains whose ports are outside Linux's ephemeral range."""

_START_S = 120.0  # time for a worker to import its policy and make its environment


def domain_ids(count: int, own: int) -> tuple[int, ...]:
    """Return `count` different ROS domain ids other than `own`, or raise UsageError."""
    if not 1 <= count < DOMAINS:
        raise UsageError(f"invalid number of workers: {count} (expected 1 to {DOMAINS - 1}, one ROS domain each)")
    others = [(own + 1 + index) % DOMAINS for index in range(count + 1)]
    return tuple([domain for domain in others if domain != own][:count])


class EpisodeScheduler:
    """Distributes the trials of an evaluation, and replaces workers that end or hang."""

    def __init__(
        self,
        trials: int,
        workers: int,
        ended: Callable[[int], None],
        *,
        limit_s: float,
        describe: Callable[[int], str] = "episode {}".format,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Store the number of trials without starting one.

        `limit_s` is the time limit of a trial by the clock `now_s`, and `describe` returns its name.
        """
        own_domain = os.environ.get("ROS_DOMAIN_ID") or "0"
        check_domain_id(own_domain, "ROS_DOMAIN_ID")
        self._domains = domain_ids(workers, own=int(own_domain))
        self._limit_s, self._now_s = limit_s, now_s
        self._ended, self._describe = ended, describe
        self._waiting = deque(range(trials))
        self.count, self.size = trials, workers
        self._attempts: Counter[int] = Counter()
        self._failed_starts = 0
        self.where: dict[int, Path] = {}  # run directory of each finished trial
        self.paths: list[Path] = []  # all run directories
        self.losses: list[tuple[int, str]] = []  # each trial that was lost, with what happened
        self.lost: set[Path] = set()  # run directories of workers that ended prematurely
        self.abandoned: set[int] = set()  # trials that exceeded their time limit too often

    def run(self, pool: WorkerPool[Any]) -> None:
        """Run all trials, then let the workers close their runs."""
        with pool:
            for number in range(self.size):
                pool.start(number, self._domains[number])
            while len(self.where) + len(self.abandoned) < self.count:
                for worker, message in pool.receive():
                    self._handle(pool, worker, message)
                for worker in pool.busy():
                    if self._now_s() > worker.due_s:
                        self._replace(pool, worker, is_hung=True)
            pool.shutdown()

    def not_evaluated(self, abandoned: Collection[int]) -> str:
        """Return abandoned trials as text, or ""."""
        if not abandoned:
            return ""
        names = ", ".join(map(self._describe, abandoned))
        return f"not evaluated: {names} exceeded {self._limit_s:g} s in {MOST_ATTEMPTS} attempts"

    def unclean(self, paths: Iterable[Path]) -> str:
        """Return the `paths` that are not clean with their problems, except those of lost workers."""
        problems = {path: read_run(path).problem for path in paths if path not in self.lost}
        return "; ".join(f"{path}: {problem}" for path, problem in problems.items() if problem)

    def _handle(self, pool: WorkerPool[Any], worker: Worker, message: Mapping[str, Any] | None) -> None:
        if message is None:
            self._replace(pool, worker)
            return
        if "failed" in message:
            output, error = pool.reap(worker), error_from(message)
            if not isinstance(error, UsageError):
                error.add_note(output)  # such as the traceback of a policy
            raise error
        if "ready" in message:
            worker.paths.append(Path(message["ready"]))
            worker.due_s = self._now_s() + self._limit_s
            self.paths = list(dict.fromkeys((*self.paths, *worker.paths)))
        if "ended" in message and worker.paths:
            worker.trial = None
            self.where[message["ended"]] = worker.paths[-1]
            self._ended(len(self.where))
        self._assign(worker)

    def _assign(self, worker: Worker) -> None:
        """Send the next trial to an idle worker, which waits if none is left, as a lost trial may come back."""
        if worker.trial is None and self._waiting:
            worker.trial = self._waiting.popleft()
            self._attempts[worker.trial] += 1
            worker.due_s = self._now_s() + self._limit_s + (0.0 if worker.paths else _START_S)
            worker.send({"trial": worker.trial})

    def _replace(self, pool: WorkerPool[Any], worker: Worker, *, is_hung: bool = False) -> None:
        """Return the trial of a worker that has ended or hangs to the queue, and start another worker instead."""
        output = pool.reap(worker, grace_s=SHORT_GRACE_S if is_hung else GRACE_S)
        if is_hung:
            output = f"the episode exceeded {self._limit_s:g} s; {output}"
        trial, path = worker.trial, worker.paths[-1] if worker.paths else None
        if trial is None:
            self._failed_starts += 1
            if self._failed_starts >= MOST_ATTEMPTS:
                raise BackendNotReadyError(f"worker failed to start in {MOST_ATTEMPTS} attempts: {output}")
        elif is_hung and self._attempts[trial] >= MOST_ATTEMPTS:
            self.abandoned.add(trial)
            self.losses.append((trial, f"{self._describe(trial)} was not evaluated; last run: {path}; {output}"))
        else:
            name = self._describe(trial)
            if self._attempts[trial] >= MOST_ATTEMPTS:
                raise BackendError(f"{name} failed: its worker ended in {MOST_ATTEMPTS} attempts: {output}")
            self._waiting.appendleft(trial)
            loss = f"worker {worker.number} ended in {name}, which was repeated; run: {path}; {output}"
            self.losses.append((trial, loss))
        self.lost.update(worker.paths)
        for idle in pool.idle():
            self._assign(idle)
        if self._waiting:
            pool.start(worker.number, self._domains[worker.number])
