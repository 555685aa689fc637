"""A command filter and an interlock."""

from __future__ import annotations

from embodied_env.contract import Contract, FloatArray
from embodied_env.core.code_types import Severity
from embodied_env.core.types import SafetyContext
from embodied_env.safety.command_filters import FilterDecision, ProposedCommand


class SlowDown:
    """Executes a share of every motion."""

    def __init__(self, contract: Contract, *, share: float) -> None:
        self._share = share

    def reset(self) -> None:
        """Begin an episode."""

    def filter(self, proposal: ProposedCommand) -> FilterDecision | None:
        """Return the share."""
        return FilterDecision(severity=Severity.LIMIT, share=self._share, detail="slowed down")


class JointsInside:
    """Accepts no action while a joint is measured outside a range around zero."""

    codes = {"joints.outside": Severity.HOLD}

    def __init__(self, contract: Contract, *, most_rad: float) -> None:
        self._most_rad = most_rad

    def reset(self) -> None:
        """Begin an episode."""

    def judge(self, context: SafetyContext, commanded: FloatArray) -> dict[str, str]:
        """Return the code while a joint is outside or its position is unknown."""
        if (abs(context.measured) <= self._most_rad).all():
            return {}
        return {"joints.outside": f"{context.measured.tolist()} rad (maximum {self._most_rad} rad)"}
