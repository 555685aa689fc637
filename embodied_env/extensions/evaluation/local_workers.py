"""Start worker processes on this machine, exchange messages with them, and end them.

A worker is a child process (`processes.child_process`): it ends when its parent does. Both sides send lines of JSON
over a Unix socket. Parent: ``{"trial": k}``. Worker: ``{"worker": n, "pid": pid}`` at once, ``{"ready": path}`` when a
trial begins in another run, ``{"ended": k}``, ``{"failed": class, "message": text}``. Closing the socket ends it.
"""

from __future__ import annotations

import contextlib
import json
import math
import selectors
import socket
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from embodied_env.errors import (
    BackendError,
    BackendNotReadyError,
    EmbodiedEnvError,
    PolicyError,
    RecordError,
    TaskError,
    UsageError,
)
from embodied_env.extensions.evaluation.episode_runner import EvaluationJob
from embodied_env.processes.child_process import Child, ProcessSpec

MODULE = "embodied_env.extensions.evaluation.evaluation_worker"
GRACE_S = 20.0  # time for a worker to close its environment and its run
SHORT_GRACE_S = 1.0  # the same after an interrupt, and for a hung worker
CONNECT_S = 120.0  # time for a worker to connect after its start
Message = Mapping[str, Any]

_POLL_INTERVAL_S = 0.2
_GREETING_S = 5.0
_KNOWN = (BackendError, BackendNotReadyError, PolicyError, RecordError, TaskError, UsageError)


@dataclass(eq=False, kw_only=True)
class Worker(ABC):
    """One worker of an evaluation."""

    number: int  # from 0
    paths: list[Path] = field(default_factory=list)  # run directories, that of the newest trial last
    trial: int | None = None  # the one that it runs
    due_s: float = math.inf  # time limit of that trial, by the clock of the evaluation
    connected: bool = False  # whether it has sent a message

    @abstractmethod
    def send(self, message: Message) -> None:
        """Send a message, dropped if the worker has ended, as `WorkerPool.receive` reports."""


AnyWorker = TypeVar("AnyWorker", bound=Worker)


class WorkerPool(AbstractContextManager["WorkerPool[AnyWorker]"], Generic[AnyWorker]):
    """The workers of one evaluation, ended on exit with their runs closed if possible."""

    def __init__(self) -> None:
        self._workers: list[AnyWorker] = []

    @abstractmethod
    def start(self, number: int, domain_id: int) -> AnyWorker:
        """Start worker `number` in a ROS domain."""

    @abstractmethod
    def receive(self) -> Iterator[tuple[AnyWorker, Message | None]]:
        """Wait briefly, and yield workers with their messages, or None if the worker has ended."""

    @abstractmethod
    def reap(self, worker: AnyWorker, *, grace_s: float = GRACE_S) -> str:
        """End a worker, after `grace_s` by force, and return its status and last output."""

    @abstractmethod
    def shutdown(self) -> None:
        """Close the run of every worker, and end it."""

    def idle(self) -> list[AnyWorker]:
        """Return the connected workers without a trial."""
        return [worker for worker in self._workers if worker.connected and worker.trial is None]

    def busy(self) -> list[AnyWorker]:
        """Return the workers that run a trial."""
        return [worker for worker in self._workers if worker.trial is not None]


@dataclass(eq=False, kw_only=True)
class LocalWorker(Worker):
    """One worker process on this machine."""

    child: Child
    connection: socket.socket | None = None
    started_s: float = field(default_factory=time.monotonic)
    received: bytes = b""  # bytes of an incomplete line

    def send(self, message: Message) -> None:
        """Implement `Worker.send`."""
        if self.connection is not None:
            with contextlib.suppress(OSError):
                self.connection.sendall(json.dumps(message).encode() + b"\n")


class LocalWorkers(WorkerPool[LocalWorker]):
    """The workers of one evaluation on this machine."""

    def __init__(self, job: EvaluationJob, folder: Path) -> None:
        """Open the socket that workers connect to, with their run directories in `folder`."""
        super().__init__()
        self._job, self._runs = job.to_json(), folder
        self._folder = tempfile.TemporaryDirectory(prefix="embodied_env_")
        self._address = str(Path(self._folder.name) / "team")
        self._server = socket.socket(socket.AF_UNIX)
        try:
            self._server.bind(self._address)
            self._server.listen()
        except OSError as error:
            self._server.close()
            self._folder.cleanup()
            raise BackendNotReadyError(f"cannot listen on {self._address}: {error}; set TMPDIR to /tmp") from None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End every worker within one deadline, after all have been notified."""
        for worker in self._workers:
            worker.child.close_input()
        end_s = time.monotonic() + grace_after(kind)
        try:
            for worker in list(self._workers):
                self.reap(worker, grace_s=max(0.0, end_s - time.monotonic()))
        except BaseException:  # a second Ctrl-C
            for worker in list(self._workers):
                self.reap(worker, grace_s=0.0)
            raise
        self._selector.close()
        self._server.close()
        self._folder.cleanup()

    def start(self, number: int, domain_id: int) -> LocalWorker:
        """Start a worker as `WorkerPool` does, or raise BackendNotReadyError."""
        job = {**self._job, "number": number, "address": self._address, "out": str(self._runs)}
        child = Child(
            ProcessSpec(role=f"worker {number}", module=MODULE, arguments=(), grace_s=GRACE_S),
            first_line=json.dumps(job),
            environment={"ROS_DOMAIN_ID": str(domain_id)},
        )
        self._workers.append(LocalWorker(number=number, child=child))
        return self._workers[-1]

    def receive(self) -> Iterator[tuple[LocalWorker, Message | None]]:
        """Implement `WorkerPool.receive`."""
        for key, _ in self._selector.select(_POLL_INTERVAL_S):
            yield from self._accept() if key.fileobj is self._server else self._receive_from(key.data)
        for worker in [w for w in self._workers if w.connection is None]:
            if worker.child.exit_code is not None or time.monotonic() - worker.started_s > CONNECT_S:
                yield worker, None

    def reap(self, worker: LocalWorker, *, grace_s: float = GRACE_S) -> str:
        """Implement `WorkerPool.reap`."""
        if worker not in self._workers:
            return ""
        if worker.connection is not None:
            self._selector.unregister(worker.connection)
            worker.connection.close()
            worker.connection = None
        worker.child.note_shared_memory()
        worker.child.kill(grace_s)
        code, output = worker.child.exit_code, worker.child.stderr_tail()
        worker.child.stop()
        self._workers.remove(worker)  # last: after an interrupt, __exit__ repeats this
        how = f"exit status {code}" if code is None or code >= 0 else f"killed by signal {-code}"
        return how + (f", last output: {output}" if output else "")

    def shutdown(self) -> None:
        """Implement `WorkerPool.shutdown`."""
        for worker in self._workers:
            if worker.connection is not None:
                with contextlib.suppress(OSError):
                    worker.connection.shutdown(socket.SHUT_WR)
        end_s = time.monotonic() + GRACE_S
        for worker in list(self._workers):
            if worker.connection is not None:  # without a connection there is no run to close
                worker.child.wait(max(0.0, end_s - time.monotonic()))
            self.reap(worker, grace_s=SHORT_GRACE_S)

    def _accept(self) -> Iterator[tuple[LocalWorker, Message]]:
        connection, _ = self._server.accept()
        greeting: Message = {"pid": None}
        connection.settimeout(_GREETING_S)  # the worker sends it at once
        with contextlib.suppress(OSError, ValueError), connection.makefile("rb", buffering=0) as unbuffered:
            greeting = json.loads(unbuffered.readline())
        connection.settimeout(None)
        for worker in self._workers:
            if worker.child.pid == greeting["pid"] and worker.connection is None:
                worker.connection, worker.connected = connection, True
                self._selector.register(connection, selectors.EVENT_READ, worker)
                yield worker, greeting
                return
        connection.close()

    def _receive_from(self, worker: LocalWorker) -> Iterator[tuple[LocalWorker, Message | None]]:
        if worker not in self._workers or worker.connection is None:
            return
        try:
            data = worker.connection.recv(65536)
        except OSError:
            data = b""
        if not data:
            yield worker, None
            return
        *lines, worker.received = (worker.received + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "ended" in message:
                worker.child.note_shared_memory()
            yield worker, message


def grace_after(kind: type[BaseException] | None) -> float:
    """Return the time for workers to close their runs after an exception of type `kind`, s."""
    return GRACE_S if kind is None or issubclass(kind, Exception) else SHORT_GRACE_S


def error_from(message: Message) -> EmbodiedEnvError:
    """Return the error that ended a worker."""
    kinds = {kind.__name__: kind for kind in _KNOWN}
    return kinds.get(message["failed"], BackendError)(message["message"])
