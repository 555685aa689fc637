"""A vector of simulator processes over ROS 2 equals in-process worlds, also when one is killed."""

import os
import signal
import threading
from functools import partial

import numpy as np
import pytest
from batches import assert_same
from gymnasium.vector import AutoresetMode

import embodied_env
from embodied_env.errors import UsageError

pytestmark = pytest.mark.ros


@pytest.fixture
def make_vec(close_later):
    return lambda **options: close_later(embodied_env.make_vec("arm_reach", **options))


def pids(env):
    return [processes[0]["pid"] for processes in env.call("processes")]


def check_that_a_slot_still_moving_is_finished_last(env, monkeypatch):
    finished = []

    def finish(slot, original):
        finished.append(slot)
        if slot == 1:
            os.kill(slow, signal.SIGCONT)
        return original()

    for slot, stepper in enumerate(env.call("get_wrapper_attr", "stepper")):
        monkeypatch.setattr(stepper, "finish", partial(finish, slot, stepper.finish))
    slow = pids(env)[0]
    os.kill(slow, signal.SIGSTOP)
    env.step(np.zeros(env.action_space.shape))
    assert finished == [*range(1, len(pids(env))), 0]


@pytest.mark.kills
@pytest.mark.parametrize("num_envs", [2, pytest.param(4, marks=pytest.mark.long)])
def test_a_killed_simulator_truncates_its_own_slot_and_restarts_while_the_others_continue(
    make_vec, monkeypatch, num_envs
):
    env = make_vec(num_envs=num_envs, backend="mujoco_ros")
    env.reset(seed=0)
    with monkeypatch.context() as patch:
        check_that_a_slot_still_moving_is_finished_last(env, patch)
    env.reset(seed=0)
    still = np.zeros(env.action_space.shape)
    for _ in range(3):
        env.step(still)
    before, killed = pids(env), num_envs - 2
    os.kill(before[killed], signal.SIGKILL)
    others = np.arange(num_envs) != killed

    _, _, terminations, truncations, infos = env.step(still)
    assert not terminations.any()
    np.testing.assert_array_equal(truncations, ~others)
    assert infos["end_reason"][killed] == "backend_lost:simulator_died"
    assert set(infos["step_index"].tolist()) == {4}

    _, rewards, _, truncations, infos = env.step(still)
    assert not truncations.any()
    assert (rewards[killed], infos["step_index"][killed]) == (0.0, 0)
    np.testing.assert_array_equal(infos["_reset"], ~others)
    assert set(infos["step_index"][others].tolist()) == {5}

    *_, truncations, infos = env.step(still)
    assert not truncations.any()
    assert infos["step_index"][killed] == 1
    assert [pid == was for pid, was in zip(pids(env), before, strict=True)] == others.tolist()


@pytest.mark.parametrize(("backend", "attached"), [("mujoco_ros", {"spawn": False}), ("gazebo", {})])
def test_an_interrupt_ends_the_resets_of_all_slots(make_vec, message_package, backend, attached):
    message_package("ros_gz_interfaces")
    env = make_vec(num_envs=2, backend=backend, per_slot=lambda slot: {"namespace": f"/absent_{slot}", **attached})
    main = threading.main_thread().ident
    threading.Timer(0.5, signal.pthread_kill, [main, signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        env.reset(seed=0)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("resets")]


@pytest.mark.long
@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_vector_over_ros_equals_one_in_process(make_vec, mode):
    limits = {"per_slot": lambda slot: {"max_episode_steps": 4 + 3 * slot}}
    both = [make_vec(num_envs=3, backend=b, autoreset_mode=mode, **limits) for b in ("mujoco_ros", "mujoco")]
    for observations in zip(*(env.reset(seed=5)[0] for env in both), strict=True):
        assert_same(*observations)
    both[0].action_space.seed(5)
    for _ in range(40):
        actions = both[0].action_space.sample()
        ours, in_process = (env.step(actions) for env in both)
        assert_same(ours[:4], in_process[:4])
        assert_same(ours[4].get("final_obs"), in_process[4].get("final_obs"))
        ended = ours[2] | ours[3]
        if mode is AutoresetMode.DISABLED and ended.any():
            assert_same(*(env.reset(options={"reset_mask": ended})[0] for env in both))


@pytest.mark.parametrize(
    "shared",
    [{"spawn": False}, {"namespace": "/one"}, {"spawn": False, "domain_id": 3}],
    ids=["attached", "in one namespace", "attached in one domain"],
)
def test_slots_that_would_share_a_simulator_are_rejected(make_vec, shared):
    with pytest.raises(UsageError, match="shared by 2 slots"):
        make_vec(num_envs=2, backend="mujoco_ros", **shared)


def test_slots_in_separate_domains_may_attach(make_vec):
    env = make_vec(num_envs=2, backend="mujoco_ros", spawn=False, per_slot=lambda slot: {"domain_id": 60 + slot})
    assert env.num_envs == 2
