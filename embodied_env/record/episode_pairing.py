"""Pairs of episodes with the same initial conditions, and differences of their outcomes."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from embodied_env.core.confidence_intervals import difference_interval
from embodied_env.core.significance_tests import PairedTest, compare_means, mcnemar_exact, paired_difference_interval
from embodied_env.record.row_types import RecordedReset
from embodied_env.record.summary import SUCCESS_RATES, EpisodeOutcome, Rate

MOST_EPISODES = 50_000  # episodes of a run that are kept for pairing
InitialConditions = tuple[int, str, int]
"""Seed that the backend applied, hash of the reset options, and the number of the episode among those that had both."""


class EndedEpisode(NamedTuple):
    """Result of an episode."""

    success: bool
    truncated: bool
    sampled: str  # hash of the draws of its reset
    rated: bool  # counts in the success rates
    reward: float  # its return
    instruction: str  # its prompt


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """Episodes of two runs that have the same initial conditions."""

    pairs: tuple[tuple[EndedEpisode, EndedEpisode], ...]  # of run A and of run B
    indices: tuple[tuple[int, int], ...]  # positions of paired episodes in both runs, from 0, ended or not
    only_a: int  # episodes of run A without a counterpart
    only_b: int  # those of run B
    drawn_apart: int  # pairs whose resets drew different values from the same seed
    problem: str  # why there is no pair, in a sentence, or ""

    def as_json(self) -> dict[str, Any]:
        """Return the counts in JSON types, with the number of pairs only."""
        counts = {key: getattr(self, key) for key in ("only_a", "only_b", "drawn_apart", "problem")}
        return {"pairs": len(self.pairs), **counts}


class Episodes:
    """Episodes of a run by initial conditions."""

    def __init__(self) -> None:
        self.began: dict[InitialConditions, int] = {}  # position in the run, from 0, ended or not
        self.ended: dict[InitialConditions, EndedEpisode] = {}  # those of the first `MOST_EPISODES` that ended
        self.count = self.unseeded = 0  # ended ones, and those of them without a seed
        self._resets = 0
        self._seen: Counter[tuple[int, str]] = Counter()
        self._conditions: InitialConditions | None = None
        self._sampled = ""

    def begin(self, row: RecordedReset) -> None:
        """Start an episode, which replaces an equal one before it that did not end."""
        inner, before = row["inner"], self._conditions
        self._sampled, self._conditions = _hash(None if inner is None else inner["sampled"]), None
        if (seed := None if inner is None else inner["seed_applied"]) is not None:
            options = _hash(row["options"] or None)
            is_repeated = before is not None and before not in self.ended and before[:2] == (seed, options)
            self._seen[seed, options] += not is_repeated
            self._conditions = seed, options, self._seen[seed, options]
            if self._resets < MOST_EPISODES:
                self.began[self._conditions] = self._resets
        self._resets += 1

    def end(self, episode: EpisodeOutcome) -> None:
        """Add the episode that ended."""
        self.count += 1
        if self._conditions is None:
            self.unseeded += 1
        elif self._conditions in self.began:
            is_truncated = episode.ended == "truncated"
            rated = not episode.apart
            self.ended[self._conditions] = EndedEpisode(
                episode.success, is_truncated, self._sampled, rated, episode.reward, episode.instruction
            )


def pair_episodes(a: Episodes, b: Episodes) -> Pairing:
    """Pair the episodes of two runs by seed and options, with equal ones in their order."""
    pairs = tuple((a.ended[conditions], b.ended[conditions]) for conditions in a.ended if conditions in b.ended)
    problem = "" if pairs else "the seeds of the two runs do not match"
    for name, episodes in (("B", b), ("A", a)):
        if episodes.count == episodes.unseeded:
            problem = f"the resets of run {name} have no seed" if episodes.count else f"no episode of run {name} ended"
    return Pairing(
        pairs=pairs,
        indices=tuple((index, b.began[conditions]) for conditions, index in a.began.items() if conditions in b.began),
        only_a=a.count - len(pairs),
        only_b=b.count - len(pairs),
        drawn_apart=sum(first.sampled != second.sampled for first, second in pairs),
        problem=problem,
    )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A success rate in A and B, overall or for one prompt, with 95 % intervals of B - A."""

    key: str  # key of the rate in ``summary.json``; ``instructions`` for that of a prompt
    how: str  # what the rate is of
    a: Rate  # of run A
    b: Rate  # of run B
    difference: tuple[float, float] | None  # Newcombe interval, independent; None without trials
    paired: PairedTest | None  # test over the episodes that have the same initial conditions; None without such pairs
    paired_difference: tuple[float, float] | None  # Newcombe interval over these pairs


@dataclass(frozen=True, kw_only=True)
class ReturnDifference:
    """Mean difference of the returns, B - A, of episodes that have the same initial conditions."""

    pairs: int
    mean: float
    interval: tuple[float, float] | None  # Student's t at 95 %; None for one pair


def compare_outcomes(a: Mapping[str, Any], b: Mapping[str, Any], pairing: Pairing) -> tuple[Outcome, ...]:
    """Compare the success rates of two summaries and their pairs, also for each prompt."""
    outcomes, rated = [], [(x, y) for x, y in pairing.pairs if x.rated and y.rated]
    for key, how, trials, _ in SUCCESS_RATES:
        in_a, in_b = (Rate.of(summary["successes"], summary[trials]) for summary in (a, b))
        pairs = [(x, y) for x, y in rated if trials == "rated" or not (x.truncated or y.truncated)]
        outcomes.append(_compare_rates(key, how, in_a, in_b, pairs))
    prompts = dict.fromkeys((*a["instructions"], *b["instructions"]))
    for prompt in prompts if len(prompts) > 1 else ():
        counts = [summary["instructions"].get(prompt, {"successes": 0, "rated": 0}) for summary in (a, b)]
        in_a, in_b = (Rate.of(each["successes"], each["rated"]) for each in counts)
        pairs = [(x, y) for x, y in rated if x.instruction == y.instruction == prompt]
        outcomes.append(_compare_rates("instructions", f"with the prompt {prompt!r}", in_a, in_b, pairs))
    return tuple(outcomes)


def _compare_rates(key: str, how: str, a: Rate, b: Rate, pairs: Sequence[tuple[EndedEpisode, EndedEpisode]]) -> Outcome:
    paired = mcnemar_exact([(x.success, y.success) for x, y in pairs]) if pairs else None
    return Outcome(
        key=key,
        how=how,
        a=a,
        b=b,
        difference=difference_interval((a.share, a.low, a.high), (b.share, b.low, b.high))
        if a.trials and b.trials
        else None,
        paired=paired,
        paired_difference=None if paired is None else paired_difference_interval(paired),
    )


def compare_returns(pairing: Pairing) -> ReturnDifference | None:
    """Compare the returns of the pairs, or return None without pairs."""
    if not pairing.pairs:
        return None
    test = compare_means(*np.array([(a.reward, b.reward) for a, b in pairing.pairs]).T, paired=True)
    return ReturnDifference(pairs=len(pairing.pairs), mean=test.difference, interval=test.interval)


def _hash(value: Any) -> str:  # noqa: ANN401 - JSON types
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
