"""Models on servers with openpi's WebSocket protocol, those of ``embodied-env serve`` among them."""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from embodied_env.core.arguments import checked_flag
from embodied_env.core.clock import NS_PER_S, SteadyClock
from embodied_env.core.policy import PolicyIdentity
from embodied_env.errors import UsageError
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
from embodied_env.policies.websocket import WebSocket
from embodied_env.policies.wire import EXTENSION, MOST_BYTES, WireError, pack, specs_from_message, unpack

_PORT = 8000
_KEY = "OPENPI_API_KEY"
_RETRY_NS = 100_000_000

_log = logging.getLogger(__name__)


def load_openpi(
    location: str,
    *,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    timeout_s: float = TIMEOUT_S,
    nested: bool = False,
    api_key: str | None = None,
) -> Model:
    """Return the model of the server at ``//host:port``, after connecting to it.

    Args:
        location: host and port; the limits may follow as ``?timeout_s=0.2&connect_timeout_s=5``.
        connect_timeout_s: limit of connecting, and of the first inference.
        timeout_s: limit of every other inference, a new connection included.
        nested: send an input ``images.front`` as ``{"images": {"front": ...}}``, as servers of ALOHA expect it.
        api_key: key that the server asks for; None: that of the environment variable ``OPENPI_API_KEY``, if set.

    Raises:
        UsageError: for an invalid address, or without a server that answers in time.
        MissingDependencyError: if websockets or msgpack is not installed.
    """
    options = {"connect_timeout_s": connect_timeout_s, "timeout_s": timeout_s, "nested": nested}
    address, found = parse_address("openpi", location, port=_PORT, options=options)
    is_nested = checked_flag("nested", found["nested"])
    return OpenpiModel(address, is_nested=is_nested, api_key=api_key or os.environ.get(_KEY))


class OpenpiModel(RemoteModel):
    """A model on a server with openpi's protocol.

    Attributes:
        metadata: of the server, in JSON types.
    """

    def __init__(self, address: ServerAddress, *, is_nested: bool = False, api_key: str | None = None) -> None:
        """Connect, and receive the metadata; raises UsageError if that fails."""
        super().__init__(address)
        self._is_nested = is_nested
        self._headers = {"Authorization": f"Api-Key {api_key}"} if api_key else {}
        self._socket: WebSocket | None = None
        self._is_ready = False  # the connection has sent its metadata
        self.metadata: Mapping[str, Any] | None = None
        try:
            found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise UsageError(
                f"cannot find the host of {address.name}: {error} (expected a name or an address)"
            ) from None
        self._targets = [(family, target) for family, _, _, _, target in found]
        self._connect_first(time.monotonic() + address.connect_timeout_s)
        announced = None if self.metadata is None else self.metadata.get(EXTENSION)
        self._is_announced = isinstance(announced, Mapping)
        if isinstance(announced, Mapping):
            try:
                self.inputs = specs_from_message(announced.get("inputs"))
                self.outputs = self._expected = specs_from_message(announced.get("outputs"))
                self.fingerprint, self.policy_file = announced.get("fingerprint"), announced.get("policy_file")
            except WireError as error:
                self.close()
                raise UsageError(f"{address.name}: {error}") from None
        library = f"websockets {version('websockets')}"
        self.identity = PolicyIdentity(name=address.name, format="openpi", library=library, server=self.metadata)

    # ------------------------------------------------------------------------------------------------------ one request

    def _encode(self, inputs: Inputs) -> bytes:
        message: dict[str, Any] = nest(inputs) if self._is_nested else dict(inputs)
        if self._is_announced:
            message[EXTENSION] = {"request": self._request_id}
            if self._reset is not None:
                message[EXTENSION]["reset"] = self._reset
        try:
            return pack(message)
        except WireError as error:
            raise UsageError(f"inputs of {self.address.name}: {error}") from error

    def _exchange(self, request: bytes, deadline_s: float) -> bytes:
        connection = self._connect(deadline_s)
        connection.send(request, deadline_s)
        answer = connection.receive(deadline_s)
        if isinstance(answer, str):
            raise Failure(Problem.REFUSED, _last_line(answer))
        return answer

    def _decode(self, answer: bytes) -> tuple[Mapping[str, Any], float | None]:
        try:
            values = unpack(answer, MOST_BYTES)
        except WireError as error:
            raise Failure(Problem.MALFORMED, str(error)) from None
        if not isinstance(values, dict):
            raise Failure(Problem.MALFORMED, f"answer is {type(values).__name__} (expected a map)")
        extension = values.get(EXTENSION)
        if self._is_announced and (not isinstance(extension, dict) or extension.get("request") != self._request_id):
            raise Failure(Problem.FOREIGN, "answer to another request")
        timing = values.get("server_timing")
        infer_ms = timing.get("infer_ms") if isinstance(timing, dict) else None
        server_s = infer_ms / 1e3 if isinstance(infer_ms, (int, float)) and math.isfinite(infer_ms) else None
        return {str(name): value for name, value in values.items()}, server_s

    @property
    def _request_id(self) -> dict[str, int]:
        return {"epoch": self._epoch, "step": self._step}

    # ------------------------------------------------------------------------------------------------------- connection

    def _connect_first(self, deadline_s: float) -> None:
        """Connect to a server that may not have started yet."""
        clock, reason = SteadyClock(), None
        while not self._is_ready:
            try:
                self._connect(deadline_s)
            except Failure as failure:
                self._disconnect()
                if reason is None and failure.problem is Problem.LOST:
                    limit = self.address.connect_timeout_s
                    _log.warning("waiting up to %g s for %s: %s", limit, self.address.name, failure)
                reason = reason if reason is not None and failure.problem is Problem.LATE else failure
                if failure.problem is not Problem.LOST or clock.now_ns() + _RETRY_NS > deadline_s * NS_PER_S:
                    raise connection_error(self.address, reason) from None
                clock.sleep_until_ns(clock.now_ns() + _RETRY_NS)
            except BaseException:
                self._disconnect()
                raise

    def _connect(self, deadline_s: float) -> WebSocket:
        """Return an open connection on which nothing is waiting; raises Failure."""
        if self._socket is not None and self._is_ready:
            if self._socket.poll(deadline_s):
                raise Failure(Problem.FOREIGN, "answer to no request")
            if self._socket.is_open:
                return self._socket
            self._disconnect()  # such as for a missed ping: nothing was in progress
        for attempt in range(len(self._targets)):
            try:
                return self._open(deadline_s)
            except Failure as failure:
                if failure.problem is not Problem.LOST or attempt + 1 == len(self._targets):
                    raise
                self._disconnect()
                self._targets.append(self._targets.pop(0))
        raise AssertionError("getaddrinfo returns at least one address")

    def _open(self, deadline_s: float) -> WebSocket:
        """Continue to connect, or begin; the connection is ready when the metadata has arrived."""
        if self._socket is None:
            self._socket = WebSocket(
                self._targets[0], self.address.netloc, most_bytes=MOST_BYTES, headers=self._headers
            )
            self._gives_up_s = time.monotonic() + self.address.connect_timeout_s
        self._socket.open(deadline_s)
        message = self._socket.receive(deadline_s)
        if isinstance(message, str):
            raise Failure(Problem.REFUSED, _last_line(message))
        try:
            metadata = as_json(unpack(message, MOST_BYTES))
        except WireError as error:
            raise Failure(Problem.MALFORMED, f"invalid metadata: {error}") from None
        if not isinstance(metadata, dict):
            raise Failure(Problem.MALFORMED, f"metadata is {type(metadata).__name__} (expected a map)")
        if self.metadata is None:
            self.metadata = metadata
        elif metadata != self.metadata:
            raise Failure(Problem.FOREIGN, "server restarted with other metadata, so perhaps with another model")
        self._is_ready = True
        return self._socket

    def _drop(self, failure: Failure) -> None:
        is_opening = self._socket is not None and not self._is_ready and failure.problem is Problem.LATE
        is_sound = failure.problem is Problem.REFUSED and self._is_ready
        if not is_sound and not (is_opening and time.monotonic() < self._gives_up_s):
            self._disconnect()

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket, self._is_ready = None, False


def nest(inputs: Inputs) -> dict[str, Any]:
    """Return the inputs with the parts of their names, between dots, as keys of nested maps."""
    message: dict[str, Any] = {}
    for name, value in inputs.items():
        *path, last = name.split(".")
        place = message
        for key in path:
            place = place.setdefault(key, {})
        place[last] = value
    return message


def _last_line(text: str) -> str:
    """Return the last line of a traceback, which names the error."""
    return next((line for line in reversed(text.splitlines()) if line.strip()), "error without a text").strip()
