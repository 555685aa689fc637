"""The checkers of Gymnasium and Stable-Baselines3, with every warning an error (pyproject), on environments as made."""

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import RecordEpisodeStatistics
from shipped_contracts import changed_contract

import embodied_env
from embodied_env.errors import UsageError

ID = "embodied_env:embodied_env/ArmReach-v0"
SHIPPED = ("arm_reach", "cart_goal", "door_open", "so101_reach", "turtlebot4_goal", "ur5e_reach")
OURS_NEVER = {"episode", "final_obs", "final_info", "terminal_observation", "TimeLimit.truncated"}
UNBOUNDED = pytest.mark.filterwarnings(r"ignore:.*A Box observation space m\w+ value is -?infinity\.:UserWarning")

WORLDS = [
    ("arm_reach", "mujoco"),
    ("cart_goal", "fake"),
    *(pytest.param(*world, marks=pytest.mark.long) for world in (("arm_reach", "fake"), ("cart_goal", "mujoco"))),
    *(pytest.param(name, "mujoco", marks=pytest.mark.long) for name in SHIPPED[2:]),
    *(pytest.param(name, "mujoco_ros", marks=[pytest.mark.ros, pytest.mark.long]) for name in SHIPPED[:3]),
]


@UNBOUNDED
@pytest.mark.parametrize(("name", "backend"), WORLDS)
def test_check_env_finds_nothing_but_infinite_bounds(name, backend, close_later):
    env = close_later(embodied_env.make(name, backend=backend))
    assert env.spec.nondeterministic is False
    check_env(env)


@pytest.mark.parametrize(("name", "backend"), WORLDS)
def test_check_env_of_stable_baselines_finds_nothing(name, backend, close_later):
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    env = close_later(embodied_env.make(name, backend=backend))
    checker.check_env(env, warn=name != "door_open")  # its images of depth are no uint8, which warns


def test_infos_have_no_keys_of_gymnasium_and_sb3_which_wrappers_add():
    env = RecordEpisodeStatistics(gymnasium.make(ID, backend="fake", clock="virtual"))
    infos, done = [env.reset(seed=1)[1]], False
    while not done:
        *_, terminated, truncated, info = env.step(env.action_space.sample())
        infos.append(info)
        done = terminated or truncated
    env.close()
    assert infos[-1].pop("episode")["l"] == infos[-1]["step_index"]
    assert not OURS_NEVER & {key for info in infos for key in info}


def test_an_outer_time_limit_truncates_and_shows_in_the_spec():
    env = gymnasium.make(ID, backend="fake", max_episode_steps=3)
    env.reset(seed=1)
    for _ in range(3):
        *_, terminated, truncated, info = env.step(env.action_space.sample())
    env.close()
    assert (terminated, truncated) == (False, True)
    assert info["end_reason"] == ""
    assert env.spec is not None
    assert env.spec.max_episode_steps == 3


def test_the_spec_has_the_horizon_of_a_contract_that_truncates(close_later):
    finite = changed_contract("arm_reach", {"episode.kind": "finite_horizon"})
    for env in (embodied_env.make("arm_reach", backend="fake"), gymnasium.make(ID, backend="fake")):
        assert close_later(env).spec.max_episode_steps == env.unwrapped.contract.episode.horizon_steps
    assert close_later(embodied_env.make(finite, backend="fake")).spec.max_episode_steps is None


def make_two(*arguments, **options):
    return embodied_env.make_vec(*arguments, num_envs=2, **options)


@pytest.mark.parametrize("make", [embodied_env.make, pytest.param(make_two, marks=pytest.mark.needs("vector"))])
def test_a_limit_above_the_horizon_is_an_error(make):
    with pytest.raises(UsageError, match="max_episode_steps above the horizon: 201"):
        make("arm_reach", backend="fake", max_episode_steps=201)
