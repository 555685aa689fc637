"""Sensors that do not match their message type, fields by path, frames."""

import threading
from dataclasses import replace

import numpy as np
import pytest
from message_samples import check_invalid, new_message, read, sensor

pytest.importorskip("rclpy", reason="needs rclpy")

from embodied_env.contract import load_contract
from embodied_env.contract.field_paths import check_messages
from embodied_env.errors import ContractError
from embodied_env.ros.embedded_sim.lockstep_node import run_simulator
from embodied_env.ros.embedded_sim.message_encoder import to_message
from embodied_env.ros.wire.sensor_buffer import SensorReader

pytestmark = pytest.mark.ros

ODOMETRY, SHAPE = "nav_msgs/msg/Odometry", "shape_msgs/msg/SolidPrimitive"


def test_another_frame_is_rejected():
    spec = sensor("geometry_msgs/msg/PointStamped", {"position": {}}, frame="map")
    message = to_message(spec, {"position": np.zeros(3)}, 1)
    message.header.frame_id = "odom"
    check_invalid(spec, message, r"frame_id is 'odom' \(expected 'map'\)")


def test_another_child_frame_is_rejected():
    spec = sensor("nav_msgs/msg/Odometry", {"position": {}}, child_frame="base")
    message = to_message(spec, {"position": np.zeros(3)}, 1)
    message.child_frame_id = "wheel"
    check_invalid(spec, message, "child_frame_id is 'wheel'")


def test_a_frame_for_a_message_without_header_is_a_contract_error():
    spec = sensor("std_msgs/msg/Int32", {"data": {"path": "data"}}, frame="map")
    with pytest.raises(ContractError, match=r"sensors.thing.frame: 'map' .*std_msgs/msg/Int32 has no header"):
        SensorReader("thing", spec)


@pytest.mark.parametrize(
    ("message_type", "keys", "where", "problem"),
    [
        ("std_msgs/msg/Int32", {"path": "dta"}, "path", "unknown field of std_msgs/Int32: 'dta'"),
        (
            ODOMETRY,
            {"path": "pose.pose.position.x.real"},
            "path",
            "'pose.pose.position.x' of type double has no fields",
        ),
        (ODOMETRY, {"path": "child_frame_id[0]"}, "path", "of type string has no elements"),
        (ODOMETRY, {"path": "pose.covariance"}, "path", "of type sequence of double"),
        (ODOMETRY, {"path": "pose.covariance[36]"}, "path", "index 36 of 'pose.covariance' .expected below 36"),
        (ODOMETRY, {"path": "pose.covariance", "shape": (35,)}, "shape", "35 values .*expected 36 in .*Odometry"),
        (SHAPE, {"path": "dimensions", "shape": (4,)}, "shape", "4 values .*expected at most 3 in .*SolidPrimitive"),
        ("sensor_msgs/msg/JointState", {"path": "name", "shape": (1,)}, "path", "sequence of string"),
        ("geometry_msgs/msg/PoseArray", {"path": "poses.position"}, "path", "'poses' of type geometry_msgs/Pose"),
        ("std_msgs/msg/ByteMultiArray", {"path": "data", "shape": (2,)}, "path", "no sequence of octets"),
        ("std_msgs/msg/UInt64", {"path": "data"}, "path", "'data' of type uint64"),
    ],
)
def test_an_unknown_path_is_a_contract_error(message_type, keys, where, problem):
    with pytest.raises(ContractError, match=problem) as caught:
        SensorReader("thing", sensor(message_type, {"x": keys}))
    assert caught.value.path == f"sensors.thing.fields.x.{where}"


@pytest.mark.parametrize(
    ("message_type", "dtype", "wire"),
    [
        ("std_msgs/msg/Int64", None, "int64"),
        ("std_msgs/msg/Float64", "float32", "float64"),
        ("std_msgs/msg/Int32", "float64", "int32"),
        ("std_msgs/msg/Bool", "uint8", "int8"),
        ("std_msgs/msg/Byte", "int8", "uint8"),
    ],
)
def test_a_lossy_dtype_is_a_contract_error(message_type, dtype, wire):
    with pytest.raises(ContractError, match=f"expected '{wire}'.$") as caught:
        SensorReader("thing", sensor(message_type, {"x": {"path": "data", "dtype": dtype}}))
    assert caught.value.path == "sensors.thing.fields.x.dtype"


@pytest.mark.parametrize(("dtype", "type_name"), [("uint16", "UInt16"), ("int16", "Int16"), ("uint32", "UInt32")])
def test_each_dtype_is_read_as_on_the_wire(dtype, type_name):
    spec = sensor(f"std_msgs/msg/{type_name}", {"x": {"path": "data", "dtype": dtype}})
    value = read(spec, new_message(spec.type, data=int(np.iinfo(dtype).max)))["x"]
    assert (value.dtype, value.tolist()) == (np.dtype(dtype), [np.iinfo(dtype).max])


@pytest.mark.parametrize(
    ("type_name", "value"), [("Float32", 0.5), ("UInt32", 2**32 - 1), ("Int8", -128), ("Bool", True)]
)
def test_a_field_without_a_dtype_has_the_numbers_of_the_message(type_name, value):
    spec = sensor(f"std_msgs/msg/{type_name}", {"x": {"path": "data"}})
    found = read(spec, new_message(spec.type, data=value))["x"]
    assert (found.dtype, found.tolist()) == (np.float64, [value])


def test_all_disagreements_with_message_types_are_reported_at_once():
    sensors = {
        "first": sensor("std_msgs/msg/Int32", {"data": {"path": "data"}, "other": {"path": "dta"}}, timeline="header"),
        "second": sensor("std_msgs/msg/Int64", {"data": {"path": "data"}}),
        "third": sensor("std_msgs/msg/Nothing", {"data": {"path": "data"}}),
    }
    with pytest.raises(ContractError) as caught:
        check_messages(sensors, "robot.yaml")
    paths = [error.path for error in (caught.value, *caught.value.others)]
    fields = ["sensors.first.fields.other.path", "sensors.second.fields.data.dtype", "sensors.third.type"]
    assert paths == ["sensors.first.timeline", *fields]
    assert caught.value.source == "robot.yaml"


def test_a_missing_element_is_rejected():
    spec = sensor("geometry_msgs/msg/PoseArray", {"x": {"path": "poses[0].position.x"}})
    check_invalid(spec, new_message(spec.type), "no such element")


def test_a_sequence_of_another_length_is_rejected():
    spec = sensor("std_msgs/msg/Float64MultiArray", {"x": {"path": "data", "shape": (2, 2)}})
    check_invalid(spec, new_message(spec.type), "data has 0 values")


def test_the_simulator_rejects_the_same_sensors_at_start():
    arm = load_contract("arm_reach")
    thing = sensor("std_msgs/msg/Int32", {"x": {"path": "dta"}})
    contract = replace(arm, sensors={**arm.sensors, "thing": thing})
    with pytest.raises(ContractError, match="'dta'") as caught:
        run_simulator(contract, None, namespace="/nowhere", stop=threading.Event())
    assert caught.value.path == "sensors.thing.fields.x.path"
