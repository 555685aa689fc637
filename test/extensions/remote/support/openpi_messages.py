"""openpi's MessagePack with arrays, written against its public format and without our code."""

import msgpack
import numpy as np


def pack(message):
    return msgpack.packb(message, default=_to_message)


def unpack(data):
    return msgpack.unpackb(data, object_hook=_from_message)


def _to_message(value):
    array = np.asarray(value)
    return {b"__ndarray__": True, b"data": array.tobytes(), b"dtype": array.dtype.str, b"shape": array.shape}


def _from_message(value):
    if b"__ndarray__" not in value:
        return value
    return np.frombuffer(value[b"data"], value[b"dtype"]).reshape(value[b"shape"])
