"""Collect everything that a report needs from the rows of a run, in one pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from embodied_env.analysis.report.action_collectors import Actions, GateCollector
from embodied_env.analysis.report.key_frames import KeyFrames
from embodied_env.analysis.report.outcome_collectors import Outcomes
from embodied_env.analysis.report.row_access import get_mapping
from embodied_env.analysis.report.time_series import Timeline
from embodied_env.analysis.report.timing_collectors import Clocks, Sensors, Stages
from embodied_env.record.rows import RESET, TRANSITION


def collect_rows(rows: Iterable[object], steps: int) -> RunCollector:
    """Collect `rows`, of which `steps` are transitions."""
    collector = RunCollector(steps)
    for row in rows:
        collector.add(row)
    return collector


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
