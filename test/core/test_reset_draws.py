"""Values drawn at a reset, and the operator prompt before an episode."""

import math
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

import embodied_env
from embodied_env.contract.contract_schema import ResetOption
from embodied_env.core.reset_draws import confirmation_prompt, draw_options, with_observed_options
from embodied_env.core.types import ResetReport, ResetRequest


def test_the_prompt_rounds_to_three_decimals_with_units():
    positions = np.array([-3.5e-189, -1.5707963, 1.6755161, 0.0, 0.1, 2.0])
    options = {"target": np.array([0.4, -1e-17, 0.25]), "mass": np.array(0.12345)}
    assert confirmation_prompt(options, embodied_env.load_contract("arm_reach"), positions) == (
        "start the episode? reset options to set up: target=[0.4, 0.0, 0.25], mass=0.123; joint positions: "
        "j1 0.000 rad, j2 -1.571 rad, j3 1.676 rad, j4 0.000 rad, j5 0.100 rad, j6 2.000 rad"
    )


def test_the_prompt_omits_unmeasured_values():
    cart = embodied_env.load_contract("cart_goal")
    assert confirmation_prompt({}, cart, np.full(2, np.nan)) == (
        "start the episode? reset options to set up: none; joint positions: unknown"
    )


# -------------------------------------------------------------------------------------------------------- distributions


def scalar(**keys: Any) -> ResetOption:
    return ResetOption(type="scalar", **keys)


UNIFORM = {"b": ResetOption(type="vector", low=(0.0, 2.0), high=(1.0, 3.0)), "a": scalar(low=-1.0, high=1.0)}
NORMAL = scalar(distribution="normal", low=-1.0, high=2.0, mean=0.0, std=1.0)
OTHERS = {
    "aa": scalar(distribution="log_uniform", low=0.01, high=100.0),
    "normal": NORMAL,
    "zz": ResetOption(type="vector", distribution="choice", values=((1.0, 2.0), (3.0, 4.0))),
}


def many(option: ResetOption, count: int = 1500) -> np.ndarray:
    return np.array([draw_options({"x": option}, seed, {})["x"] for seed in range(count)])


def test_uniform_options_share_one_generator_in_the_order_of_their_names() -> None:
    rng = np.random.default_rng(5)
    expected = {"a": rng.uniform(-1.0, 1.0), "b": rng.uniform([0.0, 2.0], [1.0, 3.0])}
    drawn = draw_options(UNIFORM, 5, {})
    for name, value in expected.items():
        np.testing.assert_array_equal(drawn[name], value)


def test_no_option_shifts_another() -> None:
    every = draw_options({**UNIFORM, **OTHERS}, 8, {"aa": np.array(1.0)})
    assert every["aa"] == 1.0
    for name, value in {**draw_options(UNIFORM, 8, {}), **draw_options({"zz": OTHERS["zz"]}, 8, {})}.items():
        np.testing.assert_array_equal(every[name], value)


def test_each_value_is_allowed_by_its_option() -> None:
    for seed in range(300):
        for name, value in draw_options({**UNIFORM, **OTHERS}, seed, {}).items():
            option = {**UNIFORM, **OTHERS}[name]
            assert option.allows(value)
            assert value.dtype == np.float64


def test_the_logarithm_of_a_log_uniform_value_is_uniform() -> None:
    shares = np.sort((np.log(many(OTHERS["aa"])) - math.log(0.01)) / math.log(1e4))
    np.testing.assert_allclose(shares, np.linspace(0, 1, len(shares)), atol=0.05)


def test_a_normal_value_is_truncated_without_weight_on_the_bounds() -> None:
    values, normal = np.sort(many(NORMAL)), NormalDist(0.0, 1.0)
    share = [(normal.cdf(x) - normal.cdf(-1.0)) / (normal.cdf(2.0) - normal.cdf(-1.0)) for x in values.tolist()]
    np.testing.assert_allclose(share, np.linspace(0, 1, len(share)), atol=0.05)
    assert -1.0 < values[0] < values[-1] < 2.0


@pytest.mark.parametrize("mean", [0.0, 1.0])
def test_a_narrow_normal_value_at_a_bound_is_finite(mean: float) -> None:
    narrow = scalar(distribution="normal", low=0.0, high=1.0, mean=mean, std=1e-9)
    assert np.abs(many(narrow, 200) - mean).max() < 1e-8


def test_components_of_a_normal_vector_may_have_their_own_mean() -> None:
    option = ResetOption(
        type="vector", distribution="normal", low=(-9.0, -9.0), high=(9.0, 9.0), mean=(-5.0, 5.0), std=0.1
    )
    np.testing.assert_allclose(many(option, 50), np.tile([-5.0, 5.0], (50, 1)), atol=0.5)


def test_a_choice_takes_whole_vectors_equally_often() -> None:
    values = many(OTHERS["zz"]).tolist()
    assert values.count([1.0, 2.0]) + values.count([3.0, 4.0]) == len(values)
    assert abs(values.count([1.0, 2.0]) / len(values) - 0.5) < 0.04


def test_an_observed_option_without_an_effect_is_drawn_for_any_backend() -> None:
    options = {"goal": scalar(low=0.0, high=1.0, observed=True), **UNIFORM}
    request = ResetRequest(epoch=0, seed=3, options={"a": np.array(0.5)})
    report = ResetReport(level="none", seed_applied=None, sampled={}, ignored=("a",))
    seen = with_observed_options(report, options, request)
    assert seen.sampled == {"goal": draw_options(options, 3, {})["goal"]}
    assert seen.ignored == ("a",)
    given = ResetRequest(epoch=0, seed=3, options={"goal": np.array(0.25)})
    report = with_observed_options(
        ResetReport(level="none", seed_applied=None, sampled={}, ignored=("goal",)), options, given
    )
    assert report.sampled == {"goal": 0.25}
    assert report.ignored == ()


def test_the_value_of_a_world_is_kept() -> None:
    report = ResetReport(level="world", seed_applied=3, sampled={"goal": np.array(0.75)})
    options = {"goal": scalar(low=0.0, high=1.0, observed=True)}
    assert with_observed_options(report, options, ResetRequest(epoch=0, seed=3)) is report
