"""One sensor of each message type."""

from __future__ import annotations

from hypothesis import strategies as st

from embodied_env.contract import FieldSpec, SensorSpec

JOINTS = ("a", "b", "c")
EXTRAS = {"angle_min_rad": -1.5, "angle_max_rad": 1.5, "range_min_m": 0.05, "range_max_m": 8.0}
stamps = st.integers(0, 2**31 * 1_000_000_000 - 1)


def sensor(message_type, fields, **keys):
    specs = {name: FieldSpec(**{"unit": "1", "low": 0.0, "high": 1.0, **given}) for name, given in fields.items()}
    keys.setdefault("timeline", "receive")  # some types have no header
    return SensorSpec(topic="topic", type=message_type, fields=specs, max_age_s=1.0, **keys)


def image(encoding, channels, message_type="sensor_msgs/msg/Image"):
    return sensor(message_type, {"image": {"shape": (3, 5, channels)}}, encoding=encoding)


BY_JOINT = {"joints": JOINTS}
SENSORS = {
    "joint_state": sensor(
        "sensor_msgs/msg/JointState", {"position": BY_JOINT, "velocity": BY_JOINT, "effort": BY_JOINT}
    ),
    "trajectory": sensor("trajectory_msgs/msg/JointTrajectory", {"position": BY_JOINT, "velocity": BY_JOINT}),
    "array": sensor("std_msgs/msg/Float64MultiArray", {"data": {"shape": (4,)}}),
    "number": sensor("std_msgs/msg/Float64", {"data": {}}),
    "flag": sensor("std_msgs/msg/Bool", {"data": {}}),
    "pose": sensor("geometry_msgs/msg/PoseStamped", {"position": {}, "orientation": {}}, frame="map"),
    "estimate": sensor(
        "geometry_msgs/msg/PoseWithCovarianceStamped", {"position": {}, "orientation": {}, "covariance": {}}
    ),
    "point": sensor("geometry_msgs/msg/PointStamped", {"position": {}}),
    "twist": sensor("geometry_msgs/msg/Twist", {"linear": {}, "angular": {}}),
    "twist_stamped": sensor("geometry_msgs/msg/TwistStamped", {"linear": {}, "angular": {}}, frame="base"),
    "wrench": sensor("geometry_msgs/msg/WrenchStamped", {"force": {}, "torque": {}}),
    "odometry": sensor(
        "nav_msgs/msg/Odometry",
        {"position": {}, "orientation": {}, "linear": {}, "angular": {}},
        frame="odom",
        child_frame="base",
    ),
    "imu": sensor("sensor_msgs/msg/Imu", {"orientation": {}, "angular_velocity": {}, "linear_acceleration": {}}),
    "imu_rates": sensor("sensor_msgs/msg/Imu", {"angular_velocity": {}}),
    "range": sensor("sensor_msgs/msg/Range", {"range": {}}),
    "scan": sensor("sensor_msgs/msg/LaserScan", {"ranges": {"shape": (7,)}, "intensities": {"shape": (7,)}}),
    "rgb": image("rgb8", 3),
    "bgr": image("bgr8", 3),
    "rgba": image("rgba8", 4),
    "bgra": image("bgra8", 4),
    "mono": image("mono8", 1),
    "depth": image("32FC1", 1),
    "depth_mm": image("16UC1", 1),
    "png": image("rgb8", 3, "sensor_msgs/msg/CompressedImage"),
    "png_mono": image("mono8", 1, "sensor_msgs/msg/CompressedImage"),
    "cloud": sensor("sensor_msgs/msg/PointCloud2", {"points": {"shape": (6, 3)}}),
    "battery": sensor(
        "sensor_msgs/msg/BatteryState",
        {"percentage": {}, "voltage": {}, "current": {}, "charge": {}, "temperature": {}},
    ),
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
