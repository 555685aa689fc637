"""The summary of a run: what its episodes came to, from its rows alone."""

from __future__ import annotations

import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from embodied_env.core.latency.statistics import LatencyStatistics
from embodied_env.core.outcome_counts import SOLVED_AT_FIRST_STEP, SOLVED_AT_RESET, counted_apart, solved_at_reset
from embodied_env.core.types import DRY_RUN, ResetReport, field_values
from embodied_env.record.json_values import to_json_types
from embodied_env.record.rows import RESET, TRANSITION

_OF_INFO = ("latency", "action_clipped", "end_reason", "is_success", "step_index")
_ENDS = ("reward", "terminated", "truncated")
_MOST_HANDED_IN = 256

OUTSIDE = "outer_wrapper"
"""The end reason of an episode that a wrapper ended, while the environment went on."""


class Summary:
    """Takes in rows in order. An episode ends when the outermost wrapper said so; one that was cut is `unfinished`."""

    def __init__(self) -> None:
        """Begin with no row."""
        self._lock = threading.Lock()
        self._handed_in: deque[Callable[[], dict[str, Any]]] = deque()
        self._latency = LatencyStatistics()
        self._returns: list[float] = []
        self._end_reasons: Counter[str] = Counter()
        self._successes = 0
        self._truncated = 0
        self._apart: Counter[str] = Counter()  # episodes that are in no success rate, by `counted_apart`
        self._apart_terminated = 0
        self._solved: bool | None = None  # at the newest reset; None: not judged
        self._unfinished = 0
        self._steps = 0
        self._clipped = 0
        self._missed_deadlines = 0
        self._open_missed: int | None = None  # of the episode that has not ended; None: nobody counts them
        self._return = 0.0
        self._open_steps = 0  # steps of the episode that has not ended
        self._ended = True  # until a reset begins an episode
        self._is_dry = False

    def hand_in(self, schema: str, outer: Mapping[str, Any], report: ResetReport | None = None) -> None:
        """Take in a row later, whether it is written or not: what `outer` has must not change any more.

        Of `outer` no more is kept than is read: no image need wait for it. `report`: of a reset that the environment
        made.
        """
        if schema == RESET:
            self._handed_in.append(partial(_reset_row, report))
        else:
            info = outer["info"]
            said = tuple(map(info.get, _OF_INFO)) if isinstance(info, Mapping) else ()
            self._handed_in.append(partial(_step_row, outer["reward"], outer["terminated"], outer["truncated"], said))
        if len(self._handed_in) > _MOST_HANDED_IN:  # nobody writes: the disk does not answer
            self.add_handed_in()

    def add_handed_in(self) -> None:
        """Take in what was handed in, in order. Any thread may."""
        with self._lock:
            while self._handed_in:
                self.add(self._handed_in.popleft()())

    def add(self, row: Mapping[str, Any]) -> None:
        """Take in one row, of a reset or of a transition."""
        if row["schema"] == RESET:
            self._cut()
            self._ended = False
            inner = row.get(
                "inner"
            )  # None: of a reset that the environment did not make, or of which only counts are told
            self._is_dry = self._is_dry or (inner is not None and DRY_RUN in inner["details"])
            self._solved = solved_at_reset(inner)
        else:
            self._add_step(row)

    @property
    def steps(self) -> int:
        """Steps taken in so far."""
        return self._steps

    def _add_step(self, row: Mapping[str, Any]) -> None:
        info = row["info"]
        self._steps += 1
        self._clipped += info.get("action_clipped") is True
        self._latency.add(info)
        self._open_missed = _missed_deadlines(info)
        if self._ended:  # a step behind the end, which only an outer wrapper can make, belongs to no episode
            return
        self._open_steps += 1
        self._return += row["reward"] if isinstance(row["reward"], (int, float)) else math.nan
        if row["terminated"] or row["truncated"]:
            self._end(row)

    def _end(self, row: Mapping[str, Any]) -> None:
        info = row["info"]
        self._ended = True
        self._returns.append(self._return)
        self._truncated += bool(row["truncated"])
        success = info.get("is_success") is True and not row["truncated"]
        if apart := counted_apart(solved=self._solved, success=success, info=info, steps=self._open_steps):
            self._apart[apart] += 1
            self._apart_terminated += not row["truncated"]
        else:
            self._successes += success
        self._end_reasons[info.get("end_reason") or OUTSIDE] += 1
        self._close()

    def _cut(self) -> None:
        self._unfinished += self._open_steps > 0
        self._close()

    def _close(self) -> None:
        self._missed_deadlines += self._open_missed or 0
        self._return, self._open_steps, self._open_missed = 0.0, 0, None

    def as_json(self, contract_fingerprint: str) -> dict[str, Any]:
        """Return the summary in types of JSON; what cannot be said of no episode or no step is None.

        The success rates are of the episodes in ``rated`` and ``rated_terminated``: an episode that was solved at its
        reset, or at its first step where the task did not judge the reset, is in neither and has a count of its own.
        ``dry_run`` is there, and true, only where nothing of what was sent reached a robot.
        """
        self.add_handed_in()
        episodes, terminated = len(self._returns), len(self._returns) - self._truncated
        rated, rated_terminated = episodes - self._apart.total(), terminated - self._apart_terminated
        returns = np.array(self._returns)
        statistics = {name: getattr(returns, name)() if episodes else None for name in ("mean", "min", "max", "std")}
        summary: dict[str, Any] = to_json_types(
            {
                "contract_fingerprint": contract_fingerprint,
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
                "return": statistics,
                "steps": self._steps,
                "clipped_share": self._clipped / self._steps if self._steps else None,
                "missed_deadlines": self._missed_deadlines + (self._open_missed or 0),
                "end_reasons": dict(self._end_reasons),
                "latency": {stage: asdict(found) for stage, found in self._latency.statistics().items()},
            }
        )
        if self._is_dry:
            summary["dry_run"] = True
        return summary


def _reset_row(report: ResetReport | None) -> dict[str, Any]:
    if report is None:
        return {"schema": RESET, "inner": None}
    verdict = None if report.verdict is None else to_json_types(field_values(report.verdict))
    return {"schema": RESET, "inner": {"details": report.details, "verdict": verdict}}


def _step_row(
    reward: object,
    terminated: object,
    truncated: object,
    said: tuple[Any, ...],  # of `_OF_INFO`
) -> dict[str, Any]:
    """Return what is read of a step as its row has it; its latency as the agent was given it, which says the same."""
    latency, *others = said or (None,) * len(_OF_INFO)
    info = dict(
        zip(
            _OF_INFO,
            (latency if type(latency) is dict else to_json_types(latency), *map(to_json_types, others)),
            strict=True,
        )
    )
    ends = dict(zip(_ENDS, map(to_json_types, (reward, terminated, truncated)), strict=True))
    return {"schema": TRANSITION, **ends, "info": info}


def _missed_deadlines(info: Mapping[str, Any]) -> int | None:
    """Return how many deadlines of the episode were missed so far; None where steps are not paced."""
    latency = info.get("latency")
    missed = latency.get("missed_deadlines") if isinstance(latency, Mapping) else None
    return missed if isinstance(missed, int) else None
