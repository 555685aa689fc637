"""Images, poses and joint states of rows as messages of Foxglove's well-known schemas, which viewers draw.

A message has the time of its row: the reading that the agent had in that step. Its own time stamps are in the row.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from embodied_env.contract.contract_schema import SensorSpec
from embodied_env.core.protobuf import describe_message, encode_field, encode_fixed32
from embodied_env.messages.message_types import ENCODINGS
from embodied_env.record.arrays import RAW_IMAGE, Reference, is_reference
from embodied_env.record.rows import Row
from embodied_env.timing.clock import NS_PER_S

POSE, JOINT_STATES = "foxglove.PoseInFrame", "foxglove.JointStates"

FIXED_FRAME = "world"
"""The frame of a sensor without a declared one."""

_STAMP = "google.protobuf.Timestamp timestamp = 1"
_TYPES = {
    "google.protobuf.Timestamp": "int64 seconds = 1; int32 nanos = 2",
    "foxglove.Vector3": "double x = 1; double y = 2; double z = 3",
    "foxglove.Quaternion": "double x = 1; double y = 2; double z = 3; double w = 4",
    "foxglove.Pose": "foxglove.Vector3 position = 1; foxglove.Quaternion orientation = 2",
    "foxglove.JointState": "string name = 1; optional double position = 2; optional double velocity = 3; "
    "optional double acceleration = 4; optional double effort = 5",
    RAW_IMAGE: f"{_STAMP}; string frame_id = 7; fixed32 width = 2; fixed32 height = 3; string encoding = 4; "
    "fixed32 step = 5; bytes data = 6",
    POSE: f"{_STAMP}; string frame_id = 2; foxglove.Pose pose = 3",
    JOINT_STATES: f"{_STAMP}; repeated foxglove.JointState joints = 2",
}
_JOINT_FIELDS = {"position": 2, "velocity": 3, "effort": 5}
_IMAGES = ("sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage")
_JOINTS = "sensor_msgs/msg/JointState"
_POSES = (
    *("geometry_msgs/msg/PoseStamped", "geometry_msgs/msg/PoseWithCovarianceStamped"),
    *("geometry_msgs/msg/PointStamped", "nav_msgs/msg/Odometry"),
)
_NO_ROTATION = (0.0, 0.0, 0.0, 1.0)


class RowImage(NamedTuple):
    """An image of a row: the array of `reference`, or if `is_stacked` the last one along its first axis."""

    topic: str
    reference: Reference
    is_stacked: bool
    head: tuple[str, str, int, int, int]  # frame, encoding, height, width, bytes of a line

    def encode(self, data: bytes, ns: int) -> bytes | None:
        """Return the message of the schema `RAW_IMAGE`, or None if `data` are not those of the image."""
        frame, encoding, height, width, step = self.head
        size = height * step
        if len(data) % size or (len(data) != size and not self.is_stacked):
            return None
        text = encode_field(7, frame) + encode_fixed32(2, width) + encode_fixed32(3, height) + encode_field(4, encoding)
        return _timestamp(ns) + text + encode_fixed32(5, step) + encode_field(6, data[-size:])


class RowViews:
    """Returns what viewers can draw of the rows of a contract; the topic of a sensor is its name after a slash."""

    def __init__(self, sensors: Mapping[str, SensorSpec]) -> None:
        each = sensors.items()
        self._cameras = [(name, spec) for name, spec in each if spec.type in _IMAGES and "image" in spec.fields]
        self._joints = [(name, spec) for name, spec in each if spec.type == _JOINTS]
        self._poses = [(name, spec) for name, spec in each if spec.type in _POSES and "position" in spec.fields]

    @staticmethod
    @functools.cache
    def definition(schema: str) -> bytes:
        """Return the definition of a message type: its FileDescriptorSet."""
        return describe_message(schema, _TYPES)

    def pictures(self, row: Row) -> Iterator[RowImage]:
        """Yield the images of a row, of any JSON types."""
        for name, spec in self._cameras:
            reference = _reading(row, name, spec, "image")
            encoding = ENCODINGS[spec.encoding or ""]
            depth = encoding.metres_per_unit is not None
            dtype = "float32" if depth else encoding.dtype
            if not is_reference(reference) or reference["dtype"] != dtype:
                continue
            is_stacked = spec.fields["image"].history is not None and len(reference["shape"]) == 4
            shape = reference["shape"][is_stacked:]
            if len(shape) == 3 and all(type(n) is int and n > 0 for n in shape) and shape[2] == encoding.channels:
                step = shape[1] * shape[2] * (4 if depth else 1)
                named = "32FC1" if depth else spec.encoding or ""
                yield RowImage(f"/{name}", reference, is_stacked, (spec.frame or "", named, *shape[:2], step))

    def messages(self, row: Row, ns: int) -> Iterator[tuple[str, str, bytes]]:
        """Yield topic, schema and data of the poses and joint states of a row, of any JSON types."""
        for name, spec in self._joints:
            if joints := _encode_joints(row, name, spec):
                yield f"/{name}", JOINT_STATES, _timestamp(ns) + joints
        for name, spec in self._poses:
            position = _numbers(_reading(row, name, spec, "position"), 3)
            rotation: tuple[float, ...] = _NO_ROTATION
            if "orientation" in spec.fields:
                rotation = _numbers(_reading(row, name, spec, "orientation"), 4)
            if position and rotation:
                pose = encode_field(1, _doubles(position)) + encode_field(2, _doubles(rotation))
                yield (
                    f"/{name}",
                    POSE,
                    _timestamp(ns) + encode_field(2, spec.frame or FIXED_FRAME) + encode_field(3, pose),
                )


def _encode_joints(row: Row, name: str, spec: SensorSpec) -> bytes:
    """Return the joints of a JointState; a joint has the values that the contract reads and that are numbers."""
    joints: dict[str, bytes] = {}
    for field, number in _JOINT_FIELDS.items():
        if (declared := spec.fields.get(field)) is not None:
            values = _newest(_reading(row, name, spec, field))
            for joint, value in zip(declared.joints or (), values if isinstance(values, list) else (), strict=False):
                known = joints.setdefault(joint, encode_field(1, joint))
                if isinstance(value, (int, float)):
                    joints[joint] = known + encode_field(number, float(value))
    return b"".join(encode_field(2, joint) for joint in joints.values())


def _reading(row: Row, name: str, spec: SensorSpec, field: str) -> Any:  # noqa: ANN401 - JSON types
    """Return a value as the environment itself observed it, or None."""
    value: Any = row.get("inner")
    is_hidden = spec.visibility == "evaluator"
    for key in ("evaluator", name, field) if is_hidden else ("observation", f"{name}_{field}"):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _newest(values: Any) -> Any:  # noqa: ANN401 - JSON types
    """Return the last of several readings (`history`), or the only one."""
    return values[-1] if isinstance(values, list) and values and isinstance(values[-1], list) else values


def _numbers(values: Any, count: int) -> tuple[float, ...]:  # noqa: ANN401 - JSON types
    """Return `count` finite numbers, or none."""
    found = _newest(values)
    if not isinstance(found, list) or len(found) != count:
        return ()
    return tuple(found) if all(isinstance(n, (int, float)) and math.isfinite(n) for n in found) else ()


def _doubles(values: Sequence[float]) -> bytes:
    return b"".join(encode_field(number, float(value)) for number, value in enumerate(values, start=1))


def _timestamp(ns: int) -> bytes:
    seconds, nanos = divmod(ns, NS_PER_S)
    return encode_field(1, encode_field(1, seconds) + encode_field(2, nanos))
