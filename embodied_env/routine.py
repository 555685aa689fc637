"""What a reset on a robot asks for beside the backend's own part: the way home, and a person's word."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from embodied_env.transition import FloatArray, ResetReport, ResetRequest


@dataclass(frozen=True, kw_only=True)
class Routine:
    """The rest of a reset, which the stepper orders: home, confirmation, verification (`backends.base`).

    Attributes:
        home: joint -> position, rad or m; every joint that is commanded by position, or none: nobody is sent home.
        speed: share of every velocity limit that is kept on the way, 0 < speed <= 1.
        tolerance: how far from home a joint may be measured in the end, in its unit.
        timeout_s: how long the way home may take; None: as long as the reset.
        confirm: who is asked whether the episode may begin: "" nobody, "prompt", "topic" or "service".
    """

    home: Mapping[str, float] = field(default_factory=dict)
    speed: float = 0.2
    tolerance: float = 0.02
    timeout_s: float | None = None
    confirm: str = ""


def question(options: Mapping[str, FloatArray], joints: tuple[str, ...], positions: FloatArray) -> str:
    """Return what a person is asked: which reset options are to be set up, and where the robot is."""
    wanted = ", ".join(f"{name}={value.tolist()}" for name, value in options.items()) or "none"
    places = ", ".join(f"{joint} {position:.4g}" for joint, position in zip(joints, positions.tolist(), strict=True))
    return f"may the episode begin? reset options to set up: {wanted}; the robot is at: {places}"


def confirmed(report: ResetReport, by: str, request: ResetRequest) -> ResetReport:
    """Return the report of a reset that a person agreed to: the options that they were shown are set up by them."""
    given = {name: request.options[name] for name in report.ignored}
    word = {"options": f"set up by the operator's word: {', '.join(given)}"} if given else {}
    return replace(
        report, confirmed_by=by, sampled={**report.sampled, **given}, details={**report.details, **word}, ignored=()
    )
