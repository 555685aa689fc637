"""Run the episodes of an evaluation in worker processes, on this machine or on a Ray cluster, and merge their runs.

Each worker has its own environment, run directory and ROS domain, and receives episodes one by one. Its run keeps
every finished episode, however the worker ends; another worker repeats the episode that was running.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from embodied_env.backends.registry import accepts_option
from embodied_env.errors import BackendError, BackendNotReadyError, RecordError, UsageError
from embodied_env.evaluation.episodes import Evaluation, EvaluationJob, lost_backends
from embodied_env.evaluation.local_workers import GRACE_S, SHORT_GRACE_S, LocalWorkers, Worker, WorkerPool, error_from
from embodied_env.evaluation.ray_cluster import RayCluster
from embodied_env.evaluation.ray_workers import RayWorkers
from embodied_env.record.manifest import write_json
from embodied_env.record.recorder import make_run_directory
from embodied_env.record.rows import Row
from embodied_env.record.run import read_run
from embodied_env.record.summary import Summary
from embodied_env.ros.setup_checks import check_domain_id

EVALUATION = "embodied_env/evaluation/1"
MOST_ATTEMPTS = 3
"""Attempts at one episode, and at starting a worker."""

DOMAINS = 102
"""Number of ROS domains whose ports are outside Linux's ephemeral range."""

_START_S = 120.0  # for a worker to import its policy and make its environment
_STEP_S, _PERIODS = 1.0, 10  # limit of a step: seconds, or control periods
_RESET_S, _RESETS = 30.0, 2  # reset time if the profile declares none, and the safety factor on either


@dataclass(frozen=True)
class Engine:
    """Runs the episodes of a job in worker processes."""

    workers: int  # number of processes
    cluster: RayCluster | None = None  # Ray cluster of the processes; None: this machine
    episode_timeout_s: float | None = None  # after which a worker counts as hung, s; None: `longest_episode_s`

    def __post_init__(self) -> None:
        """Raise UsageError for an invalid number of workers or timeout."""
        domain_ids(self.workers, own=0)
        if self.episode_timeout_s is not None and not 0.0 < self.episode_timeout_s < math.inf:
            raise UsageError(f"invalid --episode-timeout: {self.episode_timeout_s} (expected seconds > 0)")

    @property
    def name(self) -> str:
        """``local`` or ``ray``, for messages and folders."""
        return "local" if self.cluster is None else "ray"

    def check(self, job: EvaluationJob) -> None:
        """Raise UsageError for an unknown backend, and for options that several processes cannot share."""
        accepts_option(job.backend, "spawn", pacing=job.options.get("pacing"))
        refusals = (
            (job.backend == "real", "--backend real", "there is only one robot"),
            (job.options.get("spawn") is False, "--attach", "each worker starts its own simulator"),
            (job.options.get("namespace") is not None, "--namespace", "each worker has its own namespace"),
        )
        for is_refused, option, reason in refusals:
            if is_refused:
                raise UsageError(f"--engine {self.name} does not support {option}: {reason}; omit --engine or {option}")

    def evaluate(self, job: EvaluationJob, *, episodes: int, out: Path, ended: Callable[[int], None]) -> Evaluation:
        """Run episodes 0 to `episodes` - 1 of `job`, recorded below `out`.

        `ended` is called after each with the number of finished episodes. The summary is the same as for a single
        process. After an interrupt, every run is closed before the interrupt is raised.

        Raises:
            UsageError: for a job that processes cannot share.
            PolicyError: when the policy raises.
            BackendError: when an episode was lost with its worker `MOST_ATTEMPTS` times, or no worker starts.
        """
        self.check(job)
        folder = make_run_directory(out, f"{job.contract.name}_{job.backend}_{self.name}", datetime.now(tz=UTC))
        limit_s = longest_episode_s(job) if self.episode_timeout_s is None else self.episode_timeout_s
        scheduler = EpisodeScheduler(episodes, min(self.workers, episodes), ended, limit_s=limit_s)
        try:
            pool: WorkerPool[Any] = (
                LocalWorkers(job, folder) if self.cluster is None else RayWorkers(job, folder, self.cluster)
            )
            scheduler.run(pool)
        except BaseException:
            with contextlib.suppress(OSError):  # removes the folder if nothing was recorded
                folder.rmdir()
            raise
        fingerprint = job.contract.fingerprint
        try:
            summary, problem = merged_summary(scheduler.where, fingerprint), ""
        except RecordError as error:
            summary, problem = merged_summary({}, fingerprint), str(error)
        problem = problem or scheduler.not_evaluated() or scheduler.unclean() or lost_backends(summary)
        paths, where = scheduler.paths, scheduler.where
        content = {
            "schema": EVALUATION,
            "engine": self.name,
            "workers": scheduler.size,
            "contract_fingerprint": fingerprint,
            "backend": job.backend,
            "policy": job.policy,
            "seed": job.seed,
            "episodes": episodes,
            "problem": problem,
            "losses": scheduler.losses,
            "runs": [path.name for path in paths],
            "run_of_episode": [where[each].name if each in where else None for each in range(episodes)],
            "not_evaluated": sorted(scheduler.abandoned),
            "summary": summary,
        }
        write_json(folder / "evaluation.json", content)
        losses = tuple(scheduler.losses)
        return Evaluation(
            policy=job.policy, path=folder, summary=summary, problem=problem, parts=tuple(paths), losses=losses
        )


def longest_episode_s(job: EvaluationJob) -> float:
    """Return a generous upper bound of the duration of an episode of `job`, including its reset, s."""
    episode, period_s = job.contract.episode, job.contract.control_period_s
    declared = job.contract.backends.get(job.backend, {}).get("reset_timeout_s")
    reset_s = declared if isinstance(declared, (int, float)) else _RESET_S  # the backend rejects other types
    return _RESETS * reset_s + episode.horizon_steps * max(_STEP_S, _PERIODS * period_s)


def domain_ids(count: int, own: int) -> tuple[int, ...]:
    """Return `count` different ROS domain ids other than `own`; raises UsageError when there are fewer."""
    if not 1 <= count < DOMAINS:
        raise UsageError(f"invalid --workers: {count} (expected 1 to {DOMAINS - 1}, one ROS domain each)")
    others = [(own + 1 + index) % DOMAINS for index in range(count + 1)]
    return tuple([domain for domain in others if domain != own][:count])


class EpisodeScheduler:
    """Distributes the episodes of one evaluation to workers, and replaces workers that end or hang."""

    def __init__(
        self,
        episodes: int,
        workers: int,
        ended: Callable[[int], None],
        *,
        limit_s: float,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start nothing; `limit_s` is the time limit of an episode by the clock `now_s`."""
        own_domain = os.environ.get("ROS_DOMAIN_ID") or "0"
        check_domain_id(own_domain, "ROS_DOMAIN_ID")
        self._domains = domain_ids(workers, own=int(own_domain))
        self._limit_s, self._now_s = limit_s, now_s
        self._ended = ended
        self._waiting = deque(range(episodes))
        self._count, self.size = episodes, workers
        self._attempts: Counter[int] = Counter()
        self._failed_starts = 0
        self.where: dict[int, Path] = {}  # run directory of each finished episode
        self.paths: list[Path] = []  # all run directories
        self.losses: list[str] = []  # description of each episode that was lost and repeated
        self.lost: set[Path] = set()  # run directories of workers that ended prematurely
        self.abandoned: set[int] = set()  # episodes that exceeded their time limit too often

    def run(self, pool: WorkerPool[Any]) -> None:
        """Run all episodes, then let the workers close their runs."""
        with pool:
            for number in range(self.size):
                pool.start(number, self._domains[number])
            while len(self.where) + len(self.abandoned) < self._count:
                for worker, message in pool.receive():
                    self._handle(pool, worker, message)
                for worker in pool.busy():
                    if self._now_s() > worker.due_s:
                        self._replace(pool, worker, is_hung=True)
            pool.shutdown()

    def not_evaluated(self) -> str:
        """Return the abandoned episodes as text, or ""."""
        if not self.abandoned:
            return ""
        numbers = ", ".join(map(str, sorted(self.abandoned)))
        return f"not evaluated: episode {numbers} exceeded {self._limit_s:g} s in {MOST_ATTEMPTS} attempts"

    def unclean(self) -> str:
        """Return the runs that are not clean, each with its problem, except those of lost workers."""
        problems = {path: read_run(path).problem for path in self.paths if path not in self.lost}
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
            worker.path = Path(message["ready"])
            worker.due_s = self._now_s() + self._limit_s
            self.paths.append(worker.path)
        if "ended" in message and worker.path is not None:
            worker.episode = None
            self.where[message["ended"]] = worker.path
            self._ended(len(self.where))
        self._assign(worker)

    def _assign(self, worker: Worker) -> None:
        """Send the next episode to an idle worker; with none left it waits, since a lost episode may come back."""
        if worker.episode is None and self._waiting:
            worker.episode = self._waiting.popleft()
            self._attempts[worker.episode] += 1
            worker.due_s = self._now_s() + self._limit_s + (_START_S if worker.path is None else 0.0)
            worker.send({"episode": worker.episode})

    def _replace(self, pool: WorkerPool[Any], worker: Worker, *, is_hung: bool = False) -> None:
        """Return the episode of a worker that has ended or hangs to the queue, and start another worker instead."""
        output = pool.reap(worker, grace_s=SHORT_GRACE_S if is_hung else GRACE_S)
        if is_hung:
            output = f"the episode exceeded {self._limit_s:g} s; {output}"
        episode = worker.episode
        if episode is None:
            self._failed_starts += 1
            if self._failed_starts >= MOST_ATTEMPTS:
                raise BackendNotReadyError(f"worker failed to start in {MOST_ATTEMPTS} attempts: {output}")
        elif is_hung and self._attempts[episode] >= MOST_ATTEMPTS:
            self.abandoned.add(episode)
            self.losses.append(f"episode {episode} was not evaluated; last run: {worker.path}; {output}")
        else:
            if self._attempts[episode] >= MOST_ATTEMPTS:
                raise BackendError(f"episode {episode} failed: its worker ended in {MOST_ATTEMPTS} attempts: {output}")
            self._waiting.appendleft(episode)
            loss = f"worker {worker.number} ended in episode {episode}, which was repeated"
            self.losses.append(f"{loss}; run: {worker.path}; {output}")
        if worker.path is not None:
            self.lost.add(worker.path)
        for idle in pool.idle():
            self._assign(idle)
        if self._waiting:
            pool.start(worker.number, self._domains[worker.number])


def merged_summary(where: Mapping[int, Path], fingerprint: str) -> dict[str, Any]:
    """Return the summary of these episodes in order; `where` has the run directory of each.

    Raises RecordError when an episode is incomplete in its log.
    """
    summary = Summary()
    readers: dict[Path, Iterator[tuple[int, Iterator[Row]]]] = {}
    for episode, path in sorted(where.items()):
        rows = _find_episode(readers[path], episode) if path in readers else None
        if rows is None:  # it may be before the reader
            readers[path] = groupby(read_run(path).rows(), key=lambda row: row["info"]["episode_index"])
            rows = _find_episode(readers[path], episode)
        if rows is None:
            raise RecordError(f"{path}: episode {episode} is incomplete in the log")
        for row in rows:
            summary.add(row)
    # only closed runs have losses; in the others each finished episode is complete
    known = [manifest["record"] for path in readers if (manifest := read_run(path).manifest).get("clean")]
    record = {
        "complete": all(record["complete"] for record in known),
        **{key: sum(record[key] for record in known) for key in ("lost_rows", "lost_messages")},
    }
    return {**summary.as_json(fingerprint), "record": record}


def _find_episode(reader: Iterator[tuple[int, Iterator[Row]]], episode: int) -> list[Row] | None:
    """Return the rows of `episode`, or None; one episode at a time is in memory."""
    for number, group in reader:
        if number == episode:
            rows = list(group)
            if rows[-1].get("terminated") or rows[-1].get("truncated"):
                return rows
    return None
