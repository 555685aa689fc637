"""Run the episodes of an evaluation in local or Ray workers, and merge their runs.

Each worker has its own environment, run directory and ROS domain, and receives episodes one by one. Its run keeps
every finished episode, however the worker ends; another worker repeats the episode that was running.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from embodied_env.backends.backend_registry import backend_accepts
from embodied_env.core.plugin_loading import load_extension
from embodied_env.errors import RecordError, UsageError
from embodied_env.extensions.evaluation.episode_runner import EvaluationJob, find_failure
from embodied_env.extensions.evaluation.episode_scheduler import EpisodeScheduler, domain_ids
from embodied_env.extensions.evaluation.evaluation_arguments import ENGINES
from embodied_env.extensions.evaluation.evaluation_results import PolicyResult, rows_of_episodes
from embodied_env.extensions.evaluation.local_workers import LocalWorkers, WorkerPool
from embodied_env.record.manifest import write_json
from embodied_env.record.recorder import make_run_directory
from embodied_env.record.run import read_run
from embodied_env.record.summary import Summary

EVALUATION = "embodied_env/evaluation/1"

_CLUSTER = "embodied_env.extensions.ray.ray_cluster:RayCluster"
_CLUSTER_WORKERS = "embodied_env.extensions.ray.ray_workers:RayWorkers"
_STEP_S, _PERIODS = 1.0, 10  # limit of a step: seconds, or control periods
_RESET_S, _RESETS = 30.0, 2  # reset time if the profile declares none, and the safety factor on either


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

        `ended` is called after each with the number of finished episodes. The summaries are the same as for a single
        process. After an interrupt, every run is closed before the interrupt is raised.

        Raises:
            UsageError: for a job that processes cannot share.
            PolicyError: when a policy raises.
            BackendError: when an episode was lost with its worker three times, or no worker starts.
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
