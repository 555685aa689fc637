import copy
import dataclasses

import numpy as np
import pytest
import strategies
from evidence import assert_replays, assert_sound
from randomised_arm import OPTIONS, randomised_arm
from scripted_tasks import Scene

import embodied_env
from embodied_env.backends.fake_backend import FakeBackend
from embodied_env.contract import Contract
from embodied_env.contract.contract_schema import TaskSpec
from embodied_env.core.types import ResetReport, ResetRequest, Snapshot
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.errors import UsageError

ARM = randomised_arm()


def episode(env, seed, steps=5):
    """Return each observation of an episode, to the last bit."""
    observation, _ = env.reset(seed=seed)
    rows = [observation, *(env.step(np.full(6, 0.01 * k))[0] for k in range(steps))]
    return [{key: value.tobytes() for key, value in row.items()} for row in rows]


def with_bins(extra: dict[str, object] | None = None) -> Contract:
    source = strategies.changed("reset_options.bin", {**OPTIONS["bin"], **(extra or {})})
    return dataclasses.replace(strategies.parse(source), task=TaskSpec(type="resettable_tasks:Bins", parameters={}))


def test_an_observed_option_is_in_the_space_and_constant_in_every_step() -> None:
    env = EmbodiedEnv(with_bins(), backend="fake")
    space = env.observation_space["bin"]
    assert (space.low.tolist(), space.high.tolist(), space.dtype) == ([0.1, 0.2], [0.3, 0.4], np.float64)
    observation, info = env.reset(seed=2)
    goal = info["reset"]["sampled"]["bin"].tolist()
    assert goal in ([0.1, 0.2], [0.3, 0.4])
    for _ in range(3):
        assert env.observation_space.contains(observation)
        assert observation["bin"].tolist() == goal
        observation["bin"][:] = 9.0  # a new array each time
        observation = env.step(env.action_space.sample())[0]
    env.close()


def test_the_task_reads_the_drawn_and_the_given_goal() -> None:
    env = EmbodiedEnv(with_bins(), backend="fake")
    for seed in range(6):
        info = env.reset(seed=seed)[1]["reset"]
        assert info["solved"] == (info["sampled"]["bin"][0] > 0.2)
    for goal in ([0.1, 0.2], [0.3, 0.4]):
        observation, info = env.reset(options={"bin": goal})
        assert observation["bin"].tolist() == goal
        assert info["reset"]["solved"] == (goal[0] > 0.2)
    with pytest.raises(UsageError, match=r"invalid reset option bin=.*one of: \[0.1, 0.2\], \[0.3, 0.4\]"):
        env.reset(options={"bin": [0.1, 0.4]})
    env.close()


class Deaf(FakeBackend):
    """A robot whose reset draws nothing."""

    def reset(self, request: ResetRequest, deadline_ns: int) -> Snapshot:
        snapshot = super().reset(request, deadline_ns)
        report = ResetReport(level="task", seed_applied=None, sampled={}, ignored=tuple(request.options))
        return dataclasses.replace(snapshot, reset=report)


def test_a_robot_that_draws_nothing_has_the_goal_of_the_simulation() -> None:
    goals = []
    for backend in (FakeBackend, Deaf):
        scene = Scene(with_bins(), backend=backend)
        for options in ({}, {"bin": [0.3, 0.4]}):
            observation, info = scene.stepper.reset(world_seed=5, options=options, seeded=True)
            assert observation["bin"].tolist() == info["reset"]["sampled"]["bin"].tolist()
            assert info["reset"]["options_ignored"] == ""
            goals.append((observation["bin"].tolist(), info["reset"]["solved"]))
        scene.stepper.close()
    assert goals[:2] == goals[2:]
    assert goals[1] == ([0.3, 0.4], True)


def test_every_value_is_in_info_the_record_replays_and_the_audit_is_sound(tmp_path) -> None:
    env = embodied_env.make(ARM, backend="mujoco", record=tmp_path)
    for seed in (3, None):
        info = env.reset(seed=seed)[1]
        assert info["reset"]["sampled"].keys() == {*OPTIONS, "target"}
        for _ in range(6):
            env.step(np.full(6, 0.01))
    env.close()
    assert_sound(env.path, transitions=12)
    assert_replays(env.path, transitions=12)


@pytest.mark.needs("vector")
def test_copies_and_batches_draw_the_same() -> None:
    env = embodied_env.make(ARM, backend="mujoco").unwrapped
    twin = copy.deepcopy(env)  # as pickle
    expected = [episode(env, seed) for seed in (8, 9)]
    assert [episode(twin, seed) for seed in (8, 9)] == expected
    batch = embodied_env.make_vec(ARM, num_envs=2, backend="mujoco")
    observation, info = batch.reset(seed=[8, 9])
    for i, rows in enumerate(expected):
        assert {key: value[i].tobytes() for key, value in observation.items()} == rows[0]
    assert info["reset"]["sampled"]["payload"].shape == (2,)
    for each in (env, twin, batch):
        each.close()
