"""Distances measured by rays: LaserScan, Range, PointCloud2, and what their infinities and NaN mean (REP-117)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.backends.ros.fields import Field, MalformedMessageError, Message, ReadField, check_length
from embodied_env.contract.ranging import settle, settle_ranges

_FLOAT32 = 7  # sensor_msgs/PointField.FLOAT32
_AXES = ("x", "y", "z")


def scan_reader(field: Field) -> ReadField:
    """Return the reader of a field of a LaserScan: its ranges or its intensities."""

    def read(message: Message) -> NDArray[Any]:
        raw = np.frombuffer(getattr(message, field.name), dtype=np.float32)
        check_length(field.name, raw.size, field.shape[0])
        values = raw.copy()
        if field.name != "ranges":
            return values
        return settle_ranges(field.name, values, field.spec, message.range_min, message.range_max)

    return read


def range_reader(field: Field) -> ReadField:
    """Return the reader of the distance of a Range."""

    def read(message: Message) -> NDArray[Any]:
        value = np.array((message.range,), dtype=field.dtype)
        return settle_ranges(field.name, value, field.spec, message.min_range, message.max_range)

    return read


def cloud_reader(field: Field) -> ReadField:
    """Return the reader of the points of a PointCloud2. Its other fields (colour, ring, ...) are skipped."""

    def read(message: Message) -> NDArray[Any]:
        width, height = message.width, message.height
        if width * height != field.shape[0]:
            raise MalformedMessageError(f"there are {width} x {height} points; the contract declares {field.shape[0]}")
        if message.row_step < width * message.point_step:
            raise MalformedMessageError(
                f"row_step is {message.row_step}; {width} points need {width * message.point_step}"
            )
        if len(message.data) != height * message.row_step:
            raise MalformedMessageError(
                f"data has {len(message.data)} bytes; {height} rows of row_step {message.row_step} have "
                f"{height * message.row_step}"
            )
        strides = (message.row_step, message.point_step)
        points: NDArray[Any] = np.ndarray((height, width), _point_dtype(message), message.data, strides=strides)
        values = np.empty(field.shape, dtype=field.dtype)
        by_point = values.reshape(height, width, 3)
        for place, axis in enumerate(_AXES):
            by_point[:, :, place] = points[axis]
        return settle(field.name, values, field.spec)

    return read


def _point_dtype(message: Message) -> np.dtype[Any]:
    """Return where x, y and z lie within a point."""
    if message.is_bigendian:
        raise MalformedMessageError("is_bigendian is set; little-endian points are read")
    offsets = []
    for axis in _AXES:
        found = [part for part in message.fields if part.name == axis]
        if len(found) != 1:
            raise MalformedMessageError(f"there are {len(found)} fields {axis} in {[f.name for f in message.fields]}")
        (part,) = found
        if part.datatype != _FLOAT32 or part.count != 1:
            raise MalformedMessageError(
                f"{axis} has datatype {part.datatype} and count {part.count}; FLOAT32 ({_FLOAT32}) and 1 are read"
            )
        if part.offset + 4 > message.point_step:
            raise MalformedMessageError(f"{axis} at offset {part.offset} is not within point_step {message.point_step}")
        offsets.append(part.offset)
    return np.dtype({"names": list(_AXES), "formats": ["<f4"] * 3, "offsets": offsets, "itemsize": message.point_step})
