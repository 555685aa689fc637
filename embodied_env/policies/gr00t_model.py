"""Models on servers with GR00T's ZeroMQ protocol.

The inputs and outputs have GR00T's names: ``video.NAME``, ``state.NAME`` and the text of ``annotation.NAME``, or of
``language.NAME`` for release 1.6 and later, where an observation is nested and has a batch axis.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.core.policy import PolicyIdentity
from embodied_env.errors import MissingDependencyError, UsageError, did_you_mean
from embodied_env.policies.model import Inputs, Model
from embodied_env.policies.remote import (
    CONNECT_TIMEOUT_S,
    TIMEOUT_S,
    Failure,
    Problem,
    RemoteModel,
    ServerAddress,
    as_json,
    connection_error,
    parse_address,
)
from embodied_env.policies.wire import MOST_BYTES, WireError, pack_gr00t, unpack_gr00t

_PORT = 5555
_TOKEN = "GR00T_API_TOKEN"  # noqa: S105 - the name of a variable
_RELEASES = ("n1.5", "n1.6")
_AXES = {"n1.5": {"video": 4, "state": 2}, "n1.6": {"video": 5, "state": 3}}  # with time, and for n1.6 a batch


def load_gr00t(
    location: str,
    *,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    timeout_s: float = TIMEOUT_S,
    release: str = "n1.6",
    api_token: str | None = None,
) -> Model:
    """Return the model of the server at ``//host:port``, after its first answer.

    Args:
        location: host and port; the options may follow as ``?timeout_s=0.2&release=n1.5``.
        connect_timeout_s: limit of connecting, and of the first inference.
        timeout_s: limit of every other inference.
        release: ``n1.6`` for GR00T N1.6 and later, ``n1.5`` for N1 and N1.5.
        api_token: token that the server asks for; None: that of the environment variable ``GR00T_API_TOKEN``, if set.

    Raises:
        UsageError: for an invalid address or release, or without a server that answers in time.
        MissingDependencyError: if pyzmq or msgpack is not installed.
    """
    options = {"connect_timeout_s": connect_timeout_s, "timeout_s": timeout_s, "release": release}
    address, found = parse_address("gr00t", location, port=_PORT, options=options)
    if (name := found["release"]) not in _RELEASES:
        raise UsageError(f"unknown release {name!r} (expected {' or '.join(_RELEASES)}){did_you_mean(name, _RELEASES)}")
    return Gr00tModel(address, release=name, api_token=api_token or os.environ.get(_TOKEN))


class Gr00tModel(RemoteModel):
    """A model on a server with GR00T's protocol; a request that fails takes its socket with it."""

    def __init__(self, address: ServerAddress, *, release: str, api_token: str | None = None) -> None:
        """Wait for the server, and ask for its configuration; raises UsageError if that fails."""
        super().__init__(address)
        self._release, self._token = release, {"api_token": api_token} if api_token else {}
        self._zmq = _library()
        self._context: Any = None
        self._socket: Any = None
        deadline_s = time.monotonic() + address.connect_timeout_s
        try:
            self._call({"endpoint": "ping"}, deadline_s)
            try:
                metadata = as_json(self._call({"endpoint": "get_modality_config"}, deadline_s))
            except Failure as failure:
                if failure.problem is not Problem.REFUSED:  # a server without that endpoint
                    raise
                metadata = None
        except Failure as failure:
            self._disconnect()
            raise connection_error(address, failure) from None
        library = f"pyzmq {version('pyzmq')}"
        self.identity = PolicyIdentity(name=address.name, format="gr00t", library=library, server=metadata)

    # ------------------------------------------------------------------------------------------------------ one request

    def _encode(self, inputs: Inputs) -> bytes:
        observation: dict[str, Any] = {}
        for name, value in inputs.items():
            kind, _, key = name.partition(".")
            if self._release == "n1.5":
                observation[name] = [value] if isinstance(value, str) else self._with_axes(kind, value)
            else:
                if kind not in ("video", "state", "language") or not key:
                    expected = "expected video.NAME, state.NAME or language.NAME"
                    raise UsageError(f"unknown input of {self.address.name}: {name!r} ({expected})")
                values = [[value]] if isinstance(value, str) else self._with_axes(kind, value)
                observation.setdefault(kind, {})[key] = values
        is_nested = self._release == "n1.6"
        data = {"observation": observation, "options": None} if is_nested else observation
        return self._pack({"endpoint": "get_action", "data": data})

    def _with_axes(self, kind: str, value: Any) -> NDArray[Any]:  # noqa: ANN401 - an array
        """Return an array with the axes of time and batch, numbers of a state as float32."""
        array = np.asarray(value)
        if kind == "state":
            array = array.astype(np.float32, copy=False)
        missing = max(0, _AXES[self._release].get(kind, 0) - array.ndim)
        return array.reshape((1,) * missing + array.shape)

    def _exchange(self, request: bytes, deadline_s: float) -> bytes:
        if self._reset is not None and self._release == "n1.6":
            self._call({"endpoint": "reset", "data": {"options": None}}, deadline_s)
            self._reset = None
        return self._send(request, deadline_s)

    def _decode(self, answer: bytes) -> tuple[Mapping[str, Any], float | None]:
        values = self._parse(answer)
        if self._release == "n1.6":
            if not isinstance(values, list) or len(values) != 2:  # action, information
                raise Failure(Problem.MALFORMED, "answer is no pair of action and information")
            values = values[0]
        if not isinstance(values, dict):
            raise Failure(Problem.MALFORMED, f"action is {type(values).__name__} (expected a map)")
        if self._release == "n1.5":
            return values, None
        actions = {}
        for name, value in values.items():
            if not isinstance(value, np.ndarray) or value.ndim == 0 or len(value) != 1:
                raise Failure(Problem.MALFORMED, f"output {name!r:.40} is no batch of one")
            actions[f"action.{name}"] = value[0]
        return actions, None

    def _call(self, request: dict[str, Any], deadline_s: float) -> Any:  # noqa: ANN401 - of a server
        return self._parse(self._send(self._pack(request), deadline_s))

    def _pack(self, request: dict[str, Any]) -> bytes:
        try:
            return pack_gr00t(request | self._token)
        except WireError as error:
            raise UsageError(f"inputs of {self.address.name}: {error}") from error

    def _parse(self, answer: bytes) -> Any:  # noqa: ANN401 - of a server
        if answer == b"ERROR":
            raise Failure(Problem.REFUSED, "error without a text")
        try:
            values = unpack_gr00t(answer, MOST_BYTES)
        except WireError as error:
            raise Failure(Problem.MALFORMED, str(error)) from None
        if isinstance(values, dict) and "error" in values:
            raise Failure(Problem.REFUSED, f"error of the server: {values['error']!s:.150}")
        return values

    # ------------------------------------------------------------------------------------------------------- connection

    def _send(self, request: bytes, deadline_s: float) -> bytes:
        """Return the answer to a request; raises Failure. ZeroMQ connects in the background, and again when lost."""
        try:
            return self._exchange_parts(request, deadline_s)
        except self._zmq.ZMQError as error:
            raise Failure(Problem.LOST, str(error)) from None

    def _exchange_parts(self, request: bytes, deadline_s: float) -> bytes:
        zmq = self._zmq
        if self._socket is None:
            self._context = self._context or zmq.Context()
            self._socket = self._context.socket(zmq.REQ)
            for option, value in ((zmq.LINGER, 0), (zmq.MAXMSGSIZE, MOST_BYTES), (zmq.IPV6, ":" in self.address.host)):
                self._socket.setsockopt(option, int(value))
            self._socket.connect(f"tcp://{self.address.netloc}")
        self._await(zmq.POLLOUT, deadline_s, Failure(Problem.LOST, "no connection to the server"))
        self._socket.send(request, zmq.NOBLOCK)
        self._await(zmq.POLLIN, deadline_s, Failure(Problem.LATE, "no answer in time"))
        first, *others = self._socket.recv_multipart(zmq.NOBLOCK)
        if others:
            raise Failure(Problem.MALFORMED, f"answer of {1 + len(others)} parts (expected 1)")
        answer: bytes = first
        return answer

    def _await(self, event: int, deadline_s: float, failure: Failure) -> None:
        """Wait for an event of the socket; raises `failure` after the deadline."""
        if not self._socket.poll(max(0.0, deadline_s - time.monotonic()) * 1e3, event):
            raise failure

    def _drop(self, failure: Failure) -> None:
        if self._socket is not None and failure.problem is not Problem.REFUSED:
            self._socket.close()
            self._socket = None

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._context is not None:
            self._context.term()
        self._socket = self._context = None  # pyzmq closes nothing that a fork has inherited


def _library() -> Any:  # noqa: ANN401 - untyped
    try:
        import zmq
    except ImportError:
        raise MissingDependencyError(
            "pyzmq", needed_for="a policy server of GR00T", remedy='pip install "embodied_env[remote]"'
        ) from None
    return zmq
