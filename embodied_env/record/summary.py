"""The summary of a run, computed from its rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from embodied_env.core.latency_statistics import LatencyStatistics
from embodied_env.core.outcome_counts import SOLVED_AT_FIRST_STEP, SOLVED_AT_RESET, counted_apart, solved_at_reset
from embodied_env.core.types import ResetReport, field_values
from embodied_env.record.json_values import to_json_types
from embodied_env.record.rows import RESET, TRANSITION, by_sensor, has_no_action, held_readings, stopped_joints

_INFO_KEYS = (
    "latency",
    "action_clipped",
    "annotations",
    "end_reason",
    "is_success",
    "safety",
    "sensors",
    "step_index",
    "world",
)

OUTSIDE = "outer_wrapper"
"""The end reason of an episode that a wrapper ended while the environment continued."""


class Summary:
    """Computes ``summary.json`` from rows in order: counts of episodes, steps and outcomes, and latency percentiles.

    An episode ends when the outermost wrapper ends it; one that was cut short counts as unfinished.
    """

    def __init__(self) -> None:
        self._latency = LatencyStatistics()
        self._steps = 0
        self._returns: list[float] = []
        self._end_reasons: Counter[str] = Counter()
        self._successes = self._truncated = self._unfinished = self._missed_deadlines = 0
        self._clipped = self._missed_actions = 0
        self._stopped: dict[str, Counter[str]] = {}  # joints by end reason
        self._unmoved: Counter[str] = Counter()
        self._held: Counter[tuple[str, str]] = Counter()
        self._apart: Counter[str] = Counter()  # episodes outside the success rates, by `counted_apart`
        self._apart_terminated = 0
        self._has_ended = True  # until a reset starts an episode
        self._world: str | None = None  # of the newest step
        self._solved: bool | None = None  # at the newest reset; None: not judged
        self._start_episode()

    def _start_episode(self) -> None:
        self._return, self._open_steps = 0.0, 0
        self._open_missed: int | None = None  # missed deadlines; None: the steps are not paced

    def add_reset(self, report: ResetReport | None) -> None:
        """Add a reset; `report`: of the environment itself, or None if a wrapper made it."""
        verdict = None if report is None or report.verdict is None else to_json_types(field_values(report.verdict))
        self.add({"schema": RESET, "inner": {"verdict": verdict}})

    def add_step(self, outer: Mapping[str, Any]) -> None:
        """Add a step; `outer`: see `embodied_env.record.rows.transition_row`."""
        given = outer["info"] if isinstance(outer["info"], Mapping) else {}
        info = {key: value if type(value := given.get(key)) is dict else to_json_types(value) for key in _INFO_KEYS}
        ends = {key: to_json_types(outer[key]) for key in ("reward", "terminated", "truncated")}
        self.add({"schema": TRANSITION, "action": outer["action"], **ends, "info": info})

    def add(self, row: Mapping[str, Any]) -> None:
        """Add one row, of a reset or of a transition."""
        if row["schema"] == RESET:
            self._unfinished += self._open_steps > 0
            self._close_episode()
            self._has_ended = False
            self._solved = solved_at_reset(row.get("inner"))  # None: a wrapper made the reset
            return
        info = row["info"]
        self._latency.add(info)
        self._steps += 1
        self._world = info["world"] if isinstance(info.get("world"), str) else self._world
        self._held.update(held_readings(info))
        is_missed = has_no_action(row)
        self._missed_actions += is_missed
        self._clipped += info.get("action_clipped") is True and not is_missed
        latency = info.get("latency")
        missed = latency.get("missed_deadlines") if isinstance(latency, Mapping) else None
        self._open_missed = missed if isinstance(missed, int) else None
        if self._has_ended:  # a step after the end, which only an outer wrapper can make, belongs to no episode
            return
        self._open_steps += 1
        self._return += row["reward"] if isinstance(row["reward"], (int, float)) else math.nan
        if row["terminated"] or row["truncated"]:
            self._end_episode(row, info)

    def _end_episode(self, row: Mapping[str, Any], info: Mapping[str, Any]) -> None:
        self._has_ended = True
        self._returns.append(self._return)
        self._truncated += bool(row["truncated"])
        success = info.get("is_success") is True and not row["truncated"]
        if apart := counted_apart(solved=self._solved, success=success, info=info, steps=self._open_steps):
            self._apart[apart] += 1
            self._apart_terminated += not row["truncated"]
        else:
            self._successes += success
        self._end_reasons[info.get("end_reason") or OUTSIDE] += 1
        stopped, unmoved = stopped_joints(info)
        if stopped:
            self._stopped.setdefault(str(info["end_reason"]), Counter()).update(stopped)
        self._unmoved.update(unmoved)
        self._close_episode()

    def _close_episode(self) -> None:
        self._missed_deadlines += self._open_missed or 0
        self._start_episode()

    def as_json(self, contract_fingerprint: str) -> dict[str, Any]:
        """Return the summary in JSON types; a statistic of no episode or no step is None.

        The success rates are of the episodes in ``rated`` and ``rated_terminated``. Episodes that were solved at their
        reset, or at their first step if the task did not judge the reset, are counted separately. ``missed_actions``
        counts the steps without an action (`NoAction`), which are not clipped ones, and ``held_readings`` by sensor and
        quality those with an earlier reading. ``stopped_joints`` counts the joints of an end reason, ``unmoved_joints``
        those with a tracking error at the end that had not moved since the reset.
        """
        episodes, terminated = len(self._returns), len(self._returns) - self._truncated
        rated, rated_terminated = episodes - self._apart.total(), terminated - self._apart_terminated
        returns = np.array(self._returns)
        summary: dict[str, Any] = to_json_types(
            {
                "contract_fingerprint": contract_fingerprint,
                "world": self._world,
                "episodes": episodes,
                "terminated": terminated,
                "truncated": self._truncated,
                "unfinished": self._unfinished + (self._open_steps > 0),
                **{count: self._apart[count] for count in (SOLVED_AT_RESET, SOLVED_AT_FIRST_STEP)},
                "rated": rated,
                "rated_terminated": rated_terminated,
                "successes": self._successes,
                "success_rate": self._successes / rated if rated else None,
                "success_rate_not_truncated": self._successes / rated_terminated if rated_terminated else None,
                "return": {
                    name: getattr(returns, name)() if episodes else None for name in ("mean", "min", "max", "std")
                },
                "steps": self._steps,
                "clipped_share": self._clipped / self._steps if self._steps else None,
                "missed_actions": self._missed_actions,
                "held_readings": by_sensor(self._held),
                "missed_deadlines": self._missed_deadlines + (self._open_missed or 0),
                "end_reasons": dict(self._end_reasons),
                "stopped_joints": {reason: dict(joints) for reason, joints in self._stopped.items()},
                "unmoved_joints": dict(self._unmoved),
                "latency": {stage: asdict(found) for stage, found in self._latency.statistics().items()},
            }
        )
        return summary
