"""Comparison of two vector environments that are called alike, and contracts and actions with everything unusual."""

import dataclasses
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from randomised_arm import DRAWS, OPTIONS, randomised_arm
from strategies import document_of, parse

import embodied_env
from embodied_env import NoAction
from embodied_env.contract.contract_schema import TaskSpec
from embodied_env.core.types import TaskResult
from embodied_env.tasks.reach import Reach

SHIPPED = ("arm_reach", "cart_goal", "door_open", "so101_reach", "turtlebot4_goal", "ur5e_reach")
UNUSUAL = [NoAction("late"), None, np.full(6, np.nan), np.zeros(3), "text", np.full(6, 1e300), [0.5] * 6, {"arm": 1}]


def arm_with_two_actuators():
    """Return an arm whose wrist is an actuator of its own, in positions with limited jerk."""
    document = document_of(embodied_env.load_contract("arm_reach"))
    joints = document["actuators"]["arm"]["joints"]
    wrist = {name: {**joints.pop(name), "jerk": 400.0} for name in ("j4", "j5", "j6")}
    own = {"topic": "wrist/commands", "command": "position", "joints": wrist}
    document["actuators"]["wrist"] = {**document["actuators"]["arm"], **own}
    del document["robot"]
    return parse(document)


def unusual_arm():
    """Return an arm with every kind of draw, histories, noise, delays, drop-outs and slow sensors."""
    document = document_of(randomised_arm(OPTIONS, {**DRAWS, "camera_delay": {"delay": ["target"]}}))
    document["applied_actions"] = 2
    document["episode"] = {"horizon_steps": 9, "kind": "finite_horizon"}
    document["sensors"]["joints"]["fields"]["position"]["history"] = 3
    document["sensors"]["tcp"]["fields"]["position"] |= {"history": 2, "low": -0.4, "high": 0.4}
    document["sensors"]["target"] |= {"rate_hz": 12.0, "max_age_s": 0.2}
    sources = document["backends"]["mujoco"]["sources"]
    sources["tcp"] |= {"noise": {"position": 0.01}, "delay_s": 0.02, "dropout": 0.4}
    return parse(document)


class Failing(Reach):
    """A task that fails in slots that move their first joint."""

    def evaluate(self, previous: object, current: object, applied: np.ndarray) -> TaskResult:
        result = super().evaluate(previous, current, applied)
        if applied.ndim > 1:
            rewards: Any = np.where(applied[:, 0] > 0, np.nan, result.reward)
            return dataclasses.replace(result, reward=rewards)
        if applied[0] > 0:
            raise RuntimeError("the task has an error")
        return result


def arm_with(task):
    """Return the arm with a task of a test module."""
    arm = embodied_env.load_contract("arm_reach")
    spec = TaskSpec(type=f"{task.__module__}:{task.__name__}", parameters=arm.task.parameters)
    return dataclasses.replace(arm, task=spec)


class Pair:
    """Our vector environment and another one over the same environments, called alike and compared."""

    def __init__(self, ours, theirs):
        self.ours, self.theirs, self.mode = ours, theirs, ours.autoreset_mode
        self.rng = np.random.default_rng(5)
        ours.action_space.seed(7)

    @classmethod
    def of(cls, contract, mode, num_envs=3, *, threads=None, record=None, **options):
        """Compare with Gymnasium's `SyncVectorEnv` in episodes of different lengths.

        `record` is a folder of both.
        """
        options = {"backend": "mujoco", "clock": "virtual", "host_timing": True, "evaluator_info": True, **options}
        horizon = embodied_env.load_contract(contract).episode.horizon_steps
        own = [{"max_episode_steps": min(6 + 4 * slot, horizon)} for slot in range(num_envs)]
        folders = [None, *[None] * num_envs]
        if record is not None:
            folders = [record / "ours", *(record / "theirs" / f"slot_{slot}" for slot in range(num_envs))]
        ours = embodied_env.make_vec(
            contract,
            num_envs=num_envs,
            autoreset_mode=mode,
            per_slot=own,
            threads=threads,
            record=folders[0],
            **options,
        )
        makers = [
            lambda slot=slot: embodied_env.make(contract, record=folders[1 + slot], **options, **own[slot])
            for slot in range(num_envs)
        ]
        return cls(ours, SyncVectorEnv(makers, autoreset_mode=mode))

    def both(self, call):
        ours, theirs = call(self.ours), call(self.theirs)
        assert_same(ours, theirs)
        return ours

    def reset(self, **arguments):
        copied = lambda: {key: dict(value) if key == "options" else value for key, value in arguments.items()}  # noqa: E731
        self.both(lambda env: env.reset(**copied()))

    def step(self, actions=None):
        """Step both, with the same drawn actions by default, and reset in every way if autoreset is disabled."""
        actions = self.ours.action_space.sample() if actions is None else actions
        _, _, terminations, truncations, infos = self.both(lambda env: env.step(actions))
        ended = terminations | truncations
        if self.mode is AutoresetMode.DISABLED and ended.any():
            rng, count = self.rng, len(ended)
            seeds = [None if rng.random() < 0.5 else int(rng.integers(99)) for _ in range(count)]
            given = (
                {"target": [-0.4, 0.1, 0.3]} if self.ours.contract.name == "arm_reach" and rng.random() < 0.5 else {}
            )
            self.reset(seed=seeds, options={"reset_mask": ended | (rng.random(count) < 0.2), **given})
        return infos

    def close(self):
        self.ours.close()
        self.theirs.close()


def assert_same(ours, theirs, path="$"):
    """Assert equal containers, dtypes, shapes and values, where NaN equals NaN."""
    assert type(ours) is type(theirs), path
    if isinstance(ours, dict):
        assert set(ours) == set(theirs), path
        for key in ours:
            assert_same(ours[key], theirs[key], f"{path}.{key}")
    elif isinstance(ours, (tuple, list)):
        assert len(ours) == len(theirs), path
        for i, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(one, other, f"{path}[{i}]")
    elif isinstance(ours, np.ndarray) and ours.dtype == object:
        assert theirs.dtype == object, path
        assert_same(list(ours), list(theirs), path)
    elif isinstance(ours, np.ndarray):
        assert ours.dtype == theirs.dtype, path
        if ours.shape != theirs.shape or ours.tobytes() != theirs.tobytes():  # faster than the comparison of values
            np.testing.assert_array_equal(ours, theirs, err_msg=path)
    else:
        assert ours == theirs or (ours != ours and theirs != theirs), path  # noqa: PLR0124 - NaN
