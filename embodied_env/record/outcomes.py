"""Episodes of a run: how they ended, and their success rates."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from embodied_env.core.outcome_counts import counted_apart, solved_at_reset
from embodied_env.core.sample_statistics import share_interval
from embodied_env.record.rows import RESET, stopped_joints
from embodied_env.record.summary import OUTSIDE, Summary

MOST_REASONS = 200
"""End reasons, and kinds of resets, that are counted separately; others are counted as `OTHER`."""

OTHER = "(others)"
MOST_EPISODES = 20_000
"""Episodes that are listed; of further ones only the counts are known."""

SUCCESS_RATES = (
    ("success_rate", "truncation counts as failure", "rated", "episode"),
    ("success_rate_not_truncated", "of episodes that ended by themselves", "rated_terminated", "terminated episode"),
)
"""Key of a success rate in a summary, what it is of, the key of its trials, and the noun of a trial."""

_LONGEST_REASON = 200
_RESET_LABELS = {"routine": "by", "confirmed_by": "confirmed by", "options_ignored": "ignoring"}


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A success rate with its Wilson interval at 95 %; share and interval are NaN without trials."""

    successes: int
    trials: int
    share: float
    low: float
    high: float

    @classmethod
    def of(cls, successes: int, trials: int) -> Rate:
        """Compute the rate of `successes` in `trials`."""
        share = successes / trials if trials else math.nan
        low, high = share_interval(share, trials) if trials else (math.nan, math.nan)
        return cls(successes=successes, trials=trials, share=share, low=low, high=high)


@dataclass(kw_only=True, slots=True)
class EpisodeOutcome:
    """One episode, from its reset to its end."""

    number: int  # from 1
    seed: int | None  # given to the reset, if any
    solved: bool | None  # at its reset; None: not judged
    steps: int = 0
    reward: float = 0.0
    ended: str = ""  # "terminated", "truncated", or "" while it runs
    reason: str = ""
    success: bool = False
    joints: tuple[str, ...] = ()  # of the code that ended it
    apart: str = ""  # why it counts in no success rate (`counted_apart`), or ""

    @property
    def kind(self) -> str:
        """Kind of end: "success", "failure", "time" (its limit), "stopped" (otherwise truncated), "apart" or "cut".

        "apart" is in no success rate, "cut" has no end.
        """
        if not self.ended or self.apart:
            return "apart" if self.apart else "cut"
        if self.ended == "truncated":
            return "time" if self.reason == "time_limit" else "stopped"
        return "success" if self.success else "failure"

    @property
    def end(self) -> str:
        """The end in words."""
        if self.kind == "apart":
            return self.apart.replace("_", " ")
        of_joints = f" ({', '.join(self.joints)})" if self.joints else ""
        return {"cut": "cut off", "success": "success"}.get(self.kind, f"{self.ended}, {self.reason}{of_joints}")


class Outcomes:
    """Counts the episodes of a run from its rows, in bounded memory."""

    def __init__(self) -> None:
        self.resets = 0
        self.episodes: list[EpisodeOutcome] = []
        self.reset_kinds: Counter[str] = Counter()
        self._summary = Summary()
        self.newest: EpisodeOutcome | None = None
        self._open: EpisodeOutcome | None = None
        self._reasons: set[str] = set()

    def add(self, row: Mapping[str, Any]) -> EpisodeOutcome | None:
        """Add a row that fits its schema; return the episode that it ends."""
        info, inner = row["info"], row["inner"] or {}
        reason = str(info.get("end_reason") or "")[:_LONGEST_REASON]
        if reason and reason not in self._reasons:
            reason = reason if len(self._reasons) < MOST_REASONS else OTHER
            self._reasons.add(reason)
        latency = info.get("latency")
        missed = latency.get("missed_deadlines") if isinstance(latency, dict) else None  # without stages: they are kept
        info = {**info, "end_reason": reason, "latency": {"missed_deadlines": missed}}
        self._summary.add({**row, "info": info, "inner": {"verdict": inner.get("verdict")}})
        if row["schema"] == RESET:
            self._begin_episode(row)
            return None
        episode = self._open
        if episode is None:
            return None
        episode.steps += 1
        episode.reward += row["reward"]
        if not (row["terminated"] or row["truncated"]):
            return None
        episode.ended = "truncated" if row["truncated"] else "terminated"
        episode.reason = reason or OUTSIDE
        episode.joints = tuple(stopped_joints(info)[0])
        episode.success = not row["truncated"] and info.get("is_success") is True
        episode.apart = counted_apart(solved=episode.solved, success=episode.success, info=info, steps=episode.steps)
        self._open = None
        return episode

    def _begin_episode(self, row: Mapping[str, Any]) -> None:
        self.resets += 1
        if row["inner"]:
            made = row["info"]["reset"]
            details = (f"{label} {made[key]}" for key, label in _RESET_LABELS.items() if made[key])
            kind = ", ".join([made["level"], *details])[:_LONGEST_REASON]
            self.reset_kinds[kind if kind in self.reset_kinds or len(self.reset_kinds) < MOST_REASONS else OTHER] += 1
        solved = solved_at_reset(row["inner"])
        self._open = self.newest = EpisodeOutcome(number=self.resets, seed=row["seed"], solved=solved)
        if len(self.episodes) < MOST_EPISODES:
            self.episodes.append(self._open)

    def summary(self) -> dict[str, Any]:
        """Return the counts in the form of ``summary.json``; its latency is empty."""
        return self._summary.as_json("")

    def rates(self) -> list[tuple[str, str, Rate]]:
        """Return label, noun of a trial, and value of both success rates."""
        found = self.summary()
        return [(how, noun, Rate.of(found["successes"], found[trials])) for _, how, trials, noun in SUCCESS_RATES]
