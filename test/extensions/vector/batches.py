"""Comparison of two vector environments that are called alike."""

from __future__ import annotations

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import embodied_env


class Pair:
    """Our vector environment and another one over the same environments, called alike and compared."""

    def __init__(self, ours, theirs):
        self.ours, self.theirs, self.mode = ours, theirs, ours.autoreset_mode
        self.rng = np.random.default_rng(5)
        ours.action_space.seed(7)

    @classmethod
    def of(cls, contract, mode, num_envs=3, *, threads=None, **options):
        """Compare with Gymnasium's `SyncVectorEnv`; episodes have different lengths."""
        options = {"backend": "mujoco", "clock": "virtual", "host_timing": True, "evaluator_info": True, **options}
        horizon = embodied_env.load_contract(contract).episode.horizon_steps
        own = [{"max_episode_steps": min(6 + 4 * slot, horizon)} for slot in range(num_envs)]
        ours = embodied_env.make_vec(
            contract, num_envs=num_envs, autoreset_mode=mode, per_slot=own, threads=threads, **options
        )
        makers = [lambda slot=slot: embodied_env.make(contract, **options, **own[slot]) for slot in range(num_envs)]
        return cls(ours, SyncVectorEnv(makers, autoreset_mode=mode))

    def both(self, call):
        ours, theirs = call(self.ours), call(self.theirs)
        assert_same(ours, theirs)
        return ours

    def reset(self, **arguments):
        copied = lambda: {key: dict(value) if key == "options" else value for key, value in arguments.items()}  # noqa: E731
        self.both(lambda env: env.reset(**copied()))

    def step(self, actions=None):
        """Step both, with the same drawn actions by default; if autoreset is disabled, reset in every possible way."""
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
    """Assert equal containers, dtypes, shapes and values; NaN equals NaN."""
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
        np.testing.assert_array_equal(ours, theirs, err_msg=path)
    else:
        assert ours == theirs or (ours != ours and theirs != theirs), path  # noqa: PLR0124 - NaN
