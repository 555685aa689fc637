import math

import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_env.core.confidence_intervals import difference_interval, share_interval
from embodied_env.core.significance_tests import (
    compare_means,
    count_for_mean,
    count_for_pairs,
    count_for_shares,
    fisher_exact,
    mcnemar_exact,
    paired_difference_interval,
    reject_by_holm,
)

QUICK = settings(max_examples=25, deadline=None)
outcomes = st.lists(st.tuples(st.booleans(), st.booleans()), max_size=60)


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


@QUICK
@given(outcomes)
def test_paired_test_is_symmetric_and_ignores_equal_pairs(found):
    test, turned = mcnemar_exact(found), mcnemar_exact([(b, a) for a, b in found])
    assert 0.0 < test.p_value <= 1.0
    assert (test.p_value, test.only_a, test.both) == (turned.p_value, turned.only_b, turned.both)
    assert mcnemar_exact([*found, (True, True), (False, False)]).p_value == test.p_value
    assert test.both + test.only_a + test.only_b + test.neither == test.pairs == len(found)


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


@pytest.mark.parametrize(
    ("p_both", "p_a", "p_b"),
    [(0.3, 0.0, 0.3), *(pytest.param(*p, marks=pytest.mark.long) for p in ((0.5, 0.1, 0.2), (0.8, 0.1, 0.05)))],
)
def test_paired_interval_covers_the_true_difference(p_both, p_a, p_b):
    probabilities = (p_both, p_a, p_b, 1.0 - p_both - p_a - p_b)
    draws, counts = np.unique(np.random.default_rng(3).multinomial(30, probabilities, 2000), axis=0, return_counts=True)
    intervals = [paired_difference_interval(paired_test(*draw)) for draw in draws.tolist()]
    covered = [low <= p_b - p_a <= high for low, high in intervals]
    assert 0.93 < np.average(covered, weights=counts) <= 1.0


@pytest.mark.parametrize("paired", [True, False])
def test_comparison_of_means_is_that_of_scipy(paired):
    random = np.random.default_rng(4)
    a, b = random.normal(0.0, 1.0, 9), random.normal(1.0, 2.0, 9)
    found = compare_means(a, b, paired=paired)
    wanted = scipy.stats.ttest_rel(b, a) if paired else scipy.stats.ttest_ind(b, a, equal_var=False)
    assert found.p_value == pytest.approx(wanted.pvalue)
    assert found.interval == pytest.approx(tuple(wanted.confidence_interval(0.95)))
    assert found.difference == pytest.approx(b.mean() - a.mean())


def test_few_values_have_no_p_value():
    numbers = np.arange(3, dtype=float)
    one, two, three = (compare_means(numbers[:n], 2.0 * numbers[:n], paired=True) for n in (1, 2, 3))
    assert (one.interval, one.p_value, two.p_value) == (None, None, None)
    assert two.interval is not None
    assert three.p_value is not None


@pytest.mark.parametrize("paired", [True, False])
def test_constant_values_differ_for_certain_or_not_at_all(paired):
    same, other = (compare_means(np.zeros(4), np.full(4, value), paired=paired) for value in (0.0, 1.0))
    assert (same.p_value, same.interval) == (1.0, (0.0, 0.0))
    assert (other.p_value, other.interval) == (0.0, (1.0, 1.0))


def test_holm_rejects_in_the_order_of_the_p_values():
    """The four hypotheses at 5 % have 0.01 < 0.05 / 4, 0.013 < 0.05 / 3 and 0.03 > 0.05 / 2."""
    assert reject_by_holm([0.03, 0.01, 0.04, 0.013], chance=0.05) == [False, True, False, True]
    assert reject_by_holm([None, 0.03], chance=0.05) == [False, False]
    assert reject_by_holm([], chance=0.05) == []


def test_fisher_exact_of_the_lady_tasting_tea():
    assert fisher_exact((3, 4), (1, 4)) == pytest.approx(0.4857, abs=1e-4)


@pytest.mark.parametrize(("paired", "wanted"), [(True, 34), (False, 64)])
def test_published_numbers_of_values(paired, wanted):
    """Half a standard deviation at 5 % and a power of 80 % needs 34 pairs, or 64 of each (Cohen 1988)."""
    spread = 1.0 if paired else math.sqrt(2.0)
    assert count_for_mean(spread, 0.5, paired=paired, chance=0.05) == wanted


def test_published_number_of_trials():
    """0.6 and 0.7 at 5 % and a power of 80 % need 356 of each, corrected 376 (Fleiss, Levin & Paik 2003)."""
    assert count_for_shares(0.6, 0.7, chance=0.05) == 376


def test_number_of_pairs_that_always_differ_is_that_of_the_exact_test():
    assert count_for_pairs(1.0, 1.0, chance=0.05) == 6
    assert mcnemar_exact([(True, False)] * 6).p_value < 0.05 < mcnemar_exact([(True, False)] * 5).p_value


@QUICK
@given(st.floats(0.02, 1.0), st.floats(0.02, 1.0))
def test_smaller_differences_need_more_episodes(small, large):
    small, large = sorted((small, large))
    assert count_for_pairs(0.5, small, chance=0.05) >= count_for_pairs(0.5, large, chance=0.05) >= 6
    for paired in (True, False):
        few, many = (count_for_mean(1.0, size, paired=paired, chance=0.05) for size in (large, small))
        assert 3 <= few <= many
