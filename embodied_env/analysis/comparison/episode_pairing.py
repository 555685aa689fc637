"""The episodes of a run by their situation, so that those of two runs can be set side by side."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from embodied_env.analysis.report.row_access import finite, get_mapping
from embodied_env.core.outcome_counts import counted_apart, solved_at_reset
from embodied_env.record.rows import RESET

MOST_EPISODES = 50_000
"""Episodes of a run that are remembered for pairs; what comes behind them is in no pair."""

Situation = tuple[int, str, int]
"""The seed that the world took, the hash of the reset's options, and how often both came before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """One episode that ended. `drawn` is the hash of what its reset drew; `rated`: it is in the success rates."""

    success: bool
    truncated: bool
    drawn: str
    rated: bool


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """Which episodes of two runs began in the same situation.

    Attributes:
        pairs: of run A, and of run B.
        only_a: episodes of run A that have no counterpart.
        only_b: those of run B.
        drawn_apart: pairs for which the two worlds drew different values from the same seed.
        problem: why there is no pair, in a sentence, or "".
    """

    pairs: tuple[tuple[Ended, Ended], ...]
    only_a: int
    only_b: int
    drawn_apart: int
    problem: str


class Episodes:
    """Takes in the rows of a run in order.

    Attributes:
        ended: the episodes that ended, by situation.
        count: how many ended.
        unseeded: those whose world took no seed.
    """

    def __init__(self) -> None:
        """Begin with no row."""
        self.ended: dict[Situation, Ended] = {}
        self.count = self.unseeded = 0
        self._seen: Counter[tuple[int, str]] = Counter()
        self._open: tuple[Situation | None, str] | None = None
        self._solved: bool | None = None  # at the reset of the open episode; None: not judged
        self._reward: float | None = 0.0
        self._steps = 0

    def add(self, row: Mapping[str, Any]) -> tuple[float | None, int] | None:
        """Take in one row. Return the sum of rewards (None: one is missing) and the steps of an episode that ended."""
        if row.get("schema") == RESET:
            self._open, self._solved = self._begun(row), solved_at_reset(row.get("inner"))
            self._reward, self._steps = 0.0, 0
            return None
        if self._open is None:
            return None
        self._steps += 1
        reward = finite(row.get("reward"))
        self._reward = None if reward is None or self._reward is None else self._reward + reward
        if row.get("terminated") is not True and row.get("truncated") is not True:
            return None
        self._end(*self._open, row)
        self._open = None
        return self._reward, self._steps

    def _begun(self, row: Mapping[str, Any]) -> tuple[Situation | None, str]:
        inner = get_mapping(row, "inner")
        drawn = _hash(inner.get("sampled"))
        seed = inner.get("seed_applied")
        if not isinstance(seed, int) or isinstance(seed, bool):
            return None, drawn
        options = _hash(row.get("options") or None)
        self._seen[seed, options] += 1
        return (seed, options, self._seen[seed, options]), drawn

    def _end(self, situation: Situation | None, drawn: str, row: Mapping[str, Any]) -> None:
        self.count += 1
        truncated = row.get("truncated") is True
        if situation is None:
            self.unseeded += 1
        elif len(self.ended) < MOST_EPISODES:
            info = get_mapping(row, "info")
            success = not truncated and info.get("is_success") is True
            apart = counted_apart(solved=self._solved, success=success, info=info, steps=self._steps)
            self.ended[situation] = Ended(success=success, truncated=truncated, drawn=drawn, rated=not apart)


def paired(a: Episodes, b: Episodes) -> Pairing:
    """Pair the episodes of two runs whose worlds took the same seed and options; the first with the first of these."""
    common = [situation for situation in a.ended if situation in b.ended]
    pairs = tuple((a.ended[situation], b.ended[situation]) for situation in common)
    return Pairing(
        pairs=pairs,
        only_a=a.count - len(pairs),
        only_b=b.count - len(pairs),
        drawn_apart=sum(first.drawn != second.drawn for first, second in pairs),
        problem="" if pairs else _why_none(a, b),
    )


def _why_none(a: Episodes, b: Episodes) -> str:
    for name, episodes in (("A", a), ("B", b)):
        if not episodes.count:
            return f"no episode of run {name} ended"
        if episodes.unseeded == episodes.count:
            return f"the world of run {name} took no seed"
    return "the seeds of the two runs do not match"


def _hash(value: Any) -> str:  # noqa: ANN401 - JSON types
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
