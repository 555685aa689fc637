"""The messages of a sensor, to be published: as `embodied_env.sim.messages` makes them, by their bytes where it can."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import SensorSpec
from embodied_env.prepared import PreparedMessage
from embodied_env.sim.messages import Extras, Message, Values, to_message

_TOLD_BY_VALUES = ("sensor_msgs/msg/PointCloud2", "sensor_msgs/msg/CompressedImage")
"""More than their numbers stands in these: whether all are finite, a size."""

_LEARNINGS = 16  # of one sensor: where its messages differ each time, rclpy makes them


class ReadingWriter:
    """Makes the messages of one sensor: bytes, or messages where theirs are not known. Both say the same."""

    def __init__(self, sensor: SensorSpec) -> None:
        """Learn from the first reading."""
        self._sensor = sensor
        self._left = 0 if sensor.type in _TOLD_BY_VALUES else _LEARNINGS
        self._prepared: PreparedMessage | None = None
        self._fields: set[str] = set()
        self._said: Mapping[str, Any] = {}  # beside the numbers, by the messages that are prepared

    def message(self, values: Values, stamp_ns: int, extras: Extras) -> Message | bytes:
        """Return what `to_message` does, or its bytes."""
        numbers: Values = values
        said = extras
        if extras and (arrays := {name: value for name, value in extras.items() if isinstance(value, np.ndarray)}):
            numbers = {**arrays, **values}
            said = {name: value for name, value in extras.items() if name not in arrays}
        prepared = self._prepared
        if prepared is None or said != self._said or values.keys() != self._fields:
            if not self._left:
                return to_message(self._sensor, values, stamp_ns, extras)
            self._prepared = prepared = self._learn(values, numbers, said)
        return prepared.message(numbers, stamp_ns)

    def _learn(self, values: Values, numbers: Values, said: Extras) -> PreparedMessage:
        self._left -= 1
        self._said, self._fields = dict(said), set(values)

        def make(numbers: Mapping[str, NDArray[Any]], stamp_ns: int) -> Message:
            fields = {name: value for name, value in numbers.items() if name in self._fields}
            others = {name: value for name, value in numbers.items() if name not in self._fields}
            return to_message(self._sensor, fields, stamp_ns, {**said, **others})

        return PreparedMessage(make, numbers)
