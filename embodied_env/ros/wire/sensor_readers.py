"""Read sensor messages into arrays as the contract declares."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from embodied_env.contract import SensorSpec
from embodied_env.contract.field_paths import check_messages
from embodied_env.core.reading_conversion import ReadingRules
from embodied_env.messages.declaration import NO_WINDOW, InvalidReadingError, Message
from embodied_env.messages.message_types import JOINT_SENSOR
from embodied_env.messages.sensor_types import SENSOR_MESSAGES
from embodied_env.messages.vectors import position_confidence
from embodied_env.ros.transport.layout_cache import RawMessage


def stamp_ns(message: Message) -> int:
    """Return the stamp of a message's header, ns of its clock."""
    if isinstance(message, RawMessage):
        return message.stamp_ns()
    stamp = message.header.stamp
    return int(stamp.sec) * 1_000_000_000 + int(stamp.nanosec)


class SensorReader:
    """Reads the messages of one sensor into new arrays of the contract's shapes and dtypes.

    Attributes:
        raw_sha256: the hash of the pixels of each resized image in the last message that was read, by field.
        driver: the values in the driver's units of each converted field in that message.
    """

    def __init__(self, name: str, sensor: SensorSpec) -> None:
        """Resolve the fields of `sensor`, or raise ContractError if it does not match its message type."""
        check_messages({name: sensor})
        self._sensor = sensor
        self._rules = ReadingRules(name, sensor)
        self._readers = {field: known.reader(declared) for field, (known, declared) in self._rules.fields.items()}
        self._declaration = SENSOR_MESSAGES.get(sensor.type)
        self.raw_sha256, self.driver = self._rules.raw_sha256, self._rules.driver
        self._joints = {joint for spec in sensor.fields.values() for joint in spec.joints or ()}
        self._is_by_joint = sensor.type == JOINT_SENSOR and bool(self._joints)

    def read(self, message: Message) -> dict[str, NDArray[Any]]:
        """Return the arrays by field, or raise InvalidReadingError."""
        sensor = self._sensor
        if sensor.frame is not None:
            _check_frame("frame_id", message.header.frame_id, sensor.frame)
        if sensor.child_frame is not None:
            _check_frame("child_frame_id", message.child_frame_id, sensor.child_frame)
        values = {name: read(message) for name, read in self._readers.items()}
        window = NO_WINDOW if self._declaration is None else self._declaration.window(message)
        for name, accept in self._rules.acceptors.items():
            values[name] = accept(values[name], window)
        return values

    def concerns(self, message: Message) -> bool:
        """Return whether a message is of this sensor, which is False for a JointState of other joints only."""
        return not self._is_by_joint or not self._joints.isdisjoint(message.name)

    def is_ready(self, message: Message) -> bool:  # noqa: ARG002 - for subclasses
        """Return whether `read` has everything it needs, as a subclass may wait for a transform."""
        return True

    def confidence(self, message: Message) -> float | None:
        """Return the confidence in the position (`position_confidence`), or None without a covariance."""
        if self._declaration is None or not self._declaration.covariance:
            return None
        return position_confidence(message.pose.covariance, self._sensor.confidence_radius_m)


def _check_frame(key: str, found: str, wanted: str) -> None:
    if found != wanted:
        raise InvalidReadingError(f"{key} is {found!r} (expected {wanted!r})")
