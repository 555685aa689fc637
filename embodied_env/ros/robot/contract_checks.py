"""Checks of a robot's contract, profile and positions that need no ROS; anything unknown or missing fails."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.message_types import JOINT_SENSOR
from embodied_env.contract.spaces import ActionLayout
from embodied_env.errors import BackendNotReadyError
from embodied_env.ros.robot.backend_profile import RealProfile

START_OUT_OF_LIMITS = "start_out_of_limits"

_NEED_A_TIMEOUT = frozenset({"velocity", "effort", "twist"})  # a controller keeps the last one indefinitely
_TIMEOUT_REMEDY = (
    "set backends.real.downstream_timeout_s to the controller's own timeout (e.g. cmd_vel_timeout of "
    "diff_drive_controller), or backends.real.allow_no_downstream_timeout: true where something else stops it"
)
_ENCLAVE_FILES = (
    "identity_ca.cert.pem",
    "cert.pem",
    "key.pem",
    "permissions_ca.cert.pem",
    "governance.p7s",
    "permissions.p7s",
)


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line of the checklist.

    `passed` None: not checked, for the reason in `detail`. `remedy` and `code`, a machine-readable reason, are of a
    failure.
    """

    name: str
    passed: bool | None
    detail: str
    remedy: str = ""
    code: str = ""


def raise_unless_passed(checks: Iterable[Check]) -> None:
    """Raise BackendNotReadyError with each failed check and its remedy."""
    checks = tuple(checks)
    failed = [check for check in checks if check.passed is False]
    if failed:
        problems = "; ".join(
            f"[{check.code}] {check.name}: {check.detail}" + (f" ({check.remedy})" if check.remedy else "")
            for check in failed
        )
        raise BackendNotReadyError(f"preflight: {len(failed)} of {len(checks)} checks failed: {problems}")


def contract_checks(
    contract: Contract, profile: RealProfile, *, environment: Mapping[str, str] | None = None
) -> tuple[Check, ...]:
    """Check the contract and its profile ``real``. `environment` None: that of this process."""
    outside = f"a robot outside its limits: {profile.start_outside}"
    return (
        _check_limits(contract),
        _check_mode(contract),
        _check_downstream_timeout(contract, profile),
        Check(name="start outside limits", passed=True, detail=outside),
        security_check(profile, os.environ if environment is None else environment),
    )


def security_check(profile: RealProfile, environment: Mapping[str, str]) -> Check:
    """Check that SROS2 is enforced and has its keys, if the profile has ``security: required``.

    Call it before creating a node: without ``ROS_SECURITY_ENABLE`` a node would run unauthenticated.
    """
    if profile.security == "off":
        return Check(name="security", passed=None, detail="the profile does not ask for SROS2 (security: required)")
    needed = {"ROS_SECURITY_ENABLE": "true", "ROS_SECURITY_STRATEGY": "Enforce"}
    problems = [f"{key}={environment.get(key)!r}" for key, value in needed.items() if environment.get(key) != value]
    keystore = environment.get("ROS_SECURITY_KEYSTORE", "")
    enclave = Path(keystore, "enclaves", environment.get("ROS_SECURITY_ENCLAVE_OVERRIDE", "/").strip("/"))
    if not keystore:
        problems.append("ROS_SECURITY_KEYSTORE is not set")
    elif absent := [file for file in _ENCLAVE_FILES if not _is_filled(enclave / file)]:
        problems.append(f"{enclave} lacks {', '.join(absent)}")
    if not problems:
        return Check(name="security", passed=True, detail=f"SROS2 is enforced, with the keys in {enclave}")
    return Check(
        name="security",
        passed=False,
        detail=f"security is required, but {'; '.join(problems)}",
        remedy="export ROS_SECURITY_ENABLE=true ROS_SECURITY_STRATEGY=Enforce ROS_SECURITY_KEYSTORE=<folder>, and make "
        "the keys: ros2 security create_keystore <folder>; ros2 security create_enclave <folder> <enclave>",
        code="security",
    )


def measured_positions(contract: Contract, values: Mapping[str, Mapping[str, Any]]) -> FloatArray:
    """Return the positions of all joints in contract order, shape (n_joints,), NaN where unknown.

    `values` maps a sensor to the values of its sample by field.
    """
    measured: dict[str, float] = {}
    for name, sensor in contract.sensors.items():
        spec, found = sensor.fields.get("position"), values.get(name, {}).get("position")
        is_reporting = sensor.type == JOINT_SENSOR and sensor.visibility == "agent"
        if is_reporting and spec is not None and spec.joints and found is not None:
            measured |= dict(zip(spec.joints, found.tolist(), strict=True))
    return np.array([measured.get(joint, math.nan) for joint in ActionLayout(contract).joints], dtype=np.float64)


def check_positions(contract: Contract, measured: FloatArray, *, outside: str = "refuse") -> Check:
    """Check that every joint is inside its position limits after margins.

    Args:
        contract: has the limits.
        measured: positions of all joints in contract order, shape (n_joints,), in their units; NaN, for unknown, fails
            where the joint has limits.
        outside: the profile's ``start_outside``. ``inward``: a joint outside passes, since the safety gate lets it move
            inward only; anything else: it fails.
    """
    layout = ActionLayout(contract)
    low, high = layout.limits.position_low, layout.limits.position_high
    units = [limits.unit for actuator in contract.actuators.values() for limits in actuator.joints.values()]
    unknown, beyond = [], []
    for i, joint in enumerate(layout.joints):
        if low[i] == -math.inf and high[i] == math.inf:
            continue
        if not math.isfinite(measured[i]):
            unknown.append(joint)
        elif not low[i] <= measured[i] <= high[i]:
            bound = low[i] if measured[i] < low[i] else high[i]
            side = "below" if measured[i] < low[i] else "above"
            beyond.append(f"{joint} at {measured[i]:.6g} {units[i]} is {side} {bound:.6g}")
    name = "robot inside its limits"
    if unknown:
        detail = f"no position is known of {', '.join(unknown)}"
        remedy = "see that a sensor reports them"
        return Check(name=name, passed=False, detail=detail, remedy=remedy, code=START_OUT_OF_LIMITS)
    if beyond and outside != "inward":
        remedy = "move the robot inside by its own means, or set backends.real.start_outside: inward"
        return Check(name=name, passed=False, detail="; ".join(beyond), remedy=remedy, code=START_OUT_OF_LIMITS)
    allowed = "; they may only move inward"
    return Check(name=name, passed=True, detail="; ".join(beyond) + allowed if beyond else "after margins")


def _check_limits(contract: Contract) -> Check:
    """Check that joints have limits. An axis of a twist has no position; a continuous joint declares position: null."""
    endless, fast, turning = [], [], []
    for actuator in contract.actuators.values():
        for joint, limits in actuator.joints.items():
            if limits.position is None:
                turning.append(joint)
                if limits.unit == "m" and actuator.command != "twist":
                    endless.append(joint)
            if not (math.isfinite(limits.velocity) and math.isfinite(limits.acceleration)):
                fast.append(joint)
    if endless or fast:
        detail = f"joints that slide without an end: {endless}; without a finite velocity or acceleration: {fast}"
        remedy = "write actuators.<name>.joints.<joint>: position, velocity and acceleration"
        return Check(name="limits", passed=False, detail=detail, remedy=remedy, code="limits.missing")
    without = f"; without a limit of position: {', '.join(turning)}" if turning else ""
    count = sum(len(actuator.joints) for actuator in contract.actuators.values())
    return Check(name="limits", passed=True, detail=f"{count} joints have limits{without}")


def _check_mode(contract: Contract) -> Check:
    mode = contract.safety.mode
    if mode != "enforce":
        detail = f"safety.mode {mode!r} is not allowed on a real robot; allowed: 'enforce'"
        return Check(name="safety mode", passed=False, detail=detail, remedy="set safety.mode", code="safety.mode")
    return Check(name="safety mode", passed=True, detail="the safety gate enforces")


def _check_downstream_timeout(contract: Contract, profile: RealProfile) -> Check:
    """Check that the controller has a timeout: a velocity or effort that is not renewed would keep the robot moving."""
    name = "controller timeout"
    needing = [key for key, actuator in contract.actuators.items() if actuator.command in _NEED_A_TIMEOUT]
    if (timeout_s := profile.downstream_timeout_s) is not None:
        return Check(name=name, passed=True, detail=f"declared: the controller stops by itself after {timeout_s} s")
    if not needing:
        return Check(name=name, passed=True, detail="not needed: a position that is not renewed is held")
    if profile.allow_no_downstream_timeout:
        return Check(name=name, passed=True, detail=f"none for {needing}: the profile allows it")
    detail = f"{needing} are commanded by velocity or effort, and no timeout of the controller is declared"
    return Check(name=name, passed=False, detail=detail, remedy=_TIMEOUT_REMEDY, code="downstream.timeout")


def _is_filled(file: Path) -> bool:
    try:
        return file.is_file() and file.stat().st_size > 0
    except OSError:
        return False
