"""Small policy servers of openpi and GR00T for tests, written against their public protocols."""

import contextlib
import importlib
import io
import threading
from typing import Any

import msgpack
import numpy as np


def pack_openpi(message):
    """As openpi's `msgpack_numpy`."""

    def encode(value):
        if isinstance(value, np.ndarray):
            return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}

    return msgpack.packb(message, default=encode)


def unpack_openpi(data):
    def decode(value):
        if b"__ndarray__" in value:
            return np.ndarray(buffer=value[b"data"], dtype=np.dtype(value[b"dtype"]), shape=value[b"shape"])
        return value

    return msgpack.unpackb(data, object_hook=decode)


@contextlib.contextmanager
def serve_openpi(answer, *, metadata=b"\x80", port=0):
    """Yield the address and the list of requests of a server that sends what `answer(request, connection)` returns.

    The address is ``host:port``. `metadata` is bytes or text, or a function of the connection that returns them.
    """
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.server import serve

    requests = []

    def handle(connection):
        with contextlib.suppress(ConnectionClosed):
            connection.send(metadata(connection) if callable(metadata) else metadata)
            for message in connection:
                requests.append(message)
                replies = answer(unpack_openpi(message), connection)
                for reply in replies if isinstance(replies, list) else [replies]:
                    connection.send(reply if isinstance(reply, (bytes, str)) else pack_openpi(reply))

    options = {"compression": None, "max_size": None, "ping_interval": None, "close_timeout": 0.02}
    with serve(handle, "127.0.0.1", port, **options) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.socket.getsockname()[1]}", requests
        finally:
            server.shutdown()
            thread.join()


def pack_gr00t(message):
    """As GR00T's `MsgSerializer`."""

    def encode(value):
        file = io.BytesIO()
        np.save(file, value, allow_pickle=False)
        return {"__ndarray_class__": True, "as_npy": file.getvalue()}

    return msgpack.packb(message, default=encode)


def unpack_gr00t(data):
    def decode(value):
        return np.load(io.BytesIO(value["as_npy"]), allow_pickle=False) if "__ndarray_class__" in value else value

    return msgpack.unpackb(data, object_hook=decode)


@contextlib.contextmanager
def serve_gr00t(answer):
    """Yield the address and the list of requests of a server that sends what `answer(request)` returns.

    The address is ``host:port``.
    """
    zmq: Any = importlib.import_module("zmq")
    requests, ends = [], threading.Event()
    with zmq.Context() as context, context.socket(zmq.REP) as replies:
        replies.setsockopt(zmq.LINGER, 0)
        port = replies.bind_to_random_port("tcp://127.0.0.1")

        def run():
            while not ends.is_set():
                if not replies.poll(20):
                    continue
                requests.append(replies.recv())
                reply = answer(unpack_gr00t(requests[-1]))
                is_raw = isinstance(reply, list) and isinstance(reply[0], bytes)  # the parts of one message
                parts = reply if is_raw else [reply if isinstance(reply, bytes) else pack_gr00t(reply)]
                replies.send_multipart(parts)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield f"127.0.0.1:{port}", requests
        finally:
            ends.set()
            thread.join()
