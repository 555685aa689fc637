"""Convert messages to CDR and back, without trailing bytes.

`serialize_message` returns as many bytes as rmw_fastrtps estimated, which counts an empty sequence of doubles as
aligned; strict readers such as `rosbags` refuse the surplus. The size is therefore measured.
"""

from __future__ import annotations

import functools
from typing import Any

from embodied_env.ros.transport.byte_layout import UnreadableError, message_size
from embodied_env.ros.transport.setup_checks import rclpy_import_errors


@functools.cache
def _serialization() -> Any:  # noqa: ANN401 - a module of rclpy
    """Import rclpy's module when it is first used, since a backend profile is read without rclpy."""
    with rclpy_import_errors("messages of ROS 2"):
        from rclpy import serialization  # noqa: PLC0415 - see above
    return serialization


def to_cdr(message: Any) -> bytes:  # noqa: ANN401 - a generated type
    """Return the bytes of `message` as they are on the wire."""
    data: bytes = _serialization().serialize_message(message)
    try:
        return data[: message_size(message, data)]
    except UnreadableError:  # a type that is not measured: wide characters
        return data


def from_cdr(data: bytes, kind: Any) -> Any:  # noqa: ANN401 - a generated type
    """Return the message of class `kind` in `data`, or raise what rclpy raises for invalid bytes."""
    return _serialization().deserialize_message(data, kind)
