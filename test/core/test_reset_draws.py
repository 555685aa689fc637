"""The operator prompt before an episode."""

import numpy as np

import embodied_env
from embodied_env.core.reset_draws import confirmation_prompt


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
