"""The gate limits the goals of grippers in position only, and holds them while braking.

A stop does what the contract declares.
"""

import math

import numpy as np
import pytest
from grippers import TOPIC, gripper_contract, gripper_text

from embodied_env.core.code_types import Severity
from embodied_env.core.safety_input_state import parse_states
from embodied_env.core.types import CommandState, Finding, SafetyContext
from embodied_env.safety.gate import SafetyGate
from embodied_env.safety.interlocks.tracking import Tracking, TrackingGate

DT_S = 0.05


def reference(gripper=0.1, arm=0.0, velocity=0.0):
    return CommandState(positions=np.array([arm, gripper]), velocities=np.array([velocity, 0.0]), seq=1, epoch=0)


def gate_of(folder, **options):
    return SafetyGate(gripper_contract(folder, gripper_text(**options)))


def action(arm, gripper):
    return {"arm": np.array([arm]), "gripper": np.array([gripper])}


def stop(severity):
    return Finding(gate="estop", severity=severity, code="estop.active", detail="button")


def test_a_goal_is_sent_at_once_while_the_arm_accelerates_within_its_limits(tmp_path):
    command = gate_of(tmp_path).judge(action(0.5, 1.0), reference(), DT_S)
    assert command.values[1] == 0.8
    assert 0.0 < command.values[0] < 0.02
    assert command.report.velocity_si[1] == 0.0
    assert command.report.guaranteed["velocity"]
    assert {joint for finding in command.report.findings for joint in finding.joints} == {"j1"}


def test_a_goal_beyond_the_position_limits_is_clipped(tmp_path):
    gate = gate_of(tmp_path, scale="physical")
    command = gate.limit(np.array([0.0, 2.0]), reference(), DT_S)
    assert command.values[1] == 0.8
    assert [(finding.code, finding.joints) for finding in command.report.findings] == [("pos.limit", ("j2",))]


@pytest.mark.parametrize("severity", [Severity.HOLD, Severity.STOP, Severity.ESTOP])
@pytest.mark.parametrize(("declared", "goal"), [("hold", 0.3), ("open", 0.8), ("close", 0.0)])
def test_a_stop_does_what_is_declared_and_a_hold_keeps_the_goal(severity, declared, goal, tmp_path):
    gate = gate_of(tmp_path, more=f"on_stop: {declared}")
    command = gate.brake(reference(gripper=0.3, velocity=0.5), DT_S, stop(severity))
    assert command.values[1] == (0.3 if severity is Severity.HOLD else goal)
    assert 0.0 < command.report.velocity_si[0] < 0.5
    assert command.report.velocity_si[1] == 0.0


def test_a_latched_stop_keeps_the_declared_goal_whatever_the_agent_requests(tmp_path):
    gate = gate_of(tmp_path, more="on_stop: open")
    context = SafetyContext(sensors={}, measured=np.zeros(2), estops=parse_states({"button": "active"}))
    first = gate.judge(action(0.5, -1.0), reference(), DT_S, context)
    again = gate.judge(action(0.5, -1.0), reference(gripper=0.8), DT_S)
    assert first.values[1] == again.values[1] == 0.8


def test_a_malformed_action_keeps_the_goal(tmp_path):
    command = gate_of(tmp_path, more="on_stop: open").judge(action(0.5, np.nan), reference(gripper=0.3), DT_S)
    assert command.values[1] == 0.3
    assert command.report.disposition is Severity.HOLD


def test_a_silent_server_stops_by_name(tmp_path):
    context = SafetyContext(
        sensors={}, measured=np.zeros(2), estops=parse_states({"actuators.gripper": "silent: no action server"})
    )
    findings = gate_of(tmp_path).judge(action(0.0, 1.0), reference(), DT_S, context).report.findings
    assert ("gripper.silent", Severity.STOP) in [(finding.code, finding.severity) for finding in findings]


def test_a_goal_that_an_object_blocks_is_no_tracking_error(tmp_path):
    contract = gripper_contract(tmp_path, gripper_text())
    gate = TrackingGate(contract.safety.tracking, SafetyGate(contract).layout, {"j1": "rad", "j2": "rad"})
    context = SafetyContext(sensors={}, measured=np.array([0.0, 0.7]))
    assert not [finding for _ in range(20) for finding in gate.judge(context, np.zeros(2))]


def tracking(folder, measured, commanded, text, **spec):
    """Return the codes of the first 20 steps with these positions of the gripper."""
    contract = gripper_contract(folder, text)
    gate = TrackingGate(Tracking(**spec), SafetyGate(contract).layout, {"j1": "rad", "j2": "rad"})
    context = SafetyContext(sensors={}, measured=np.array([0.0, measured]))
    return {finding.code for _ in range(20) for finding in gate.judge(context, np.array([0.0, commanded]))}


UPWARDS = ("open: 0.8, closed: 0.0", "open: 0.0, closed: 0.8")


@pytest.mark.parametrize("scale", ["binary", "normalized"])
def test_a_gripper_on_a_topic_may_close_on_an_object_but_must_open(tmp_path, scale):
    text = gripper_text(TOPIC, scale=scale)
    assert tracking(tmp_path, 0.4, 0.0, text) == set()
    assert tracking(tmp_path, 0.4, 0.8, text) == {"track.error"}
    assert tracking(tmp_path, math.nan, 0.0, text) == {"track.error"}
    assert tracking(tmp_path, 0.4, 0.8, text.replace(*UPWARDS)) == set()
    assert tracking(tmp_path, 0.4, 0.0, text.replace(*UPWARDS)) == {"track.error"}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"joints": {"j2": 0.6}}, set()),
        ({"joints": {"j2": None}}, set()),
        ({"actuators": {"gripper": 0.6}}, set()),
        ({"actuators": {"gripper": None}, "joints": {"j2": 0.1}}, {"track.error"}),
        ({"tolerance": 0.6, "joints": {"j2": 0.1}}, {"track.error"}),
        ({"joints": {"j1": None}}, {"track.error"}),
    ],
)
def test_a_tolerance_of_a_joint_comes_before_that_of_its_actuator(tmp_path, spec, expected):
    assert tracking(tmp_path, 0.4, 0.8, gripper_text(TOPIC), **spec) == expected


def test_a_gripper_on_a_topic_is_limited_like_any_joint(tmp_path):
    gate = SafetyGate(gripper_contract(tmp_path, gripper_text(TOPIC)))
    command = gate.judge(action(0.0, 1.0), reference(), DT_S)
    assert 0.1 < command.values[1] < 0.2
    assert gate.brake(reference(), DT_S, stop(Severity.STOP)).values[1] == 0.1
