import math
from types import SimpleNamespace

import pytest

from embodied_env.messages.commands import COMMAND_GOALS, COMMAND_MESSAGES
from embodied_env.messages.message_types import message_class


@pytest.mark.ros
@pytest.mark.parametrize("name", COMMAND_MESSAGES)
def test_a_type_declares_whether_it_has_a_header(name):
    pytest.importorskip("rclpy", reason="needs rclpy")
    assert hasattr(message_class(name)(), "header") == COMMAND_MESSAGES[name].header


@pytest.mark.parametrize("name", COMMAND_GOALS)
@pytest.mark.parametrize("max_effort", [None, 20.0])
def test_the_position_in_a_goal_is_read_back(name, max_effort):
    goal = SimpleNamespace(command=SimpleNamespace())
    COMMAND_GOALS[name].write(goal, "finger", 0.25, max_effort)
    assert COMMAND_GOALS[name].read(goal) == 0.25


def test_a_goal_without_a_position_is_read_as_nan():
    goal = SimpleNamespace(command=SimpleNamespace(position=[]))
    assert math.isnan(COMMAND_GOALS["control_msgs/action/ParallelGripperCommand"].read(goal))
