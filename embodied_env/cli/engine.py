"""Engines: who runs the episodes of an evaluation when it is not this process alone.

``local``: worker processes on this machine, each with an environment, a run directory and a ROS domain of its own. They
are given episodes one by one. What a worker has finished stands whole in its log, however the worker ends; the episode
that it was in is run again by another.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import sys
from collections import Counter, deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from embodied_env.cli.episodes import Evaluation, Job, worlds_lost
from embodied_env.cli.merging import merged_summary
from embodied_env.cli.team import Team, Worker, error_from
from embodied_env.contract import Contract
from embodied_env.errors import BackendError, BackendNotReadyError, RecordError, UsageError
from embodied_env.record.manifest import write_json
from embodied_env.record.reading import read_run
from embodied_env.ros_environment import check_domain_id

EVALUATION = "embodied_env/evaluation/1"
MOST_ATTEMPTS = 3
"""Of one episode, and of starting a worker."""

DOMAINS = 102
"""ROS domains from 0 whose ports no Linux gives to others by itself."""


class Engine(Protocol):
    """Runs the episodes of a job somewhere."""

    def evaluate(self, job: Job, *, episodes: int, out: Path, ended: Callable[[], None]) -> Evaluation:
        """Run episodes 0 to `episodes` - 1 of `job`, recorded below `out`; call `ended` after each.

        The summary is that of one process that runs them all. When it is interrupted, every run is closed soundly
        before the interrupt is raised.
        """
        ...


def make_engine(name: str, workers: int) -> Engine:
    """Return the engine called `name`, with so many workers.

    Raises:
        UsageError: when there is none, or not with so many.
    """
    if name != "local":
        raise UsageError(f"--engine {name!r} is not known; allowed: local")
    return LocalEngine(workers)


def domain_ids(count: int, own: int) -> tuple[int, ...]:
    """Return `count` ROS domain ids, all different, none of them `own`.

    Raises:
        UsageError: when there are not so many.
    """
    if not 1 <= count < DOMAINS:
        raise UsageError(f"--workers {count} is not allowed; allowed: 1 to {DOMAINS - 1}, each has a ROS domain")
    return tuple((own + 1 + index) % DOMAINS for index in range(count + 1) if (own + 1 + index) % DOMAINS != own)[
        :count
    ]


def check_shareable(job: Job) -> None:
    """Raise UsageError for what several processes cannot do side by side."""
    if job.backend == "real":
        raise UsageError("--engine local is not available with real: there is one robot; allowed: no --engine")
    if job.options.get("spawn") is False:
        raise UsageError("--engine local is not available with --attach: there is one simulator; allowed: without")
    if job.options.get("namespace") is not None:
        raise UsageError("--engine local is not available with --namespace: each worker has its own; allowed: without")


class LocalEngine:
    """Worker processes on this machine."""

    def __init__(self, workers: int) -> None:
        """Prepare; nothing is started.

        Raises:
            UsageError: for a number of workers that is not allowed.
        """
        domain_ids(workers, own=0)
        self._workers = workers

    def evaluate(self, job: Job, *, episodes: int, out: Path, ended: Callable[[], None]) -> Evaluation:
        """See `Engine`.

        Raises:
            UsageError: for a job that processes cannot share.
            PolicyError: when the policy raises, as from one process.
            BackendError: when an episode was lost with its worker too often, or no worker starts.
        """
        check_shareable(job)
        folder = _make_folder(out, job.contract, job.backend)
        run = _LocalRun(job, folder, episodes, min(self._workers, episodes), ended)
        try:
            run.finish()
        except BaseException:
            with contextlib.suppress(OSError):  # one that nothing was recorded in
                folder.rmdir()
            raise
        try:
            summary, problem = merged_summary(run.where, job.contract.fingerprint), ""
        except RecordError as error:
            summary, problem = merged_summary({}, job.contract.fingerprint), str(error)
        problem = problem or run.unclean() or worlds_lost(summary)
        write_json(folder / "evaluation.json", _account(job, run, summary, problem, episodes))
        return Evaluation(
            policy=job.policy,
            path=folder,
            summary=summary,
            problem=problem,
            parts=tuple(run.paths),
            losses=tuple(run.losses),
        )


class _LocalRun:
    """One evaluation by workers.

    Attributes:
        where: the run directory that each finished episode is in.
        paths: all run directories.
        lost: those of workers that ended before their time.
        losses: what was lost and made good, in sentences.
        size: how many workers there are.
    """

    def __init__(self, job: Job, folder: Path, episodes: int, workers: int, ended: Callable[[], None]) -> None:
        self._job, self._folder, self._ended = job, folder, ended
        self._waiting = deque(range(episodes))
        self._count, self.size = episodes, workers
        self._attempts: Counter[int] = Counter()
        self._failed_starts = 0
        self._domains = domain_ids(workers, own=_own_domain())
        self.where: dict[int, Path] = {}
        self.paths: list[Path] = []
        self.losses: list[str] = []
        self.lost: set[Path] = set()

    def finish(self) -> None:
        """Run all episodes, then let the workers close their runs."""
        with Team(self._job, self._folder) as team:
            for number in range(self.size):
                team.start(number, self._domains[number])
            while len(self.where) < self._count:
                for worker, said in team.hear():
                    self._take(team, worker, said)
            team.dismiss()

    def unclean(self) -> str:
        """Say which runs are not clean, and why, of workers that were not lost."""
        problems = {path: read_run(path).problem for path in self.paths if path not in self.lost}
        return "; ".join(f"{path}: {problem}" for path, problem in problems.items() if problem)

    def _take(self, team: Team, worker: Worker, said: Mapping[str, Any] | None) -> None:
        if said is None:
            self._lose(team, worker)
            return
        if "failed" in said:
            print(team.bury(worker), file=sys.stderr)  # a policy's own traceback, for one
            raise error_from(said)
        if "ready" in said:
            worker.path = Path(said["ready"])
            self.paths.append(worker.path)
        if "ended" in said and worker.path is not None:
            worker.episode = None
            worker.child.note_shared_memory()
            self.where[said["ended"]] = worker.path
            self._ended()
        self._employ(worker)

    def _employ(self, worker: Worker) -> None:
        """Give it the next episode; with none left it waits, since another's may come back."""
        if worker.episode is None and self._waiting:
            worker.episode = self._waiting.popleft()
            self._attempts[worker.episode] += 1
            worker.say({"episode": worker.episode})

    def _lose(self, team: Team, worker: Worker) -> None:
        """Put back what a worker that has ended did not finish, and start another in its place."""
        words = team.bury(worker)
        episode = worker.episode
        if episode is None:
            self._failed_starts += 1
            if self._failed_starts >= MOST_ATTEMPTS:
                raise BackendNotReadyError(f"a worker ended without an episode, {MOST_ATTEMPTS} times: {words}")
        else:
            if self._attempts[episode] >= MOST_ATTEMPTS:
                raise BackendError(f"episode {episode} was lost with its worker {MOST_ATTEMPTS} times: {words}")
            self._waiting.appendleft(episode)
            again = f"worker {worker.number} ended in episode {episode}, which was run again"
            self.losses.append(f"{again}; its run: {worker.path}; {words}")
        if worker.path is not None:
            self.lost.add(worker.path)
        for idle in team.idle():
            self._employ(idle)
        if self._waiting:
            team.start(worker.number, self._domains[worker.number])


def _own_domain() -> int:
    own = os.environ.get("ROS_DOMAIN_ID") or "0"
    check_domain_id(own, "ROS_DOMAIN_ID")
    return int(own)


def _make_folder(out: Path, contract: Contract, backend: str) -> Path:
    name = f"{datetime.now(tz=UTC):%Y%m%dT%H%M%SZ}_{contract.name}_{backend}_local_{secrets.token_hex(3)}"
    folder = out / re.sub(r"[^\w.-]", "_", name)
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise RecordError(f"{folder}: the folder of the evaluation cannot be made: {error}") from None
    return folder


def _account(job: Job, run: _LocalRun, summary: Mapping[str, Any], problem: str, episodes: int) -> dict[str, Any]:
    return {
        "schema": EVALUATION,
        "engine": "local",
        "workers": run.size,
        "contract_fingerprint": job.contract.fingerprint,
        "backend": job.backend,
        "policy": job.policy,
        "seed": job.seed,
        "episodes": episodes,
        "problem": problem,
        "losses": run.losses,
        "runs": [path.name for path in run.paths],
        "run_of_episode": [run.where[episode].name for episode in sorted(run.where)],
        "summary": dict(summary),
    }
