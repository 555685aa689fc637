"""Models on servers with GR00T's ZeroMQ protocol.

The inputs and outputs have GR00T's names: ``video.NAME``, ``state.NAME`` and the text of ``annotation.NAME``, or of
``language.NAME`` for release 1.6 and later, where an observation is nested and has a batch axis.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract.value_checks import one_of
from embodied_env.errors import UsageError
from embodied_env.extensions.remote.policy_messages import MOST_ANSWER_BYTES, import_library
from embodied_env.extensions.remote.remote_model import CONNECT_TIMEOUT_S, Failure, Problem, RemoteModel
from embodied_env.policies.policy_model import Inputs, PolicyModel

_TOKEN = "GR00T_API_TOKEN"  # noqa: S105 - the name of a variable
_AXES = {"n1.5": {"video": 4, "state": 2}, "n1.6": {"video": 5, "state": 3}}
"""Axes of an array with those of time and, for n1.6, of the batch."""


def load_gr00t(
    location: str,
    *,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    timeout_s: float | None = None,
    release: str = "n1.6",
    api_token: str | None = None,
) -> PolicyModel:
    """Return the model of a GR00T server after its first answer.

    Args:
        location: host and port, as ``//host:port``.
        connect_timeout_s: limit of connecting, and of the first inference.
        timeout_s: limit of every other inference; None: 1 s, or less on a robot.
        release: ``n1.6`` for GR00T N1.6 and later, ``n1.5`` for N1 and N1.5.
        api_token: token that the server asks for; None: that of the environment variable ``GR00T_API_TOKEN``, if set.

    Raises:
        UsageError: for an invalid address or release, or without a server that answers in time.
        MissingDependencyError: if pyzmq or msgpack is not installed.
    """
    options = {"connect_timeout_s": connect_timeout_s, "timeout_s": timeout_s, "release": release}
    return Gr00tModel(location, api_token=api_token or os.environ.get(_TOKEN), **options).open()


class Gr00tModel(RemoteModel):
    """A model on a server with GR00T's protocol, whose socket a failed request closes."""

    protocol = "gr00t"
    package = "pyzmq"
    default_port = 5555

    def __init__(self, location: str, *, api_token: str | None = None, **options: Any) -> None:  # noqa: ANN401
        """Check arguments and release without connecting, or raise UsageError."""
        super().__init__(location, **options)
        release = str(self.options["release"])
        if release not in _AXES:
            raise UsageError(f"unknown release {one_of(release, _AXES)}")
        self._axes, self._is_nested = _AXES[release], release == "n1.6"
        self._token = {"api_token": api_token} if api_token else {}
        self._zmq = import_library("zmq")
        self._context: Any = None
        self._target: Any = None
        self._socket: Any = None

    def _greet(self, deadline_s: float) -> None:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        self._target = next((target[:2] for found, target in self._find_host() if found == family), None)
        if self._target is None:
            raise Failure(Problem.LOST, "its host has no IPv4 address")
        self._call({"endpoint": "ping"}, deadline_s)
        self._compare_metadata(deadline_s)

    def _compare_metadata(self, deadline_s: float) -> None:
        answer = self._send(self._pack({"endpoint": "get_modality_config"} | self._token), deadline_s)
        try:
            self._parse(answer)
        except Failure as failure:
            if failure.problem is Problem.REFUSED:
                return  # a server without that endpoint
            raise
        self._check_metadata(answer)

    # ------------------------------------------------------------------------------------------------------ one request

    def _encode(self, inputs: Inputs) -> bytes:
        observation: dict[str, Any] = {}
        for name, value in inputs.items():
            kind, _, key = name.partition(".")
            values = [value] if isinstance(value, str) else self._with_axes(kind, value)
            if not self._is_nested:
                observation[name] = values
                continue
            if kind not in ("video", "state", "language") or not key:
                expected = "expected video.NAME, state.NAME or language.NAME"
                raise UsageError(f"unknown input of {self.address}: {name!r} ({expected})")
            observation.setdefault(kind, {})[key] = [values] if isinstance(value, str) else values
        data = {"observation": observation, "options": None} if self._is_nested else observation
        return self._pack({"endpoint": "get_action", "data": data} | self._token)

    def _with_axes(self, kind: str, value: Any) -> NDArray[Any]:  # noqa: ANN401 - an array
        """Return an array with the axes of time and batch, numbers of a state as float32."""
        array = np.asarray(value, np.float32 if kind == "state" else None)
        missing = max(0, self._axes.get(kind, 0) - array.ndim)
        return array.reshape((1,) * missing + array.shape)

    def _exchange(self, request: bytes, deadline_s: float) -> bytes:
        if self._socket is None or self._reset is not None:  # perhaps another server
            self._compare_metadata(deadline_s)
        if self._reset is not None and self._is_nested:
            self._call({"endpoint": "reset", "data": {"options": None}}, deadline_s)
            self._reset = None
        return self._send(request, deadline_s)

    def _decode(self, answer: bytes) -> tuple[Mapping[str, Any], float | None]:
        values = self._parse(answer)
        if self._is_nested:
            if not isinstance(values, list) or len(values) != 2:  # action, information
                raise Failure(Problem.MALFORMED, "answer is no pair of action and information")
            values = values[0]
        if not isinstance(values, dict):
            raise Failure(Problem.MALFORMED, f"action is {type(values).__name__} (expected a map)")
        if not self._is_nested:
            return values, None
        for name, value in values.items():
            if not isinstance(value, np.ndarray) or value.ndim == 0 or len(value) != 1:
                raise Failure(Problem.MALFORMED, f"output {name!r:.40} is no batch of one")
        return {f"action.{name}": value[0] for name, value in values.items()}, None

    def _call(self, request: dict[str, Any], deadline_s: float) -> Any:  # noqa: ANN401 - of a server
        return self._parse(self._send(self._pack(request | self._token), deadline_s))

    def _parse(self, answer: bytes) -> Any:  # noqa: ANN401 - of a server
        if answer == b"ERROR":
            raise Failure(Problem.REFUSED, "error without a text")
        values = self._unpack(answer)
        if isinstance(values, dict) and "error" in values:
            raise Failure(Problem.REFUSED, f"error of the server: {values['error']!s:.150}")
        return values

    # ------------------------------------------------------------------------------------------------------- connection

    def _send(self, request: bytes, deadline_s: float) -> bytes:
        """Return the answer over a socket that connects again by itself, or raise Failure."""
        zmq = self._zmq
        try:
            if self._socket is None:
                self._context = zmq.Context()
                self._socket = self._context.socket(zmq.REQ)
                self._socket.linger, self._socket.maxmsgsize, self._socket.rcvhwm = 0, MOST_ANSWER_BYTES, 16
                self._socket.req_correlate = True  # other answers than that to the last request are discarded
                self._socket.ipv6 = ":" in self.host
                host, port = self._target
                self._socket.connect(f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}")
            if not self._poll(zmq.POLLOUT, deadline_s):
                raise Failure(Problem.LOST, "no connection to the server")
            self._socket.send(request, zmq.NOBLOCK)
            frame: Any = None
            while frame is None:
                if not self._poll(zmq.POLLIN, deadline_s):
                    raise Failure(Problem.LATE, "no answer in time")
                with suppress(zmq.Again):  # it was the answer to another request
                    frame = self._socket.recv(zmq.NOBLOCK, copy=False)
        except zmq.ZMQError as error:
            raise Failure(Problem.LOST, str(error)) from None
        if frame.more:  # the others, of any number and size, are not read
            raise Failure(Problem.MALFORMED, "answer of several parts (expected 1)")
        answer: bytes = frame.bytes
        return answer

    def _poll(self, event: int, deadline_s: float) -> int:
        found: int = self._socket.poll(max(0.0, deadline_s - time.monotonic()) * 1e3, event)
        return found

    def _disconnect(self) -> None:
        """Close the socket and its context, unless a fork has inherited them."""
        if self._context is not None:
            self._context.destroy()
        self._socket = self._context = None
