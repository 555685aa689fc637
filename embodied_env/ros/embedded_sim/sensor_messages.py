"""Convert readings of the embedded simulator to messages; `embodied_env.ros.wire.sensor_readers` decodes them.

Message fields that the contract does not declare are NaN, or the message type's value for unknown. The vectors of a
pose or twist are those of the world; an orientation that it does not provide is the identity.
"""

from __future__ import annotations

import array
import io
import math
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import SensorSpec
from embodied_env.contract.field_paths import element_type, steps_of
from embodied_env.contract.reading_values import to_units
from embodied_env.core.image_processing import import_pillow
from embodied_env.messages.message_types import ENCODINGS, SENSOR_MESSAGES, message_class
from embodied_env.ros.transport.message_template import MessageTemplate
from embodied_env.ros.wire.message_fields import VECTOR_PATHS, set_stamp
from embodied_env.sim.sensor_models import range_limits_m, scan_angles_rad

Message = Any  # a generated type
Values = Mapping[str, NDArray[Any]]

_FLOAT32 = 7  # sensor_msgs/PointField.FLOAT32
_BYTES_PER_POINT = 12

_WITHOUT_TEMPLATE = ("sensor_msgs/msg/PointCloud2", "sensor_msgs/msg/CompressedImage")
"""Types with fields that are computed from the values: whether all are finite, a size."""

_IDENTITY = (0.0, 0.0, 0.0, 1.0)  # x, y, z, w: viewers reject a quaternion of NaN
_MAX_TEMPLATES = 16  # per sensor; rclpy serializes messages that keep changing

Extras = Mapping[str, Any]
"""Message fields that the contract does not declare, where the world provides them.

``position``, ``orientation``, ``linear``, ``angular``: of a pose or twist. ``covariance``: of a pose, shape (36,).
``angle_min_rad``, ``angle_max_rad``: of the first and the last ray of a LaserScan. ``range_min_m``, ``range_max_m``:
limits of a LaserScan or Range (default: 0 and infinity); readers discard values outside of them.
"""


class SensorEncoder:
    """Encodes the messages of one sensor: as bytes by a template where it fits, else as `to_message` does."""

    def __init__(self, sensor: SensorSpec) -> None:
        """Prepare; the first reading provides the template."""
        self._sensor = sensor
        self._templates_left = 0 if sensor.type in _WITHOUT_TEMPLATE else _MAX_TEMPLATES
        self._template: MessageTemplate | None = None
        self._fields: set[str] = set()
        self._constants: Mapping[str, Any] = {}  # the extras of the template that are not arrays

    def encode(self, values: Values, stamp_ns: int, extras: Extras) -> Message | bytes:
        """Return the message that `to_message` returns, or its bytes."""
        arrays = {name: value for name, value in extras.items() if isinstance(value, np.ndarray)}
        constants = {name: value for name, value in extras.items() if name not in arrays}
        numbers: Values = {**arrays, **values}
        template = self._template
        if template is None or constants != self._constants or values.keys() != self._fields:
            if not self._templates_left:
                return to_message(self._sensor, values, stamp_ns, extras)
            self._template = template = self._make_template(values, numbers, constants)
        return template.encode(numbers, stamp_ns)

    def _make_template(self, values: Values, numbers: Values, constants: Extras) -> MessageTemplate:
        self._templates_left -= 1
        self._constants, self._fields = dict(constants), set(values)

        def make(numbers: Mapping[str, NDArray[Any]], stamp_ns: int) -> Message:
            fields = {name: value for name, value in numbers.items() if name in self._fields}
            others = {name: value for name, value in numbers.items() if name not in self._fields}
            return to_message(self._sensor, fields, stamp_ns, {**constants, **others})

        return MessageTemplate(make, numbers)


def to_message(sensor: SensorSpec, values: Values, stamp_ns: int, extras: Extras | None = None) -> Message:
    """Return the message of `sensor` with `values` (field -> array), and `stamp_ns` in its header, if it has one.

    Distances are as measured: +inf without a return, -inf for too close, NaN for no measurement. A 16UC1 image has
    whole millimetres up to 65.535 m; infinities become 0, no measurement.

    Raises:
        MissingDependencyError: for a message package or image encoder that is not installed.
    """
    message = message_class(sensor.type)()
    if hasattr(message, "header"):
        set_stamp(message.header.stamp, stamp_ns)
        message.header.frame_id = sensor.frame or ""
    if sensor.child_frame is not None:
        message.child_frame_id = sensor.child_frame
    by_path = {field: spec.path for field, spec in sensor.fields.items() if spec.path is not None}
    own = {field: value for field, value in values.items() if field not in by_path}
    if own:
        write = _write_vectors if sensor.type in VECTOR_PATHS else _WRITERS[sensor.type]
        write(message, own, sensor, extras or {})
    for field, path in by_path.items():
        if field in values:
            write_path(message, path, values[field])
    return message


def _write_vectors(message: Message, values: Values, sensor: SensorSpec, extras: Extras) -> None:
    """Write points, vectors and quaternions, and the covariance of a pose."""
    for field, path in VECTOR_PATHS[sensor.type].items():
        part = attrgetter(path)(message)
        axes = "xyzw" if field == "orientation" else "xyz"
        is_imu = sensor.type == "sensor_msgs/msg/Imu"
        unknown = np.array(_IDENTITY) if field == "orientation" and not is_imu else np.full(len(axes), math.nan)
        for axis, value in zip(axes, values.get(field, extras.get(field, unknown)).tolist(), strict=True):
            setattr(part, axis, value)
        if is_imu and field not in values:
            getattr(message, f"{field}_covariance")[0] = -1.0  # declares that the message does not have the field
    covariance = values.get("covariance", extras.get("covariance"))
    if covariance is not None and SENSOR_MESSAGES[sensor.type].covariance:
        message.pose.covariance = np.array(covariance, dtype=np.float64)


def _write_joint_state(message: Message, values: Values, sensor: SensorSpec, extras: Extras) -> None:  # noqa: ARG001
    message.name, columns = _by_joint(values, sensor)
    for field, column in columns.items():
        setattr(message, field, column)


def _write_joint_trajectory(message: Message, values: Values, sensor: SensorSpec, extras: Extras) -> None:  # noqa: ARG001
    message.joint_names, columns = _by_joint(values, sensor)
    point = message_class("trajectory_msgs/msg/JointTrajectoryPoint")()
    point.positions = columns.get("position", array.array("d"))
    point.velocities = columns.get("velocity", array.array("d"))
    message.points = [point]


def _by_joint(values: Values, sensor: SensorSpec) -> tuple[list[str], dict[str, array.array[float]]]:
    """Return the joints of all fields, and the values of each field, NaN for joints that it does not have."""
    joints = {field: sensor.fields[field].joints or () for field in values}
    names = list(dict.fromkeys(joint for listed in joints.values() for joint in listed))
    columns = {}
    for field, listed in joints.items():
        by_name = dict(zip(listed, values[field].tolist(), strict=True))
        columns[field] = array.array("d", [by_name.get(name, math.nan) for name in names])
    return names, columns


def _write_data(message: Message, values: Values, sensor: SensorSpec, extras: Extras) -> None:  # noqa: ARG001
    write_path(message, "data", values["data"])


def _write_battery(message: Message, values: Values, sensor: SensorSpec, extras: Extras) -> None:  # noqa: ARG001
    for field in _BATTERY:
        setattr(message, field, float(values[field][0]) if field in values else math.nan)


def _write_range(message: Message, values: Values, sensor: SensorSpec, extras: Extras) -> None:  # noqa: ARG001
    message.min_range, message.max_range = range_limits_m(extras)
    message.range = float(values["range"][0])


def _write_scan(message: Message, values: Values, sensor: SensorSpec, extras: Extras) -> None:  # noqa: ARG001
    message.range_min, message.range_max = range_limits_m(extras)
    message.angle_min = extras.get("angle_min_rad", math.nan)
    message.angle_max = extras.get("angle_max_rad", math.nan)
    _, message.angle_increment = scan_angles_rad(extras, values)
    for field, value in values.items():
        setattr(message, field, _packed("f", value))


def _write_image(message: Message, values: Values, sensor: SensorSpec, extras: Extras) -> None:  # noqa: ARG001
    name = sensor.encoding or ""
    encoding = ENCODINGS[name]
    pixels = values["image"]
    if encoding.metres_per_unit is not None and encoding.dtype == "uint16":
        pixels = to_units(pixels, encoding.metres_per_unit)
    message.height, message.width, _ = pixels.shape
    message.encoding = name
    message.step = message.width * encoding.channels * np.dtype(encoding.dtype).itemsize
    message.data = _packed("B", pixels.astype(np.dtype(encoding.dtype).newbyteorder("<"), copy=False))


def _write_compressed(message: Message, values: Values, sensor: SensorSpec, extras: Extras) -> None:  # noqa: ARG001
    """Write a PNG, which is lossless."""
    pixels = values["image"]
    file = io.BytesIO()
    import_pillow(f"a {sensor.type}").Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(
        file, "PNG", compress_level=1
    )
    message.format = "png"
    message.data = array.array("B", file.getvalue())


def _write_cloud(message: Message, values: Values, sensor: SensorSpec, extras: Extras) -> None:  # noqa: ARG001
    points = values["points"]
    field_class = message_class("sensor_msgs/msg/PointField")
    message.fields = [
        field_class(name=axis, offset=4 * place, datatype=_FLOAT32, count=1) for place, axis in enumerate("xyz")
    ]
    message.height, message.width = 1, len(points)
    message.point_step, message.row_step = _BYTES_PER_POINT, _BYTES_PER_POINT * len(points)
    message.is_dense = bool(np.isfinite(points).all())
    message.data = _packed("B", points.astype("<f4", copy=False))


def write_path(message: Message, path: str, value: NDArray[Any]) -> None:
    """Write an element or a sequence of numbers at `path`; extend sequences as needed."""
    *parents, (name, index) = steps_of(path)
    for part, place in parents:
        parent, message = message, getattr(message, part)
        if place is not None:
            _extend(parent, part, place)
            message = message[place]
    old = getattr(message, name)
    if index is not None:
        _extend(message, name, index)
        old[index] = type(old[index])(value.flat[0])
    elif isinstance(old, array.array):
        setattr(message, name, _packed(old.typecode, value.astype(old.typecode)))
    elif isinstance(old, np.ndarray):
        setattr(message, name, value.astype(old.dtype).ravel())
    elif isinstance(old, list):
        setattr(message, name, [bool(item) for item in value.flat])
    else:
        setattr(message, name, bytes([int(value.flat[0])]) if isinstance(old, bytes) else type(old)(value.flat[0]))


def _extend(message: Message, name: str, index: int) -> None:
    """Append default elements (floats: NaN) to the sequence `name` until it has the element `index`."""
    sequence = getattr(message, name)
    kind = element_type(message, name)
    while index >= len(sequence):
        if isinstance(sequence, array.array):
            sequence.append(math.nan if sequence.typecode in "df" else 0)
        elif "/" in kind:
            sequence.append(message_class(kind.replace("/", "/msg/"))())
        else:
            sequence.append("" if "string" in kind else False)


def _packed(typecode: str, values: NDArray[Any]) -> array.array[Any]:
    """Return the bytes of `values` as an array.array, without an intermediate list."""
    packed: array.array[Any] = array.array(typecode)
    packed.frombytes(values.ravel().view(np.uint8).data)
    return packed


_BATTERY = ("percentage", "voltage", "current", "charge", "capacity", "design_capacity", "temperature")

_WRITERS: Mapping[str, Callable[[Message, Values, SensorSpec, Extras], None]] = {
    "sensor_msgs/msg/JointState": _write_joint_state,
    "trajectory_msgs/msg/JointTrajectory": _write_joint_trajectory,
    "std_msgs/msg/Float64MultiArray": _write_data,
    "std_msgs/msg/Float64": _write_data,
    "std_msgs/msg/Bool": _write_data,
    "sensor_msgs/msg/Range": _write_range,
    "sensor_msgs/msg/LaserScan": _write_scan,
    "sensor_msgs/msg/Image": _write_image,
    "sensor_msgs/msg/CompressedImage": _write_compressed,
    "sensor_msgs/msg/PointCloud2": _write_cloud,
    "sensor_msgs/msg/BatteryState": _write_battery,
}
