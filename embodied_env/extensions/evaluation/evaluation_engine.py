"""Run the episodes of an evaluation in local or Ray workers, and merge their runs.

Each worker has its own environment, run directory and ROS domain, and receives episodes one by one. Its run keeps
every finished episode, however the worker ends; another worker repeats the episode that was running.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from embodied_env.backends.backend_registry import backend_accepts
from embodied_env.core.plugin_loading import load_extension
from embodied_env.errors import BackendError, BackendNotReadyError, RecordError, UsageError
from embodied_env.extensions.evaluation.episode_runner import EvaluationJob, find_failure
from embodied_env.extensions.evaluation.evaluation_arguments import ENGINES
from embodied_env.extensions.evaluation.evaluation_results import PolicyResult, rows_of_episodes
from embodied_env.extensions.evaluation.local_workers import (
    GRACE_S,
    SHORT_GRACE_S,
    LocalWorkers,
    Worker,
    WorkerPool,
    error_from,
)
from embodied_env.record.manifest import write_json
from embodied_env.record.recorder import make_run_directory
from embodied_env.record.run import read_run
from embodied_env.record.summary import Summary
from embodied_env.ros.transport.setup_checks import check_domain_id

EVALUATION = "embodied_env/evaluation/1"

_CLUSTER = "embodied_env.extensions.ray.ray_workers:RayCluster"
_CLUSTER_WORKERS = "embodied_env.extensions.ray.ray_workers:RayWorkers"
_STEP_S, _PERIODS = 1.0, 10  # limit of a step: seconds, or control periods
_RESET_S, _RESETS = 30.0, 2  # reset time if the profile declares none, and the safety factor on either

MOST_ATTEMPTS = 3  # attempts at one episode, and at starting a worker
DOMAINS = 102  # number of ROS domains whose ports are outside Linux's ephemeral range
_START_S = 120.0  # time for a worker to import its policy and make its environment


@dataclass(frozen=True)
class Engine:
    """Runs the episodes of a job in worker processes."""

    workers: int  # number of processes
    cluster: Any | None = None  # `RayCluster` of the processes, None for this machine
    episode_timeout_s: float | None = None  # after which a worker counts as hung, s, or None for `longest_episode_s`

    def __post_init__(self) -> None:
        domain_ids(self.workers, own=0)
        if self.episode_timeout_s is not None and not 0.0 < self.episode_timeout_s < math.inf:
            raise UsageError(f"invalid episode timeout: {self.episode_timeout_s} (expected seconds > 0)")

    @property
    def name(self) -> str:
        """``local`` or ``ray``, for messages and folders."""
        return "local" if self.cluster is None else "ray"

    def check(self, job: EvaluationJob) -> None:
        """Raise UsageError for an unknown backend or options that processes cannot share."""
        backend_accepts(job.backend, "spawn", pacing=job.options.get("pacing"))
        refusals = (
            (job.backend == "real", "the backend 'real'", "there is only one robot"),
            (not job.options.get("spawn", True), "a running simulator", "each worker starts its own"),
            (job.options.get("namespace") is not None, "a namespace", "each worker has its own"),
        )
        for is_refused, option, reason in refusals:
            if is_refused:
                raise UsageError(
                    f"the engine {self.name!r} does not support {option}: {reason}; omit the engine or {option}"
                )

    def evaluate(
        self, job: EvaluationJob, *, episodes: int, out: Path, ended: Callable[[int], None]
    ) -> tuple[PolicyResult, ...]:
        """Run episodes 0 to `episodes` - 1 of each policy of `job`, recorded below `out`.

        `ended` is called after each with the number of finished episodes. After an interrupt, every run is closed
        before the interrupt is raised. Raises UsageError for a job that processes cannot share, PolicyError when a
        policy raises, and BackendError when an episode was lost with its worker three times, or no worker starts.
        """
        self.check(job)
        job.to_json()  # raises for a policy without an address
        folder = make_run_directory(out, f"{job.contract.name}_{job.backend}_{self.name}", datetime.now(tz=UTC))
        limit_s = longest_episode_s(job) if self.episode_timeout_s is None else self.episode_timeout_s
        trials = episodes * len(job.policies)
        scheduler = EpisodeScheduler(
            trials, min(self.workers, trials), ended, limit_s=limit_s, describe=job.describe_trial
        )
        try:
            pool: WorkerPool[Any] = (
                LocalWorkers(job, folder)
                if self.cluster is None
                else load_extension(_CLUSTER_WORKERS, needed_for="the engine 'ray'")(job, folder, self.cluster)
            )
            scheduler.run(pool)
        except BaseException:
            with contextlib.suppress(OSError):  # removes the folder if nothing was recorded
                folder.rmdir()
            raise
        return tuple(
            self._result(job, index, each, scheduler, episodes) for index, each in enumerate(job.folders(folder))
        )

    def _result(
        self, job: EvaluationJob, index: int, folder: Path, scheduler: EpisodeScheduler, episodes: int
    ) -> PolicyResult:
        """Return the result of one policy, and write it to ``evaluation.json`` in its folder."""
        trials = {k: episode for k in range(scheduler.count) for policy, episode in [job.trial(k)] if policy == index}
        where = {trials[k]: path for k, path in scheduler.where.items() if k in trials}
        paths = [path for path in scheduler.paths if path.parent.name == folder.name]
        losses = tuple(loss for k, loss in scheduler.losses if k in trials)
        abandoned = sorted(scheduler.abandoned & trials.keys())
        fingerprint = job.contract.fingerprint
        try:
            summary, problem = merged_summary(where, fingerprint), ""
        except RecordError as error:
            summary, problem = merged_summary({}, fingerprint), str(error)
        problem = problem or scheduler.not_evaluated(abandoned) or scheduler.unclean(paths) or find_failure(summary)
        content = {
            "schema": EVALUATION,
            "engine": self.name,
            "workers": scheduler.size,
            "contract_fingerprint": fingerprint,
            "backend": job.backend,
            "policy": job.names[index],
            "seed": job.seed,
            "episodes": episodes,
            "problem": problem,
            "losses": losses,
            "runs": [path.name for path in paths],
            "run_of_episode": [where[each].name if each in where else None for each in range(episodes)],
            "not_evaluated": [trials[k] for k in abandoned],
            "summary": summary,
        }
        folder.mkdir(exist_ok=True)
        write_json(folder / "evaluation.json", content)
        return PolicyResult(
            policy=job.names[index],
            path=folder,
            summary=summary,
            problem=problem,
            where=where,
            parts=tuple(paths),
            losses=losses,
        )


def make_engine(
    name: str, *, workers: int | None = None, address: str | None = None, episode_timeout_s: float | None = None
) -> Engine:
    """Return the engine ``local``, or ``ray`` on the Ray cluster at `address`.

    With `workers` None, there is one for each CPU. Raises UsageError for another name or an invalid value, and
    MissingDependencyError without Ray.
    """
    if name not in ENGINES:
        raise UsageError(f"unknown engine: {name!r} (expected one of: {', '.join(ENGINES)}, or an Engine)")
    if name != "ray" and address is not None:
        raise UsageError(f"invalid address of the engine {name!r}: {address!r} (expected none; only 'ray' has one)")
    workers = (os.cpu_count() or 1) if workers is None else workers
    cluster = load_extension(_CLUSTER, needed_for="the engine 'ray'")(workers, address) if name == "ray" else None
    return Engine(workers, cluster, episode_timeout_s=episode_timeout_s)


def longest_episode_s(job: EvaluationJob) -> float:
    """Return an upper bound of the duration of an episode of `job` with its reset, s."""
    episode, period_s = job.contract.episode, job.contract.control_period_s
    declared = job.contract.backends.get(job.backend, {}).get("reset_timeout_s")
    reset_s = declared if isinstance(declared, (int, float)) else _RESET_S  # the backend rejects other types
    return _RESETS * reset_s + episode.horizon_steps * max(_STEP_S, _PERIODS * period_s)


def merged_summary(where: Mapping[int, Path], fingerprint: str) -> dict[str, Any]:
    """Return the summary of these episodes in order, as `rows_of_episodes` reads them."""
    summary = Summary()
    for row in rows_of_episodes(where):
        summary.add(row)
    # only closed runs have losses, because in the others each finished episode is complete
    manifests = [read_run(path).manifest for path in set(where.values())]
    known = [each["record"] for each in manifests if each["clean"] and each["record"] is not None]
    losses = {
        "complete": all(record["complete"] for record in known),
        "lost_rows": sum(record["lost_rows"] for record in known),
        "lost_messages": sum(record["lost_messages"] for record in known),
    }
    return {**summary.as_json(fingerprint), "record": losses}


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
        """Send the next trial to an idle worker, or let it wait, as a lost trial may come back."""
        if worker.trial is None and self._waiting:
            worker.trial = self._waiting.popleft()
            self._attempts[worker.trial] += 1
            worker.due_s = self._now_s() + self._limit_s + (0.0 if worker.paths else _START_S)
            worker.send({"trial": worker.trial})

    def _replace(self, pool: WorkerPool[Any], worker: Worker, *, is_hung: bool = False) -> None:
        """Requeue the trial of a worker that has ended or hangs, and start another worker."""
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
