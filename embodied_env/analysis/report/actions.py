"""Gate findings, and requested versus applied actions, over the steps of a run, and their figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from embodied_env.analysis.report.figures import BLUE, Line, heat_figure, lines_figure
from embodied_env.analysis.report.time_series import BoundedDict, Occurrences, Timeline
from embodied_env.analysis.report.timing import step_axis
from embodied_env.analysis.statistics import Sample
from embodied_env.core.codes import Severity

Firing = tuple[str, str, str]
"""Gate, code and joint; the joint is "" for a finding about the whole action."""

_MOST_ROWS = 40
_MOST_IN_MAP = 24
MOST_FIGURES = 16
_PALE_ORANGE = "#f0bf55"
_BLUE_BAND, _ORANGE_BAND = "rgba(0,114,178,0.16)", "rgba(230,159,0,0.18)"


def firings(row: Mapping[str, Any]) -> Iterator[tuple[Firing, Severity]]:
    """Yield the findings of the gates in the row of a step, once per joint."""
    for finding in row["inner"]["findings"]:
        for joint in finding["joints"] or ("",):
            yield (finding["gate"], finding["code"], joint), Severity[finding["severity"]]


def action_values(action: Any) -> list[float | None]:  # noqa: ANN401 - JSON types
    """Return the components of an action, a list or one list per actuator, in order; None for what is not finite."""
    return [value for part in action.values() for value in part] if isinstance(action, dict) else list(action)


class GateActivity:
    """Findings of all steps. A finding of severity PASS changes nothing, so it is a notice and no firing."""

    def __init__(self, timeline: Timeline) -> None:
        self.fired: BoundedDict[Firing, Occurrences] = BoundedDict(Occurrences)
        self.notices: BoundedDict[tuple[str, str], Occurrences] = BoundedDict(Occurrences)
        self.intervened = 0
        self.dispositions: Counter[str] = Counter()
        self._severity: dict[Firing, Severity] = {}
        self._timeline = timeline

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
                self._timeline.add(("fired", *firing), 1.0)

    def section(self) -> dict[str, Any]:
        """Return the most frequent firings and notices, and a map of firings over time."""
        ordered = sorted(self.fired, key=lambda firing: (-self.fired[firing].steps, firing))
        mapped = ordered[:_MOST_IN_MAP]
        heat = heat_figure(
            "Share of steps in which it fired",
            self._timeline.first_steps,
            [f"{code} · {joint}" if joint else code for _, code, joint in mapped],
            [self._timeline.shares(("fired", *firing)) for firing in mapped],
            x_title=step_axis(self._timeline),
        )
        return {
            "map": heat if mapped else "",
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

    def __init__(self, timeline: Timeline) -> None:
        self.joints: BoundedDict[str, _Joint] = BoundedDict(_Joint)
        self._timeline = timeline

    def add(self, step: int, action: Mapping[str, Any]) -> None:
        """Add ``info["action"]`` of a step."""
        values = action_values(action["requested"]), action_values(action["applied"])
        for name, requested, applied in zip(action["applied_si"], *values, strict=False):
            joint = self.joints.entry(name)
            if joint is None:
                continue
            joint.add(step, requested, applied)
            for kind, value in (("requested", requested), ("applied", applied)):
                if value is not None:
                    self._timeline.add((kind, name), value)

    def figures(self) -> list[str]:
        """Return a figure of each of the first joints."""
        return [self._figure(name) for name in list(self.joints)[:MOST_FIGURES]]

    def _figure(self, name: str) -> str:
        timeline = self._timeline
        lines = []
        # requested is wider, so that it is visible behind applied where both agree
        for kind, colour, band, width in (
            ("requested", _PALE_ORANGE, _ORANGE_BAND, 4.0),
            ("applied", BLUE, _BLUE_BAND, 1.6),
        ):
            curve = timeline.curve((kind, name))
            if timeline.width > 1:
                lines.append(Line("", curve.most, band, low=curve.least))
            lines.append(Line(kind, curve.p50, colour, width=width))
        return lines_figure(name, timeline.first_steps, lines, x_title=step_axis(timeline), y_title="action")
