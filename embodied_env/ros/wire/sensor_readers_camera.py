"""Read the messages of cameras and range sensors.

Pixels are uint8 (height, width, channels), depth is float32 metres (height, width, 1), points are (n, 3) metres.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract.reading_values import resample, settle, settle_ranges
from embodied_env.core.image_processing import import_pillow
from embodied_env.messages.message_types import ENCODINGS
from embodied_env.ros.wire.message_fields import Field, MalformedMessageError, Message, ReadField

_CODECS = {"jpeg": "JPEG", "jpg": "JPEG", "png": "PNG"}
_MODES = {"rgb8": "RGB", "mono8": "L"}  # encoding -> mode of Pillow
_FLOAT32 = 7  # sensor_msgs/PointField.FLOAT32
_AXES = ("x", "y", "z")


def image_reader(field: Field) -> ReadField:
    """Return the reader of the pixels of an Image in the encoding that the contract declares, not copied."""
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
        return pixels

    return read


def compressed_reader(field: Field) -> ReadField:
    """Return the reader of a CompressedImage, JPEG or PNG; raises MissingDependencyError without Pillow."""
    image_module = import_pillow(f"the CompressedImage of sensors.{field.sensor_name}").Image
    wanted_size = (field.shape[1], field.shape[0])
    wanted_mode = _MODES[field.sensor.encoding or ""]

    def read(message: Message) -> NDArray[Any]:
        codec = _codec(message.format)
        try:
            with image_module.open(io.BytesIO(message.data), formats=[codec]) as image:
                size, mode = image.size, image.mode
                pixels = image.tobytes() if size == wanted_size and mode == wanted_mode else b""
        except Exception as error:  # decoders raise many types for damaged data
            raise MalformedMessageError(f"the {codec} cannot be decoded: {error}") from error
        _check_size(field, *size)
        if mode != wanted_mode:
            raise MalformedMessageError(f"the {codec} has mode {mode} (expected {field.sensor.encoding})")
        return np.frombuffer(pixels, dtype=field.dtype).reshape(field.shape)

    return read


def scan_reader(field: Field) -> ReadField:
    """Return the reader of the ranges or intensities of a LaserScan."""

    def read(message: Message) -> NDArray[Any]:
        raw = np.frombuffer(getattr(message, field.name), dtype=np.float32)
        angles_rad = (message.angle_min, message.angle_increment)
        if field.spec.resample is None and raw.size != field.shape[0]:
            remedy = "declare resample of the field to read scans with any number of rays"
            raise MalformedMessageError(f"{field.name} has {raw.size} values (expected {field.shape[0]}); {remedy}")
        values, spec = raw.copy(), field.spec
        if field.name == "ranges":
            return settle_ranges(field.name, values, spec, message.range_min, message.range_max, angles_rad)
        return (
            values
            if spec.resample is None
            else settle(field.name, resample(field.name, values, spec, angles_rad), spec)
        )

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
