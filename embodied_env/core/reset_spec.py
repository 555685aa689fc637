"""The part of a robot's reset after the backend's own: homing and operator confirmation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from embodied_env.contract import Contract
from embodied_env.contract.spaces import ActionLayout
from embodied_env.contract.value_checks import one_of
from embodied_env.core.measured_joints import MeasuredJoints
from embodied_env.core.types import Confirmation, FloatArray, ResetReport, ResetRequest


@dataclass(frozen=True, kw_only=True)
class ResetRoutine:
    """The reset steps run by the stepper: homing, confirmation, verification (`backends.backend.Resettable`)."""

    home: Mapping[str, float] = field(default_factory=dict)  # joint -> position, rad or m; empty: no homing
    speed: float = 0.2  # homing speed as a share of every velocity limit, 0 < speed <= 1
    tolerance: float = 0.02  # largest distance from home at the end, in the joint's unit
    timeout_s: float | None = None  # time limit of homing; None: that of the reset
    confirm: Confirmation = ""  # channel of the operator's confirmation


def validate_home(contract: Contract, home: Mapping[str, float]) -> dict[str, str]:
    """Return joint -> why it cannot be driven to its position in `home`, or that it has none."""
    layout = ActionLayout(contract)
    is_measured = MeasuredJoints(contract, layout.joints).known
    sendable = [joint for joint, is_velocity in zip(layout.joints, layout.is_velocity, strict=True) if not is_velocity]
    problems = {}
    for joint, position in home.items():
        if joint not in layout.joints:
            problems[joint] = f"no such joint: {one_of(joint, sendable)}"
            continue
        index = layout.joints.index(joint)
        low, high = float(layout.limits.position_low[index]), float(layout.limits.position_high[index])
        if joint not in sendable:
            problems[joint] = f"commanded by velocity (expected one of: {', '.join(sendable) or 'none'})"
        elif not is_measured[index]:
            problems[joint] = "no agent-visible sensor reports its position"
        elif not low <= position <= high:
            problems[joint] = f"{position} (expected {low:g} to {high:g}, the limits after margins)"
        elif not np.isnan(layout.scale.threshold[index]):
            ends = layout.scale.si_low[index].item(), layout.scale.si_high[index].item()
            if position not in ends:
                problems[joint] = f"{position} (expected {ends[0]:g} or {ends[1]:g}, with scale: binary)"
    missing = [joint for joint in sendable if joint not in home]
    return problems | dict.fromkeys(missing, "missing (expected the home of every joint commanded by position)")


def confirmation_prompt(options: Mapping[str, FloatArray], contract: Contract, positions: FloatArray) -> str:
    """Return the question to the operator: the reset options to set up, and the known joint positions."""
    wanted = ", ".join(f"{name}={(np.round(value, 3) + 0.0).tolist()}" for name, value in options.items())  # no -0.0
    units = {joint: limits.unit for each in contract.actuators.values() for joint, limits in each.joints.items()}
    measured = ", ".join(
        f"{joint} {position:.3f} {unit}"
        for (joint, unit), position in zip(units.items(), np.round(positions, 3) + 0.0, strict=True)
        if math.isfinite(position)
    )
    return f"start the episode? reset options to set up: {wanted or 'none'}; joint positions: {measured or 'unknown'}"


def with_operator_confirmation(report: ResetReport, by: Confirmation, request: ResetRequest) -> ResetReport:
    """Return the report of a confirmed reset: the operator has set up the displayed options."""
    given = {name: request.options[name] for name in report.ignored}
    set_up = {"options": f"set up by the operator: {', '.join(given)}"} if given else {}
    return replace(
        report, confirmed_by=by, sampled={**report.sampled, **given}, details={**report.details, **set_up}, ignored=()
    )
