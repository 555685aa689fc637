"""Models on servers with openpi's WebSocket protocol, such as ``embodied-env serve``."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import secrets
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from embodied_env.contract.argument_checks import checked_flag
from embodied_env.errors import UsageError, described
from embodied_env.extensions.remote.policy_messages import (
    EXTENSION,
    MOST_ANSWER_BYTES,
    WireError,
    import_library,
    specs_from_message,
)
from embodied_env.extensions.remote.remote_model import CONNECT_TIMEOUT_S, Failure, Problem, RemoteModel
from embodied_env.policies.policy_model import Inputs, PolicyModel
from embodied_env.timing.clock import SteadyClock

_KEY = "OPENPI_API_KEY"
_RETRY_NS = 100_000_000
_SILENT_S = 1.0  # until a server that is not there is reported

_CHUNK = 2**13  # bytes per read, which takes milliseconds with thousands of frames
_LONGEST_TEXT = 2**12  # bytes
_BINARY, _FINAL, _MASKED = 2, 0x80, 0x80  # opcode and bits of a frame
_ORDINARY = (1000, 1001, 1005)  # codes of closing: normal, going away, none
_BUSY = 503  # HTTP status of a server that already has a client
_MOST_SHOWN = 160  # bytes of its reason

_log = logging.getLogger(__name__)


def load_openpi(
    location: str,
    *,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    timeout_s: float | None = None,
    nested: bool = False,
    rtc: bool = False,
    api_key: str | None = None,
) -> PolicyModel:
    """Return the model of an openpi server after connecting to it.

    Args:
        location: host and port, as ``//host:port``.
        connect_timeout_s: limit of connecting, and of the first inference.
        timeout_s: limit of every other inference, a new connection included; None: 1 s, or less on a robot.
        nested: send an input ``images.front`` as ``{"images": {"front": ...}}``, as servers of ALOHA expect it.
        rtc: the server continues chunks, with the inputs ``prev_action_chunk`` (the rest of ``actions``) and
            ``inference_delay`` (in actions), the names of real-time chunking; `embodied-env serve` announces it.
        api_key: key that the server asks for; None: that of the environment variable ``OPENPI_API_KEY``, if set.

    Raises:
        UsageError: for an invalid address, or without a server that answers in time.
        MissingDependencyError: if websockets or msgpack is not installed.
    """
    options = {"connect_timeout_s": connect_timeout_s, "timeout_s": timeout_s, "nested": nested, "rtc": rtc}
    return OpenpiModel(location, api_key=api_key or os.environ.get(_KEY), **options).open()


class OpenpiModel(RemoteModel):
    """A model on a server with openpi's protocol, ready when the server has sent its metadata."""

    protocol = "openpi"
    package = "websockets"
    default_port = 8000
    n_action_steps: int | None = None

    def __init__(self, location: str, *, api_key: str | None = None, **options: Any) -> None:  # noqa: ANN401
        super().__init__(location, **options)
        self._is_nested = checked_flag("nested", self.options["nested"])
        self.continues_chunks = checked_flag("rtc", self.options["rtc"])
        self._prefix: dict[str, int] | None = None  # prefix of the next request
        self._headers = {"Authorization": f"Api-Key {api_key}"} if api_key else {}
        self._socket: WebSocket | None = None
        self._is_ready = self._is_announced = False

    def _greet(self, deadline_s: float) -> None:
        clock, report_s = SteadyClock(), time.monotonic() + _SILENT_S
        reason: Failure | None = None
        for family, target in itertools.cycle(self._find_host()):
            self._target = family, target
            try:
                self._connect(deadline_s)
                break
            except Failure as failure:
                self._disconnect()
                reason = failure if reason is None or failure.problem is not Problem.LATE else reason
                now_s = time.monotonic()
                if failure.problem is not Problem.LOST or now_s + _RETRY_NS / 1e9 > deadline_s:
                    raise reason from None
                if now_s > report_s:
                    report_s = deadline_s  # once
                    _log.warning("waiting up to %g s for %s: %s", self._connect_timeout_s, self.address, failure)
            clock.sleep_until_ns(clock.now_ns() + _RETRY_NS)
        announced = (self._metadata or {}).get(EXTENSION)
        if isinstance(announced, Mapping):
            try:
                self.inputs = specs_from_message(announced.get("inputs"))
                self.outputs = self._expected = specs_from_message(announced.get("outputs"))
            except WireError as error:
                raise Failure(Problem.MALFORMED, str(error)) from None
            self.fingerprint, self.policy_file = announced.get("fingerprint"), announced.get("policy_file")
            self.instruction, sensors = announced.get("instruction"), announced.get("required_sensors")
            self.required_sensors = tuple(map(str, sensors)) if isinstance(sensors, list) else ()
            self._is_announced, self.continues_chunks = True, announced.get("continues_chunks") is True
            count = announced.get("n_action_steps")
            self.n_action_steps = count if type(count) is int and count > 0 else None

    def continue_chunk(self, *, executed: int, delay: int) -> None:
        """Send what is left of the last chunk, or to our server how much, with the next request."""
        self._prefix = {"executed": executed, "delay": delay}

    # ------------------------------------------------------------------------------------------------------ one request

    def _encode(self, inputs: Inputs) -> bytes:
        try:
            message: dict[str, Any] = nest(inputs) if self._is_nested else dict(inputs)
        except (AttributeError, TypeError) as error:  # such as the names a and a.b
            raise UsageError(f"inputs of {self.address}: {described(error)} (expected names to nest)") from error
        prefix, self._prefix = None if self._last is None else self._prefix, None
        step, last = self._last or (0, {})
        if self._is_announced:
            reset = {} if self._reset is None else {"reset": self._reset}
            self._request = {"epoch": self._epoch, "step": self._step}
            known = {} if prefix is None else {"prefix": {**prefix, "request": {**self._request, "step": step}}}
            message[EXTENSION] = {"request": self._request, **reset, **known}
        elif prefix is not None and "actions" in last:
            message |= {"prev_action_chunk": last["actions"][prefix["executed"] :], "inference_delay": prefix["delay"]}
        return self._pack(message)

    def _exchange(self, request: bytes, deadline_s: float) -> bytes:
        connection = self._connect(deadline_s)
        connection.send(request, deadline_s)
        answer = connection.receive(deadline_s)
        if isinstance(answer, str):
            raise Failure(Problem.REFUSED, _last_line(answer))
        return answer

    def _decode(self, answer: bytes) -> tuple[Mapping[str, Any], float | None]:
        values = self._unpack(answer)
        if not isinstance(values, dict):
            raise Failure(Problem.MALFORMED, f"answer is {type(values).__name__} (expected a map)")
        if self._is_announced and not self._is_own(values.get(EXTENSION)):
            raise Failure(Problem.FOREIGN, "answer to another request")
        timing = values.get("server_timing")
        infer_ms = timing.get("infer_ms") if isinstance(timing, dict) else None
        server_s = infer_ms / 1e3 if isinstance(infer_ms, (int, float)) else None
        return {str(name): value for name, value in values.items()}, server_s

    def _is_own(self, extension: Any) -> bool:  # noqa: ANN401 - of a server
        request = extension.get("request") if isinstance(extension, dict) else None
        return isinstance(request, dict) and all(
            type(request.get(key)) is int and request[key] == value for key, value in self._request.items()
        )

    # ------------------------------------------------------------------------------------------------------- connection

    def _connect(self, deadline_s: float) -> WebSocket:
        """Return a connection that is ready and has no message waiting, or raise Failure."""
        if self._socket is not None and self._is_ready:
            if self._socket.poll(deadline_s):
                raise Failure(Problem.FOREIGN, "answer to no request")
            if self._socket.is_open:
                return self._socket
            if reason := self._socket.close_reason:
                _log.warning("%s closed the connection%s", self.address, reason)
            self._disconnect()  # such as for a missed ping, with nothing in progress
        if self._socket is None:
            self._socket = WebSocket(self._target, self.netloc, headers=self._headers)
            self._gives_up_s = time.monotonic() + self._connect_timeout_s
        message = self._socket.receive(deadline_s)
        if isinstance(message, str):
            raise Failure(Problem.REFUSED, _last_line(message))
        self._check_metadata(message)
        self._is_ready = True
        if self._socket.poll(deadline_s):
            raise Failure(Problem.FOREIGN, "answer to no request")
        return self._socket

    def _may_continue(self, failure: Failure) -> bool:
        if self._socket is None or self._is_ready:
            return super()._may_continue(failure)
        return failure.problem is Problem.LATE and time.monotonic() < self._gives_up_s

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
    return next((line for line in reversed(text.splitlines()) if line.strip()), "error without a text").strip()


class WebSocket:
    """A connection to a server, to be closed after a `Failure` unless it may still open."""

    def __init__(self, target: tuple[socket.AddressFamily, Any], netloc: str, *, headers: Mapping[str, str]) -> None:
        """Begin to connect to `target`, by a handshake with `headers` and `netloc`, host and port."""
        client, uri, frames = (import_library(f"websockets.{name}") for name in ("client", "uri", "frames"))
        self._protocol = client.ClientProtocol(uri.parse_uri(f"ws://{netloc}"), max_size=MOST_ANSWER_BYTES)
        self._apply_mask = frames.apply_mask
        self._outgoing: deque[memoryview] = deque()
        self._messages: deque[bytes | str] = deque()
        self._fragments: list[bytes] = []
        self._is_text = False
        self._end: Failure | None = None
        self._pid = os.getpid()
        self._socket = socket.socket(target[0], socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._socket)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if (error := self._socket.connect_ex(target[1])) not in (0, errno.EINPROGRESS):
            self._end = _lost(os.strerror(error))
        request = self._protocol.connect()
        request.headers.update(headers)
        self._protocol.send_request(request)  # sent as soon as TCP is connected
        self._flush()

    @property
    def is_open(self) -> bool:
        """Whether the handshake has succeeded, and the connection has not ended as far as is known."""
        return self._protocol.state.name == "OPEN" and self._end is None

    @property
    def close_reason(self) -> str:
        """Code and reason with which the server has closed, unless it was ordinary."""
        close = self._protocol.close_rcvd
        is_ordinary = close is None or (close.code in _ORDINARY and not close.reason)
        return "" if is_ordinary else f": {close.code} {close.reason}".rstrip()

    def send(self, message: bytes, deadline_s: float) -> None:
        """Send a binary message, or raise Failure.

        A message that arrives before this one is sent is a failure too. The frame is made here, since the library
        copies the message four times.
        """
        length, mask = len(message), secrets.token_bytes(4)
        if length < 126:
            head = struct.pack("!BB", _FINAL | _BINARY, _MASKED | length)
        elif length < 2**16:
            head = struct.pack("!BBH", _FINAL | _BINARY, _MASKED | 126, length)
        else:
            head = struct.pack("!BBQ", _FINAL | _BINARY, _MASKED | 127, length)
        self._outgoing += (memoryview(head + mask), memoryview(self._apply_mask(message, mask)))
        self._write()
        while self._outgoing:
            self._exchange(deadline_s)
            if self._messages:
                raise Failure(Problem.FOREIGN, "answer before the request")

    def receive(self, deadline_s: float) -> bytes | str:
        """Return the next message, the end of a text as `str`, or raise Failure."""
        while not self._messages:
            self._exchange(deadline_s)
        return self._messages.popleft()

    def poll(self, deadline_s: float) -> bool:
        """Process what has arrived, such as a ping, and return whether there is a message."""
        while not (self._messages or self._end) and time.monotonic() < deadline_s:
            if not self._wait(0.0) & ~select.POLLOUT:
                break
            self._read()
            self._write()
        return bool(self._messages)

    def close(self) -> None:
        """Close at once without waiting for the server, and in a fork without a message to it."""
        if self._pid == os.getpid() and self.is_open and not self._outgoing:
            self._protocol.send_close()
            self._flush()
            self._write()
        self._socket.close()

    def _exchange(self, deadline_s: float) -> None:
        """Wait until the socket is ready and use it once, or raise Failure after the deadline."""
        if self._end is not None:
            raise self._end
        left_s = deadline_s - time.monotonic()
        events = self._wait(left_s) if left_s > 0.0 else 0
        if not events:
            raise Failure(Problem.LATE, "no answer in time" if self.is_open else "no connection in time")
        if events & select.POLLOUT:
            self._write()
        if events & ~select.POLLOUT:
            self._read()

    def _wait(self, timeout_s: float) -> int:
        self._poll.modify(self._socket, select.POLLIN | (select.POLLOUT if self._outgoing else 0))
        found = self._poll.poll(timeout_s * 1e3)
        return found[0][1] if found else 0

    def _write(self) -> None:
        try:
            while self._outgoing:
                sent = self._socket.sendmsg(self._outgoing)
                while sent and sent >= len(self._outgoing[0]):
                    sent -= len(self._outgoing.popleft())
                if sent:
                    self._outgoing[0] = self._outgoing[0][sent:]
        except BlockingIOError:
            pass
        except OSError as error:
            self._end = self._end or _lost(error.strerror)

    def _read(self) -> None:
        """Read once, and keep what was complete before the end of the connection."""
        try:
            data = self._socket.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError as error:
            self._end = self._end or _lost(error.strerror)
            return
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        self._flush()
        for event in self._protocol.events_received():
            self._take(event)
        if self._end is not None:
            return
        refused, broken = self._protocol.handshake_exc, self._protocol.parser_exc
        if refused is not None:
            response = getattr(refused, "response", None)
            status, body = getattr(response, "status_code", 0), getattr(response, "body", None) or b""
            is_lost = status >= 500 or isinstance(refused.__cause__, EOFError)  # 503: busy, so try again
            problem = Problem.LOST if is_lost else Problem.MALFORMED
            text = " ".join(body[:_MOST_SHOWN].decode("utf-8", "replace").split()) if status == _BUSY else ""
            self._end = Failure(problem, f"handshake failed: {text or described(refused)}")
        elif broken is not None and not isinstance(broken, EOFError):
            self._end = Failure(Problem.MALFORMED, f"invalid frame: {described(broken)}")
        elif not data or self._protocol.close_rcvd is not None:
            self._end = Failure(Problem.LOST, f"connection closed by the server{self.close_reason}")

    def _take(self, event: Any) -> None:  # noqa: ANN401 - untyped
        """Keep a complete message, since the library answers the other frames."""
        opcode = getattr(event, "opcode", None)  # none: the response of the handshake
        if opcode is None or opcode > _BINARY:
            return
        if opcode:  # 0: a continuation
            self._is_text = opcode < _BINARY
        self._fragments.append(event.data)
        if event.fin:
            message = self._fragments[0] if len(self._fragments) == 1 else b"".join(self._fragments)
            self._fragments.clear()
            text = bytes(message[-_LONGEST_TEXT:]).decode("utf-8", "replace") if self._is_text else None
            self._messages.append(message if text is None else text)

    def _flush(self) -> None:
        if data := b"".join(self._protocol.data_to_send()):
            self._outgoing.append(memoryview(data))


def _lost(reason: str | None) -> Failure:
    return Failure(Problem.LOST, (reason or "connection lost").lower())
