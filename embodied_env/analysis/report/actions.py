"""Gate findings, and requested versus applied actions, over the steps of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from embodied_env.analysis.report.time_series import BoundedDict, Occurrences
from embodied_env.analysis.statistics import Sample
from embodied_env.core.codes import Severity
from embodied_env.record.step_values import Firing, action_values, firings

_MOST_ROWS = 40


class GateActivity:
    """Findings of all steps. A finding of severity PASS changes nothing, so it is a notice and no firing."""

    def __init__(self) -> None:
        self.fired: BoundedDict[Firing, Occurrences] = BoundedDict(Occurrences)
        self.notices: BoundedDict[tuple[str, str], Occurrences] = BoundedDict(Occurrences)
        self.intervened = 0
        self.dispositions: Counter[str] = Counter()
        self._severity: dict[Firing, Severity] = {}

    def add(self, step: int, row: Mapping[str, Any]) -> None:
        """Add the row of a step."""
        safety = row["info"]["safety"]
        self.intervened += safety["intervened"]
        self.dispositions[Severity(safety["disposition"]).name] += 1
        for firing, severity in dict(sorted(firings(row), key=lambda found: found[1])).items():
            if severity is Severity.PASS:
                if (notice := self.notices.entry(firing[:2])) is not None:
                    notice.add(step)
            elif (fired := self.fired.entry(firing)) is not None:
                fired.add(step)
                self._severity[firing] = max(severity, self._severity.get(firing, severity))

    def section(self) -> dict[str, Any]:
        """Return the most frequent firings and notices."""
        ordered = sorted(self.fired, key=lambda firing: (-self.fired[firing].steps, firing))
        return {
            "rows": [(firing, self._severity[firing].name, self.fired[firing]) for firing in ordered[:_MOST_ROWS]],
            "more": max(0, len(ordered) - _MOST_ROWS),
            "notices": sorted(self.notices.items(), key=lambda item: -item[1].steps)[:_MOST_ROWS],
        }


class _Joint:
    """One component of the action over all steps, in the units of the action."""

    def __init__(self) -> None:
        self.steps = self.changed = self.not_finite = self.worst_step = 0
        self.differences = Sample()  # |applied - requested|

    def add(self, step: int, requested: float | None, applied: float | None) -> None:
        self.steps += 1
        if requested is None:
            self.not_finite += 1
        elif applied is not None:
            difference = abs(applied - requested)
            self.changed += difference != 0.0
            if difference > max(self.differences.most, 0.0):
                self.worst_step = step
            self.differences.add(difference)


class Actions:
    """Requested and applied action of all steps, by joint."""

    def __init__(self) -> None:
        self.joints: BoundedDict[str, _Joint] = BoundedDict(_Joint)

    def add(self, step: int, action: Mapping[str, Any]) -> None:
        """Add ``info["action"]`` of a step."""
        values = action_values(action["requested"]), action_values(action["applied"])
        for name, requested, applied in zip(action["applied_si"], *values, strict=False):
            if (joint := self.joints.entry(name)) is not None:
                joint.add(step, requested, applied)
