"""Fields of any message, by their path. What can be known by the types was checked (`embodied_env.contract.paths`)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.backends.ros.fields import Field, MalformedMessageError, Message, ReadField, check_length
from embodied_env.contract.paths import steps_of


def path_reader(field: Field) -> ReadField:
    """Return the reader of a field with a path: a number, or with a declared shape a sequence of numbers."""
    path = field.spec.path or ""
    steps = steps_of(path)
    convert = _number if field.spec.shape is None else _numbers

    def read(message: Message) -> NDArray[Any]:
        value = message
        for name, index in steps:
            value = getattr(value, name)
            if index is not None:
                if index >= len(value):
                    raise MalformedMessageError(f"{path}: there is no element {index}, only {len(value)} elements")
                value = value[index]
        return convert(value, field)

    return read


def _number(value: Any, field: Field) -> NDArray[Any]:  # noqa: ANN401 - part of a message
    return np.array([value[0] if isinstance(value, bytes) else value], dtype=field.dtype)  # bytes: the ROS type octet


def _numbers(value: Any, field: Field) -> NDArray[Any]:  # noqa: ANN401 - part of a message
    """Copy a sequence into an array of the declared shape."""
    check_length(field.spec.path or "", len(value), math.prod(field.shape))
    return np.array(np.asarray(value).reshape(field.shape), dtype=field.dtype)
