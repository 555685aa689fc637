"""Convert readings of the embedded simulator to ROS messages.

Message fields that the contract does not declare are NaN, or the message type's value for unknown. The vectors of a
pose or twist are those of the world; an orientation that it does not provide is the identity.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import SensorSpec
from embodied_env.core.reading_conversion import ReadingRules
from embodied_env.messages.any_message import PathField
from embodied_env.messages.declaration import Content, Extras, Message, Values, set_stamp
from embodied_env.messages.message_types import message_class
from embodied_env.messages.sensor_types import SENSOR_MESSAGES
from embodied_env.ros.transport.message_template import MessageTemplate

_MAX_TEMPLATES = 16  # per sensor; rclpy serializes messages that keep changing


class SensorEncoder:
    """Encoder of one sensor's messages, as bytes by a template or else by `build_message`."""

    def __init__(self, sensor: SensorSpec) -> None:
        """Prepare the encoder, whose template comes from the first reading."""
        self._sensor = sensor
        self._declaration = SENSOR_MESSAGES.get(sensor.type)
        self._rules = ReadingRules("", sensor)
        fields = self._rules.fields
        self._declared = {name: field for name, (_, field) in fields.items()}
        self._by_path = {name: known for name, (known, _) in fields.items() if isinstance(known, PathField)}
        is_computed = self._declaration is not None and self._declaration.is_computed
        self._templates_left = 0 if is_computed else _MAX_TEMPLATES
        self._template: MessageTemplate | None = None
        self._fields: set[str] = set()
        self._constants: Mapping[str, Any] = {}  # the extras of the template that are not arrays

    def encode(self, values: Values, stamp_ns: int, extras: Extras) -> Message | bytes:
        """Return the message that `build_message` returns, or its bytes."""
        arrays = {name: value for name, value in extras.items() if isinstance(value, np.ndarray)}
        constants = {name: value for name, value in extras.items() if name not in arrays}
        values = self._sent(values)
        numbers: Values = {**arrays, **values}
        template = self._template
        if template is None or constants != self._constants or values.keys() != self._fields:
            if not self._templates_left:
                return self._build(values, stamp_ns, extras)
            self._template = template = self._make_template(values, numbers, constants)
        return template.encode(numbers, stamp_ns)

    def _make_template(self, values: Values, numbers: Values, constants: Extras) -> MessageTemplate:
        self._templates_left -= 1
        self._constants, self._fields = dict(constants), set(values)

        def make(numbers: Mapping[str, NDArray[Any]], stamp_ns: int) -> Message:
            fields = {name: value for name, value in numbers.items() if name in self._fields}
            others = {name: value for name, value in numbers.items() if name not in self._fields}
            return self._build(fields, stamp_ns, {**constants, **others})

        return MessageTemplate(make, numbers)

    def build_message(self, values: Values, stamp_ns: int, extras: Extras) -> Message:
        """Return the message with `values` (field -> array), and `stamp_ns` in any header.

        Distances are as measured: +inf without a return, -inf for too close, NaN for no measurement. Raises
        MissingDependencyError for a message package or image encoder that is not installed.
        """
        return self._build(self._sent(values), stamp_ns, extras)

    def _sent(self, values: Values) -> Values:
        converted = self._rules.conversions.keys() & values.keys()
        return {**values, **{name: self._rules.sent(name, values[name]) for name in converted}} if converted else values

    def _build(self, values: Values, stamp_ns: int, extras: Extras) -> Message:
        sensor, message = self._sensor, message_class(self._sensor.type)()
        if hasattr(message, "header"):
            set_stamp(message.header.stamp, stamp_ns)
            message.header.frame_id = sensor.frame or ""
        if sensor.child_frame is not None:
            message.child_frame_id = sensor.child_frame
        own = {name: value for name, value in values.items() if name not in self._by_path}
        content = Content(self._declared, own, extras)
        if own and self._declaration is not None:
            self._declaration.write(message, content)
        for name, known in self._by_path.items():
            known.write(message, name, values.get(name), content)
        return message


def to_message(sensor: SensorSpec, values: Values, stamp_ns: int, extras: Extras | None = None) -> Message:
    """Return one message as `SensorEncoder.build_message` does."""
    return SensorEncoder(sensor).build_message(values, stamp_ns, extras or {})
