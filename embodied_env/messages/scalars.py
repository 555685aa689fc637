"""Numbers, which are scalars and arrays of std_msgs and the values of a battery."""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.messages.declaration import (
    Column,
    Content,
    Field,
    InvalidReadingError,
    Message,
    MessageField,
    Read,
    SensorMessage,
    Shape,
    check_length,
    packed,
)

NOT_FINITE = "it is not finite"


@dataclass(frozen=True, kw_only=True)
class Number(MessageField):
    """A number or a boolean."""

    shape: Shape | None = (1,)
    column: Column = "number"
    is_optional: bool = False  # NaN where the sensor does not measure it

    def reader(self, field: Field) -> Read:
        """Return the reader of the number, where NaN is invalid if it means no measurement."""
        get, dtype = attrgetter(field.name), field.dtype
        if not self.is_optional:
            return lambda message: np.array((get(message),), dtype)

        def read(message: Message) -> NDArray[Any]:
            value = get(message)
            if math.isnan(value):
                raise InvalidReadingError(f"{field.name} is NaN: not measured")
            return np.array((value,), dtype)

        return read

    def write(self, message: Message, name: str, value: NDArray[Any] | None, content: Content) -> None:  # noqa: ARG002
        """Write the number as the type that the message has for it, NaN for unknown."""
        setattr(message, name, math.nan if value is None else type(getattr(message, name))(value[0]))


@dataclass(frozen=True, kw_only=True)
class Series(MessageField):
    """An array of numbers, as many as the contract declares."""

    shape: Shape | None = (None,)

    def reader(self, field: Field) -> Read:
        """Return the function that reads the array."""

        def read(message: Message) -> NDArray[Any]:
            values = np.frombuffer(getattr(message, field.name), dtype=field.dtype)
            if field.resample is None:
                self.check_count(field, values.size)
            return values.copy()

        return read

    def check_count(self, field: Field, count: int) -> None:
        """Raise InvalidReadingError for another number of values."""
        check_length(field.name, count, field.shape[0])

    def write(self, message: Message, name: str, value: NDArray[Any] | None, content: Content) -> None:  # noqa: ARG002
        """Write the array, or leave it empty for an unknown one."""
        if value is not None:
            setattr(message, name, packed(value))


@dataclass(frozen=True, kw_only=True)
class _BatteryState(SensorMessage):
    """A battery, whose capacities a contract does not declare."""

    def write(self, message: Message, content: Content) -> None:
        super().write(message, content)
        message.capacity = message.design_capacity = math.nan


def _cell(unit: str) -> Number:
    return Number(units=(unit,), dtype="float32", is_optional=True)


MESSAGES = (
    SensorMessage(
        type="std_msgs/msg/Float64MultiArray",
        fields={"data": Series(units=None)},
        header=False,
        invalid="it has another length, or is not finite",
    ),
    SensorMessage(type="std_msgs/msg/Float64", fields={"data": Number(units=None)}, header=False, invalid=NOT_FINITE),
    SensorMessage(
        type="std_msgs/msg/Bool",
        fields={"data": Number(units=("1",), dtype="int8")},
        header=False,
        sources=("contact",),
        invalid="never",
    ),
    SensorMessage(
        type="sensor_msgs/msg/Temperature",
        fields={"temperature": Number(units=("degC",), is_optional=True)},
        of_robot=True,
        invalid="it is NaN: not measured",
    ),
    _BatteryState(
        type="sensor_msgs/msg/BatteryState",
        fields={
            "percentage": _cell("1"),
            "voltage": _cell("V"),
            "current": _cell("A"),
            "charge": _cell("A*h"),
            "temperature": _cell("degC"),
        },
        of_robot=True,
        invalid="a declared field is NaN: not measured",
    ),
)
