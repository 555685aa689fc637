"""What was asked for, what was applied, and what the gates did to it, row by row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from embodied_env.analysis.report.key_frames import KeyFrames
from embodied_env.analysis.report.row_access import finite, flat, get_mapping, text_of
from embodied_env.analysis.report.time_series import MOST_NAMES, Timeline
from embodied_env.analysis.report.timing_collectors import Clocks, Sensors, Stages
from embodied_env.analysis.statistics import QuantileSketch
from embodied_env.core.outcome_counts import counted_apart, solved_at_reset
from embodied_env.core.types import CODES, Severity
from embodied_env.record.rows import RESET, TRANSITION
from embodied_env.record.schema import gates
from embodied_env.record.summary import OUTSIDE, Summary

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


MOST_REASONS = 200
_OF_RESETS = {"routine": "by", "confirmed_by": "confirmed by", "options_ignored": "ignoring"}
OTHER = "(others)"
LISTED = 40
"""Episodes that get a line of their own."""


@dataclass(kw_only=True)
class Episode:
    """One episode, from a reset to its end, or to where it was cut."""

    number: int  # from 1
    seed: int | None
    steps: int = 0
    reward: float = 0.0
    rewards_missing: int = 0
    ended: str = ""  # "terminated", "truncated", or "": it was cut
    reason: str = ""
    success: bool = False  # False too for one that is counted apart
    solved: bool | None = None  # at its reset; None: not judged
    apart: str = ""  # why it is in no success rate (`embodied_env.core.outcome_counts.counted_apart`), or ""


class Outcomes:
    """Takes in rows in order. Their reasons are cut where they are long, and counted together where they are many."""

    def __init__(self) -> None:
        """Begin with no row."""
        self.resets = 0
        self.episodes: list[Episode] = []
        self.reset_levels: Counter[str] = Counter()
        self._summary = Summary()
        self._open: Episode | None = None
        self._reasons: set[str] = set()

    def add(self, row: Mapping[str, Any]) -> None:
        """Take in one row, of a reset or of a transition."""
        info = get_mapping(row, "info")
        reason = self._known(text_of(info.get("end_reason")))
        missed = get_mapping(info, "latency").get("missed_deadlines")
        terminated, truncated = row.get("terminated") is True, row.get("truncated") is True
        self._summary.add(  # without the stages, which it would keep
            {
                "schema": row.get("schema"),
                "reward": finite(row.get("reward")),
                "terminated": terminated,
                "truncated": truncated,
                "info": {**info, "end_reason": reason, "latency": {"missed_deadlines": missed}},
                "inner": {"details": {}, "verdict": get_mapping(row, "inner").get("verdict")},
            }
        )
        if row.get("schema") == RESET:
            self._begin(row)
        elif self._open is not None:
            self._step(self._open, row, reason)

    def summary(self) -> dict[str, Any]:
        """Return the counts, in the form of ``summary.json``; its latency is empty."""
        return self._summary.as_json("")

    def _begin(self, row: Mapping[str, Any]) -> None:
        self.resets += 1
        made = get_mapping(row, "info", "reset")
        if level := text_of(made.get("level")):
            told = (f"{label} {text_of(made.get(key))}" for key, label in _OF_RESETS.items() if text_of(made.get(key)))
            how = ", ".join([level, *told])
            is_told = how in self.reset_levels or len(self.reset_levels) < MOST_REASONS
            self.reset_levels[how if is_told else OTHER] += 1
        seed = row.get("seed")
        solved = solved_at_reset(row.get("inner"))
        self._open = Episode(number=self.resets, seed=seed if isinstance(seed, int) else None, solved=solved)
        if len(self.episodes) < LISTED:
            self.episodes.append(self._open)

    def _step(self, episode: Episode, row: Mapping[str, Any], reason: str) -> None:
        episode.steps += 1
        reward = finite(row.get("reward"))
        episode.reward += reward or 0.0
        episode.rewards_missing += reward is None
        terminated, truncated = row.get("terminated") is True, row.get("truncated") is True
        if terminated or truncated:
            episode.ended = "truncated" if truncated else "terminated"
            episode.reason = reason or OUTSIDE
            info = get_mapping(row, "info")
            success = not truncated and info.get("is_success") is True
            episode.apart = counted_apart(solved=episode.solved, success=success, info=info, steps=episode.steps)
            episode.success = success and not episode.apart
            self._open = None

    def _known(self, reason: str) -> str:
        if reason in self._reasons or not reason:
            return reason
        if len(self._reasons) >= MOST_REASONS:
            return OTHER
        self._reasons.add(reason)
        return reason


class RunCollector:
    """Takes in the rows of a run in order.

    Attributes:
        steps: transitions taken in.
        unreadable: rows that are neither of a reset nor of a transition.
        unaccounted: steps that the environment did not account for: an outer wrapper answered.
    """

    def __init__(self, steps: int) -> None:
        """Begin with no row; `steps` are the transitions that will come, to divide time by."""
        self.timeline = Timeline(steps)
        self.outcomes = Outcomes()
        self.stages = Stages(self.timeline)
        self.sensors = Sensors(self.timeline)
        self.clocks = Clocks()
        self.gates = GateCollector(self.timeline)
        self.actions = Actions(self.timeline)
        self.frames = KeyFrames()
        self.steps = self.unreadable = self.unaccounted = 0

    def add(self, row: object) -> None:
        """Take in one row, whatever it is."""
        known = get_mapping(row)
        if known.get("schema") not in (RESET, TRANSITION):
            self.unreadable += 1
            return
        if known["schema"] == TRANSITION:
            self.steps += 1
            self.timeline.begin_step(self.steps)
            self._add_step(known)
        self.outcomes.add(known)
        self.frames.add(self.steps, known)

    def _add_step(self, row: Mapping[str, Any]) -> None:
        info = get_mapping(row, "info")
        self.unaccounted += row.get("inner") is None
        self.stages.add(self.steps, info)
        self.sensors.add(info)
        self.clocks.add(row)
        self.gates.add(self.steps, row)
        self.actions.add(self.steps, row)


def account_of(rows: Iterable[object], steps: int) -> RunCollector:
    """Return the account of `rows`, of which `steps` are transitions."""
    account = RunCollector(steps)
    for row in rows:
        account.add(row)
    return account
