"""Numbers and arrays of numbers that are invalid."""

import math

import numpy as np
import pytest
from message_samples import check_invalid, new_message, sensor

pytest.importorskip("rclpy", reason="needs rclpy")

pytestmark = pytest.mark.ros


BATTERY = "sensor_msgs/msg/BatteryState"


@pytest.mark.parametrize(
    ("message_type", "fields", "content", "problem"),
    [
        ("std_msgs/msg/Float64MultiArray", {"data": {"shape": (3,)}}, {"data": [1.0, 2.0]}, "data has 2 values"),
        (
            "sensor_msgs/msg/Temperature",
            {"temperature": {"unit": "degC"}},
            {"temperature": math.nan},
            "temperature is NaN",
        ),
        (BATTERY, {"voltage": {}, "charge": {}}, {"voltage": 12.0, "charge": math.nan}, "charge is NaN: not measured"),
    ],
)
def test_invalid_numbers_are_rejected_with_their_reason(message_type, fields, content, problem):
    check_invalid(sensor(message_type, fields), new_message(message_type, **content), problem)


def test_an_undeclared_battery_value_is_published_as_not_measured():
    from embodied_env.ros.embedded_sim.message_encoder import to_message

    spec = sensor(BATTERY, {"voltage": {}})
    message = to_message(spec, {"voltage": np.array([12.0], np.float32)}, 1)
    assert message.voltage == 12.0
    assert all(map(math.isnan, (message.charge, message.temperature, message.capacity, message.design_capacity)))
