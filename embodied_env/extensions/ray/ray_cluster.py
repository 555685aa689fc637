"""The Ray cluster of ``--engine ray``, in the only module that imports ray."""

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
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from embodied_env.core.plugin_loading import import_optional
from embodied_env.errors import BackendError, BackendNotReadyError

_CONNECT_S = 5.0  # connection timeout, since Ray itself waits for minutes
_STORE_BYTES = 100_000_000  # size of Ray's object store in shared memory: only short messages pass
_TOKEN = secrets.token_hex(32)  # for clusters started here, since Ray keeps the first token it reads


class HostLostError(BackendError):
    """The process or the node of an actor has ended."""


class RayCluster:
    """A running Ray cluster at an address, or a new one on this machine that ends with the context."""

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
        """Join or start the cluster, and leave one running at the end that this process has already joined."""
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
        """Leave the cluster, and shut down one that was started here and remove its files."""
        self._stack.close()

    def start_actor(self, actor: type, *arguments: Any) -> Any:  # noqa: ANN401 - a handle of Ray
        """Request an actor with one CPU, without restarts, and return its handle at once."""
        remote = self._ray.remote(actor).options(
            num_cpus=1, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD"
        )
        return remote.remote(*arguments)

    def call(self, handle: Any, method: str, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        """Call a method of an actor, whose calls run in order, and return the promise of its result."""
        return getattr(handle, method).remote(*arguments, **named)

    def ready(self, promises: Sequence[Any], timeout_s: float) -> Sequence[Any]:
        """Wait until one of `promises` is ready, and return the ready ones."""
        done: Sequence[Any] = self._ray.wait(list(promises), num_returns=1, timeout=timeout_s)[0]
        return done

    def answer(self, promise: Any) -> Any:  # noqa: ANN401
        """Return the result of a ready promise, or raise HostLostError with the reason when the actor has ended."""
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
        """Return the options of a new cluster, and let `stack` remove its files and environment variables."""
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
    """Restore the SIGTERM handler that ``ray.init`` replaces, since it closes runs and sets the exit status."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
