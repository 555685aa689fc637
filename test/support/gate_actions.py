"""Actions as vectors, and contracts with unusual limits, for tests of the gate."""

import dataclasses

import numpy as np

from embodied_env.contract import JointLimits, parse_contract
from embodied_env.safety.gate import SafetyGate

FORWARDS = JointLimits(position=(-2.0, 2.0), velocity=(0.0, 1.0), acceleration=4.0, deceleration=8.0)
BACKWARDS = dataclasses.replace(FORWARDS, velocity=(-1.0, 0.0))
MIXED_TEXT = """
contract: embodied_env/1
name: mixed
version: 1
control_period_s: 0.1
episode: {horizon_steps: 10}
sensors:
  joints: {topic: joint_states, type: sensor_msgs/msg/JointState, max_age_s: 1.0,
    fields: {position: {joints: [arm, rail], unit: rad, low: -9, high: 9}}}
actuators:
  base: {topic: cmd_vel, type: geometry_msgs/msg/TwistStamped, command: twist, scale: normalized, joints: {
    linear.x: {position: null, velocity: [-0.3, 1.0], acceleration: 2.0, deceleration: 4.0, unit: m},
    angular.z: {position: null, velocity: 2.0, acceleration: 5.0}}}
  rail: {topic: rail, type: std_msgs/msg/Float64, command: velocity, scale: physical, joints: {
    rail: {position: [-1.0, 1.0], velocity: 0.5, acceleration: 1.0}}}
  arm: {topic: arm, type: std_msgs/msg/Float64, command: position, scale: normalized, joints: {
    arm: {position: [-2.0, 2.0], velocity: 1.0, acceleration: 4.0}}}
task: {type: reach}
"""
MIXED = parse_contract(MIXED_TEXT)


def flat(gate: SafetyGate, action) -> np.ndarray:
    """Return a well-formed action as one float64 vector."""
    parts = [action] if len(gate.layout.slices) == 1 else [action[name] for name in gate.layout.slices]
    return np.concatenate([np.asarray(part).astype(np.float64) for part in parts])


def mapped(gate: SafetyGate, action: np.ndarray, reference) -> np.ndarray:
    """Return the requested positions of a flat action, without rounding at bounds or behind joints."""
    si = gate.layout.scale.to_si(action)
    target = np.where(gate.layout.is_delta, reference.positions + si, si)
    bound = np.clip(target, gate.layout.limits.position_low, gate.layout.limits.position_high)
    rounded = np.abs(target - bound) <= 4.0 * np.finfo(float).eps * (np.abs(reference.positions) + np.abs(target))
    limits, scale, start = gate.layout.limits, gate.layout.scale, reference.positions
    is_behind = ((limits.velocity_low == 0.0) & (target < start)) | ((limits.velocity_high == 0.0) & (target > start))
    extents = np.maximum(np.abs(scale.si_low), np.abs(scale.si_high))
    is_held = is_behind & (np.abs(target - start) < 4.0 * np.finfo(float).eps * extents) & ~gate.layout.is_delta
    return np.where(is_held, start, np.where(rounded & gate.layout.is_delta, bound, target))


def bits(array: np.ndarray) -> list[int]:
    """Return the bit patterns of a float64 array, with those of 0.0 for -0.0."""
    return (np.asarray(array, np.float64) + 0.0).view(np.int64).tolist()


def with_jerk(g, jerk: float):
    """Return the contract of `g` with this jerk limit on every joint, in parts of A / period."""
    actuators = {
        name: dataclasses.replace(
            actuator,
            joints={
                joint: dataclasses.replace(limits, jerk=jerk * limits.acceleration / g.contract.control_period_s)
                for joint, limits in actuator.joints.items()
            },
        )
        for name, actuator in g.contract.actuators.items()
    }
    return dataclasses.replace(g.contract, actuators=actuators)


def contents_of(report) -> list:
    """Return the contents of all findings of a report, in which NaN equals NaN."""
    rows = ((f, (f.before, f.after, f.limit, f.margin)) for f in report.findings)
    return [
        (f.gate, f.severity, f.code, f.joints, f.detail, [None if a is None else bits(a) for a in numbers])
        for f, numbers in rows
    ]


def same_command(one, other) -> bool:
    """Return whether two approved commands are bit-identical, including their reports."""
    return (
        bits(one.values) == bits(other.values)
        and bits(one.report.velocity_si) == bits(other.report.velocity_si)
        and bits(one.report.applied) == bits(other.report.applied)
        and contents_of(one.report) == contents_of(other.report)
    )
