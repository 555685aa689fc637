"""A sensor of each message type, made from its declaration, and sensors that read fields by their paths."""

import pytest
from hypothesis import strategies as st

from embodied_env.contract import FieldSpec, SensorSpec
from embodied_env.messages.declaration import InvalidReadingError
from embodied_env.messages.images import ENCODINGS
from embodied_env.messages.message_types import message_class
from embodied_env.messages.sensor_types import SENSOR_MESSAGES

JOINTS = ("a", "b", "c")
EXTRAS = {"angle_min_rad": -1.5, "angle_max_rad": 1.5, "range_min_m": 0.05, "range_max_m": 8.0}
stamps = st.integers(0, 2**31 * 1_000_000_000 - 1)


def sensor(message_type, fields, **keys):
    specs = {name: FieldSpec(**{"unit": "1", "low": 0.0, "high": 10.0, **given}) for name, given in fields.items()}
    keys.setdefault("timeline", "receive")  # some types have no header
    return SensorSpec(topic="topic", type=message_type, fields=specs, max_age_s=1.0, **keys)


def read(spec, message):
    from embodied_env.ros.wire.sensor_buffer import SensorReader

    return SensorReader("thing", spec).read(message)


def check_invalid(spec, message, problem):
    """Check that a message gives no reading, and the reason."""
    with pytest.raises(InvalidReadingError, match=problem):
        read(spec, message)


def changed_message(message, **changes):
    for name, value in changes.items():
        setattr(message, name, value)
    return message


def new_message(message_type, **fields):
    return message_class(message_type)(**fields)


def sample_of(declaration, encoding=None):
    """Return a sensor with all fields of a message type."""
    fields: dict = {}
    for name, known in declaration.fields.items():
        if known.shape is None:
            fields[name] = {"joints": JOINTS}
        elif encoding is not None:
            fields[name] = {"shape": (3, 5, ENCODINGS[encoding].channels)}
        else:
            fields[name] = (
                {"shape": tuple(7 if size is None else size for size in known.shape)} if None in known.shape else {}
            )
    frames = {"frame": "map"} if declaration.header else {}
    child = {"child_frame": "base"} if declaration.child_frame else {}
    return sensor(declaration.type, fields, encoding=encoding, **frames, **child)


SENSORS = {
    " ".join(filter(None, (name.rpartition("/")[2], encoding))): sample_of(declaration, encoding)
    for name, declaration in SENSOR_MESSAGES.items()
    for encoding in declaration.encodings or (None,)
    if encoding is None or ENCODINGS[encoding].to_rgb is None  # a converted image is not written
} | {
    "imu_rates": sensor("sensor_msgs/msg/Imu", {"angular_velocity": {}}),
    "path_float": sensor("nav_msgs/msg/Odometry", {"x": {"path": "pose.pose.position.x"}, "linear": {}}),
    "path_float32": sensor("sensor_msgs/msg/Range", {"view": {"path": "field_of_view", "dtype": "float32"}}),
    "path_flag": sensor("sensor_msgs/msg/BatteryState", {"present": {"path": "present", "dtype": "int8"}}),
    "path_int": sensor("sensor_msgs/msg/TimeReference", {"sec": {"path": "time_ref.sec", "dtype": "int32"}}),
    "path_octet": sensor(
        "diagnostic_msgs/msg/DiagnosticArray", {"level": {"path": "status[1].level", "dtype": "uint8"}}
    ),
    "path_element": sensor("geometry_msgs/msg/PoseArray", {"y": {"path": "poses[2].position.y"}}),
    "path_index": sensor(
        "std_msgs/msg/Float64MultiArray", {"third": {"path": "data[2]"}, "first": {"path": "data[0]"}}
    ),
    "path_sequence": sensor(
        "sensor_msgs/msg/Joy",
        {
            "axes": {"path": "axes", "shape": (2, 2), "dtype": "float32"},
            "buttons": {"path": "buttons", "shape": (3,), "dtype": "int32"},
        },
    ),
    "path_fixed": sensor(
        "sensor_msgs/msg/Imu", {"spread": {"path": "orientation_covariance", "shape": (3, 3)}, "angular_velocity": {}}
    ),
    "path_long": sensor("std_msgs/msg/Int64MultiArray", {"counts": {"path": "data", "shape": (3,), "dtype": "int64"}}),
}
