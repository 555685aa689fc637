"""The worker processes of the local engine: start them, exchange messages, end them.

A worker is a child process (`core.process.child`): it ends when its parent does. Both sides send lines of JSON
over a Unix socket. Parent: ``{"episode": k}``. Worker: ``{"worker": n, "pid": pid}`` at once,
``{"ready": path}`` when it has made its run, ``{"ended": k}``, ``{"failed": class, "message": text}``; it
ends by closing the socket.
"""

from __future__ import annotations

import contextlib
import json
import math
import selectors
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from embodied_env.core.process.child import Child, ProcessSpec
from embodied_env.errors import (
    BackendError,
    BackendNotReadyError,
    EmbodiedEnvError,
    PolicyError,
    RecordError,
    UsageError,
)
from embodied_env.evaluation.episodes import EvaluationJob

MODULE = "embodied_env.evaluation.worker"
GRACE_S = 20.0
"""For a worker to close its environment and its run."""

SHORT_GRACE_S = 1.0
"""The same after an interrupt, and for a worker that is hung."""

CONNECT_S = 120.0
"""For a worker to connect after its start."""

_POLL_INTERVAL_S = 0.2
_GREETING_S = 5.0
_KNOWN = (BackendError, BackendNotReadyError, PolicyError, RecordError, UsageError)


class WorkerHandle(Protocol):
    """A worker as an evaluation sees it, see `LocalWorker`."""

    number: int
    path: Path | None
    episode: int | None
    due_s: float

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message; one that has ended ignores it, which `WorkerPool.receive` reports."""
        ...


class WorkerPool(Protocol):
    """The workers of one evaluation. On exit all have ended, their runs closed if possible."""

    def __enter__(self) -> Self:
        """Open the connection to the workers."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End every worker."""
        ...

    def start(self, number: int, domain_id: int) -> WorkerHandle | None:
        """Start worker `number` in a ROS domain."""
        ...

    def idle(self) -> Sequence[WorkerHandle]:
        """Return the connected workers without an episode."""
        ...

    def receive(self) -> Iterator[tuple[Any, Mapping[str, Any] | None]]:
        """Wait at most a moment, and yield workers with their messages; None: the worker has ended."""
        ...

    def busy(self) -> Sequence[WorkerHandle]:
        """Return the workers that run an episode."""
        ...

    def reap(self, worker: Any, *, grace_s: float = GRACE_S) -> str:  # noqa: ANN401 - one of its own members
        """End a worker, after `grace_s` by force, and return how it ended and the end of its stderr."""
        ...

    def shutdown(self) -> None:
        """Close the run of every worker, and end it."""
        ...


@dataclass(eq=False)
class LocalWorker:
    """One worker process.

    Attributes:
        number: from 0.
        domain_id: its ROS domain.
        child: the process.
        path: its run directory, once it has one.
        episode: number of the episode that it runs, or None.
        due_s: when that must have ended, by the clock of the evaluation.
        connection: the socket to it, once it has connected.
        started_s: when it was started, by the monotonic clock.
    """

    number: int
    domain_id: int
    child: Child
    path: Path | None = None
    episode: int | None = None
    due_s: float = math.inf
    connection: socket.socket | None = None
    started_s: float = field(default_factory=time.monotonic)
    received: bytearray = field(default_factory=bytearray)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message; one that has ended ignores it, which `LocalWorkers.receive` reports."""
        if self.connection is not None:
            with contextlib.suppress(OSError):
                self.connection.sendall(json.dumps(message).encode() + b"\n")


class LocalWorkers:
    """The workers of one evaluation. At its end all have ended, and closed their runs if they could."""

    def __init__(self, job: EvaluationJob, folder: Path) -> None:
        """Open the socket that workers connect to; their runs are made in `folder`.

        Raises:
            BackendNotReadyError: when there can be no socket.
        """
        self._job, self._runs = job.to_json(), folder
        self._workers: list[LocalWorker] = []
        self._folder = tempfile.TemporaryDirectory(prefix="embodied_env_")
        self._address = str(Path(self._folder.name) / "team")
        self._server = socket.socket(socket.AF_UNIX)
        try:
            self._server.bind(self._address)
            self._server.listen()
        except OSError as error:
            self._server.close()
            self._folder.cleanup()
            raise BackendNotReadyError(f"workers cannot connect to {self._address}: {error}; try TMPDIR=/tmp") from None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)

    def __enter__(self) -> Self:
        """Return itself, open since it was made."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End every worker: all are asked before the first is waited for, and all have the same time."""
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
        """Start worker `number` in a ROS domain, and return it.

        Raises:
            BackendNotReadyError: when there can be no process.
        """
        job = {**self._job, "number": number, "address": self._address, "out": str(self._runs)}
        child = Child(
            ProcessSpec(role=f"worker {number}", module=MODULE, arguments=(), grace_s=GRACE_S),
            first_line=json.dumps(job),
            environment={"ROS_DOMAIN_ID": str(domain_id)},
        )
        self._workers.append(LocalWorker(number=number, domain_id=domain_id, child=child))
        return self._workers[-1]

    def idle(self) -> list[LocalWorker]:
        """Return the connected workers without an episode."""
        return [worker for worker in self._workers if worker.connection is not None and worker.episode is None]

    def busy(self) -> list[LocalWorker]:
        """Return the workers that run an episode."""
        return [worker for worker in self._workers if worker.episode is not None]

    def receive(self) -> Iterator[tuple[LocalWorker, Mapping[str, Any] | None]]:
        """Wait at most a moment, and yield workers with their messages; None: the worker has ended."""
        for key, _ in self._selector.select(_POLL_INTERVAL_S):
            if key.fileobj is self._server:
                yield from self._receive_greetings()
            else:
                yield from self._receive_from(key.data)
        for worker in [w for w in self._workers if w.connection is None]:
            if worker.child.exit_code is not None or time.monotonic() - worker.started_s > CONNECT_S:
                yield worker, None

    def reap(self, worker: LocalWorker, *, grace_s: float = GRACE_S) -> str:
        """End a worker, after `grace_s` by force, and return how it ended and the end of its stderr."""
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
        self._workers.remove(worker)  # last: when this is interrupted, __exit__ repeats it
        how = f"exit status {code}" if code is None or code >= 0 else f"killed by signal {-code}"
        return how + (f", last words: {output}" if output else "")

    def shutdown(self) -> None:
        """Close the run of every worker, and end it."""
        for worker in self._workers:
            if worker.connection is not None:
                with contextlib.suppress(OSError):
                    worker.connection.shutdown(socket.SHUT_WR)
        end_s = time.monotonic() + GRACE_S
        for worker in list(self._workers):
            if worker.connection is not None:  # one that has not connected yet has no run to close
                worker.child.wait(max(0.0, end_s - time.monotonic()))
            self.reap(worker, grace_s=SHORT_GRACE_S)

    def _receive_greetings(self) -> Iterator[tuple[LocalWorker, Mapping[str, Any] | None]]:
        connection, _ = self._server.accept()
        first = bytearray()
        connection.settimeout(_GREETING_S)  # the worker sends it at once
        with contextlib.suppress(OSError):
            while (byte := connection.recv(1)) not in (b"", b"\n"):
                first += byte
        connection.settimeout(None)
        pid = json.loads(first)["pid"] if first else None
        worker = next((w for w in self._workers if w.child.pid == pid and w.connection is None), None)
        if worker is None:
            connection.close()
            return
        worker.connection = connection
        self._selector.register(connection, selectors.EVENT_READ, worker)
        yield worker, json.loads(first)

    def _receive_from(self, worker: LocalWorker) -> Iterator[tuple[LocalWorker, Mapping[str, Any] | None]]:
        if worker not in self._workers or worker.connection is None:
            return
        try:
            data = worker.connection.recv(65536)
        except OSError:
            data = b""
        if not data:
            yield worker, None
            return
        worker.received += data
        *lines, rest = bytes(worker.received).split(b"\n")
        worker.received = bytearray(rest)
        for line in lines:
            message = json.loads(line)
            if "ended" in message:
                worker.child.note_shared_memory()
            yield worker, message


def grace_after(kind: type[BaseException] | None) -> float:
    """Return how long workers may take to close their runs when the evaluation ends by an error of `kind`, s."""
    return GRACE_S if kind is None or issubclass(kind, Exception) else SHORT_GRACE_S


def error_from(message: Mapping[str, Any]) -> EmbodiedEnvError:
    """Return the error that a worker ended with."""
    kinds = {kind.__name__: kind for kind in _KNOWN}
    return kinds.get(message["failed"], BackendError)(message["message"])
