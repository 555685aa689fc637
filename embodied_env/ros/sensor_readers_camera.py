"""Read the messages of cameras and range sensors.

Pixels are uint8 (height, width, channels), depth is float32 metres (height, width, 1), points are (n, 3) metres.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract.message_types import ENCODINGS
from embodied_env.contract.reading_values import from_units, settle, settle_depth, settle_ranges
from embodied_env.errors import MissingDependencyError
from embodied_env.ros.message_fields import Field, MalformedMessageError, Message, ReadField, check_length

_CODECS = {"jpeg": "JPEG", "jpg": "JPEG", "png": "PNG"}
_MODES = {"rgb8": "RGB", "mono8": "L"}  # encoding -> mode of Pillow
_FLOAT32 = 7  # sensor_msgs/PointField.FLOAT32
_AXES = ("x", "y", "z")


def image_reader(field: Field) -> ReadField:
    """Return the reader of an Image in the encoding that the contract declares."""
    name = field.sensor.encoding or ""
    encoding = ENCODINGS[name]
    raw = np.dtype(encoding.dtype).newbyteorder("<")

    def read(message: Message) -> NDArray[Any]:
        if message.encoding != name:
            raise MalformedMessageError(f"encoding is {message.encoding!r} (expected {name!r})")
        if raw.itemsize > 1 and message.is_bigendian:
            raise MalformedMessageError("is_bigendian is set (expected little-endian pixels)")
        _check_size(field, message.width, message.height)
        pixels: NDArray[Any] = np.ndarray(field.shape, raw, message.data, strides=_strides(message, field, raw))
        if encoding.metres_per_unit is None:
            return pixels.copy()
        if raw.kind == "f":
            return settle_depth(field.name, pixels.astype(field.dtype), field.spec)
        return settle_depth(field.name, from_units(pixels, encoding.metres_per_unit), field.spec, nothing="0")

    return read


def compressed_reader(field: Field) -> ReadField:
    """Return the reader of a CompressedImage, JPEG or PNG; raises MissingDependencyError without Pillow."""
    try:
        from PIL import Image  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingDependencyError(
            f"Pillow ({error})",
            needed_for=f"the CompressedImage of sensors.{field.sensor_name}",
            remedy='pip install "embodied_env[images]"',
        ) from None
    wanted_size = (field.shape[1], field.shape[0])
    wanted_mode = _MODES[field.sensor.encoding or ""]

    def read(message: Message) -> NDArray[Any]:
        codec = _codec(message.format)
        try:
            with Image.open(io.BytesIO(message.data), formats=[codec]) as image:
                size, mode = image.size, image.mode
                pixels = image.tobytes() if size == wanted_size and mode == wanted_mode else b""
        except Exception as error:  # decoders raise many types for damaged data
            raise MalformedMessageError(f"the {codec} cannot be decoded: {error}") from error
        _check_size(field, *size)
        if mode != wanted_mode:
            raise MalformedMessageError(f"the {codec} has mode {mode} (expected {field.sensor.encoding})")
        return np.frombuffer(pixels, dtype=field.dtype).reshape(field.shape).copy()  # Pillow returns read-only bytes

    return read


def scan_reader(field: Field) -> ReadField:
    """Return the reader of the ranges or intensities of a LaserScan."""

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
            raise MalformedMessageError(f"the cloud has {width} x {height} points (expected {field.shape[0]})")
        _check_rows("row_step", message.row_step, width * message.point_step, height, len(message.data))
        strides = (message.row_step, message.point_step)
        points: NDArray[Any] = np.ndarray((height, width), _point_dtype(message), message.data, strides=strides)
        values = np.empty(field.shape, dtype=field.dtype)
        by_point = values.reshape(height, width, 3)
        for place, axis in enumerate(_AXES):
            by_point[:, :, place] = points[axis]
        return settle(field.name, values, field.spec)

    return read


def _check_size(field: Field, width: int, height: int) -> None:
    rows, columns = field.shape[:2]
    if (width, height) != (columns, rows):
        raise MalformedMessageError(f"the image is {width} x {height} (expected {columns} x {rows})")


def _check_rows(name: str, step: int, least: int, rows: int, size: int) -> None:
    """Check the length of a row, called `name`, and the size of the data, all in bytes."""
    if step < least:
        raise MalformedMessageError(f"{name} is {step} (expected at least {least})")
    if size != rows * step:
        raise MalformedMessageError(f"data has {size} bytes (expected {rows} rows of {name} {step}: {rows * step})")


def _strides(message: Message, field: Field, raw: np.dtype[Any]) -> tuple[int, int, int]:
    """Return the strides of rows, pixels and channels, bytes. Rows may end in padding."""
    height, width, channels = field.shape
    pixel = channels * raw.itemsize
    _check_rows("step", message.step, width * pixel, height, len(message.data))
    return message.step, pixel, raw.itemsize


def _codec(text: str) -> str:
    """Parse a format: ``png``, or ``rgb8; jpeg compressed bgr8``, as image_transport writes it."""
    words = text.rpartition(";")[2].split()
    if not words or words[0] not in _CODECS or (len(words) > 1 and words[1] != "compressed"):
        raise MalformedMessageError(f"format is {text!r} (expected jpeg or png)")
    return _CODECS[words[0]]


def _point_dtype(message: Message) -> np.dtype[Any]:
    """Return the dtype of x, y and z within a point."""
    if message.is_bigendian:
        raise MalformedMessageError("is_bigendian is set (expected little-endian points)")
    offsets = []
    for axis in _AXES:
        found = [part for part in message.fields if part.name == axis]
        if len(found) != 1:
            raise MalformedMessageError(
                f"{len(found)} fields {axis} in {[f.name for f in message.fields]} (expected 1)"
            )
        (part,) = found
        if (part.datatype, part.count) != (_FLOAT32, 1):
            problem = f"{axis} has datatype {part.datatype} and count {part.count}"
            raise MalformedMessageError(f"{problem} (expected FLOAT32, {_FLOAT32}, and 1)")
        if part.offset + 4 > message.point_step:
            raise MalformedMessageError(f"{axis} at offset {part.offset} exceeds point_step {message.point_step}")
        offsets.append(part.offset)
    return np.dtype({"names": list(_AXES), "formats": ["<f4"] * 3, "offsets": offsets, "itemsize": message.point_step})
