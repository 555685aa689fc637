"""Episodes of a run, with how they ended and their success rates."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from embodied_env.core.confidence_intervals import share_interval
from embodied_env.record.row_types import RESET, RecordedReset, RecordedRow
from embodied_env.record.summary import EpisodeOutcome, Summary

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


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A success rate with its Wilson interval at 95 %, all NaN without trials."""

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


class Outcomes:
    """Counts the episodes of a run from its rows, in bounded memory."""

    def __init__(self) -> None:
        self.resets = 0
        self.episodes: list[EpisodeOutcome] = []
        self.reset_kinds: Counter[str] = Counter()
        self._summary = Summary()
        self._reasons: set[str] = set()

    @property
    def newest(self) -> EpisodeOutcome | None:
        """The newest episode, whether it has ended or not."""
        return self._summary.episode

    def add(self, row: RecordedRow) -> EpisodeOutcome | None:
        """Add a row and return the episode that it ends."""
        info: Mapping[str, Any] = row["info"]
        inner: Mapping[str, Any] = row["inner"] or {}
        reason = str(info.get("end_reason") or "")[:_LONGEST_REASON]
        if reason and reason not in self._reasons:
            reason = reason if len(self._reasons) < MOST_REASONS else OTHER
            self._reasons.add(reason)
        latency = info.get("latency")
        missed = latency.get("missed_deadlines") if isinstance(latency, dict) else None  # without stages: they are kept
        info = {**info, "end_reason": reason, "latency": {"missed_deadlines": missed}}
        ended = self._summary.add({**row, "info": info, "inner": {"verdict": inner.get("verdict")}})
        if row["schema"] == RESET:
            self._add_reset(row)
        return ended

    def _add_reset(self, row: RecordedReset) -> None:
        self.resets += 1
        if row["inner"] is not None:
            made = row["info"]["reset"]
            labels = {"by": made["routine"], "confirmed by": made["confirmed_by"], "ignoring": made["options_ignored"]}
            details = (f"{label} {value}" for label, value in labels.items() if value)
            kind = ", ".join([made["level"], *details])[:_LONGEST_REASON]
            self.reset_kinds[kind if kind in self.reset_kinds or len(self.reset_kinds) < MOST_REASONS else OTHER] += 1
        if self.newest is not None and len(self.episodes) < MOST_EPISODES:
            self.episodes.append(self.newest)

    def summary(self) -> dict[str, Any]:
        """Return the counts in the form of ``summary.json`` with an empty latency."""
        return self._summary.as_json("")

    def rates(self) -> list[tuple[str, str, Rate]]:
        """Return label, noun of a trial, and value of both success rates."""
        found = self.summary()
        return [(how, noun, Rate.of(found["successes"], found[trials])) for _, how, trials, noun in SUCCESS_RATES]
