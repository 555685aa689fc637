"""The Ray cluster of ``--engine ray``: the only module that imports ray, and only when it is asked for."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from embodied_env.errors import BackendNotReadyError, MissingDependencyError
from embodied_env.evaluation.ray_host import Host
from embodied_env.evaluation.ray_workers import HostLostError

_ANSWER_S = 5.0
"""For somebody to listen at the address: Ray itself waits for minutes."""

_STORE_BYTES = 100_000_000  # of Ray's object store, in shared memory: what passes here is a few words
_TOKEN = secrets.token_hex(32)  # of clusters that are started here: Ray lets in who has it; it keeps the first it reads


class RayCluster:
    """A Ray cluster that runs, found by its address; without one, a cluster of this machine that ends with the use."""

    def __init__(self, cpus: int, address: str | None = None) -> None:
        """Prepare; nothing is started, and nobody is called.

        Args:
            cpus: of a cluster that is started here: one worker each.
            address: as ``ray.init`` takes it; None: what ``RAY_ADDRESS`` says, else a cluster is started.

        Raises:
            MissingDependencyError: when ray is not installed.
        """
        try:
            import ray
        except ImportError as error:
            raise MissingDependencyError(
                f"ray ({error})", needed_for="--engine ray", remedy='pip install "embodied_env[scale]"'
            ) from None
        self._ray: Any = ray
        self._cpus = cpus
        self._address = address or os.environ.get("RAY_ADDRESS") or None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Join it, or start it. One that this process has joined already is used, and left as it is.

        Raises:
            BackendNotReadyError: when that fails; with Ray's words.
        """
        if self._ray.is_initialized():
            return self
        with ExitStack() as stack, _own_signals():
            _check_listens(self._address)
            options = {} if self._address else self._of_its_own(stack)
            stack.callback(self._ray.shutdown)
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))  # Ray prints of lost actors: not into our JSON
            try:
                self._ray.init(
                    address=self._address or "local", log_to_driver=False, logging_level=logging.ERROR, **options
                )
            except (self._ray.exceptions.RayError, OSError, RuntimeError, ValueError, AssertionError) as error:
                where = self._address or "of this machine"
                raise BackendNotReadyError(f"the Ray cluster {where} cannot be used: {error}") from None
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave it. One that was started here ends, and its files go."""
        self._stack.close()

    def place(self, said: Mapping[str, Any]) -> Any:  # noqa: ANN401 - an actor
        """See `Cluster`. One CPU each; an actor that ends is not started again by Ray, but by the evaluation."""
        actor = self._ray.remote(Host).options(
            num_cpus=1, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD"
        )
        return actor.remote(said)

    def call(self, handle: Any, method: str, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        """See `Cluster`."""
        return getattr(handle, method).remote(*arguments, **named)

    def ready(self, promises: Sequence[Any], timeout_s: float) -> Sequence[Any]:
        """See `Cluster`."""
        done, _ = self._ray.wait(list(promises), num_returns=1, timeout=timeout_s)
        kept: Sequence[Any] = done
        return kept

    def answer(self, promise: Any) -> Any:  # noqa: ANN401
        """See `Cluster`."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(promise)
        except errors.RayTaskError:
            raise  # a fault of ours: it is shown whole
        except errors.RayError as error:
            words = " ".join(str(error).split())
            raise HostLostError(words.partition(" Some common causes")[0]) from None  # a paragraph of guesses

    def kill(self, handle: Any) -> None:  # noqa: ANN401
        """See `Cluster`."""
        with contextlib.suppress(self._ray.exceptions.RayError, ValueError):
            self._ray.kill(handle)

    def room(self) -> str:
        """See `Cluster`."""
        whole, free = self._ray.cluster_resources(), self._ray.available_resources()
        return f"{free.get('CPU', 0.0):g} of its {whole.get('CPU', 0.0):g} CPUs are free; a worker needs one"

    def _of_its_own(self, stack: ExitStack) -> dict[str, Any]:
        """Return the options of a cluster that is started here; what it writes is removed in the end."""
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ee_ray_", ignore_cleanup_errors=True))
        surroundings = {"RAY_USAGE_STATS_ENABLED": os.environ.get("RAY_USAGE_STATS_ENABLED", "0")}
        if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():  # else Ray leaves one in the home folder
            token = Path(folder) / "token"
            token.touch(mode=0o600)
            token.write_text(_TOKEN, encoding="ascii")
            surroundings["RAY_AUTH_TOKEN_PATH"] = str(token)
        stack.enter_context(_surroundings(surroundings))
        return {
            "num_cpus": self._cpus,
            "num_gpus": 0,
            "include_dashboard": False,
            "object_store_memory": _STORE_BYTES,
            "_temp_dir": folder,
        }


def _check_listens(address: str | None) -> None:
    """Raise BackendNotReadyError where `address` is a host and a port, and nobody listens there."""
    found = re.fullmatch(r"(?:ray://)?\[?([^/]+?)\]?:(\d+)", address or "")
    if found is None:
        return
    try:
        socket.create_connection((found[1], int(found[2])), timeout=_ANSWER_S).close()
    except (OSError, OverflowError) as error:
        raise BackendNotReadyError(f"the Ray cluster {address} cannot be used: {error}") from None


@contextlib.contextmanager
def _surroundings(values: Mapping[str, str]) -> Iterator[None]:
    """Set these variables of this process, and put back what was."""
    before = {name: os.environ[name] for name in values if name in os.environ}
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values.keys() - before.keys():
            os.environ.pop(name, None)
        os.environ.update(before)


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keep this program's handler of SIGTERM, which ``ray.init`` replaces: it closes runs, and has its exit status."""
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if is_main and handler is not None:
            signal.signal(signal.SIGTERM, handler)
