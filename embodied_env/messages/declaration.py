"""Declare types of sensor messages, with fields, reading, writing and validity."""

from __future__ import annotations

import array
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Message = Any  # a generated type
Shape = tuple[int | None, ...]
Values = Mapping[str, NDArray[Any]]
Read = Callable[[Message], NDArray[Any]]  # returns a new array, or raises InvalidReadingError
Extras = Mapping[str, Any]
"""Content of a message that its sensor does not declare, where a simulated world provides it.

``position``, ``orientation``, ``linear``, ``angular``: of a pose or twist. ``covariance``: of a pose, shape (36,).
``angle_min_rad``, ``angle_max_rad``: of the first and the last ray of a LaserScan. ``range_min_m``, ``range_max_m``:
limits of a LaserScan or Range (default: 0 and infinity); readers discard values outside of them.
"""

Column = Literal["number", "series", "joints", "position", "vector", "rotation", "rays", "points", "image"]
"""Kind of a field for exporters and viewers, independent of its message type."""

AXES: Mapping[str, str] = {"position": "xyz", "vector": "xyz", "rotation": "xyzw"}  # components by column
_LARGE = 1e30  # fits into any floating-point type


class InvalidReadingError(Exception):
    """A message or a reading that does not match the contract."""


class Window(NamedTuple):
    """Limits of ranges, m, with first angle and increment, rad, or NaN without angles."""

    low_m: float = 0.0
    high_m: float = math.inf
    first_rad: float = math.nan
    increment_rad: float = math.nan


NO_WINDOW = Window()


@dataclass(frozen=True, kw_only=True)
class Field:
    """A field of a sensor as its contract declares it.

    `shape` is the shape in the message. `resample` returns values at other angles than those of a window, and raises
    ValueError. `resize` returns an image in another size, filled up with the argument `padding`. `select` returns a
    fixed number of points, and raises ValueError.
    """

    sensor: str
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    joints: tuple[str, ...] = ()
    encoding: str = ""
    no_return: float | None = None
    nan: float | None = None
    resample: Callable[[NDArray[Any], float, float], NDArray[Any]] | None = None
    resize: Callable[..., NDArray[Any]] | None = None
    select: Callable[[NDArray[Any]], NDArray[Any]] | None = None


class Content(NamedTuple):
    """The content to write into a message."""

    fields: Mapping[str, Field]
    values: Values
    extras: Extras


@dataclass(frozen=True, kw_only=True)
class MessageField:
    """One readable field of a message type, with a subclass for each form of values."""

    shape: Shape | None  # None: one value per joint, found by name; a None within it: declared by the contract
    units: tuple[str, ...] | None  # None: any
    dtype: str = "float64"  # the precision of the message, the same in every backend
    column: Column = "series"
    place: str = ""  # path in the message; by default the name of the field
    ranging: bool = False  # distances, for whose infinities and NaN (REP-117) a contract may declare values
    saturates: bool = False  # the sensor itself cannot report more than its range, so a simulated one does not either
    bound: float = math.inf  # magnitude that real sensors do not exceed, for a drafted contract

    @property
    def rotation(self) -> bool:
        """Whether it is a unit quaternion."""
        return self.column == "rotation"

    def reader(self, field: Field) -> Read:
        """Return the function that reads the field from a message."""
        raise NotImplementedError

    def is_checked(self, field: Field) -> bool:
        """Return whether `accept` does anything."""
        return self.rotation or self.ranging or field.resample is not None or field.resize is not None

    def accept(self, field: Field, values: NDArray[Any], window: Window) -> NDArray[Any]:  # noqa: ARG002 - subclasses
        """Return the reading of values, which may change in place, or raise InvalidReadingError."""
        return values

    def write(self, message: Message, name: str, value: NDArray[Any] | None, content: Content) -> None:
        """Write a value, or None for unknown."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class SensorMessage:
    """A message type of sensors."""

    type: str
    fields: Mapping[str, MessageField]
    invalid: str  # what makes a reading invalid, as a clause
    header: bool = True  # without one, the only acquisition time is that of reception
    child_frame: bool = False  # has a second frame, `child_frame_id`
    covariance: bool = False  # has the covariance of a pose, from which a confidence is computed
    encodings: tuple[str, ...] = ()  # the contract declares one of them
    sources: tuple[str, ...] = ()  # kinds of source in a simulated world that can fill it, besides its sensors
    of_robot: bool = False  # measures the robot itself, not its surroundings
    is_computed: bool = False  # has content that is computed from the values, such as their size

    @property
    def is_pose(self) -> bool:
        """Whether its fields are those of a pose alone, whose transform needs no motion."""
        return self.fields.keys() <= {"position", "orientation", "covariance"}

    def window(self, message: Message) -> Window:  # noqa: ARG002 - for subclasses
        """Return the limits and angles of the ranges in a message."""
        return NO_WINDOW

    def write(self, message: Message, content: Content) -> None:
        """Write the fields, with undeclared ones as the world provides them, or as unknown."""
        for name, known in self.fields.items():
            known.write(message, name, content.values.get(name, content.extras.get(name)), content)


def set_stamp(stamp: Message, ns: int) -> None:
    """Write nanoseconds into a builtin_interfaces/Time or Duration."""
    stamp.sec, stamp.nanosec = divmod(ns, 1_000_000_000)


def check_length(name: str, found: int, wanted: int, remedy: str = "") -> None:
    """Raise InvalidReadingError unless `name` has as many values as the contract declares."""
    if found != wanted:
        raise InvalidReadingError(f"{name} has {found} values (expected {wanted}){remedy}")


def fitted(name: str, values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a copy as `dtype`, or raise InvalidReadingError for values it cannot hold."""
    if dtype.kind == "f" and values.size == 1 and abs(values.item()) <= _LARGE:
        return values.astype(dtype)  # the context below takes five times as long
    with np.errstate(all="ignore"):  # checked below
        result = values.astype(dtype)
    if dtype.kind != "f" and (unfit := values[result != values]).size:
        counts = f"{unfit.size} of {values.size} values of {name}"
        raise InvalidReadingError(f"{counts} do not fit into {dtype}; the first is {unfit.flat[0]}")
    return result


def settle(field: Field, distances: NDArray[Any], *, near: float = math.nan, nothing: str = "NaN") -> NDArray[Any]:
    """Replace non-finite values by declared ones, in place, and return `distances`.

    +inf (no hit) becomes ``no_return``, -inf (too close) becomes `near`, the minimum range of the sensor, and NaN (no
    measurement) becomes ``nan``. Raises InvalidReadingError for a value without a replacement, with `nothing` as the
    name of NaN in its message.
    """
    if np.isfinite(distances).all():
        return distances
    if field.no_return is not None:
        np.copyto(distances, field.no_return, where=np.isposinf(distances))
    if math.isfinite(near):
        np.copyto(distances, near, where=np.isneginf(distances))
    if field.nan is not None:
        np.copyto(distances, field.nan, where=np.isnan(distances))
    for is_left, meaning in (
        (np.isneginf, "-inf (too close)"),
        (np.isposinf, "+inf (no return); declare no_return in the contract to replace them"),
        (np.isnan, f"{nothing} (no measurement); declare nan in the contract to replace them"),
    ):
        if count := np.count_nonzero(is_left(distances)):
            raise InvalidReadingError(f"{count} of {distances.size} values of {field.name} are {meaning}")
    return distances


def packed(values: NDArray[Any]) -> array.array[Any]:
    """Return `values` as an array.array of their type."""
    made: array.array[Any] = array.array(values.dtype.char)
    made.frombytes(values.ravel().view(np.uint8).data)
    return made
