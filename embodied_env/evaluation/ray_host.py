"""What runs beside a worker on another node: it starts the worker there, and hands on what both sides say.

It knows nothing of the cluster that it runs in. The worker is a child of its process: when that is killed, the worker
closes its run and ends.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from embodied_env import __version__
from embodied_env.errors import EmbodiedEnvError, UsageError
from embodied_env.evaluation.episodes import EvaluationJob
from embodied_env.evaluation.local_workers import LocalWorker, LocalWorkers

SURROUNDINGS = ("ROS_", "RMW_", "FASTRTPS_", "FASTDDS_", "CYCLONEDDS_", "PYTHONPATH", "OMP_", "MKL_", "OPENBLAS_")
"""How the names begin of the variables that are the same for every worker, on whichever node."""

Said = Mapping[str, Any] | None


def surroundings() -> dict[str, str]:
    """Return those variables of this process."""
    return {name: value for name, value in os.environ.items() if name.startswith(SURROUNDINGS)}


class Host:
    """One worker, on the node that this object lives on."""

    def __init__(self, said: Mapping[str, Any]) -> None:
        """Remember what is to be done: `describe` says what is in it. Nothing is started."""
        self._said = said
        self._team: LocalWorkers | None = None
        self._worker: LocalWorker | None = None

    def exchange(self, words: Sequence[Mapping[str, Any]]) -> list[Said]:
        """Tell the worker `words`, wait a moment, and return what it said; None: it has ended.

        The first time, the worker is started. What cannot be is said as ``failed``, like an error of the worker.
        """
        if self._team is None or self._worker is None:
            try:
                self._team, self._worker = self._started()
            except EmbodiedEnvError as error:
                return [{"failed": type(error).__name__, "message": str(error)}]
        for word in words:
            self._worker.send(word)
        return [said for _, said in self._team.receive()]

    def pid(self) -> int:
        """Return the id of this process."""
        return os.getpid()

    def end(self, *, at_once: bool, grace_s: float) -> str:
        """End the worker, after `grace_s` by force, and return how it ended. `at_once`: in mid-episode."""
        if self._team is None or self._worker is None:
            return "it was not started"
        with self._team:
            if not at_once:
                self._team.shutdown()
            return self._team.reap(self._worker, grace_s=grace_s)

    def _started(self) -> tuple[LocalWorkers, LocalWorker]:
        said = self._said
        _check(said)
        for name in surroundings().keys() - said["surroundings"].keys():
            del os.environ[name]  # a cluster sets OMP_NUM_THREADS, for one
        os.environ.update(said["surroundings"])
        with contextlib.suppress(OSError):  # where it is, paths mean what they mean to the caller
            os.chdir(said["cwd"])
        team = LocalWorkers(EvaluationJob.from_json(said["job"]), Path(said["folder"]))
        return team, team.start(said["number"], said["domain_id"])


def describe(job: EvaluationJob, folder: Path, token: str, number: int, domain_id: int) -> dict[str, Any]:
    """Return what a `Host` is made of, in types of JSON.

    Args:
        job: what is evaluated.
        folder: absolute; where runs are made, on every node.
        token: the name of a file in it, by which a node knows that it is the same folder.
        number: the worker's place.
        domain_id: of ROS.
    """
    return {
        "job": job.to_json(),
        "folder": str(folder),
        "token": token,
        "number": number,
        "domain_id": domain_id,
        "version": __version__,
        "surroundings": surroundings(),
        "cwd": str(Path.cwd()),
    }


def _check(said: Mapping[str, Any]) -> None:
    """Raise UsageError where this node cannot do what the caller would."""
    node = platform.node()
    if said["version"] != __version__:
        raise UsageError(f"node {node} has embodied_env {__version__}; allowed: {said['version']}, that of the caller")
    if not (Path(said["folder"]) / said["token"]).is_file():
        raise UsageError(f"--out: node {node} does not see {said['folder']}; allowed: a folder that every node shares")
