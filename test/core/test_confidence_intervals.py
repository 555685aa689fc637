import math

import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_env.core.confidence_intervals import (
    difference_interval,
    median_effective_count,
    median_estimate,
    share_interval,
)

QUICK = settings(max_examples=25, deadline=None)
shares = st.floats(0.0, 1.0)
counts = st.floats(0.5, 1e6)


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


@QUICK
@given(shares, counts)
def test_interval_contains_the_share_within_0_and_1(share, count):
    low, high = share_interval(share, count)
    assert 0.0 <= low <= share <= high <= 1.0


def test_the_difference_of_newcombes_example():
    """Newcombe 1998, table II, (a), gives 0.0524 to 0.3339 for 56/70 - 48/80 = 0.20 by method 10."""
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


@pytest.mark.parametrize(
    ("samples_s", "covered"), [((1, 2), "50 %"), ((1, 5, 2, 4, 3), "94 %"), ((1, 6, 2, 5, 3, 4), "median")]
)
def test_median_of_few_values_has_the_coverage_of_its_interval(samples_s: tuple[float, ...], covered: str):
    estimate = median_estimate(np.array(samples_s, dtype=np.float64), method="test", detail="median")
    assert covered in estimate.detail
    assert ("not 95 %" in estimate.detail) == (len(samples_s) < 6)
