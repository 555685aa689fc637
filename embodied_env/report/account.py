"""A whole run in one pass, in bounded memory: what the report says is counted here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from embodied_env.record.rows import RESET, TRANSITION
from embodied_env.report.acting import Actions, Gates
from embodied_env.report.frames import KeyFrames
from embodied_env.report.outcomes import Outcomes
from embodied_env.report.timeline import Timeline
from embodied_env.report.timing import Clocks, Sensors, Stages
from embodied_env.report.values import mapping


class RunAccount:
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
        self.gates = Gates(self.timeline)
        self.actions = Actions(self.timeline)
        self.frames = KeyFrames()
        self.steps = self.unreadable = self.unaccounted = 0

    def add(self, row: object) -> None:
        """Take in one row, whatever it is."""
        known = mapping(row)
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
        info = mapping(row, "info")
        self.unaccounted += row.get("inner") is None
        self.stages.add(self.steps, info)
        self.sensors.add(info)
        self.clocks.add(row)
        self.gates.add(self.steps, row)
        self.actions.add(self.steps, row)


def account_of(rows: Iterable[object], steps: int) -> RunAccount:
    """Return the account of `rows`, of which `steps` are transitions."""
    account = RunAccount(steps)
    for row in rows:
        account.add(row)
    return account
