"""Success rates and returns of two series of episodes, and their differences over the same situations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from embodied_env.analysis.comparison.episode_pairing import Pairing
from embodied_env.analysis.report.outcomes import SUCCESS_RATES, Rate
from embodied_env.analysis.statistics import (
    PairedTest,
    difference_interval,
    mcnemar_exact,
    mean_interval,
    paired_difference_interval,
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One of both success rates in A and in B; intervals are those at 95 % of B - A."""

    key: str  # of the rate in ``summary.json``
    how: str  # what the rate is of
    a: Rate  # of run A
    b: Rate  # of run B
    difference: tuple[float, float] | None  # Newcombe interval, independent; None without trials
    paired: PairedTest | None  # test over the episodes that began in the same situation; None without such pairs
    paired_difference: tuple[float, float] | None  # Newcombe interval over these pairs


@dataclass(frozen=True, kw_only=True)
class ReturnDifference:
    """Mean difference of the returns, B - A, of episodes that began in the same situation."""

    pairs: int
    mean: float
    interval: tuple[float, float] | None  # Student's t at 95 %; None for one pair


def compare_outcomes(a: Mapping[str, Any], b: Mapping[str, Any], pairing: Pairing) -> tuple[Outcome, ...]:
    """Compare both success rates of two summaries, and of the pairs of their episodes."""
    outcomes = []
    for key, how, trials, _ in SUCCESS_RATES:
        rate_a, rate_b = (Rate.of(summary["successes"], summary[trials]) for summary in (a, b))
        pairs = [
            (x.success, y.success)
            for x, y in pairing.pairs
            if x.rated and y.rated and (trials == "rated" or not (x.truncated or y.truncated))
        ]
        paired = mcnemar_exact(pairs) if pairs else None
        intervals = ((rate.share, rate.low, rate.high) for rate in (rate_a, rate_b))
        outcome = Outcome(
            key=key,
            how=how,
            a=rate_a,
            b=rate_b,
            difference=difference_interval(*intervals) if rate_a.trials and rate_b.trials else None,
            paired=paired,
            paired_difference=None if paired is None else paired_difference_interval(paired),
        )
        outcomes.append(outcome)
    return tuple(outcomes)


def compare_returns(pairing: Pairing) -> ReturnDifference | None:
    """Compare the returns of the pairs; None without pairs."""
    values = [b.reward - a.reward for a, b in pairing.pairs]
    return ReturnDifference(pairs=len(values), mean=fmean(values), interval=mean_interval(values)) if values else None
