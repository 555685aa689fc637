"""Checks of a robot's contract, profile and positions without ROS, which fail for unknowns."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.contract_validation import MAX_TURN_RAD, suspected_degrees
from embodied_env.contract.fingerprint import to_plain
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.measured_joints import find_positions
from embodied_env.messages.message_types import JOINT_SENSOR
from embodied_env.ros.robot.robot_profile import RealProfile
from embodied_env.ros.transport.checklist import Check, failed, passed

START_OUT_OF_LIMITS = "start_out_of_limits"

_NEED_A_TIMEOUT = frozenset({"velocity", "effort", "twist"})  # a controller repeats the last one indefinitely
_TIMEOUT_REMEDY = (
    "set backends.real.downstream_timeout_s to the controller's own timeout (e.g. cmd_vel_timeout of "
    "diff_drive_controller), or backends.real.allow_no_downstream_timeout: true if the robot stops by other means"
)
_SECURITY_REMEDY = (
    "export ROS_SECURITY_ENABLE=true ROS_SECURITY_STRATEGY=Enforce ROS_SECURITY_KEYSTORE=<folder>, and create the "
    "keys: ros2 security create_keystore <folder>; ros2 security create_enclave <folder> <enclave>"
)
_ENCLAVE_FILES = (
    "identity_ca.cert.pem",
    "cert.pem",
    "key.pem",
    "permissions_ca.cert.pem",
    "governance.p7s",
    "permissions.p7s",
)


def contract_checks(
    contract: Contract, profile: RealProfile, *, environment: Mapping[str, str] | None = None
) -> tuple[Check, ...]:
    """Check the contract and its profile ``real`` in `environment`, by default the process's."""
    return (
        _check_limits(contract),
        *_check_turns(contract),
        _check_mode(contract),
        _check_downstream_timeout(contract, profile),
        passed("start outside limits", f"start_outside: {to_plain(profile.start_outside)}"),
        security_check(profile, os.environ if environment is None else environment),
    )


def chosen_check(contract: Contract, *, is_confirmed: bool, moves_robot: bool) -> Check:
    """Check that every chosen value is confirmed, and that none is unknown.

    Nothing but the contract itself answers what is unknown, if the commands reach a robot.
    """
    if contract.unknown and moves_robot:
        listed = "; ".join(f"{path}: {question}" for path, question in contract.unknown.items())
        remedy = "set each value in the contract and remove its entry of `unknown`; no option confirms it"
        return failed("chosen values", f"{len(contract.unknown)} unknown: {listed}", remedy, "chosen.unknown")
    if not (unconfirmed := contract.unconfirmed):
        return passed("chosen values", "all confirmed, or none")
    paths: dict[str, list[str]] = {}
    for path, reason in unconfirmed.items():
        paths.setdefault(reason, []).append(path)
    listed = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in paths.items())
    if is_confirmed:
        return passed("chosen values", f"{len(unconfirmed)} accepted without the contract's confirmation: {listed}")
    remedy = (
        "measure each or check it on the robot, then list it in the contract, confirmed: "
        f"[{', '.join(unconfirmed)}], or pass confirm_chosen=True or --confirm-chosen"
    )
    return failed("chosen values", f"{len(unconfirmed)} not confirmed: {listed}", remedy, "chosen.unconfirmed")


def security_check(profile: RealProfile, environment: Mapping[str, str]) -> Check:
    """Check that SROS2 is enforced and has its keys, if the profile requires ``security``.

    Call it before creating a node: without ``ROS_SECURITY_ENABLE`` a node would run unauthenticated.
    """
    if profile.security == "off":
        return Check(name="security", passed=None, detail="SROS2 is not required (backends.real.security: off)")
    needed = {"ROS_SECURITY_ENABLE": "true", "ROS_SECURITY_STRATEGY": "Enforce"}
    problems = [f"{key}={environment.get(key)!r}" for key, value in needed.items() if environment.get(key) != value]
    keystore = environment.get("ROS_SECURITY_KEYSTORE", "")
    enclave = Path(keystore, "enclaves", environment.get("ROS_SECURITY_ENCLAVE_OVERRIDE", "/").strip("/"))
    if not keystore:
        problems.append("ROS_SECURITY_KEYSTORE is not set")
    elif absent := [file for file in _ENCLAVE_FILES if not _is_filled(enclave / file)]:
        problems.append(f"missing in {enclave}: {', '.join(absent)}")
    if not problems:
        return passed("security", f"SROS2 is enforced, with the keys in {enclave}")
    return failed("security", f"security is required, but {'; '.join(problems)}", _SECURITY_REMEDY, "security")


def measured_positions(contract: Contract, values: Mapping[str, Mapping[str, Any]]) -> FloatArray:
    """Return all joint positions in contract order, shape (n_joints,), NaN where unknown.

    `values` maps a sensor to the values of its sample by field.
    """
    measured: dict[str, float] = {}
    for name, sensor in contract.sensors.items():
        spec, found = sensor.fields.get("position"), values.get(name, {}).get("position")
        is_reporting = sensor.type == JOINT_SENSOR and sensor.visibility == "agent"
        if is_reporting and spec is not None and spec.joints and found is not None:
            measured |= dict(zip(spec.joints, found.tolist(), strict=True))
    return np.array([measured.get(joint, math.nan) for joint in ActionLayout(contract).joints], dtype=np.float64)


def check_positions(contract: Contract, measured: FloatArray, *, outside: str | Mapping[str, str] = "refuse") -> Check:
    """Check that every joint is inside its position limits after margins.

    `measured` has the positions of all joints in contract order, shape (n_joints,), in their units; NaN, for unknown,
    fails where the joint has limits. `outside` is the profile's ``start_outside``, of all joints or by joint; with
    ``inward`` a joint outside passes, since the safety gate lets it move inward only.
    """
    layout = ActionLayout(contract)
    low, high = layout.limits.position_low, layout.limits.position_high
    units = [limits.unit for actuator in contract.actuators.values() for limits in actuator.joints.values()]
    unknown, beyond, is_refused = [], [], False
    name = "robot inside its limits"
    reporting = find_positions(contract)
    far = np.isfinite(measured) & (np.abs(measured) > MAX_TURN_RAD)
    for i in np.flatnonzero(far & ~layout.is_velocity & (np.array(units) == "rad")).tolist():
        path = f"sensors.{reporting[layout.joints[i]][0]}.fields.position"
        if path not in contract.confirmed:
            detail = f"{layout.joints[i]} at {measured[i]:.6g} rad is more than two turns, and looks like degrees"
            remedy = f"set {path}.driver: {{unit: deg}} for a driver in degrees, or list {path} under confirmed"
            return failed(name, detail, remedy, "limits.degrees")
    for i, joint in enumerate(layout.joints):
        if low[i] == -math.inf and high[i] == math.inf:
            continue
        if not math.isfinite(measured[i]):
            unknown.append(joint)
        elif not low[i] <= measured[i] <= high[i]:
            bound = low[i] if measured[i] < low[i] else high[i]
            side = "below" if measured[i] < low[i] else "above"
            is_refused |= (outside if isinstance(outside, str) else outside.get(joint)) != "inward"
            beyond.append(f"{joint} at {measured[i]:.6g} {units[i]} is {side} its limit {bound:.6g}")
    if unknown:
        detail = f"no measured position of {', '.join(unknown)}"
        return failed(name, detail, "add a sensor that reports them, or start it", START_OUT_OF_LIMITS)
    if is_refused:
        remedy = "jog the robot back inside its limits, or set backends.real.start_outside: {JOINT: inward}; "
        remedy += "for a driver in percent, counts or degrees set `driver` of the position field"
        return failed(name, "; ".join(beyond), remedy, START_OUT_OF_LIMITS)
    return passed(name, f"{'; '.join(beyond)}; inward motion only" if beyond else "after margins")


def _check_limits(contract: Contract) -> Check:
    unbounded, fast, continuous = [], [], []
    for actuator in contract.actuators.values():
        for joint, limits in actuator.joints.items():
            if limits.position is None:  # a twist axis, or a continuous joint
                continuous.append(joint)
                if limits.unit == "m" and actuator.command != "twist":
                    unbounded.append(joint)
            if not (math.isfinite(limits.fastest) and math.isfinite(limits.acceleration or 0.0)):
                fast.append(joint)
    if unbounded or fast:
        detail = f"prismatic joints without position limits: {unbounded}; no finite velocity or acceleration: {fast}"
        remedy = "set position, velocity and acceleration in actuators.<name>.joints.<joint>"
        return failed("limits", detail, remedy, "limits.missing")
    for path, problem in suspected_degrees(contract):  # warned of in simulation; a robot moves 57 times as far
        detail, _, remedy = problem.partition("; ")
        return failed("limits", f"{path}: {detail}", remedy, "limits.degrees")
    without = f"; no position limits: {', '.join(continuous)}" if continuous else ""
    count = sum(len(actuator.joints) for actuator in contract.actuators.values())
    return passed("limits", f"{count} joints have limits{without}")


def _check_turns(contract: Contract) -> Iterator[Check]:
    """Name the joints whose turns that a new process cannot derive from readings modulo a turn."""
    if turning := [joint for each in contract.actuators.values() for joint in each.joints if each.turns(joint)]:
        detail = f"a new process takes the readings of {', '.join(turning)} as they are"
        remedy = "if the driver reports angles modulo a turn and its controller counts turns, start within half a turn"
        yield Check(name="turns", passed=None, detail=detail, remedy=f"{remedy} of zero")


def _check_mode(contract: Contract) -> Check:
    if (mode := contract.safety.mode) != "enforce":
        detail = f"safety.mode is {mode!r} (expected 'enforce' on a real robot)"
        return failed("safety mode", detail, "set safety.mode: enforce", "safety.mode")
    return passed("safety mode", "the safety gate enforces all limits")


def _check_downstream_timeout(contract: Contract, profile: RealProfile) -> Check:
    """Check for a controller timeout, as the last velocity or effort must not act forever."""
    name = "controller timeout"
    needing = [key for key, actuator in contract.actuators.items() if actuator.command in _NEED_A_TIMEOUT]
    if (timeout_s := profile.downstream_timeout_s) is not None:
        return passed(name, f"the controller stops after {timeout_s} s without a command (downstream_timeout_s)")
    if not needing:
        return passed(name, "not needed: the controller holds the last position")
    if profile.allow_no_downstream_timeout:
        return passed(name, f"none for {needing}, as the profile allows (allow_no_downstream_timeout)")
    detail = f"{needing} are commanded by velocity or effort, and the controller's timeout is not declared"
    return failed(name, detail, _TIMEOUT_REMEDY, "downstream.timeout")


def _is_filled(file: Path) -> bool:
    try:
        return file.is_file() and file.stat().st_size > 0
    except OSError:
        return False
