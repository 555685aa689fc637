"""Distances, intervals, tests and samples: published values and invariants."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_env.analysis.statistics import (
    Percentiles,
    Sample,
    autoregressive_count,
    difference_interval,
    ks_distance,
    ks_noise,
    mcnemar_exact,
    mean_interval,
    median_effective_count,
    median_estimate,
    paired_difference_interval,
    share_interval,
    share_noise,
)
from embodied_env.core.latency.statistics import KEPT

QUICK = settings(max_examples=25, deadline=None)
numbers = st.one_of(st.floats(-1e9, 1e9), st.integers(-3, 3).map(float))  # the latter repeat
samples = st.lists(numbers, min_size=1, max_size=40)
shares = st.floats(0.0, 1.0)
counts = st.floats(0.5, 1e6)
outcomes = st.lists(st.tuples(st.booleans(), st.booleans()), max_size=60)


# ---------------------------------------------------------------------------------------------- Kolmogorov-Smirnov


@QUICK
@given(samples, samples)
def test_ks_distance_is_from_0_to_1(a, b):
    assert 0.0 <= ks_distance(a, b) <= 1.0


@QUICK
@given(samples, samples)
def test_ks_distance_is_symmetric(a, b):
    assert ks_distance(a, b) == ks_distance(b, a)


@QUICK
@given(samples, st.randoms(use_true_random=False))
def test_order_of_a_sample_has_no_effect(a, random):
    shuffled = random.sample(a, len(a))
    assert ks_distance(a, shuffled) == 0.0


@QUICK
@given(samples, st.integers(2, 4))
def test_repeated_sample_has_the_same_distribution(a, times):
    assert ks_distance(a, a * times) <= 1e-15  # NumPy divides i * times by n * times with rounding


@QUICK
@given(samples, samples, st.sampled_from([np.arctan, np.cbrt, lambda x: x / 8.0, lambda x: np.ldexp(x, 3)]))
def test_increasing_map_keeps_the_distance(a, b, rises):
    both = np.unique([*a, *b])
    images = rises(both)
    if len(np.unique(images)) < len(both):  # rounded to equal values, so it was not strictly increasing
        return
    assert ks_distance(rises(np.array(a)), rises(np.array(b))) == ks_distance(a, b)


@QUICK
@given(samples, samples, samples)
def test_triangle_inequality_holds(a, b, c):
    assert ks_distance(a, c) <= ks_distance(a, b) + ks_distance(b, c) + 1e-12


@QUICK
@given(samples, samples)
def test_disjoint_samples_have_distance_1(a, b):
    assert ks_distance(a, [3e9 + value for value in b]) == 1.0


@pytest.mark.parametrize(
    ("a", "b", "distance"),
    [
        ([1, 2, 3, 4], [1, 2, 3, 4], 0.0),
        ([1, 2, 3, 4], [3, 4, 5, 6], 0.5),
        ([0, 0, 0, 1], [0, 1, 1, 1], 0.5),
        ([1, 2, 3], [2.5], 2 / 3),
        ([0.61, 0.29, 0.06, 0.59, -1.73, -0.74, 0.51, -0.56, 0.39, 1.64, 0.05, -0.06, 0.64, -0.82, 0.37, 1.77, 1.09,
          -1.28, 2.36, 1.31, 1.05, -0.32, -0.40, 1.06, -2.47], [0.1, 0.2, 0.3, 0.4, 0.5], 0.44),
    ],
)  # fmt: skip
def test_fixed_distances(a, b, distance):
    assert ks_distance(a, b) == pytest.approx(distance, abs=1e-15)


# ---------------------------------------------------------------------------------------------------- noise and counts


def test_ks_noise_of_two_samples_of_100():
    assert ks_noise(100, 100) == pytest.approx(1.3581015 / math.sqrt(50), rel=1e-5)


@QUICK
@given(counts, counts)
def test_noise_is_symmetric_and_falls_with_more_values(a, b):
    assert ks_noise(a, b) == pytest.approx(ks_noise(b, a))
    assert ks_noise(2 * a, b) <= ks_noise(a, b) <= 1.0
    assert ks_noise(a, b, chance=0.001) >= ks_noise(a, b)


def test_samples_of_one_distribution_rarely_exceed_the_noise():
    random = np.random.default_rng(7)
    far = sum(ks_distance(random.normal(size=120), random.normal(size=80)) > ks_noise(120, 80) for _ in range(200))
    assert far <= 0.05 * 200 + 3 * math.sqrt(0.05 * 0.95 * 200)


@pytest.mark.parametrize(("lag1", "worth"), [(0.0, 100.0), (0.5, 100 / 3), (0.9, 100 / 19), (1.0, 1.0), (-0.5, 100.0)])
def test_correlated_values_have_a_smaller_effective_count(lag1, worth):
    assert autoregressive_count(100, lag1) == pytest.approx(worth)


def test_each_episode_counts_at_least_once():
    assert autoregressive_count(100, 1.0, least=7) == 7.0
    assert autoregressive_count(3, 1.0, least=7) == 3.0


# ---------------------------------------------------------------------------------------------------------- proportions


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(0, 10, 0.0, 0.27753), (10, 10, 0.72247, 1.0), (5, 10, 0.23659, 0.76341), (81, 263, 0.25526, 0.36617), (1, 1, 0.20654, 1.0)],
)  # fmt: skip
def test_share_interval_gives_the_published_intervals(successes, trials, low, high):
    assert share_interval(successes / trials, trials) == pytest.approx((low, high), abs=5e-5)


@QUICK
@given(st.integers(1, 10_000), st.data())
def test_interval_equals_scipy_and_mirrors_with_failures(trials, data):
    successes = data.draw(st.integers(0, trials))
    low, high = share_interval(successes / trials, trials)
    assert 0.0 <= low <= successes / trials <= high <= 1.0
    whole = scipy.stats.binomtest(successes, trials).proportion_ci(method="wilson")
    assert (whole.low, whole.high) == pytest.approx((low, high), abs=1e-9)
    mirrored = share_interval((trials - successes) / trials, trials)
    assert (1 - mirrored[1], 1 - mirrored[0]) == pytest.approx((low, high))


def test_more_trials_of_the_same_share_narrow_the_interval():
    narrow, wide = share_interval(0.5, 1000), share_interval(0.5, 10)
    assert narrow[1] - narrow[0] < wide[1] - wide[0]


def test_more_confidence_widens_the_interval():
    sure, quick = share_interval(0.5, 10, confidence=0.99), share_interval(0.5, 10, confidence=0.9)
    assert sure[0] < quick[0]
    assert sure[1] > quick[1]


@QUICK
@given(shares, counts)
def test_interval_contains_the_share_within_0_and_1(share, count):
    low, high = share_interval(share, count)
    assert 0.0 <= low <= share <= high <= 1.0


def test_the_difference_of_newcombes_example():
    """Newcombe 1998, table II, (a): 56/70 - 48/80 = 0.20, interval 0.0524 to 0.3339 by method 10."""
    a, b = (
        (successes / trials, *share_interval(successes / trials, trials)) for successes, trials in ((48, 80), (56, 70))
    )
    assert difference_interval(a, b) == pytest.approx((0.0524, 0.3339), abs=5e-5)


@QUICK
@given(shares, counts, shares, counts)
def test_difference_is_in_its_interval_and_antisymmetric(p, n, q, m):
    a, b = (p, *share_interval(p, n)), (q, *share_interval(q, m))
    low, high = difference_interval(a, b)
    assert -1.0 <= low <= q - p + 1e-12
    assert q - p - 1e-12 <= high <= 1.0
    assert difference_interval(b, a) == pytest.approx((-high, -low))


@QUICK
@given(shares, counts, shares, counts)
def test_significant_shares_have_an_interval_without_zero(p, n, q, m):
    low, high = difference_interval((p, *share_interval(p, n)), (q, *share_interval(q, m)))
    margin = max(low, -high)
    if abs(margin) > 1e-9:
        assert (abs(p - q) > share_noise((p, n), (q, m))) == (margin > 0)


# ---------------------------------------------------------------------------------------------------------------- pairs


def pairs(only_a, only_b, both=3, neither=2):
    return [(True, False)] * only_a + [(False, True)] * only_b + [(True, True)] * both + [(False, False)] * neither


@pytest.mark.parametrize(
    ("only_a", "only_b", "p"),
    [(0, 0, 1.0), (0, 1, 1.0), (0, 5, 0.0625), (1, 7, 0.0703125), (3, 3, 1.0), (2, 10, 0.03857421875)],
)
def test_fixed_paired_tests(only_a, only_b, p):
    found = mcnemar_exact(pairs(only_a, only_b))
    assert (found.only_a, found.only_b, found.both, found.neither) == (only_a, only_b, 3, 2)
    assert found.p_value == pytest.approx(p)


def test_paired_test_of_many_pairs_is_finite():
    assert mcnemar_exact(pairs(2000, 0)).p_value < 1e-300
    assert mcnemar_exact(pairs(3000, 3000)).p_value == 1.0


@QUICK
@given(outcomes)
def test_paired_test_is_symmetric_and_ignores_equal_pairs(found):
    test, turned = mcnemar_exact(found), mcnemar_exact([(b, a) for a, b in found])
    assert 0.0 < test.p_value <= 1.0
    assert (test.p_value, test.only_a, test.both) == (turned.p_value, turned.only_b, turned.both)
    assert mcnemar_exact([*found, (True, True), (False, False)]).p_value == test.p_value
    assert test.both + test.only_a + test.only_b + test.neither == test.pairs == len(found)


# ------------------------------------------------------------------------------------- means and medians


def test_repeated_neighbours_reduce_the_effective_count():
    rng = np.random.default_rng(0)
    alone = rng.normal(size=1000)
    assert median_effective_count(alone) > 700
    assert median_effective_count(np.repeat(alone[:100], 10)) < 200


def test_median_interval_has_its_nominal_coverage():
    rng = np.random.default_rng(1)
    estimates = [median_estimate(rng.exponential(size=60), method="test", detail="") for _ in range(400)]
    held = [estimate.low_s <= math.log(2.0) <= estimate.high_s for estimate in estimates]
    assert 0.90 <= np.mean(held) <= 0.995


# --------------------------------------------------------------------------------------------------------------- samples


@QUICK
@given(samples)
def test_percentiles_of_a_short_stream_are_exact(values):
    sample = Sample()
    for value in values:
        sample.add(value)
    exact = np.percentile(values, (50, 95, 99)).tolist()
    assert sample.percentiles() == Percentiles(len(values), *exact, min(values), max(values))


def test_empty_sample_has_no_percentiles():
    found = Sample().percentiles()
    assert found.count == 0
    assert math.isnan(found.p50)


def test_sample_of_a_long_stream_is_bounded_with_exact_extremes():
    values = np.random.default_rng(1).lognormal(-6, 2, 30_000)
    sample = Sample()
    for value in values.tolist():
        sample.add(value)
    assert len(sample.values()) == KEPT
    assert sample.percentiles().p50 == pytest.approx(np.median(values), rel=0.1)
    assert (sample.least, sample.most) == (values.min(), values.max())


# ------------------------------------------------------------------------------------------------- paired differences


def paired_test(both, only_a, only_b, neither):
    counts = {(True, True): both, (True, False): only_a, (False, True): only_b, (False, False): neither}
    return mcnemar_exact([outcome for outcome, count in counts.items() for _ in range(count)])


@QUICK
@given(outcomes.filter(len))
def test_paired_interval_contains_the_difference_and_is_antisymmetric(pairs):
    test = mcnemar_exact(pairs)
    low, high = paired_difference_interval(test)
    assert -1.0 <= low <= (test.only_b - test.only_a) / test.pairs <= high <= 1.0
    reversed_ = paired_difference_interval(mcnemar_exact([(b, a) for a, b in pairs]))
    assert reversed_ == pytest.approx((-high, -low), abs=1e-12)


def test_paired_interval_without_correlation_is_that_of_independent_samples():
    test = paired_test(4, 4, 4, 4)
    share = (0.5, *share_interval(0.5, 16))
    assert paired_difference_interval(test) == pytest.approx(difference_interval(share, share))


@pytest.mark.parametrize(("p_both", "p_a", "p_b"), [(0.5, 0.1, 0.2), (0.3, 0.0, 0.3), (0.8, 0.1, 0.05)])
def test_paired_interval_covers_the_true_difference(p_both, p_a, p_b):
    probabilities = (p_both, p_a, p_b, 1.0 - p_both - p_a - p_b)
    draws, counts = np.unique(np.random.default_rng(3).multinomial(30, probabilities, 2000), axis=0, return_counts=True)
    intervals = [paired_difference_interval(paired_test(*draw)) for draw in draws.tolist()]
    covered = [low <= p_b - p_a <= high for low, high in intervals]
    assert 0.93 < np.average(covered, weights=counts) <= 1.0


def test_mean_interval_is_that_of_students_t():
    low, high = mean_interval([1.0, 2.0, 3.0, 4.0])
    assert (low, high) == pytest.approx(scipy.stats.t.interval(0.95, 3, 2.5, scipy.stats.sem([1.0, 2.0, 3.0, 4.0])))
    assert mean_interval([1.0]) is None
