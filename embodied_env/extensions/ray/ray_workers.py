"""Workers on a Ray cluster, started by an actor on each node that forwards messages.

The actor (`WorkerHost`) does not depend on Ray. The worker is its child process: if the actor is killed, the worker
closes its run and ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import re
import secrets
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from embodied_env._version import __version__
from embodied_env.core.plugin_loading import import_optional
from embodied_env.errors import BackendError, BackendNotReadyError, EmbodiedEnvError, RecordError, UsageError
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

FORWARDED_VARIABLES = (  # prefixes of the environment variables that every worker on every node gets from the caller
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

PLACING_S = 120.0  # time limit for the cluster to place the first worker, s
_POLL_INTERVAL_S = 0.2
_HOST_S = 10.0  # response time of a host, in addition to the grace period of its worker

_CONNECT_S = 5.0  # connection timeout, since Ray itself waits for minutes
_STORE_BYTES = 100_000_000  # size of Ray's object store in shared memory: only short messages pass
_TOKEN = secrets.token_hex(32)  # for clusters started here, since Ray keeps the first token it reads


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
        """Store the job and the `folder` of its runs, which every node shares."""
        super().__init__()
        self._job, self._folder, self._cluster = job, folder.resolve(), cluster
        self._token = f".{secrets.token_hex(8)}"
        self._stack = ExitStack()
        self._is_any_placed = False
        self._started_s = time.monotonic()

    def __enter__(self) -> Self:
        """Join the cluster, or raise BackendNotReadyError or, for the folder, RecordError."""
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


class HostLostError(BackendError):
    """The process or the node of an actor has ended."""


class RayCluster:
    """A running Ray cluster, or a new one on this machine that ends with the context."""

    def __init__(self, cpus: int, address: str | None = None) -> None:
        """Import ray without starting or contacting a cluster.

        A new cluster has `cpus`, one for each worker. `address` is that of ``ray.init``. With None it is
        ``RAY_ADDRESS``, or else that of a new cluster. Raises MissingDependencyError without ray.
        """
        self._ray = import_optional("ray", needed_for="the engine 'ray'")
        self._cpus = cpus
        self._address = address or os.environ.get("RAY_ADDRESS") or None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Join or start the cluster, and keep one that this process has already joined."""
        if self._ray.is_initialized():
            return self
        with ExitStack() as stack, _keep_sigterm_handler():
            _check_connection(self._address)
            options = {} if self._address else self._own_cluster_options(stack)
            stack.callback(self._ray.shutdown)
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))  # Ray prints lost actors to stdout of --json
            try:
                self._ray.init(
                    address=self._address or "local", log_to_driver=False, logging_level=logging.ERROR, **options
                )
            except (self._ray.exceptions.RayError, OSError, RuntimeError, ValueError, AssertionError) as error:
                where = self._address or "on this machine"
                raise BackendNotReadyError(f"cannot use the Ray cluster {where}: {error}") from None
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start_actor(self, actor: type, *arguments: Any) -> Any:  # noqa: ANN401 - a handle of Ray
        """Request an actor with one CPU, without restarts, and return its handle at once."""
        remote = self._ray.remote(actor).options(
            num_cpus=1, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD"
        )
        return remote.remote(*arguments)

    def call(self, handle: Any, method: str, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        """Call a method of an actor in order, and return the promise of its result."""
        return getattr(handle, method).remote(*arguments, **named)

    def ready(self, promises: Sequence[Any], timeout_s: float) -> Sequence[Any]:
        """Wait until one of `promises` is ready, and return the ready ones."""
        done: Sequence[Any] = self._ray.wait(list(promises), num_returns=1, timeout=timeout_s)[0]
        return done

    def answer(self, promise: Any) -> Any:  # noqa: ANN401
        """Return the result of a ready promise, or raise HostLostError if the actor ended."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(promise)
        except errors.RayTaskError:
            raise  # a bug in our actor
        except errors.RayError as error:
            reason = " ".join(str(error).split())
            raise HostLostError(reason.partition(" Some common causes")[0]) from None  # then Ray lists guesses

    def kill(self, handle: Any) -> None:  # noqa: ANN401
        """End the process of an actor at once, or cancel its request. Idempotent."""
        with contextlib.suppress(self._ray.exceptions.RayError, ValueError):
            self._ray.kill(handle)

    def room(self) -> str:
        """Return the free resources as text."""
        whole, free = self._ray.cluster_resources(), self._ray.available_resources()
        return f"{free.get('CPU', 0.0):g} of its {whole.get('CPU', 0.0):g} CPUs are free, and each worker needs one"

    def _own_cluster_options(self, stack: ExitStack) -> dict[str, Any]:
        """Return the options of a new cluster, whose files and variables `stack` removes."""
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ee_ray_", ignore_cleanup_errors=True))
        variables = {"RAY_USAGE_STATS_ENABLED": "0"}
        if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():  # without one, Ray writes to $HOME
            token = Path(folder) / "token"
            token.touch(mode=0o600)
            token.write_text(_TOKEN, encoding="ascii")
            variables["RAY_AUTH_TOKEN_PATH"] = str(token)
        for name in variables.keys() - os.environ.keys():
            os.environ[name] = variables[name]
            stack.callback(os.environ.pop, name, None)
        return {
            "num_cpus": self._cpus,
            "num_gpus": 0,
            "include_dashboard": False,
            "object_store_memory": _STORE_BYTES,
            "_temp_dir": folder,
        }


def _check_connection(address: str | None) -> None:
    """Raise BackendNotReadyError for a host and port that refuse connections."""
    found = re.fullmatch(r"(?:ray://)?\[?([^/]+?)\]?:(\d+)", address or "")
    if found is None:
        return
    try:
        socket.create_connection((found[1], int(found[2])), timeout=_CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise BackendNotReadyError(f"cannot connect to the Ray cluster {address}: {error}") from None


@contextlib.contextmanager
def _keep_sigterm_handler() -> Iterator[None]:
    """Restore the SIGTERM handler, which closes runs, after ``ray.init`` replaced it."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
