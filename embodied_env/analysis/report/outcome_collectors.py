"""Collect how the episodes of a run ended, row by row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from embodied_env.analysis.report.row_access import finite, get_mapping, text_of
from embodied_env.core.outcome_counts import counted_apart, solved_at_reset
from embodied_env.record.rows import RESET
from embodied_env.record.summary import OUTSIDE, Summary

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
