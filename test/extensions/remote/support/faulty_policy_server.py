"""A policy server with openpi's protocol that misbehaves on request, without any code of this package.

    python faulty_policy_server.py [PORT [ROWS]]

Its answers are actions, or chunks of ROWS equal ones. It prints its port, and a line for each line of standard input, which names the fault of the answers that follow, and
how many of them (`FAULT COUNT`; default: all), or the metadata of the connections that follow. It ends with its input. Sound answers are `MOVE`; an action in any other
answer is `WRONG`, which a robot must never execute.
"""

import base64
import contextlib
import hashlib
import os
import pickle
import signal
import socket
import struct
import sys
import threading
import time
import zlib
from pathlib import Path

import msgpack

MOVE = (0.3, 0.0, 0.0, 0.0, 0.0, 0.0)
WRONG = (-1.0, -1.0, -1.0, -1.0, -1.0, -1.0)
ROWS = int(sys.argv[2]) if len(sys.argv) > 2 else 0
PROOF = "pickle_was_executed"
BINARY, TEXT, PING, CLOSE = 2, 1, 9, 8
LATE_S = 0.5
GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # of RFC 6455


def array(values, shape=None, dtype="<f8", data=None):
    if ROWS and shape is None:
        values, shape = values * ROWS, [ROWS, len(values)]
    data = struct.pack(f"<{len(values)}d", *values) if data is None else data
    return {b"__ndarray__": True, b"data": data, b"dtype": dtype, b"shape": shape or [len(values)]}


def message(actions, **changes):
    return msgpack.packb({"actions": actions, "server_timing": {"infer_ms": 0.1}, **changes})


def header(length, opcode=BINARY, *, fin=True, compressed=False):
    first = bytes([fin << 7 | compressed << 6 | opcode])
    if length < 126:
        return first + bytes([length])
    return first + (b"\x7e" + struct.pack(">H", length) if length < 2**16 else b"\x7f" + struct.pack(">Q", length))


def frame(payload, opcode=BINARY, **flags):
    return header(len(payload), opcode, **flags) + payload


MOVING, WRONG_FRAME = frame(message(array(MOVE))), frame(message(array(WRONG)))


class Evil:
    def __reduce__(self):
        return Path.touch, (Path(PROOF),)


class Client:
    """One connection, in a thread of its own."""

    def __init__(self, server, connected):
        self.server, self.socket, self.buffer = server, connected, b""

    def send(self, data):
        self.socket.sendall(data)

    def read(self, count):
        while len(self.buffer) < count:
            data = self.socket.recv(2**18)
            if not data:
                raise ConnectionError
            self.buffer += data
        taken, self.buffer = self.buffer[:count], self.buffer[count:]
        return taken

    def read_frame(self):
        first, second = self.read(2)
        length = second & 0x7F
        if length >= 126:
            length = int.from_bytes(self.read(2 if length == 126 else 8), "big")
        mask = self.read(4)
        payload = self.read(length)
        repeated = (mask * (length // 4 + 1))[:length]
        return first & 0x0F, (int.from_bytes(payload, "big") ^ int.from_bytes(repeated, "big")).to_bytes(length, "big")

    def answer_soundly(self, request):
        """Answer, and repeat the id of the request if the client expects it."""
        about = msgpack.unpackb(request).get("embodied_env")
        echo = {} if about is None else {"embodied_env": {"request": about["request"]}}
        self.send(frame(message(array(MOVE), **echo)))

    def shake_hands(self):
        request = b""
        while b"\r\n\r\n" not in request:
            request += self.read(1)
        (key,) = (
            line.split(b": ")[1] for line in request.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key")
        )
        digest = base64.b64encode(hashlib.sha1(key + GUID, usedforsecurity=False).digest())
        status = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        self.send(status + b"Sec-WebSocket-Accept: " + digest + b"\r\n\r\n")

    def run(self):
        with contextlib.suppress(OSError, ValueError), self.socket:
            if (fault := CONNECTING.get(self.server.fault)) and self.server.use():
                fault(self)
                return
            self.shake_hands()
            self.send(frame(msgpack.packb(METADATA.get(self.server.metadata, {}))))
            while True:
                opcode, request = self.read_frame()
                if opcode == CLOSE:
                    self.send(frame(struct.pack(">H", 1000), CLOSE))
                    return
                if opcode == BINARY:
                    fault = ANSWERS.get(self.server.fault)
                    if fault is None or not self.server.use():
                        self.answer_soundly(request)
                    else:
                        fault(self)


def silent(client):
    client.read(2**40)


def slow_handshake(client):
    time.sleep(LATE_S)
    client.run()


def http_error(client):
    client.send(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 5\r\n\r\nsorry")


def no_metadata(client):
    client.shake_hands()
    silent(client)


def after_handshake(data):
    def fault(client):
        client.shake_hands()
        client.send(data)
        silent(client)

    return fault


CONNECTING = {
    "slow_start": slow_handshake,
    "no_http": lambda client: client.send(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "http_error": http_error,
    "metadata_missing": no_metadata,
    "metadata_text": after_handshake(frame(b"Traceback\nValueError: no GPU", TEXT)),
    "metadata_no_map": after_handshake(frame(msgpack.packb([1, 2]))),
    "metadata_and_answer": after_handshake(frame(msgpack.packb({})) + WRONG_FRAME),
    "metadata_long": after_handshake(frame(msgpack.packb({"notes": "x" * 2**20}))),
    "metadata_huge": after_handshake(header(2**40) + bytes(2**16)),
}
SPECS = {"outputs": {"joint_pos": {"shape": [7], "dtype": "<f4"}}, "inputs": None, "identity": {}}
METADATA = {
    "sound": {},
    "announced": {"embodied_env": {"inputs": None, "outputs": None, "identity": {}}},
    "metadata_of_another_robot": {"embodied_env": SPECS},
    "metadata_of_a_wrong_schema": {"embodied_env": {"inputs": 3}},
    "another_model": {"model": "other"},
}


def sends(data, *, then=None):
    def fault(client):
        client.send(data)
        if then is not None:
            then(client)

    return fault


def late(client):
    time.sleep(LATE_S)
    client.send(WRONG_FRAME)


def drip(client):
    for byte in WRONG_FRAME:
        client.send(bytes([byte]))
        time.sleep(0.01)


def reset(client):
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.socket.close()


def endless_fragments(client):
    client.send(frame(WRONG_FRAME, fin=False))
    while True:
        client.send(frame(bytes(1000), 0, fin=False))
        time.sleep(0.001)


def pings(client):
    while True:
        client.send(frame(b"ping", PING) * 100)
        time.sleep(0.001)


def empty_pings(client):
    while True:
        client.send(frame(b"", PING) * 2**15)


def swap(client):
    """Answer each request with the answer to another one, by its id."""
    client.send(frame(message(array(WRONG), embodied_env={"request": {"epoch": 1, "step": 1}})))


def unasked(client):
    """Answer, and send another answer before the next request."""
    client.send(MOVING)
    time.sleep(0.002)
    client.send(WRONG_FRAME)


def timed(infer_ms):
    return sends(frame(message(array(MOVE), server_timing={"infer_ms": infer_ms})))


def malformed(actions, **changes):
    return sends(frame(message(actions, **changes)))


NESTED = b"\x81\xa7actions" + b"\x91" * 100_000 + b"\x00"
BOMB = zlib.compress(bytes(10**8))[2:-4]

ANSWERS = {
    "stalled": silent,
    "late": late,
    "drip": drip,
    "duplicated": sends(MOVING + WRONG_FRAME),
    "swapped": swap,
    "id_of_arrays": malformed(
        array(WRONG), embodied_env={"request": {"epoch": array((1.0, 1.0)), "step": array((1.0, 1.0))}}
    ),
    "unasked": unasked,
    "nan": malformed(array((float("nan"), *WRONG[1:]))),
    "inf": malformed(array((*WRONG[1:], float("-inf")))),
    "huge_values": malformed(array((1e300, 0.0, 0.0, 0.0, 0.0, 0.0))),
    "wrong_shape": malformed(array(WRONG[:5])),
    "too_many_axes": malformed(array(WRONG, shape=[1] * 40 + [6])),
    "shape_beyond_data": malformed(array(WRONG, shape=[2**40, 6])),
    "negative_shape": malformed(array(WRONG, shape=[-1, 6])),
    "empty_chunk": malformed(array((), shape=[0, 6])),
    "ragged": malformed([list(WRONG), list(WRONG[:3])]),
    "text_dtype": malformed(array(WRONG, dtype="<U2")),
    "object_dtype": malformed(array(WRONG, dtype="|O")),
    "long_double": malformed(array(WRONG, dtype="<f16", shape=[3])),
    "text_of_no_length": malformed(array((), shape=[2**40, 6], dtype="<U0")),
    "list_as_scalar": malformed({b"__npgeneric__": True, b"data": list(WRONG), b"dtype": "<f8"}),
    "many_values": sends(frame(b"\x81\xa1x\xdd\x00\x01\x86\xa0" + b"\x81\xa1a\x01" * 100_000)),
    "structured_dtype": malformed(array(WRONG, dtype="f8,f8")),
    "complex_dtype": malformed(array(WRONG, shape=[3], dtype="<c16")),
    "missing_output": sends(frame(msgpack.packb({"server_timing": {"infer_ms": 1.0}}))),
    "other_output": sends(frame(msgpack.packb({"joint_pos": array(WRONG)}))),
    "no_map": sends(frame(msgpack.packb([array(WRONG)]))),
    "truncated_message": sends(frame(message(array(WRONG))[:-20])),
    "trailing_bytes": sends(frame(message(array(MOVE)) + message(array(WRONG)))),
    "length_beyond_data": sends(frame(b"\xdf\xff\xff\xff\xff")),
    "deep_nesting": sends(frame(NESTED)),
    "pickle": sends(frame(pickle.dumps(Evil()))),
    "pickle_in_object_array": malformed(array((), shape=[1], dtype="|O", data=pickle.dumps(Evil()))),
    "text_error": sends(frame(b"Traceback (most recent call last):\nRuntimeError: CUDA out of memory", TEXT)),
    "empty": sends(frame(b"")),
    "truncated_frame": sends(WRONG_FRAME[: len(WRONG_FRAME) // 2], then=silent),
    "truncated_frame_then_closed": sends(WRONG_FRAME[: len(WRONG_FRAME) // 2], then=reset),
    "huge_frame": sends(header(2**40) + bytes(2**16), then=silent),
    "endless_fragments": endless_fragments,
    "pings": pings,
    "empty_pings": empty_pings,
    "compressed_bomb": sends(frame(BOMB, compressed=True), then=silent),
    "reserved_opcode": sends(frame(message(array(WRONG)), 5), then=silent),
    "no_frame": sends(b"HTTP/1.1 200 OK\r\n\r\n" + WRONG_FRAME, then=silent),
    "half_closed": lambda client: (client.socket.shutdown(socket.SHUT_WR), silent(client)),
    "reset": reset,
    "closed_after_each_answer": sends(MOVING, then=lambda client: client.socket.close()),
    "clock_jump_back": timed(-1e15),
    "clock_jump_ahead": timed(1e300),
    "timing_of_nan": timed(float("nan")),
    "timing_of_text": timed("yesterday"),
}


class Server:
    """Listen on a port, with a fault that a line of standard input sets."""

    def __init__(self, port):
        self.fault, self.left, self.metadata = "", 0, ""
        self.listener = socket.create_server(("127.0.0.1", port), reuse_port=True)

    def use(self):
        """Return whether this answer has the fault, and count it."""
        self.left -= 1
        return self.left >= 0

    def accept(self):
        while True:
            connected, _ = self.listener.accept()
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=Client(self, connected).run, daemon=True).start()

    def run(self):
        threading.Thread(target=self.accept, daemon=True).start()
        print(self.listener.getsockname()[1], flush=True)
        for line in sys.stdin:
            fault, _, count = line.strip().partition(" ")
            if fault in METADATA:
                self.metadata = fault
            else:
                assert not fault or fault in ANSWERS or fault in CONNECTING, fault
                self.left, self.fault = int(count or 10**9), fault
            print(fault, flush=True)
        os._exit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    Server(int(sys.argv[1]) if len(sys.argv) > 1 else 0).run()
