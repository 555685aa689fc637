"""Adapt the vector environment of embodied_env to Stable-Baselines3, so that all slots step at the same time."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers.vector import DictInfoToList
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

import embodied_env
from embodied_env.contract import Contract


class SlotsVecEnv(VecEnv):
    """The slots of `embodied_env.make_vec`, or of such an environment in wrappers, with the mode SAME_STEP.

    A slot whose episode ended is reset in the same step: `infos[slot]` is the info of the end, and has the last
    observation as ``terminal_observation``; `reset_infos[slot]` is the info of the reset.
    """

    def __init__(self, worlds: Contract | str | VectorEnv[Any, Any, Any], num_envs: int = 1, **options: Any) -> None:  # noqa: ANN401
        """Take the vector environment `worlds`, or make one with the `options` of `make_vec`."""
        if not isinstance(worlds, VectorEnv):
            worlds = embodied_env.make_vec(worlds, num_envs=num_envs, autoreset_mode=AutoresetMode.SAME_STEP, **options)
        self.slots: Any = worlds.unwrapped
        self._env: Any = DictInfoToList(worlds)
        self._actions: NDArray[Any] = np.zeros(0)
        super().__init__(worlds.num_envs, worlds.single_observation_space, worlds.single_action_space)

    def reset(self) -> Any:  # noqa: ANN401 - an array, or arrays by key
        """Reset all slots, with the seeds of `seed()`."""
        observations, self.reset_infos = self._env.reset(seed=[*self._seeds], options=self._options[0] or None)
        self._reset_seeds()
        self._reset_options()
        return observations

    def step_async(self, actions: NDArray[Any]) -> None:
        """Store the actions for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> tuple[Any, NDArray[Any], NDArray[Any], list[dict[str, Any]]]:
        """Take one step in each slot."""
        observations, rewards, terminated, truncated, infos = self._env.step(self._actions)
        done = terminated | truncated
        for slot in np.flatnonzero(done):
            last, info = infos[slot].pop("final_obs"), infos[slot].pop("final_info")
            self.reset_infos[slot], infos[slot] = infos[slot], info
            info["terminal_observation"], info["TimeLimit.truncated"] = last, not terminated[slot]
        return observations, rewards.astype(np.float32), done, infos

    def close(self) -> None:
        """Close all slots."""
        self._env.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:  # noqa: ANN401 - the library's
        """Return an attribute of each slot."""
        return [self.slots.envs[slot].get_wrapper_attr(attr_name) for slot in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:  # noqa: ANN401 - the library's
        """Set an attribute of each slot."""
        for slot in self._get_indices(indices):
            self.slots.envs[slot].set_wrapper_attr(attr_name, value)

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:  # noqa: ANN401
        """Call a method of each slot."""
        return [method(*args, **kwargs) for method in self.get_attr(method_name, indices)]

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Any = None) -> list[bool]:  # noqa: ANN401, ARG002
        """Return that no slot is wrapped."""
        return [False for _ in self._get_indices(indices)]
