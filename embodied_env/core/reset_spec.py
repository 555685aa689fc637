"""The part of a robot's reset after the backend's own: homing and operator confirmation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from embodied_env.contract import Contract
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.measured_joints import MeasuredJoints
from embodied_env.core.types import FloatArray, ResetReport, ResetRequest


@dataclass(frozen=True, kw_only=True)
class ResetRoutine:
    """The reset steps run by the stepper: homing, confirmation, verification (`backends.base.Resettable`).

    Attributes:
        home: joint -> position, rad or m, for every joint commanded by position; empty: no homing.
        speed: homing speed as a share of every velocity limit, 0 < speed <= 1.
        tolerance: largest distance from home at the end, in the joint's unit.
        timeout_s: time limit of homing; None: that of the reset.
        confirm: channel of the operator's confirmation: "prompt", "topic", "service", or "" for none.
    """

    home: Mapping[str, float] = field(default_factory=dict)
    speed: float = 0.2
    tolerance: float = 0.02
    timeout_s: float | None = None
    confirm: str = ""


def validate_home(contract: Contract, home: Mapping[str, float]) -> dict[str, str]:
    """Return joint -> why it cannot be driven to its position in `home`, or that it has none."""
    layout = ActionLayout(contract)
    is_velocity = dict(zip(layout.joints, layout.is_velocity.tolist(), strict=True))
    is_known = dict(zip(layout.joints, MeasuredJoints(contract, layout.joints).known.tolist(), strict=True))
    low = dict(zip(layout.joints, layout.limits.position_low.tolist(), strict=True))
    high = dict(zip(layout.joints, layout.limits.position_high.tolist(), strict=True))
    sendable = [joint for joint in layout.joints if not is_velocity[joint]]
    allowed = ", ".join(sendable) or "none"
    problems = {}
    for joint, position in home.items():
        if joint not in is_velocity:
            problems[joint] = f"no such joint; allowed: {allowed}"
        elif is_velocity[joint]:
            problems[joint] = f"it is commanded by velocity and cannot be sent home; allowed: {allowed}"
        elif not is_known[joint]:
            problems[joint] = "no sensor of the agent reports its position, so nobody knows when it is home"
        elif not low[joint] <= position <= high[joint]:
            limits = f"{low[joint]} to {high[joint]}, the limits after margins"
            problems[joint] = f"{position} is not allowed; allowed: {limits}"
    missing = [joint for joint in sendable if joint not in home]
    return problems | dict.fromkeys(missing, "its home is missing; allowed: every joint that is commanded by position")


def confirmation_prompt(options: Mapping[str, FloatArray], joints: tuple[str, ...], positions: FloatArray) -> str:
    """Return the question to the operator: the reset options to set up, and where the robot is."""
    wanted = ", ".join(f"{name}={value.tolist()}" for name, value in options.items()) or "none"
    places = ", ".join(f"{joint} {position:.4g}" for joint, position in zip(joints, positions.tolist(), strict=True))
    return f"may the episode begin? reset options to set up: {wanted}; the robot is at: {places}"


def with_operator_confirmation(report: ResetReport, by: str, request: ResetRequest) -> ResetReport:
    """Return the report of a confirmed reset: the operator has set up the options that they were shown."""
    given = {name: request.options[name] for name in report.ignored}
    word = {"options": f"set up by the operator's word: {', '.join(given)}"} if given else {}
    return replace(
        report, confirmed_by=by, sampled={**report.sampled, **given}, details={**report.details, **word}, ignored=()
    )
