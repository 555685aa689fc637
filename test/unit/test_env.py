"""The Gymnasium face: seeds, options, episodes, spaces."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import scripted_tasks
from scripted_tasks import Scene

import embodied_env
from embodied_env.backends.fake import Fault
from embodied_env.clock import ManualClock
from embodied_env.env import EmbodiedEnv
from embodied_env.errors import BackendNotReadyError, ClosedError, ResetNeededError, UsageError


@pytest.fixture
def env():
    made = EmbodiedEnv(scripted_tasks.contract(), backend="fake", clock=ManualClock())
    yield made
    made.close()


def seeds(env, *arguments):
    """The world's seed of each reset, whose argument is a seed or None."""
    return [env.reset(seed=seed)[1]["reset"]["seed_applied"] for seed in arguments]


HOLD = np.zeros(2)


def test_the_same_seed_gives_the_same_world(env):
    first, second = seeds(env, 3, 3)
    assert first == second


def test_another_seed_gives_another_world(env):
    first, second = seeds(env, 3, 4)
    assert first != second


def test_without_a_seed_the_next_world_is_drawn(env):
    assert len(set(seeds(env, 3, None, None, None))) == 4


def test_the_worlds_after_a_seed_are_the_same_every_time(env):
    assert seeds(env, 3, None, None) == seeds(env, 3, None, None)


def test_two_environments_of_one_seed_see_the_same(env):
    other = EmbodiedEnv(scripted_tasks.contract(), backend="fake", clock=ManualClock())
    pair = [made.reset(seed=5)[0] for made in (env, other)]
    assert all(np.array_equal(pair[0][key], pair[1][key]) for key in pair[0])
    other.close()


def test_without_any_seed_two_environments_see_different_worlds(env):
    other = EmbodiedEnv(scripted_tasks.contract(), backend="fake", clock=ManualClock())
    assert seeds(env, None) != seeds(other, None)
    other.close()


def test_a_refused_option_does_not_change_which_world_comes_next(env):
    """(seed, episode_index) names an episode for good: a reset that was refused is no episode."""
    expected = seeds(env, 3, None)
    seeds(env, 3)
    with pytest.raises(UsageError):
        env.reset(options={"goal": [9.0, 9.0, 9.0]})
    _, info = env.reset()
    assert (info["reset"]["seed_applied"], info["episode_index"]) == (expected[1], 1)


def test_seed_and_episode_index_name_the_same_world_after_a_failed_reset():
    expected = EmbodiedEnv(scripted_tasks.contract(), backend="fake", clock=ManualClock())
    names = dict(zip((0, 1, 2, 3), seeds(expected, 3, None, None, None), strict=True))
    scene = Scene(backend=scripted_tasks.LateRiser)
    scene.backend.failing = (3,)
    env = EmbodiedEnv(scene.contract, backend="fake", clock=scene.clock)
    env._stepper = scene.stepper
    env.reset(seed=8)
    env.reset()
    with pytest.raises(BackendNotReadyError):
        env.reset(seed=3)
    _, info = env.reset()
    assert info["reset"]["seed_applied"] == names[info["episode_index"]]
    env.close()
    expected.close()


def test_episodes_are_counted_from_a_seeded_reset(env):
    indices = [env.reset(seed=seed)[1]["episode_index"] for seed in (None, None, 3, None, None, 3)]
    assert indices == [0, 1, 0, 1, 2, 0]


def test_reset_gives_an_element_of_the_observation_space(env):
    observation, _ = env.reset(seed=1)
    assert env.observation_space.contains(observation)


def test_step_gives_the_five_values_of_gymnasium(env):
    env.reset(seed=1)
    observation, reward, terminated, truncated, info = env.step(HOLD)
    assert env.observation_space.contains(observation)
    assert (type(reward), type(terminated), type(truncated), type(info)) == (float, bool, bool, dict)


def test_the_keys_of_gymnasium_and_sb3_are_never_ours(env):
    env.reset(seed=1)
    info = env.step(HOLD)[4]
    assert not {"episode", "final_obs", "final_info", "terminal_observation", "TimeLimit.truncated"} & set(info)


def test_info_says_which_contract_world_and_version(env):
    env.reset(seed=1)
    info = env.step(HOLD)[4]
    assert (info["contract"], info["backend"]) == (env.contract.fingerprint, "fake")
    assert embodied_env.__version__ in info["wrapper_version"]


def test_writing_into_what_step_returned_does_not_change_the_next_step(env):
    env.reset(seed=1)
    observation, *_ = env.step(HOLD)
    expected = {key: value.copy() for key, value in observation.items()}
    for value in observation.values():
        value[:] = 1
    assert all(np.array_equal(expected[key], value) for key, value in env.step(HOLD)[0].items())


def test_a_step_before_the_reset_is_gymnasiums_reset_needed(env):
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(HOLD)


def test_a_step_after_the_end_needs_a_reset():
    env = EmbodiedEnv(scripted_tasks.contract(task={"failure_at": 1}), backend="fake", clock=ManualClock())
    env.reset(seed=1)
    assert env.step(HOLD)[2]
    with pytest.raises(ResetNeededError):
        env.step(HOLD)
    env.reset()
    env.close()


def test_after_close_nothing_works(env):
    env.reset(seed=1)
    env.close()
    with pytest.raises(ClosedError):
        env.step(HOLD)
    with pytest.raises(ClosedError):
        env.reset()


def test_close_can_be_called_twice_and_before_a_reset(env):
    env.close()
    env.close()


def test_the_account_of_the_last_step_is_at_hand(env):
    env.reset(seed=1)
    assert env.last_transition is None
    *_, info = env.step(HOLD)
    assert env.last_transition.info["step_index"] == info["step_index"] == 1


def test_the_agent_can_mark_the_end_of_its_policy(env):
    env.reset(seed=1)
    env.mark("policy")
    env.step(HOLD)
    assert "marked" in env.last_transition.stamps_ns


def test_an_unknown_backend_is_refused():
    with pytest.raises(UsageError, match="fake"):
        EmbodiedEnv(scripted_tasks.contract(), backend="fak")


def test_an_unknown_clock_is_refused():
    with pytest.raises(UsageError, match="virtual"):
        EmbodiedEnv(scripted_tasks.contract(), backend="fake", clock="sundial")


@pytest.mark.parametrize("options", [{"render_mode": "human"}, {"pacing": "as fast as possible"}])
def test_what_is_not_available_is_refused(options):
    with pytest.raises(UsageError, match="allowed"):
        EmbodiedEnv(scripted_tasks.contract(), backend="fake", **options)


def test_make_applies_an_outer_time_limit():
    env = embodied_env.make(scripted_tasks.contract(), backend="fake", clock="virtual", max_episode_steps=2)
    env.reset(seed=1)
    env.step(HOLD)
    assert env.step(HOLD)[3]
    env.close()


def test_the_registered_environment_is_that_of_its_contract():
    env = gymnasium.make("embodied_env/ArmReach-v0", backend="fake", clock="virtual", disable_env_checker=True)
    env.reset(seed=1)
    assert env.unwrapped.contract.name == "arm_reach"
    env.step(env.action_space.sample())
    env.close()


def test_the_virtual_clock_makes_two_runs_of_one_seed_identical_latencies_included():
    def run():
        env = EmbodiedEnv(scripted_tasks.contract(), backend="fake", clock="virtual")
        env.reset(seed=4)
        env.action_space.seed(4)
        rows = [repr(env.step(env.action_space.sample())) for _ in range(5)]
        env.close()
        return rows

    assert run() == run()


def test_faults_are_an_option_of_the_fake_world():
    env = EmbodiedEnv(
        scripted_tasks.contract(), backend="fake", clock=ManualClock(), faults=[Fault(kind="refuse", step=1)]
    )
    env.reset(seed=1)
    assert env.step(HOLD)[4]["end_reason"] == "backend_lost:refused"
    env.close()
