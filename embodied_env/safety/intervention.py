"""How often the gate changed what was asked for: repeated clipping is told, never silent."""

from __future__ import annotations

from collections import deque

from embodied_env.contract.safety import Intervention
from embodied_env.transition import Finding, Severity


class InterventionRate:
    """The share of the last steps in which the gate stepped in."""

    def __init__(self, spec: Intervention) -> None:
        """Count over a window of steps."""
        self._spec = spec
        self._seen: deque[bool] = deque()
        self._changed = 0  # how many of them

    @property
    def share(self) -> float:
        """In [0, 1]; 0 before the first step."""
        return self._changed / len(self._seen) if self._seen else 0.0

    def reset(self) -> None:
        """Begin an episode."""
        self._seen.clear()
        self._changed = 0

    def count(self, *, intervened: bool) -> None:
        """One more step."""
        self._seen.append(intervened)
        self._changed += intervened
        if len(self._seen) > self._spec.window_steps:
            self._changed -= self._seen.popleft()

    def check(self) -> list[Finding]:
        """Tell a share that is too large, once the window is full; make a STOP of one where that is asked for."""
        spec = self._spec
        if not self._changed or len(self._seen) < spec.window_steps:
            return []
        share = self.share
        stops = spec.stop_share is not None and share > spec.stop_share
        if not (stops or share > spec.warn_share):
            return []
        return [
            Finding(
                gate="intervention",
                severity=Severity.STOP if stops else Severity.PASS,
                code="rate.intervention",
                detail=f"the gate changed {share:.0%} of the last {len(self._seen)} steps",
            )
        ]
