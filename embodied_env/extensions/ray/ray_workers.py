"""Workers on a Ray cluster, which an actor on each node starts and whose messages it forwards.

The actor (`WorkerHost`) does not depend on Ray. The worker is its child process: if the actor is killed, the worker
closes its run and ends.
"""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from embodied_env._version import __version__
from embodied_env.errors import BackendNotReadyError, EmbodiedEnvError, RecordError, UsageError
from embodied_env.extensions.evaluation.episode_runner import EvaluationJob
from embodied_env.extensions.evaluation.local_workers import (
    GRACE_S,
    LocalWorker,
    LocalWorkers,
    Message,
    Worker,
    WorkerPool,
    grace_after,
)
from embodied_env.extensions.ray.ray_cluster import HostLostError, RayCluster

FORWARDED_VARIABLES = (
    "ROS_",
    "RMW_",
    "FASTRTPS_",
    "FASTDDS_",
    "CYCLONEDDS_",
    "PYTHONPATH",
    "OMP_",
    "MKL_",
    "OPENBLAS_",
)
"""Prefixes of the environment variables that every worker on every node gets from the caller."""

PLACING_S = 120.0
"""Time limit for the cluster to place the first worker, s."""

_POLL_INTERVAL_S = 0.2
_HOST_S = 10.0  # response time of a host, in addition to the grace period of its worker


@dataclass(eq=False, kw_only=True)
class RayWorker(Worker):
    """A worker on a cluster."""

    handle: Any  # of its host
    promise: Any  # result of the current call of the host
    outbox: list[Message] = field(default_factory=list)  # messages for the next call
    lost: str = ""  # reason why its host ended

    def send(self, message: Message) -> None:
        """Send a message with the next call."""
        self.outbox.append(message)


class RayWorkers(WorkerPool[RayWorker]):
    """The workers of one evaluation on a cluster."""

    def __init__(self, job: EvaluationJob, folder: Path, cluster: RayCluster) -> None:
        """Store the job, whose runs are recorded in a `folder` shared by every node, without starting a worker."""
        super().__init__()
        self._job, self._folder, self._cluster = job, folder.resolve(), cluster
        self._token = f".{secrets.token_hex(8)}"
        self._stack = ExitStack()
        self._is_any_placed = False
        self._started_s = time.monotonic()

    def __enter__(self) -> Self:
        """Join the cluster, or raise BackendNotReadyError, or RecordError when the folder is not writable."""
        token = self._folder / self._token
        try:
            token.touch()
        except OSError as error:
            raise RecordError(f"cannot write to {self._folder}: {error}") from None
        self._stack.callback(token.unlink, missing_ok=True)
        with self._stack:
            self._stack.enter_context(self._cluster)
            self._stack = self._stack.pop_all()
        self._started_s = time.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End every worker, after all have been notified."""
        with self._stack:
            self._end(self._workers, at_once=True, grace_s=grace_after(kind))

    def start(self, number: int, domain_id: int) -> RayWorker:
        """Start a worker as `WorkerPool` does, when the cluster has a free CPU."""
        description = describe_worker(self._job, self._folder, self._token, number, domain_id)
        handle = self._cluster.start_actor(WorkerHost, description)
        promise = self._cluster.call(handle, "exchange", [])
        self._workers.append(RayWorker(number=number, handle=handle, promise=promise))
        return self._workers[-1]

    def receive(self) -> Iterator[tuple[RayWorker, Message | None]]:
        """Receive messages as `WorkerPool` does, or raise BackendNotReadyError without workers."""
        ready = self._cluster.ready([worker.promise for worker in self._workers], _POLL_INTERVAL_S)
        for worker in [worker for worker in self._workers if any(worker.promise is one for one in ready)]:
            self._is_any_placed = True
            messages: Sequence[Message | None] = [None]
            try:
                messages = self._cluster.answer(worker.promise)
            except HostLostError as error:
                worker.lost = str(error)
            for message in messages:
                worker.connected = worker.connected or message is not None
                yield worker, message
            if worker in self._workers:  # it was not reaped because of a message
                outbox, worker.outbox = worker.outbox, []
                worker.promise = self._cluster.call(worker.handle, "exchange", outbox)
        if not self._is_any_placed and time.monotonic() - self._started_s > PLACING_S:
            raise BackendNotReadyError(f"no worker was placed within {PLACING_S:g} s: {self._cluster.room()}")

    def reap(self, worker: RayWorker, *, grace_s: float = GRACE_S) -> str:
        """Implement `WorkerPool.reap`."""
        return self._end([worker], at_once=True, grace_s=grace_s)[0] if worker in self._workers else ""

    def shutdown(self) -> None:
        """Implement `WorkerPool.shutdown`."""
        self._end(self._workers, at_once=False)

    def _end(self, workers: Sequence[RayWorker], *, at_once: bool, grace_s: float = GRACE_S) -> list[str]:
        """End these workers, by a kill if they never connected, and return how each ended."""
        ending = list(workers)
        self._workers = [worker for worker in self._workers if worker not in ending]
        try:
            promises = {
                worker.number: self._cluster.call(worker.handle, "end", at_once=at_once, grace_s=grace_s)
                for worker in ending
                if worker.connected and not worker.lost
            }
            deadline_s = time.monotonic() + grace_s + _HOST_S
            return [
                worker.lost or self._how_it_ended(promises.get(worker.number), deadline_s - time.monotonic())
                for worker in ending
            ]
        finally:
            for worker in ending:
                with contextlib.suppress(HostLostError):
                    self._cluster.kill(worker.handle)

    def _how_it_ended(self, promise: Any, timeout_s: float) -> str:  # noqa: ANN401 - a type of the cluster
        if promise is None:
            return "the worker had not connected yet"
        if not self._cluster.ready([promise], max(0.0, timeout_s)):
            return "the worker did not end in time"
        try:
            return str(self._cluster.answer(promise))
        except HostLostError as error:
            return str(error)


class WorkerHost:
    """Runs one worker on the node of this object, as a Ray actor."""

    def __init__(self, description: Mapping[str, Any]) -> None:
        """Store the description made by `describe_worker` without starting the worker."""
        self._description = description
        self._pool: LocalWorkers | None = None
        self._worker: LocalWorker | None = None

    def exchange(self, messages: Sequence[Message]) -> list[Message | None]:
        """Start or serve the worker briefly, and return its messages, None if it has ended."""
        if self._pool is None or self._worker is None:
            try:
                self._pool, self._worker = self._start()
            except EmbodiedEnvError as error:
                return [{"failed": type(error).__name__, "message": str(error)}]
        for message in messages:
            self._worker.send(message)
        return [message for _, message in self._pool.receive()]

    def end(self, *, at_once: bool, grace_s: float) -> str:
        """End the worker, `at_once` or after its episode, and return how it ended."""
        if self._pool is None or self._worker is None:
            return "the worker was not started"
        with self._pool:
            if not at_once:
                self._pool.shutdown()
            return self._pool.reap(self._worker, grace_s=grace_s)

    def _start(self) -> tuple[LocalWorkers, LocalWorker]:
        """Start the worker, or raise UsageError if this node differs from the caller's."""
        given, node = self._description, platform.node()
        if given["version"] != __version__:
            raise UsageError(
                f"wrong version of embodied_env on node {node}: {__version__} (expected {given['version']}, as here)"
            )
        if not (Path(given["folder"]) / given["token"]).is_file():
            raise UsageError(
                f"no run folder {given['folder']} on node {node} (expected a folder that every node shares)"
            )
        for name in _forwarded_variables().keys() - given["environment"].keys():
            del os.environ[name]  # such as OMP_NUM_THREADS, which Ray sets
        os.environ.update(given["environment"])
        with contextlib.suppress(OSError):  # so that relative paths mean the same as for the caller
            os.chdir(given["cwd"])
        pool = LocalWorkers(EvaluationJob.from_json(given["job"]), Path(given["folder"]))
        return pool, pool.start(given["number"], given["domain_id"])


def describe_worker(job: EvaluationJob, folder: Path, token: str, number: int, domain_id: int) -> dict[str, Any]:
    """Return the description of a worker for its `WorkerHost`, in JSON types.

    `folder` is the absolute path of the runs on every node; the file `token` in it proves that it is shared.
    """
    return {
        "job": job.to_json(),
        "folder": str(folder),
        "token": token,
        "number": number,
        "domain_id": domain_id,
        "version": __version__,
        "environment": _forwarded_variables(),
        "cwd": str(Path.cwd()),
    }


def _forwarded_variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(FORWARDED_VARIABLES)}
