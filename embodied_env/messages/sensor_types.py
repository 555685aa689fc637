"""The message types of sensors, by name."""

from __future__ import annotations

from collections.abc import Mapping

from embodied_env.messages import images, joints, ranges, scalars, vectors
from embodied_env.messages.declaration import SensorMessage

SENSOR_MESSAGES: Mapping[str, SensorMessage] = {  # any other type is read by fields with a declared `path`
    message.type: message for family in (joints, scalars, vectors, ranges, images) for message in family.MESSAGES
}
