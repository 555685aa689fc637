from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import changed, document, parse

from embodied_env.contract import ActuatorSpec, JointLimits
from embodied_env.contract.actuator_schema import GripperSpec
from embodied_env.contract.driver_units import DriverUnits, conversion_of
from embodied_env.errors import ContractError

PATH = "actuators.arm.joints.a.driver"
FIELD = "sensors.joints.fields.position.driver"

units = st.builds(
    DriverUnits,
    unit=st.sampled_from(["si", "deg", "percent"]),
    scale=st.floats(1e-6, 1e6),
    sign=st.sampled_from([1, -1]),
    offset=st.floats(-1e6, 1e6),
)


def numbers(low, high):
    """Return numbers that stay normal ones in the units of a driver, and 0."""
    return st.floats(low, high).map(lambda value: value if abs(value) > 1e-280 else 0.0)


@st.composite
def commands(draw):
    """Return an actuator with the units of a driver, and a command within its limits, often at one of them."""
    low = draw(numbers(-1e3, 1e3))
    high = low + draw(st.floats(1e-3, 1e3))
    command, driver = draw(st.sampled_from(["position", "velocity"])), draw(units)
    if command == "velocity":
        driver = replace(driver, offset=0.0)  # a contract refuses others
    limits = JointLimits(position=(low, high), velocity=high - low, acceleration=1.0, driver=driver)
    spec = ActuatorSpec(topic="t", type="std_msgs/msg/Float64", command=command, joints={"a": limits})
    ends = (low, high) if command == "position" else (low - high, high - low)
    value = draw(st.sampled_from(ends) | numbers(*ends))
    return spec, ends, value


@given(commands())
def test_the_value_on_the_wire_is_that_of_the_command_and_within_its_limits(drawn):
    spec, (low, high), value = drawn
    (read,) = spec.from_driver(spec.to_driver(np.array([value])))
    assert low <= read <= high
    assert abs(read - value) <= 20 * np.finfo(float).eps * (abs(value) + abs(spec.joints["a"].driver.offset))
    if spec.is_velocity:
        assert abs(read) <= abs(value)


def test_rounding_does_not_raise_a_velocity_whose_square_is_zero():
    conversion = conversion_of([DriverUnits(unit="percent", scale=1e-6)], centres=[0.0])
    value = np.array([2.02180465376352e-287])
    assert conversion.to_si(conversion.to_driver(value)) <= value


@given(units, st.floats(-1e6, 1e6))
def test_a_reading_of_a_driver_is_converted_there_and_back(each, value):
    conversion = conversion_of([each])
    if conversion is not None:
        read = conversion.to_si(conversion.to_driver(np.array([value])))
        assert read == pytest.approx([value], rel=1e-12, abs=1e-12 * abs(each.offset))


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=2))
def test_joints_without_units_keep_their_bits_beside_others(values):
    conversion = conversion_of([None, DriverUnits(unit="deg")])
    assert conversion.to_driver(np.array(values))[0] == conversion.to_si(np.array(values))[0] == values[0]
    assert conversion_of([None, DriverUnits()]) is None


def test_degrees_and_percent_are_what_they_are_called():
    turn = conversion_of([DriverUnits(unit="deg"), DriverUnits(unit="percent", scale=0.04, sign=-1, offset=0.04)])
    assert turn.to_si(np.array([180.0, 100.0])) == pytest.approx([math.pi, 0.0])
    assert turn.to_driver(np.array([math.pi / 2, 0.01])) == pytest.approx([90.0, 75.0])


@pytest.mark.parametrize("published", [(30.0, -29.0), (30.0, math.nan)])
def test_fingers_that_do_not_agree_are_no_command(published):
    limits = JointLimits(position=(0.0, 0.04), velocity=0.1, acceleration=1.0, unit="m", driver=DriverUnits(scale=1e-3))
    gripper = GripperSpec(open=0.04, closed=0.0, mimic={"right": -1.0})
    spec = ActuatorSpec(
        topic="t", type="sensor_msgs/msg/JointState", command="position", joints={"left": limits}, gripper=gripper
    )
    assert spec.published_joints == ("left", "right")
    assert spec.to_driver(np.array([0.03])) == pytest.approx([30.0, -30.0])
    assert spec.from_driver(np.array([30.0, -30.0])) == pytest.approx([0.03])
    assert spec.from_driver(np.array(published)) is None


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (PATH, {"unit": "rad"}, "'si', 'deg' or 'percent'"),
        (PATH, {"unit": "percent"}, "the way from 0 to 100 % in rad"),
        (FIELD, [{}, {}, {}, {}], "one for all, or"),
        (FIELD, {"unit": "percent"}, "the way from 0 to 100 % in rad"),
        ("sensors.joints.fields.velocity.driver", {"offset": 1.0}, "a velocity of 0 is rest"),
        (FIELD, {"unit": "deg"}, "the units of the velocities too"),
        ("sensors.tcp.fields.orientation.driver", {"scale": 2.0}, "numbers, vectors or values of joints"),
    ],
)
def test_units_that_no_driver_has_are_refused(path, value, expected):
    joints = list(document()["sensors"]["joints"]["fields"]["position"]["joints"])
    speeds = {"joints": joints, "unit": "rad/s", "low": -9.0, "high": 9.0}
    source = changed("sensors.joints.fields.velocity", speeds)
    source = changed("sensors.tcp.fields.orientation", {"unit": "1", "low": -1.01, "high": 1.01}, source)
    with pytest.raises(ContractError) as caught:
        parse(changed(path, value, source))
    assert expected in str(caught.value)


def test_the_unit_of_a_velocity_command_moves_nothing_at_rest():
    source = changed("actuators.arm.command", "velocity", changed("actuators.arm.joints.a.driver", {"offset": 0.1}))
    source = changed("actuators.arm.type", "sensor_msgs/msg/JointState", source)
    with pytest.raises(ContractError, match=r"driver\.offset: 0\.1"):
        parse(source)
