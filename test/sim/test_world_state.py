"""A world continues from a saved state as if nothing had happened in between, bit for bit."""

import numpy as np
import pytest
from delay_models import VARYING
from randomised_arm import DRAWS, OPTIONS, randomised_arm
from strategies import document_of, parse

from embodied_env.contract import Contract, load_contract
from embodied_env.contract.runtime_values import checked_options
from embodied_env.errors import ResetNeededError, UsageError
from embodied_env.sim.world import World
from embodied_env.sim.world_profile import load_profile


def noisy_arm() -> Contract:
    """Return an arm with every kind of draw, noise, delays, drop-outs and slow sensors."""
    document = document_of(randomised_arm(OPTIONS, {**DRAWS, "camera_delay": {"delay": ["target"]}}))
    document["sensors"]["target"] |= {"rate_hz": 12.0, "max_age_s": 0.2}
    document["backends"]["mujoco"]["sources"]["tcp"] |= {"noise": {"position": 0.01}, "delay_s": 0.02, "dropout": 0.4}
    return parse(document)


def world(contract: Contract) -> World:
    return World(contract, load_profile(contract, "mujoco"))


def run(made: World, seed: int, steps: int) -> list[str]:
    rng, found = np.random.default_rng(seed), []
    for _ in range(steps):
        made.command(made.target + rng.uniform(-0.01, 0.01, len(made.joints)))
        made.step()
        with np.printoptions(floatmode="unique"):
            found.append(repr((made.now_ns, made.read())))
    return found


@pytest.mark.parametrize("name", ["arm_reach", "cart_goal", "turtlebot4_goal", "ur5e_reach", "noisy_arm"])
def test_a_loaded_state_continues_as_the_saved_one(name: str) -> None:
    contract = noisy_arm() if name == "noisy_arm" else load_contract(name)
    made, other = world(contract), world(contract)
    options = checked_options(contract, None)
    made.reset(3, options)
    run(made, 1, 7)
    saved = made.save()
    first, expected = made.read(), run(made, 2, 7)
    made.reset(4, options)
    run(made, 5, 3)
    for continued in (made, other, made):
        continued.load(saved)
        with np.printoptions(floatmode="unique"):
            assert repr(continued.read()) == repr(first)
        assert run(continued, 2, 7) == expected


def test_a_reset_that_failed_leaves_nothing_in_a_state_loaded_later(monkeypatch: pytest.MonkeyPatch) -> None:
    contract = noisy_arm()
    made, options = world(contract), checked_options(contract, None)
    made.reset(3, options)
    saved = made.save()
    expected = run(made, 2, 5)
    made.load(saved)
    with monkeypatch.context() as patched:
        patched.setattr(made.physics, "check_stable", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            made.reset(4, options)
    made.load(saved)
    assert run(made, 2, 5) == expected


def test_a_state_is_that_of_an_episode_in_lockstep() -> None:
    contract = load_contract("arm_reach")
    with pytest.raises(ResetNeededError):
        world(contract).save()
    late = World(contract, load_profile(contract, "mujoco"), delays=VARYING)
    late.reset(0, checked_options(contract, None))
    with pytest.raises(UsageError, match="injected delays"):
        late.save()
