"""Count how often the gate changes actions."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from embodied_env.contract.safety_schema import Intervention
from embodied_env.core.code_types import Severity
from embodied_env.core.types import Finding


class InterventionRate:
    """The share of recent steps in which the gate changed the action.

    Attributes:
        window: whether the gate changed each action, oldest first.
        share: in [0, 1]; 0 before the first step.
        findings: the report of a share above `warn_share`, a STOP above `stop_share`; none before the window is full.
    """

    def __init__(self, spec: Intervention) -> None:
        self._spec = spec
        self.window: deque[bool] = deque(maxlen=spec.window_steps)
        self.reset()

    def reset(self) -> None:
        """Clear the window."""
        self.restore(())

    def restore(self, window: Iterable[bool]) -> None:
        """Replace the window with these steps."""
        self.window.clear()
        self._changed, self.share, self.findings = 0, 0.0, list[Finding]()
        for intervened in window:
            self.count(intervened=intervened)

    def count(self, *, intervened: bool) -> None:
        """Add a step to the window."""
        window, spec = self.window, self._spec
        is_full = len(window) == window.maxlen
        self._changed += intervened - (window[0] if is_full else 0)
        window.append(intervened)
        self.share = share = self._changed / len(window)
        self.findings = []
        if len(window) < spec.window_steps:
            return
        stops = spec.stop_share is not None and share > spec.stop_share
        if stops or share > spec.warn_share:
            self.findings = [rate_finding(share, len(window), Severity.STOP if stops else Severity.PASS)]


def rate_finding(share: float, n_steps: int, severity: Severity) -> Finding:
    """Return the finding that the gate changed a share of the last steps."""
    detail = f"the gate changed {share:.0%} of the last {n_steps} steps"
    return Finding(gate="intervention", severity=severity, code="rate.intervention", detail=detail)
