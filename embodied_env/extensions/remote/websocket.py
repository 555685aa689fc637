"""A WebSocket client without threads, in which every wait has one absolute deadline.

`websockets` parses and serializes; this module owns the socket. A connection makes progress only inside a call, so a
call that runs out of time leaves it as it is, and the next call continues: no step waits for a whole connection.
"""

from __future__ import annotations

import errno
import os
import secrets
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from embodied_env.errors import described
from embodied_env.extensions.remote.policy_messages import MOST_ANSWER_BYTES, import_library
from embodied_env.extensions.remote.remote_model import Failure, Problem

_CHUNK = 2**13  # bytes per read, which takes milliseconds with thousands of frames
_LONGEST_TEXT = 2**12  # bytes
_BINARY, _FINAL, _MASKED = 2, 0x80, 0x80  # opcode and bits of a frame
_ORDINARY = (1000, 1001, 1005)  # codes of closing: normal, going away, none
_BUSY = 503  # HTTP status of a server that already has a client
_MOST_SHOWN = 160  # bytes of its reason


class WebSocket:
    """A connection to a server, to be closed after a `Failure` unless it may still open."""

    def __init__(self, target: tuple[socket.AddressFamily, Any], netloc: str, *, headers: Mapping[str, str]) -> None:
        """Begin to connect to `target`, by a handshake with the `headers` and `netloc`, which is host and port."""
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
        """Wait until the socket is ready and use it once, or raise Failure at the end or after the deadline."""
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
        """Queue the bytes that the library sends."""
        if data := b"".join(self._protocol.data_to_send()):
            self._outgoing.append(memoryview(data))


def _lost(reason: str | None) -> Failure:
    return Failure(Problem.LOST, (reason or "connection lost").lower())
