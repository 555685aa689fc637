"""Read sensor messages into arrays as the contract declares: joints by name, one copy per field."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import SensorSpec
from embodied_env.contract.field_paths import check_message
from embodied_env.contract.reading_values import InvalidReadingError, check_rotation, position_confidence
from embodied_env.contract.spaces import field_layouts, message_field
from embodied_env.core.image_processing import pixels_sha256, read_image
from embodied_env.messages.message_types import JOINT_SENSOR, SENSOR_MESSAGES
from embodied_env.ros.transport.layout_cache import RawMessage
from embodied_env.ros.wire.message_fields import (
    VECTOR_PATHS,
    Field,
    MalformedMessageError,
    Message,
    ReadField,
    check_length,
    path_reader,
)
from embodied_env.ros.wire.sensor_readers_camera import (
    cloud_reader,
    compressed_reader,
    image_reader,
    range_reader,
    scan_reader,
)

Values = dict[str, NDArray[Any]]


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
    """

    def __init__(self, name: str, sensor: SensorSpec) -> None:
        """Resolve the fields of `sensor`; raises ContractError if it does not match its message type."""
        check_message(name, sensor)
        self._sensor = sensor
        self._readers: dict[str, ReadField] = {}
        self.raw_sha256: dict[str, str] = {}
        for layout in field_layouts(name, sensor):
            field = Field(
                name=layout.field,
                sensor_name=name,
                shape=layout.raw_shape,
                dtype=layout.dtype,
                spec=sensor.fields[layout.field],
                sensor=sensor,
            )
            make = _READERS[sensor.type] if field.spec.path is None else path_reader
            self._readers[field.name] = make(field)
        self._images = [name for name, spec in sensor.fields.items() if sensor.encoding and spec.path is None]
        known = SENSOR_MESSAGES.get(sensor.type)
        self._has_covariance = known is not None and known.covariance
        self._joints = {joint for spec in sensor.fields.values() for joint in spec.joints or ()}
        self._is_by_joint = sensor.type == JOINT_SENSOR and bool(self._joints)

    def read(self, message: Message) -> Values:
        """Return field -> array; raises MalformedMessageError."""
        sensor = self._sensor
        if sensor.frame is not None:
            _check_frame("frame_id", message.header.frame_id, sensor.frame)
        if sensor.child_frame is not None:
            _check_frame("child_frame_id", message.child_frame_id, sensor.child_frame)
        try:
            values = {name: read(message) for name, read in self._readers.items()}
            for name in self._images:
                if sensor.fields[name].resize is not None:
                    self.raw_sha256[name] = pixels_sha256(values[name])
                values[name] = read_image(name, values[name], sensor)
        except InvalidReadingError as error:
            raise MalformedMessageError(str(error)) from error
        return values

    def concerns(self, message: Message) -> bool:
        """Return whether a message is of this sensor; False for a JointState of other joints only."""
        return not self._is_by_joint or not self._joints.isdisjoint(message.name)

    def is_ready(self, message: Message) -> bool:  # noqa: ARG002 - for subclasses
        """Return whether `read` has everything it needs; a subclass may wait for a transform."""
        return True

    def confidence(self, message: Message) -> float | None:
        """Return the confidence in the position (`embodied_env.contract.reading_values`); None without a covariance."""
        if not self._has_covariance:
            return None
        return position_confidence(message.pose.covariance, self._sensor.confidence_radius_m)


def _check_frame(key: str, found: str, wanted: str) -> None:
    if found != wanted:
        raise MalformedMessageError(f"{key} is {found!r} (expected {wanted!r})")


def _joint_state(field: Field) -> ReadField:
    pick = _by_name(field)
    return lambda message: pick(message.name, getattr(message, field.name))


def _joint_trajectory(field: Field) -> ReadField:
    """Read the last point."""
    pick = _by_name(field)
    part = {"position": "positions", "velocity": "velocities"}[field.name]

    def read(message: Message) -> NDArray[Any]:
        if not message.points:
            raise MalformedMessageError("the trajectory has no points")
        return pick(message.joint_names, getattr(message.points[-1], part))

    return read


def _by_name(field: Field) -> Callable[[list[str], Any], NDArray[Any]]:
    """Return the function that selects joints by name, in the contract's order."""
    joints = list(field.spec.joints or ())

    def pick(names: list[str], data: Any) -> NDArray[Any]:  # noqa: ANN401 - an array.array, or one of numpy
        if len(data) != len(names):
            raise MalformedMessageError(f"{field.name} has {len(data)} values for {len(names)} names")
        values = np.array(data, dtype=np.float64)
        if names == joints:
            return values
        places = {name: place for place, name in enumerate(names)}
        if len(places) != len(names):
            raise MalformedMessageError(f"duplicate joint in {names}")
        missing = [joint for joint in joints if joint not in places]
        if missing:
            raise MalformedMessageError(f"no {field.name} of {', '.join(missing)}; the message has {names}")
        return values[[places[joint] for joint in joints]]

    return pick


def _sequence(field: Field) -> ReadField:
    """Read the data of a Float64MultiArray; its layout is ignored."""

    def read(message: Message) -> NDArray[Any]:
        values = np.frombuffer(message.data, dtype=np.float64)
        check_length(field.name, values.size, field.shape[0])
        return values.copy()

    return read


def _scalar(field: Field) -> ReadField:
    get = attrgetter(field.name)
    return lambda message: np.array((get(message),), dtype=field.dtype)


def _vector(field: Field) -> ReadField:
    """Read a point, vector or quaternion."""
    path = VECTOR_PATHS[field.sensor.type][field.name]
    get = attrgetter(*(f"{path}.{axis}" for axis in "xyzw"[: field.shape[0]]))
    rotation = message_field(field.sensor, field.name, field.spec).rotation

    def read(message: Message) -> NDArray[Any]:
        values = np.array(get(message), dtype=field.dtype)
        if rotation:
            check_rotation(field.name, values)
        return values

    return read


def _pose_with_covariance(field: Field) -> ReadField:
    if field.name == "covariance":
        return lambda message: np.array(message.pose.covariance, dtype=field.dtype)
    return _vector(field)


def _imu(field: Field) -> ReadField:
    """Read a field of an Imu; a covariance that starts with -1 declares that the message does not have it."""
    get = _vector(field)
    covariance = attrgetter(f"{field.name}_covariance")

    def read(message: Message) -> NDArray[Any]:
        if covariance(message)[0] == -1:
            raise MalformedMessageError(f"no {field.name}: its covariance starts with -1")
        return get(message)

    return read


def _battery(field: Field) -> ReadField:
    get = _scalar(field)

    def read(message: Message) -> NDArray[Any]:
        value = get(message)
        if np.isnan(value[0]):
            raise MalformedMessageError(f"{field.name} is NaN: not measured")
        return value

    return read


_READERS: Mapping[str, Callable[[Field], ReadField]] = {
    **dict.fromkeys(VECTOR_PATHS, _vector),
    "sensor_msgs/msg/JointState": _joint_state,
    "trajectory_msgs/msg/JointTrajectory": _joint_trajectory,
    "std_msgs/msg/Float64MultiArray": _sequence,
    "std_msgs/msg/Float64": _scalar,
    "std_msgs/msg/Bool": _scalar,
    "geometry_msgs/msg/PoseWithCovarianceStamped": _pose_with_covariance,
    "sensor_msgs/msg/Imu": _imu,
    "sensor_msgs/msg/Range": range_reader,
    "sensor_msgs/msg/LaserScan": scan_reader,
    "sensor_msgs/msg/Image": image_reader,
    "sensor_msgs/msg/CompressedImage": compressed_reader,
    "sensor_msgs/msg/PointCloud2": cloud_reader,
    "sensor_msgs/msg/BatteryState": _battery,
}
