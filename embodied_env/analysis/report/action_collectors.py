"""Collect what was asked for, what was applied, and what the gates did to it, row by row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from embodied_env.analysis.report.row_access import finite, flat, get_mapping, text_of
from embodied_env.analysis.report.time_series import MOST_NAMES, Timeline
from embodied_env.analysis.statistics import QuantileSketch
from embodied_env.core.codes import CODES, Severity
from embodied_env.record.schema import gates

_SEVERITIES = {severity.name: int(severity) for severity in Severity}
_NAMES_OF_CODES = {number: name for name, number in CODES.items()}

Firing = tuple[str, str, str]
"""Gate, code, and joint; "" is no joint: the whole action, or a row that does not tell."""


@dataclass(kw_only=True)
class GateCount:
    """What is counted of one firing: in how many steps, how far it went, when."""

    steps: int = 0
    gravest: int = 0
    first_step: int = 0
    last_step: int = 0


class GateCollector:
    """What the gates did in all steps. A gate that only says something (PASS) is told, and did not fire."""

    def __init__(self, timeline: Timeline) -> None:
        """Begin with no step."""
        self.fired: dict[Firing, GateCount] = {}
        self.told: Counter[tuple[str, str]] = Counter()
        self.dispositions: Counter[str] = Counter()
        self.intervened = 0
        self.steps = 0  # that have an account of safety
        self._timeline = timeline

    def add(self, step: int, row: Mapping[str, Any]) -> None:
        """Take in the row of the step number `step`."""
        safety = get_mapping(row, "info", "safety")
        if safety:
            self.steps += 1
            self.intervened += safety.get("intervened") is True
            self.dispositions[_severity_name(safety.get("disposition"))] += 1
        found: dict[Firing, int] = {}
        for firing, severity in firings(row):
            found[firing] = max(severity, found.get(firing, 0))
        for firing, severity in found.items():
            self._count(step, firing, severity)

    def _count(self, step: int, firing: Firing, severity: int) -> None:
        gate, code, joint = firing
        if severity == Severity.PASS:
            if (gate, code) in self.told or len(self.told) < MOST_NAMES:
                self.told[gate, code] += 1
            else:
                self._timeline.leave_out()
            return
        if firing not in self.fired and len(self.fired) >= MOST_NAMES:
            self._timeline.leave_out()
            return
        fired = self.fired.setdefault(firing, GateCount(first_step=step))
        fired.steps += 1
        fired.gravest = max(fired.gravest, severity)
        fired.last_step = step
        self._timeline.add(("fired", gate, code, joint), 1.0)


def firings(row: Mapping[str, Any]) -> Iterator[tuple[Firing, int]]:
    """Yield what the gates found in a row, with its severity: each finding once for each of its joints."""
    findings = get_mapping(row, "inner").get("findings")
    if not isinstance(findings, list):
        yield from _firings_of_info(get_mapping(row, "info", "safety"))
        return
    for finding in findings:
        said = get_mapping(finding)
        severity = _SEVERITIES.get(text_of(said.get("severity")), int(Severity.ESTOP))
        joints = said.get("joints")
        for joint in joints if isinstance(joints, list) and joints else ("",):
            yield (text_of(said.get("gate")), text_of(said.get("code")), text_of(joint)), severity


def _firings_of_info(safety: Mapping[str, Any]) -> Iterator[tuple[Firing, int]]:
    """Yield what a row tells that has no findings: gate and code, but no joint."""
    severities, codes = safety.get("severity"), safety.get("code")
    if not isinstance(severities, list) or not isinstance(codes, list):
        return
    for gate, severity, code in zip(gates(), severities, codes, strict=False):
        if isinstance(severity, int) and isinstance(code, int) and code:
            yield (gate, _NAMES_OF_CODES.get(code, str(code)), ""), severity


def _severity_name(value: object) -> str:
    try:
        return Severity(value).name if isinstance(value, int) and not isinstance(value, bool) else "unknown"
    except ValueError:
        return "unknown"


class JointDifference:
    """Requested and applied of one component of the action, over all steps, in the units of the action."""

    def __init__(self) -> None:
        """Begin with no step."""
        self.steps = 0
        self.changed = 0
        self.no_number = 0  # requested was not finite, or not there
        self.differences = QuantileSketch()  # |applied - requested|
        self.total_difference = 0.0
        self.worst_step = 0


class Actions:
    """Requested beside applied, by joint."""

    def __init__(self, timeline: Timeline) -> None:
        """Begin with no step."""
        self.joints: dict[str, JointDifference] = {}
        self.no_account = 0  # steps whose account of the action is missing, or of another length
        self._timeline = timeline

    def add(self, step: int, row: Mapping[str, Any]) -> None:
        """Take in the row of the step number `step`."""
        action = get_mapping(row, "info", "action")
        names = [text_of(name) for name in get_mapping(action, "applied_si")]
        requested, applied = list(flat(action.get("requested"))), list(flat(action.get("applied")))
        if not names or not len(names) == len(applied) == len(requested) or len(names) > MOST_NAMES:
            self.no_account += 1
            return
        self._add(step, names, requested, applied)

    def _add(
        self, step: int, names: Sequence[str], requested: Sequence[float | None], applied: Sequence[float | None]
    ) -> None:
        for name, asked, done in zip(names, requested, applied, strict=True):
            if name not in self.joints and len(self.joints) >= MOST_NAMES:
                self._timeline.leave_out()
                continue
            joint = self.joints.setdefault(name, JointDifference())
            joint.steps += 1
            if done is not None:
                self._timeline.add(("applied", name), done)
            if asked is None:
                joint.no_number += 1
                continue
            self._timeline.add(("requested", name), asked)
            if done is not None:
                _compare(joint, step, abs(done - asked))


def _compare(joint: JointDifference, step: int, difference: float) -> None:
    if finite(difference) is None:
        return
    joint.changed += difference != 0.0
    joint.total_difference += difference
    if difference > max(joint.differences.most, 0.0):
        joint.worst_step = step
    joint.differences.add(difference)
