"""Distances of range sensors, scans and point clouds, with inf and NaN as in REP-117."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.messages.declaration import (
    Column,
    Content,
    Extras,
    Field,
    InvalidReadingError,
    Message,
    MessageField,
    Read,
    SensorMessage,
    Shape,
    Values,
    Window,
    check_length,
    packed,
    settle,
)
from embodied_env.messages.message_types import message_class
from embodied_env.messages.scalars import Number, Series

RANGE_TOLERANCE = 0.01  # relative excess over the maximum of a sensor up to which a range counts as the maximum
_FLOAT32 = 7  # sensor_msgs/PointField.FLOAT32
_BYTES_PER_POINT = 12
_AXES = ("x", "y", "z")


def settle_ranges(field: Field, values: NDArray[Any], window: Window) -> NDArray[Any]:
    """Discard ranges outside the limits of a LaserScan or Range, then resample and settle.

    A value above by at most `RANGE_TOLERANCE` is the maximum: rounding and noise move hits at the end of the range.
    """
    low_m, high_m = window[:2]
    if not (math.isfinite(low_m) and low_m <= high_m):
        raise InvalidReadingError(f"invalid sensor range: {low_m:g} m to {high_m:g} m (expected min <= max)")
    if values.size == 1:  # a Range: min() and max() of an array take fifty times as long
        least = most = values.item()
    else:
        least, most = (values.min(), values.max()) if values.size else (math.nan, math.nan)
    is_within = least >= low_m and most <= high_m and most < math.inf
    if is_within and field.resample is None:
        return values  # the common case
    if not is_within:
        np.copyto(values, high_m, where=(values > high_m) & (values <= high_m * (1.0 + RANGE_TOLERANCE)))
        np.copyto(values, np.nan, where=np.isfinite(values) & ((values < low_m) | (values > high_m)))
    nothing = f"NaN or outside of {low_m:g} m to {high_m:g} m"
    return settle(field, _resampled(field, values, window), near=low_m, nothing=nothing)


def _resampled(field: Field, values: NDArray[Any], window: Window) -> NDArray[Any]:
    """Return the values at the fixed angles of the contract, if it has any."""
    if field.resample is None:
        return values
    try:
        return field.resample(values, window.first_rad, window.increment_rad)
    except ValueError as error:
        raise InvalidReadingError(f"{field.name} cannot be resampled: {error}") from None


@dataclass(frozen=True, kw_only=True)
class _Range(Number):
    units: tuple[str, ...] | None = ("m",)
    dtype: str = "float32"
    ranging: bool = True

    accept = staticmethod(settle_ranges)


@dataclass(frozen=True, kw_only=True)
class _Rays(Series):
    dtype: str = "float32"
    column: Column = "rays"

    def check_count(self, field: Field, count: int) -> None:
        remedy = "; declare resample of the field to read scans with any number of rays"
        check_length(field.name, count, field.shape[0], remedy)

    def accept(self, field: Field, values: NDArray[Any], window: Window) -> NDArray[Any]:
        if self.ranging:
            return settle_ranges(field, values, window)
        return settle(field, _resampled(field, values, window))


@dataclass(frozen=True, kw_only=True)
class _Points(MessageField):
    """The points of a cloud, (n, 3) metres, without its other fields (colour, ring, ...)."""

    shape: Shape | None = (None, 3)
    units: tuple[str, ...] | None = ("m",)
    dtype: str = "float32"
    column: Column = "points"
    ranging: bool = True

    def reader(self, field: Field) -> Read:

        def read(message: Message) -> NDArray[Any]:
            width, height = message.width, message.height
            if width * height != field.shape[0] and field.select is None:
                problem = f"the cloud has {width} x {height} points"
                remedy = "declare points of the field to read clouds with any number of points"
                raise InvalidReadingError(f"{problem} (expected {field.shape[0]}); {remedy}")
            check_rows("row_step", message.row_step, width * message.point_step, height, len(message.data))
            strides = (message.row_step, message.point_step)
            points: NDArray[Any] = np.ndarray((height, width), _point_dtype(message), message.data, strides=strides)
            values = np.empty((width * height, 3), dtype=field.dtype)
            by_point = values.reshape(height, width, 3)
            for place, axis in enumerate(_AXES):
                by_point[:, :, place] = points[axis]
            return values

        return read

    def accept(self, field: Field, values: NDArray[Any], window: Window) -> NDArray[Any]:  # noqa: ARG002
        if field.select is not None:
            try:
                values = field.select(values)
            except ValueError as error:
                raise InvalidReadingError(f"{field.name}: {error}") from None
        return settle(field, values)

    def write(self, message: Message, name: str, value: NDArray[Any] | None, content: Content) -> None:  # noqa: ARG002
        points, part = content.values["points"], message_class("sensor_msgs/msg/PointField")
        message.fields = [
            part(name=axis, offset=4 * place, datatype=_FLOAT32, count=1) for place, axis in enumerate(_AXES)
        ]
        message.height, message.width = 1, len(points)
        message.point_step, message.row_step = _BYTES_PER_POINT, _BYTES_PER_POINT * len(points)
        message.is_dense = bool(np.isfinite(points).all())
        message.data = packed(points.astype("<f4", copy=False).ravel().view(np.uint8))


@dataclass(frozen=True, kw_only=True)
class _RangeMessage(SensorMessage):
    limits: tuple[str, str]

    def window(self, message: Message) -> Window:
        low, high = self.limits
        return Window(getattr(message, low), getattr(message, high))

    def write(self, message: Message, content: Content) -> None:
        super().write(message, content)
        for name, limit in zip(self.limits, window_of(content.extras, content.values), strict=False):
            setattr(message, name, limit)


class _LaserScan(_RangeMessage):
    def window(self, message: Message) -> Window:
        return Window(message.range_min, message.range_max, message.angle_min, message.angle_increment)

    def write(self, message: Message, content: Content) -> None:
        super().write(message, content)
        message.angle_max = content.extras.get("angle_max_rad", math.nan)
        _, _, message.angle_min, message.angle_increment = window_of(content.extras, content.values)


def window_of(extras: Extras, values: Values) -> Window:
    """Return the limits and angles of a simulated reading of ranges."""
    first, last = extras.get("angle_min_rad", math.nan), extras.get("angle_max_rad", math.nan)
    increment = (last - first) / max(1, max(map(len, values.values()), default=1) - 1)
    return Window(extras.get("range_min_m", 0.0), extras.get("range_max_m", math.inf), first, increment)


def check_rows(name: str, step: int, least: int, rows: int, size: int) -> None:
    """Check the length of a row, called `name`, and the size of the data, all in bytes."""
    if step < least:
        raise InvalidReadingError(f"{name} is {step} (expected at least {least})")
    if size != rows * step:
        raise InvalidReadingError(f"data has {size} bytes (expected {rows} rows of {name} {step}: {rows * step})")


def _point_dtype(message: Message) -> np.dtype[Any]:
    if message.is_bigendian:
        raise InvalidReadingError("is_bigendian is set (expected little-endian points)")
    offsets = []
    for axis in _AXES:
        found = [part for part in message.fields if part.name == axis]
        if len(found) != 1:
            raise InvalidReadingError(f"{len(found)} fields {axis} in {[f.name for f in message.fields]} (expected 1)")
        (part,) = found
        if (part.datatype, part.count) != (_FLOAT32, 1):
            problem = f"{axis} has datatype {part.datatype} and count {part.count}"
            raise InvalidReadingError(f"{problem} (expected FLOAT32, {_FLOAT32}, and 1)")
        if part.offset + 4 > message.point_step:
            raise InvalidReadingError(f"{axis} at offset {part.offset} exceeds point_step {message.point_step}")
        offsets.append(part.offset)
    return np.dtype({"names": list(_AXES), "formats": ["<f4"] * 3, "offsets": offsets, "itemsize": message.point_step})


_UNDECLARED = "+inf without `no_return`, NaN without `nan`"
_LIMITS = (
    f"the limits are not an interval; {_UNDECLARED}. -inf is read as the minimum; values outside the limits as NaN, "
    "those above by at most 1 % as the maximum"
)

MESSAGES = (
    _RangeMessage(
        type="sensor_msgs/msg/Range",
        fields={"range": _Range()},
        limits=("min_range", "max_range"),
        sources=("distance",),
        invalid=_LIMITS,
    ),
    _LaserScan(
        type="sensor_msgs/msg/LaserScan",
        fields={"ranges": _Rays(units=("m",), ranging=True), "intensities": _Rays(units=None)},
        limits=("range_min", "range_max"),
        sources=("rays",),
        invalid="the number of rays differs, unless the field declares `resample`; with it, there is no ray or no "
        f"increment; {_LIMITS}",
    ),
    SensorMessage(
        type="sensor_msgs/msg/PointCloud2",
        fields={"points": _Points()},
        is_computed=True,
        invalid="the number of points differs, unless the field declares `points`; with it, there is no point, or one "
        "with the coordinates of `pad`; x, y or z is missing or not one FLOAT32; the layout is wrong; "
        f"big-endian; -inf; {_UNDECLARED}",
    ),
)
