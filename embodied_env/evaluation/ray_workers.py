"""The workers of an evaluation on a cluster: a `Host` for each, talked to by calls that are answered later."""

from __future__ import annotations

import contextlib
import math
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from embodied_env.errors import BackendError, BackendNotReadyError, RecordError
from embodied_env.evaluation.episodes import EvaluationJob
from embodied_env.evaluation.local_workers import GRACE_S, grace_after
from embodied_env.evaluation.ray_host import describe

PLACING_S = 120.0
"""For the cluster to find room for the first worker."""

_LOOK_S = 0.2
_HOST_S = 10.0  # for a host to answer, beyond the grace of its worker


class HostLostError(BackendError):
    """The process of a host, or its node, has ended."""


class Cluster(Protocol):
    """A place that runs `Host` objects in processes of their own, on one machine or many."""

    def __enter__(self) -> Self:
        """Join it, or start it."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave it; end what was started."""
        ...

    def place(self, said: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a handle of the cluster's own
        """Have a `Host` made of `said`, when there is room, and return its handle at once."""
        ...

    def call(self, handle: Any, method: str, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        """Call a method of a host and return the promise of its answer; calls of one host come one after the other."""
        ...

    def ready(self, promises: Sequence[Any], timeout_s: float) -> Sequence[Any]:
        """Wait until one of `promises` is kept or broken, and return those that are."""
        ...

    def answer(self, promise: Any) -> Any:  # noqa: ANN401
        """Return the answer of a promise that is ready.

        Raises:
            HostLostError: when the host has ended; with how.
        """
        ...

    def kill(self, handle: Any) -> None:  # noqa: ANN401
        """End the process of a host at once, or give up its place. Idempotent."""
        ...

    def room(self) -> str:
        """Say how much room there is, for people."""
        ...


@dataclass(eq=False)
class RayWorker:
    """A worker on a cluster, see `embodied_env.evaluation.local_workers.Worker`.

    Attributes:
        handle: of its host.
        promise: what the host will answer next.
        due_s: when its episode must have ended, by the clock of the evaluation.
        called: it has said something.
        outbox: what it is told by the next call.
        lost: how its host ended, or "".
    """

    number: int
    handle: Any
    promise: Any
    path: Path | None = None
    episode: int | None = None
    due_s: float = math.inf
    called: bool = False
    outbox: list[Mapping[str, Any]] = field(default_factory=list)
    lost: str = ""

    def send(self, word: Mapping[str, Any]) -> None:
        """Tell it something, by the next call."""
        self.outbox.append(word)


class RayWorkers:
    """The workers of one evaluation. At its end all have ended, and closed their runs if they could."""

    def __init__(self, job: EvaluationJob, folder: Path, cluster: Cluster) -> None:
        """Prepare; their runs are made in `folder`, which every node must see."""
        self._job, self._folder, self._cluster = job, folder.resolve(), cluster
        self._token = f".{secrets.token_hex(8)}"
        self._workers: list[RayWorker] = []
        self._stack = ExitStack()
        self._is_any_placed = False
        self._begun_s = time.monotonic()

    def __enter__(self) -> Self:
        """Join the cluster.

        Raises:
            BackendNotReadyError: when there is none.
            RecordError: when the folder cannot be written to.
        """
        token = self._folder / self._token
        try:
            token.touch()
        except OSError as error:
            raise RecordError(f"{self._folder}: cannot be written to: {error}") from None
        self._stack.callback(token.unlink, missing_ok=True)
        with self._stack:
            self._stack.enter_context(self._cluster)
            self._stack = self._stack.pop_all()
        self._begun_s = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End every worker: all are asked before the first is waited for."""
        with self._stack:
            self._end(self._workers, at_once=True, grace_s=grace_after(kind))

    def start(self, number: int, domain_id: int) -> None:
        """Have the worker of a place started when the cluster has room for it."""
        handle = self._cluster.place(describe(self._job, self._folder, self._token, number, domain_id))
        self._workers.append(RayWorker(number, handle, self._cluster.call(handle, "exchange", [])))

    def idle(self) -> list[RayWorker]:
        """Return the workers that have called and have nothing to do."""
        return [worker for worker in self._workers if worker.called and worker.episode is None]

    def busy(self) -> list[RayWorker]:
        """Return the workers that run an episode."""
        return [worker for worker in self._workers if worker.episode is not None]

    def receive(self) -> Iterator[tuple[RayWorker, Mapping[str, Any] | None]]:
        """Wait a moment, and yield what was said by whom; None: it has ended.

        Raises:
            BackendNotReadyError: when the cluster found room for nobody for a long time.
        """
        ready = self._cluster.ready([worker.promise for worker in self._workers], _LOOK_S)
        for worker in [worker for worker in self._workers if any(worker.promise is one for one in ready)]:
            self._is_any_placed = True
            for said in self._said_by(worker):
                worker.called = worker.called or said is not None
                yield worker, said
            if worker in self._workers:  # it was not buried for what it said
                words, worker.outbox = worker.outbox, []
                worker.promise = self._cluster.call(worker.handle, "exchange", words)
        if not self._is_any_placed and time.monotonic() - self._begun_s > PLACING_S:
            raise BackendNotReadyError(f"the cluster placed no worker within {PLACING_S:g} s: {self._cluster.room()}")

    def reap(self, worker: RayWorker, *, grace_s: float = GRACE_S) -> str:
        """End a worker, after `grace_s` by force, and return how it ended and its last words."""
        if worker not in self._workers:
            return ""
        return self._end([worker], at_once=True, grace_s=grace_s)[0]

    def shutdown(self) -> None:
        """Let every worker close its run and end."""
        self._end(self._workers, at_once=False)

    def _said_by(self, worker: RayWorker) -> Sequence[Mapping[str, Any] | None]:
        try:
            said: Sequence[Mapping[str, Any] | None] = self._cluster.answer(worker.promise)
        except HostLostError as error:
            worker.lost = str(error)
            return [None]
        return said

    def _end(self, workers: Sequence[RayWorker], *, at_once: bool, grace_s: float = GRACE_S) -> list[str]:
        """End these, and return how each ended. One that was never heard of is only told to go."""
        ending = list(workers)
        self._workers = [worker for worker in self._workers if worker not in ending]
        try:
            asked = {
                worker.number: self._cluster.call(worker.handle, "end", at_once=at_once, grace_s=grace_s)
                for worker in ending
                if worker.called and not worker.lost
            }
            deadline_s = time.monotonic() + grace_s + _HOST_S
            return [
                worker.lost or self._last_words(asked.get(worker.number), deadline_s - time.monotonic())
                for worker in ending
            ]
        finally:
            for worker in ending:
                with contextlib.suppress(HostLostError):
                    self._cluster.kill(worker.handle)

    def _last_words(self, promise: Any, timeout_s: float) -> str:  # noqa: ANN401 - None, or of the cluster's kind
        if promise is None:
            return "it had not called yet"
        if not self._cluster.ready([promise], max(0.0, timeout_s)):
            return "it did not end in its time"
        try:
            return str(self._cluster.answer(promise))
        except HostLostError as error:
            return str(error)
