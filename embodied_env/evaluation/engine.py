"""Run the episodes of an evaluation in worker processes: on this machine, or on a Ray cluster.

``local``: worker processes on this machine, each with an environment, a run directory and a ROS domain of its own. They
receive episodes one by one. The log of a worker keeps every episode that it has finished, however the worker ends; the
episode that it was in is run again by another. ``ray``: the same workers, each beside an actor of a Ray cluster.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from embodied_env.backends.registry import accepts_option
from embodied_env.contract import Contract
from embodied_env.errors import BackendError, BackendNotReadyError, RecordError, UsageError
from embodied_env.evaluation.episodes import Evaluation, EvaluationJob, lost_backends
from embodied_env.evaluation.local_workers import (
    GRACE_S,
    SHORT_GRACE_S,
    LocalWorkers,
    WorkerHandle,
    WorkerPool,
    error_from,
)
from embodied_env.evaluation.merge import merged_summary
from embodied_env.evaluation.ray_workers import Cluster, RayWorkers
from embodied_env.record.manifest import write_json
from embodied_env.record.run import read_run
from embodied_env.ros.setup_checks import check_domain_id

EVALUATION = "embodied_env/evaluation/1"
MOST_ATTEMPTS = 3
"""Of one episode, and of starting a worker."""

ENGINES = ("local", "ray")

_START_S = 120.0  # for a worker to import its policy and make its environment
_STEP_S, _PERIODS = 1.0, 10  # for a step: so many seconds, or control periods
_RESET_S, _RESETS = 30.0, 2  # for a reset where the profile says nothing, and so many times that

DOMAINS = 102
"""ROS domains from 0 whose ports no Linux gives to others by itself."""


class Engine(Protocol):
    """Runs the episodes of a job."""

    def check(self, job: EvaluationJob) -> None:
        """Raise UsageError for a job that it cannot run."""
        ...

    def evaluate(self, job: EvaluationJob, *, episodes: int, out: Path, ended: Callable[[], None]) -> Evaluation:
        """Run episodes 0 to `episodes` - 1 of `job`, recorded below `out`; call `ended` after each.

        The summary is that of one process that runs them all. When it is interrupted, every run is closed soundly
        before the interrupt is raised.
        """
        ...


def make_engine(
    name: str, workers: int, address: str | None = None, *, episode_timeout_s: float | None = None
) -> Engine:
    """Return the engine called `name`.

    Args:
        name: one of `ENGINES`.
        workers: number of processes.
        address: address of the Ray cluster.
        episode_timeout_s: after which a worker counts as hung, s; None: `longest_episode_s` of the job.

    Raises:
        UsageError: for an unknown engine, or a number of workers, an address or a timeout that it does not take.
        MissingDependencyError: when what it needs is not installed.
    """
    if name not in ENGINES:
        raise UsageError(f"--engine {name!r} is not known; allowed: {', '.join(ENGINES)}")
    if name == "ray":
        from embodied_env.evaluation.ray_cluster import RayCluster

        return RayEngine(workers, RayCluster(workers, address), episode_timeout_s=episode_timeout_s)
    if address is not None:
        raise UsageError(f"--address {address!r} is not available with --engine {name}; allowed: with --engine ray")
    return LocalEngine(workers, episode_timeout_s=episode_timeout_s)


def longest_episode_s(job: EvaluationJob) -> float:
    """Return a generous bound of the duration of an episode of `job`, its reset included, s."""
    episode, period_s = job.contract.episode, job.contract.control_period_s
    declared = job.contract.backends.get(job.backend, {}).get("reset_timeout_s")
    reset_s = declared if isinstance(declared, (int, float)) else _RESET_S  # the backend refuses what is no number
    return _RESETS * reset_s + episode.horizon_steps * max(_STEP_S, _PERIODS * period_s)


def domain_ids(count: int, own: int) -> tuple[int, ...]:
    """Return `count` ROS domain ids, all different, none of them `own`.

    Raises:
        UsageError: when there are fewer.
    """
    if not 1 <= count < DOMAINS:
        raise UsageError(f"--workers {count} is not allowed; allowed: 1 to {DOMAINS - 1}, each has a ROS domain")
    return tuple((own + 1 + index) % DOMAINS for index in range(count + 1) if (own + 1 + index) % DOMAINS != own)[
        :count
    ]


def check_shareable(job: EvaluationJob, engine: str = "local") -> None:
    """Raise UsageError for an unknown backend, and for options that several processes cannot share."""
    accepts_option(job.backend, "spawn", pacing=job.options.get("pacing"))
    if job.backend == "real":
        raise UsageError(f"--engine {engine} is not available with real: there is one robot; allowed: no --engine")
    if job.options.get("spawn") is False:
        raise UsageError(f"--engine {engine} is not available with --attach: there is one simulator; allowed: without")
    if job.options.get("namespace") is not None:
        raise UsageError(
            f"--engine {engine} is not available with --namespace: each worker has its own; allowed: without"
        )


class LocalEngine:
    """Worker processes on this machine.

    Attributes:
        name: for messages and folders.
    """

    name = "local"

    def __init__(self, workers: int, *, episode_timeout_s: float | None = None) -> None:
        """Prepare; nothing is started. For the arguments see `make_engine`.

        Raises:
            UsageError: for a number of workers or a timeout that is not allowed.
        """
        domain_ids(workers, own=0)
        if episode_timeout_s is not None and not 0.0 < episode_timeout_s < math.inf:
            raise UsageError(f"--episode-timeout {episode_timeout_s} is not allowed; allowed: a number of seconds > 0")
        self._workers = workers
        self._episode_timeout_s = episode_timeout_s

    def check(self, job: EvaluationJob) -> None:
        """Raise UsageError for a job that it cannot run."""
        check_shareable(job, self.name)

    def make_workers(self, job: EvaluationJob, folder: Path) -> WorkerPool:
        """Return the workers of one evaluation; none is started."""
        return LocalWorkers(job, folder)

    def evaluate(self, job: EvaluationJob, *, episodes: int, out: Path, ended: Callable[[], None]) -> Evaluation:
        """See `Engine`.

        Raises:
            UsageError: for a job that processes cannot share.
            PolicyError: when the policy raises, as from one process.
            BackendError: when an episode was lost with its worker too often, or no worker starts.
        """
        self.check(job)
        folder = _make_folder(out, job.contract, job.backend, self.name)
        limit_s = longest_episode_s(job) if self._episode_timeout_s is None else self._episode_timeout_s
        run = _SharedRun(episodes, min(self._workers, episodes), ended, limit_s=limit_s)
        try:
            run.finish(self.make_workers(job, folder))
        except BaseException:
            with contextlib.suppress(OSError):  # one that nothing was recorded in
                folder.rmdir()
            raise
        try:
            summary, problem = merged_summary(run.where, job.contract.fingerprint), ""
        except RecordError as error:
            summary, problem = merged_summary({}, job.contract.fingerprint), str(error)
        problem = problem or run.not_evaluated() or run.unclean() or lost_backends(summary)
        account = {"schema": EVALUATION, "engine": self.name, **_evaluation_json(job, run, summary, problem, episodes)}
        write_json(folder / "evaluation.json", account)
        return Evaluation(
            policy=job.policy,
            path=folder,
            summary=summary,
            problem=problem,
            parts=tuple(run.paths),
            losses=tuple(run.losses),
        )


class RayEngine(LocalEngine):
    """Worker processes on the nodes of a Ray cluster, each beside an actor of its own."""

    name = "ray"

    def __init__(self, workers: int, cluster: Cluster, *, episode_timeout_s: float | None = None) -> None:
        """Prepare; nothing is started."""
        super().__init__(workers, episode_timeout_s=episode_timeout_s)
        self._cluster = cluster

    def make_workers(self, job: EvaluationJob, folder: Path) -> WorkerPool:
        """Return the workers of one evaluation; none is started."""
        return RayWorkers(job, folder, self._cluster)


class _SharedRun:
    """One evaluation by workers.

    Attributes:
        where: the run directory that each finished episode is in.
        paths: all run directories.
        lost: those of workers that ended before their time.
        losses: what was lost and run again, in sentences.
        abandoned: episodes that did not end in their time, too often.
        size: number of workers.
    """

    def __init__(
        self,
        episodes: int,
        workers: int,
        ended: Callable[[], None],
        *,
        limit_s: float,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; `limit_s`: after which an episode's worker is hung, by the clock `now_s`."""
        self._limit_s, self._now_s = limit_s, now_s
        self._ended = ended
        self._waiting = deque(range(episodes))
        self._count, self.size = episodes, workers
        self._attempts: Counter[int] = Counter()
        self._failed_starts = 0
        self._domains = domain_ids(workers, own=_own_domain())
        self.where: dict[int, Path] = {}
        self.paths: list[Path] = []
        self.losses: list[str] = []
        self.lost: set[Path] = set()
        self.abandoned: set[int] = set()

    def finish(self, pool: WorkerPool) -> None:
        """Run all episodes, then let the workers close their runs."""
        with pool as workers:
            for number in range(self.size):
                workers.start(number, self._domains[number])
            while len(self.where) + len(self.abandoned) < self._count:
                for worker, message in workers.receive():
                    self._handle(workers, worker, message)
                for worker in workers.busy():
                    if self._now_s() > worker.due_s:
                        self._replace(workers, worker, is_hung=True)
            workers.shutdown()

    def not_evaluated(self) -> str:
        """Return which episodes were given up, or ""."""
        if not self.abandoned:
            return ""
        numbers = ", ".join(map(str, sorted(self.abandoned)))
        return f"not evaluated: episode {numbers}: no end within {self._limit_s:g} s, {MOST_ATTEMPTS} times"

    def unclean(self) -> str:
        """Say which runs are not clean, and why, of workers that were not lost."""
        problems = {path: read_run(path).problem for path in self.paths if path not in self.lost}
        return "; ".join(f"{path}: {problem}" for path, problem in problems.items() if problem)

    def _handle(self, workers: WorkerPool, worker: WorkerHandle, message: Mapping[str, Any] | None) -> None:
        if message is None:
            self._replace(workers, worker)
            return
        if "failed" in message:
            output, error = workers.reap(worker), error_from(message)
            if not isinstance(error, UsageError):
                error.add_note(output)  # such as the traceback of a policy
            raise error
        if "ready" in message:
            worker.path = Path(message["ready"])
            worker.due_s = self._now_s() + self._limit_s
            self.paths.append(worker.path)
        if "ended" in message and worker.path is not None:
            worker.episode = None
            self.where[message["ended"]] = worker.path
            self._ended()
        self._assign(worker)

    def _assign(self, worker: WorkerHandle) -> None:
        """Send the next episode to an idle worker; without one it waits, since a lost episode may come back."""
        if worker.episode is None and self._waiting:
            worker.episode = self._waiting.popleft()
            self._attempts[worker.episode] += 1
            worker.due_s = self._now_s() + self._limit_s + (_START_S if worker.path is None else 0.0)
            worker.send({"episode": worker.episode})

    def _replace(self, workers: WorkerPool, worker: WorkerHandle, *, is_hung: bool = False) -> None:
        """Put back the episode of a worker that has ended or is hung, and start another worker in its place."""
        output = workers.reap(worker, grace_s=SHORT_GRACE_S if is_hung else GRACE_S)
        if is_hung:
            output = f"no end of the episode within {self._limit_s:g} s; {output}"
        episode = worker.episode
        if episode is None:
            self._failed_starts += 1
            if self._failed_starts >= MOST_ATTEMPTS:
                raise BackendNotReadyError(f"a worker ended without an episode, {MOST_ATTEMPTS} times: {output}")
        elif is_hung and self._attempts[episode] >= MOST_ATTEMPTS:
            self.abandoned.add(episode)
            self.losses.append(f"episode {episode} was not evaluated; its last run: {worker.path}; {output}")
        else:
            if self._attempts[episode] >= MOST_ATTEMPTS:
                raise BackendError(f"episode {episode} was lost with its worker {MOST_ATTEMPTS} times: {output}")
            self._waiting.appendleft(episode)
            again = f"worker {worker.number} ended in episode {episode}, which was run again"
            self.losses.append(f"{again}; its run: {worker.path}; {output}")
        if worker.path is not None:
            self.lost.add(worker.path)
        for idle in workers.idle():
            self._assign(idle)
        if self._waiting:
            workers.start(worker.number, self._domains[worker.number])


def _own_domain() -> int:
    own = os.environ.get("ROS_DOMAIN_ID") or "0"
    check_domain_id(own, "ROS_DOMAIN_ID")
    return int(own)


def _make_folder(out: Path, contract: Contract, backend: str, engine: str) -> Path:
    name = f"{datetime.now(tz=UTC):%Y%m%dT%H%M%SZ}_{contract.name}_{backend}_{engine}_{secrets.token_hex(3)}"
    folder = out / re.sub(r"[^\w.-]", "_", name)
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise RecordError(f"{folder}: the folder of the evaluation cannot be made: {error}") from None
    return folder


def _evaluation_json(
    job: EvaluationJob, run: _SharedRun, summary: Mapping[str, Any], problem: str, episodes: int
) -> dict[str, Any]:
    return {
        "workers": run.size,
        "contract_fingerprint": job.contract.fingerprint,
        "backend": job.backend,
        "policy": job.policy,
        "seed": job.seed,
        "episodes": episodes,
        "problem": problem,
        "losses": run.losses,
        "runs": [path.name for path in run.paths],
        "run_of_episode": [run.where[each].name if each in run.where else None for each in range(episodes)],
        "not_evaluated": sorted(run.abandoned),
        "summary": dict(summary),
    }
