"""Arrays to messages: what the embedded simulator publishes. The readers are in `embodied_env.backends.ros.convert`."""

from __future__ import annotations

import array
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import SensorSpec
from embodied_env.contract.messages import message_class

Values = Mapping[str, NDArray[Any]]


def set_stamp(stamp: Any, ns: int) -> None:  # noqa: ANN401 - a generated type
    """Write nanoseconds into a builtin_interfaces/Time."""
    stamp.sec, stamp.nanosec = divmod(ns, 1_000_000_000)


def to_message(sensor: SensorSpec, values: Values, stamp_ns: int) -> Any:  # noqa: ANN401 - a generated type
    """Return the message of `sensor` with `values` (field -> array), stamped `stamp_ns`."""
    message = message_class(sensor.type)()
    set_stamp(message.header.stamp, stamp_ns)
    _WRITERS[sensor.type](message, values, sensor)
    return message


def _write_joints(message: Any, values: Values, sensor: SensorSpec) -> None:  # noqa: ANN401
    """Joints of all fields are named once; a field without a joint gets NaN for it, never a zero."""
    names = list(dict.fromkeys(joint for spec in sensor.fields.values() for joint in spec.joints or ()))
    message.name = names
    for field, spec in sensor.fields.items():
        by_name = dict(zip(spec.joints or (), values[field].tolist(), strict=True))
        setattr(message, field, array.array("d", [by_name.get(name, np.nan) for name in names]))


def _write_pose(message: Any, values: Values, sensor: SensorSpec) -> None:  # noqa: ANN401, ARG001
    for field, axes in (("position", "xyz"), ("orientation", "xyzw")):
        part = getattr(message.pose, field)
        for axis, value in zip(axes, values[field].tolist() if field in values else (), strict=field in values):
            setattr(part, axis, value)


def _write_point(message: Any, values: Values, sensor: SensorSpec) -> None:  # noqa: ANN401, ARG001
    message.point.x, message.point.y, message.point.z = values["position"].tolist()


def _write_range(message: Any, values: Values, sensor: SensorSpec) -> None:  # noqa: ANN401
    spec = sensor.fields["range"]
    message.min_range, message.max_range = float(np.min(spec.low)), float(np.max(spec.high))
    message.range = float(values["range"][0])


_WRITERS: Mapping[str, Callable[[Any, Values, SensorSpec], None]] = {
    "sensor_msgs/msg/JointState": _write_joints,
    "geometry_msgs/msg/PoseStamped": _write_pose,
    "geometry_msgs/msg/PointStamped": _write_point,
    "sensor_msgs/msg/Range": _write_range,
}
