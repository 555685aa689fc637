"""A change of a controller state to a sent command is evidence at its arrival time."""

from types import SimpleNamespace

import numpy as np
import pytest
from unit_contracts import driver_units_contract

pytest.importorskip("rclpy", reason="needs rclpy")

import embodied_env
from embodied_env.contract.spaces import ActionLayout
from embodied_env.errors import ContractError
from embodied_env.ros.robot.actuation import ControllerState
from embodied_env.ros.robot.robot_profile import ControllerStateSpec, check_controller_state
from embodied_env.ros.transport.receiver import ReceivedMessage

ARM = ActionLayout(embodied_env.load_contract("arm_reach"))
CART = ActionLayout(embodied_env.load_contract("cart_goal"))
JOINT_STATE = ControllerStateSpec(topic="controller/state")
A, B, C = (np.full(6, value) for value in (0.1, 0.2, 0.3))


def command(seq, values):
    return SimpleNamespace(seq=seq, values=values)


def reported(values, at_ns, names=ARM.joints, velocity=()):
    message = SimpleNamespace(name=list(names), position=list(values), velocity=list(velocity))
    return ReceivedMessage(key="controller state", message=message, info={}, arrival_ns=at_ns, arrival_system_ns=0)


def evidence_after(*story, spec=JOINT_STATE, layout=ARM):
    """Return the evidence after these sent commands and received messages, in order."""
    state = ControllerState(spec, layout)
    for event in story:
        state.on_message(event) if isinstance(event, ReceivedMessage) else state.on_sent(event)
    found = state.take_evidence()
    return None if found is None else (found.seq, found.acted_ns, found.method)


@pytest.mark.parametrize(
    ("events", "seq", "at"),
    [
        pytest.param([command(7, B), reported(B, 5), reported(B, 9)], 7, 5, id="a change, at its arrival"),
        pytest.param([command(7, B), command(8, C), reported(B, 5), reported(C, 6)], 8, 6, id="the newest match"),
        pytest.param([command(7, B), command(8, C), reported(C, 6), reported(B, 7)], 8, 6, id="a superseded command"),
        pytest.param([command(7, B), command(8, B), reported(B, 5)], 7, 5, id="a repeated command"),
        pytest.param([command(7, B), reported(B.astype(np.float32).astype(float), 5)], 7, 5, id="rounded to float32"),
    ],
)
def test_a_reported_change_to_a_sent_command_is_evidence(events, seq, at):
    assert evidence_after(reported(A, 1), *events) == (seq, at, "controller")


def test_a_controller_reports_in_the_units_of_its_driver():
    layout = ActionLayout(driver_units_contract())
    sent, before = np.array([0.2, 0.1, 0.03]), reported([0.0, 0.0, 0.0], 1, layout.joints)
    report = reported([*layout.conversion.to_driver(sent)], 5, layout.joints)
    assert evidence_after(before, command(7, sent), report, layout=layout) == (7, 5, "controller")
    assert evidence_after(before, command(7, sent), reported(sent, 5, layout.joints), layout=layout) is None


@pytest.mark.parametrize(
    "story",
    [
        [reported(A, 1), command(7, B), command(8, A), reported(A, 5)],
        [command(7, B), reported(B, 5)],
        [reported(A, 1), command(7, B), reported(B[:5], 5, names=ARM.joints[:5])],
        [reported(A, 1), command(7, B), reported(B[:5], 5)],
        [reported(A, 1), command(7, B), reported(np.full(6, np.nan), 5)],
        [reported(A, 1), command(7, A), reported(A[:5], 5), reported(A, 6)],
    ],
    ids=[
        "unchanged",
        "the first report",
        "a joint is missing",
        "fewer values than names",
        "not a number",
        "whole again",
    ],
)
def test_a_report_without_a_change_of_all_joints_is_not_evidence(story):
    assert evidence_after(*story) is None


def test_joints_may_come_in_any_order():
    values = np.arange(6.0)
    reversed_ = reported(values[::-1], 5, names=ARM.joints[::-1])
    assert evidence_after(reported(A, 1), command(7, values), reversed_) == (7, 5, "controller")


def test_velocity_joints_are_compared_by_velocity():
    moving = np.array([0.1, 0.2])
    still, went = (reported([], at, names=CART.joints, velocity=v) for at, v in ((1, np.zeros(2)), (5, moving)))
    assert evidence_after(still, command(7, moving), went, layout=CART) == (7, 5, "controller")


def test_other_types_are_read_by_path():
    spec = ControllerStateSpec(topic="t", type="trajectory_msgs/msg/JointTrajectoryPoint", path="positions")
    messages = [
        ReceivedMessage(key="", message=SimpleNamespace(positions=list(v)), info={}, arrival_ns=at, arrival_system_ns=0)
        for v, at in ((A, 1), (B, 5))
    ]
    assert evidence_after(messages[0], command(7, B), messages[1], spec=spec) == (7, 5, "controller")


def test_evidence_is_returned_once():
    state = ControllerState(JOINT_STATE, ARM)
    for event in (reported(A, 1), reported(B, 5)):
        state.on_sent(command(7, B))
        state.on_message(event)
    assert state.take_evidence() is not None
    assert state.take_evidence() is None


def test_a_new_episode_drops_the_commands_of_the_previous_one():
    state = ControllerState(JOINT_STATE, ARM)
    state.on_message(reported(A, 1))
    state.on_sent(command(7, B))
    state.clear()
    state.on_message(reported(B, 5))
    assert state.take_evidence() is None


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        (ControllerStateSpec(topic="t", path="position"), "x.path"),
        (ControllerStateSpec(topic="t", type="std_msgs/msg/Float64MultiArray"), "x.path"),
        (ControllerStateSpec(topic="t", type="std_msgs/msg/Float64MultiArray", path="values"), "x.path"),
    ],
)
def test_an_unknown_field_is_rejected_with_its_path(spec, path):
    with pytest.raises(ContractError) as caught:
        check_controller_state(spec, "x")
    assert caught.value.path == path
