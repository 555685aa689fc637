"""Order the differences of two runs by size, by what matters and by evidence."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from embodied_env.contract import Contract
from embodied_env.core import significance_tests as tests
from embodied_env.core.confidence_intervals import difference_interval
from embodied_env.core.types import FloatArray
from embodied_env.extensions.comparison.run_features import MISSED_DEADLINES, FeatureName, RunFeatures
from embodied_env.record.episode_pairing import Pairing
from embodied_env.record.summary import Rate

CHANCE = 0.05
"""Probability that equal runs show any difference that is reported as certain, with as much again for success."""

Verdict = Literal["differs", "probably", "undecided", "same"]
LIKELY = 0.2
"""Largest p-value of a difference that is reported as probable, before the correction for many comparisons."""

VERDICTS: dict[Verdict, str] = {
    "differs": "at least as large as what matters, and more than chance",
    "probably": "at least as large as what matters, and likely, but too few episodes to exclude chance",
    "undecided": "too few episodes to decide whether there is a difference that matters",
    "same": "smaller than what matters, as is every value in its interval",
}
"""Verdicts in the order of the ranking, with their meaning."""


class Scale(NamedTuple):
    """Size of differences in a feature."""

    matters: float  # the least difference that counts
    unit: float  # a difference of this size is 1 `name`
    name: str  # "control periods"


@dataclass(frozen=True, kw_only=True)
class FeatureLevel:
    """Values of a feature in the episodes of a run."""

    mean: float
    deviation: float  # standard deviation between episodes, NaN of one
    episodes: int
    p50: float  # percentiles over all steps, NaN for shares
    p95: float
    p99: float


@dataclass(frozen=True, kw_only=True)
class FeatureDifference:
    """Difference of two runs in one feature, B - A, in the unit of the feature."""

    name: FeatureName
    a: FeatureLevel
    b: FeatureLevel
    difference: float
    interval: tuple[float, float] | None  # at 95 %, of this difference alone, None where one episode is all there is
    pairs: int  # pairs of episodes that were compared, 0 for independent episodes
    p_value: float | None  # of equal runs, before the correction for many comparisons, or None with few episodes
    scale: Scale
    spread: float  # standard deviation of a difference of two episodes, NaN of a share or too few episodes
    apart: float = math.nan  # share of the pairs in which only one run has it, of a share of episodes
    verdict: Verdict = "undecided"
    episodes_needed: int | None = None  # of each run, that would probably settle it, None if settled or unknown

    @property
    def relevance(self) -> float:
        """Size of the difference as a multiple of what matters."""
        return abs(self.difference) / self.scale.matters

    @property
    def may_matter(self) -> bool:
        """Whether it is at least as large as what matters, certain or not."""
        return self.relevance >= 1 - 1e-9

    @property
    def rank(self) -> tuple[bool, int, float]:
        """Sort key that orders by a difference in success, then by verdict, then by relevance."""
        is_success = self.name.group == "success" and self.verdict in ("differs", "probably")
        return not is_success, list(VERDICTS).index(self.verdict), -self.relevance

    def as_json(self) -> dict[str, Any]:
        """Return everything in JSON types, in one level except `a` and `b`."""
        values, scale = dataclasses.asdict(self), self.scale
        name = values.pop("name")
        del values["scale"]
        sizes = {"matters": scale.matters, "relevance": self.relevance, "relative": self.difference / scale.unit}
        return {"section": self.name.section, **name, **values, **sizes, "relative_to": scale.name}


def find_differences(
    names: Iterable[FeatureName],
    a: RunFeatures,
    b: RunFeatures,
    contract: Contract | None,
    pairing: Pairing,
    *,
    chance: float = CHANCE,
) -> list[FeatureDifference]:
    """Return the differences in the features `names`, the most important one first.

    Only features that both runs have are compared. Each episode counts once, with its mean: steps of one episode are
    correlated. Episodes are compared in pairs where half of those of the shorter run have the same initial conditions.
    The success rate is tested at `chance`; all other features share another `chance` of a false alarm (Holm 1979).
    """
    tested = [found for name in names if (found := _test(name, a, b, contract, pairing)) is not None]
    others = [found for found in tested if found.name.group != "success"]
    rejected = tests.reject_by_holm([found.p_value for found in others], chance=chance)
    is_certain = {found.name: is_rejected for found, is_rejected in zip(others, rejected, strict=True)}
    differences = []
    for found in tested:
        alone = found.p_value is not None and found.p_value <= chance
        verdict, needed = _verdict(found, is_certain=is_certain.get(found.name, alone)), None
        if verdict in ("probably", "undecided"):
            needed = _episodes_needed(found, chance / len(others) if found.name in is_certain else chance)
        differences.append(dataclasses.replace(found, verdict=verdict, episodes_needed=needed))
    return sorted(differences, key=lambda difference: difference.rank)


def _verdict(found: FeatureDifference, *, is_certain: bool) -> Verdict:
    if found.may_matter:
        is_likely = found.p_value is None or found.p_value <= LIKELY
        return "differs" if is_certain else "probably" if is_likely else "undecided"
    ends = found.interval or (math.inf,)
    return "undecided" if max(map(abs, ends)) >= found.scale.matters * (1 - 1e-9) else "same"


def _episodes_needed(found: FeatureDifference, chance: float) -> int | None:
    """Return the episodes per run that would show this difference, or one that matters."""
    size = max(abs(found.difference), found.scale.matters)
    if not found.name.is_share_of_episodes:
        is_known = math.isfinite(found.spread)
        return tests.count_for_mean(found.spread, size, paired=found.pairs > 0, chance=chance) if is_known else None
    if found.pairs:
        return tests.count_for_pairs(found.apart, min(1.0, size), chance=chance)
    a, b = found.a.mean, found.b.mean
    if abs(b - a) < size:  # a difference that matters from the mean share towards one half
        a = (a + b) / 2
        b = a + math.copysign(size, 0.5 - a)
    return tests.count_for_shares(a, b, chance=chance)


def _test(
    name: FeatureName, a: RunFeatures, b: RunFeatures, contract: Contract | None, pairing: Pairing
) -> FeatureDifference | None:
    values_a, values_b = a.values(name), b.values(name)
    both = [(values_a[i], values_b[j]) for i, j in pairing.indices if i < len(values_a) and j < len(values_b)]
    pairs = np.array([pair for pair in both if not np.isnan(pair).any()]).reshape(-1, 2)
    values_a, values_b = (values[~np.isnan(values)] for values in (values_a, values_b))
    if not (len(values_a) and len(values_b)):
        return None
    is_paired = len(pairs) > 1 and 2 * len(pairs) >= min(len(values_a), len(values_b))
    if is_paired:
        values_a, values_b = pairs.T
    test, apart = tests.compare_means(values_a, values_b, paired=is_paired), math.nan
    if name.is_share_of_episodes:
        test, apart = _test_shares(values_a, values_b, is_paired=is_paired)
    return FeatureDifference(
        name=name,
        a=_level(name, a, values_a),
        b=_level(name, b, values_b),
        pairs=len(pairs) * is_paired,
        scale=_scale(name, a, b, contract, values_a, values_b),
        **dataclasses.asdict(test),
        apart=apart,
    )


def _test_shares(a: FloatArray, b: FloatArray, *, is_paired: bool) -> tuple[tests.MeanTest, float]:
    """Return the exact test of two shares, and the share of discordant pairs."""
    rates = rate_a, rate_b = [Rate.of(int(values.sum()), len(values)) for values in (a, b)]
    apart = math.nan
    if is_paired:
        paired = tests.mcnemar_exact([(x > 0, y > 0) for x, y in zip(a.tolist(), b.tolist(), strict=True)])
        interval, p_value = tests.paired_difference_interval(paired), paired.p_value
        apart = (paired.only_a + paired.only_b) / paired.pairs
    else:
        bounds_a, bounds_b = ((rate.share, rate.low, rate.high) for rate in rates)
        interval = difference_interval(bounds_a, bounds_b)
        p_value = tests.fisher_exact((rate_a.successes, rate_a.trials), (rate_b.successes, rate_b.trials))
    difference = rate_b.share - rate_a.share
    return tests.MeanTest(difference=difference, interval=interval, p_value=p_value, spread=math.nan), apart


def _level(name: FeatureName, features: RunFeatures, values: FloatArray) -> FeatureLevel:
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    p50 = p95 = p99 = math.nan
    if (stream := features.streams.get(name)) is not None and not name.is_share_of_episodes:
        percentiles = stream.percentiles()
        p50, p95, p99 = percentiles.p50, percentiles.p95, percentiles.p99
    mean = float(np.mean(values))
    return FeatureLevel(mean=mean, deviation=deviation, episodes=len(values), p50=p50, p95=p95, p99=p99)


def _scale(  # noqa: PLR0911 - one line per kind
    name: FeatureName, a: RunFeatures, b: RunFeatures, contract: Contract | None, *values: FloatArray
) -> Scale:
    largest = max(float(np.abs(part).max()) for part in values) or 1.0
    if name.is_share_of_episodes:
        return Scale(0.1, 0.01, "points")
    if name == MISSED_DEADLINES:
        return Scale(0.01, 0.01, "points of the steps")
    if name.is_event:
        return Scale(0.05, 0.01, "points of the steps")
    if name.kind == "gain":
        return Scale(0.05, 1.0, "of the command")
    if name.section == "timing":
        period_s = contract.control_period_s if contract is not None else largest
        return Scale(0.1 * period_s, period_s, "control periods" if contract is not None else "of the larger one")
    if name.group == "length":
        steps = contract.episode.horizon_steps if contract is not None else largest
        return Scale(0.05 * steps, steps, "of the longest episode")
    if name.kind == "outcome":
        deviation = math.sqrt(float(np.mean([np.var(part) for part in values]))) or 0.1 * largest
        return Scale(0.5 * deviation, deviation, "standard deviations between episodes")
    if (joint := a.tracked.get(name.component)) is not None and name.kind in ("tracking", "offset"):
        is_position = joint.quantity == "position"
        share, unit = (0.1, "of the largest step") if is_position else (0.05, "of the velocity limit")
        return Scale(share * joint.step, joint.step, unit)
    covered = _covered(name, (a, b)) or largest
    return Scale(0.1 * covered, covered, "of the range covered")


def _covered(name: FeatureName, runs: Sequence[RunFeatures]) -> float:
    """Return the 5 % to 95 % range of a field, at least 2 % of its declared range."""
    streams = [run.streams[name] for run in runs]
    bounds = np.array([np.quantile(stream.values(), (0.05, 0.95)) for stream in streams])
    declared = [run.ranges.get(name, math.nan) for run in runs]
    floors = [0.02 * size for size in declared if math.isfinite(size)]
    return float(max([bounds[:, 1].max() - bounds[:, 0].min(), *floors]))
