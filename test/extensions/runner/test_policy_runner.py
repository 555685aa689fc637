"""A goal of a runner whose policy plays a recorded run."""

import threading

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs rclpy")

import embodied_env
from embodied_env.core.reset_draws import ResetRoutine
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.extensions.runner.policy_goal import PolicyGoal
from embodied_env.extensions.runner.policy_runner import PolicyRunner, RunnerOptions
from embodied_env.policies.chunk_execution import ChunkRunner
from embodied_env.record import read_run

ARM = embodied_env.load_contract("arm_reach")

pytestmark = pytest.mark.needs("replay")


def start_of(path):
    return next(read_run(path).resets())["inner"]


def test_a_goal_begins_at_the_start_of_the_recorded_run(tmp_path):
    env = embodied_env.make(ARM, record=tmp_path / "recorded")
    env.reset(seed=1)
    for _ in range(3):
        env.step(np.full(6, 0.5))
    env.close()
    address = f"run:{env.path}#1"
    runner = PolicyRunner(RunnerOptions(contract="arm_reach", policy=address, out=str(tmp_path / "goals"), robot={}))
    runner.contract, runner._env = ARM, EmbodiedEnv(ARM, backend="fake", reset_timeout_s=60.0)
    runner._policy = ChunkRunner(embodied_env.load_policy(address, ARM))
    result = runner.start(PolicyGoal()).result()
    runner._env.close()
    played, recorded = start_of(result.run), start_of(env.path)
    assert (played["routine"], played["seed_applied"]) == ("home", recorded["seed_applied"])
    found, expected = (each["observation"]["joints_position"] for each in (played, recorded))
    np.testing.assert_allclose(found, expected, atol=ResetRoutine().tolerance)


def test_only_the_policy_that_hangs_is_not_closed():
    """Another policy may be configured meanwhile."""
    runner, answer = PolicyRunner(RunnerOptions(contract="arm_reach", policy="hold", robot={})), threading.Event()
    closed = []

    def configure(name):
        policy = embodied_env.load_policy("hold", ARM)
        policy.close = lambda: closed.append(name)
        runner._policy = ChunkRunner(policy)

    configure("hanging")
    runner._hanging, runner._hanging_policy = threading.Thread(target=answer.wait), runner._policy
    runner._hanging.start()
    runner.cleanup()
    configure("next")
    runner.cleanup()
    answer.set()
    runner._hanging.join()
    assert closed == ["next"]
