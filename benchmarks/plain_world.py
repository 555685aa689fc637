"""Run the same MuJoCo model without this package, in a bare loop and behind a plain Gymnasium environment.

It needs only `mujoco` and `gymnasium`, so that it runs in the virtual environments of others, too.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import mujoco
import numpy as np
from numpy.typing import NDArray


class PlainWorld:
    """A model whose servos follow a straight line between commands, like those of `embodied_env`."""

    def __init__(self, model: mujoco.MjModel, substeps: int) -> None:
        """Prepare to step `model` by this number of physics steps per command."""
        self.model, self.data, self.substeps = model, mujoco.MjData(model), substeps
        self._parts = np.arange(1, substeps + 1)[:, np.newaxis] / substeps
        site = mujoco.mjtObj.mjOBJ_SITE
        self._tip, self._target = (mujoco.mj_name2id(model, site, name) for name in ("tcp", "target"))
        self.reset()

    def reset(self) -> None:
        """Start at the first keyframe, at rest."""
        mujoco.mj_resetDataKeyframe(self.model, self.data, 0)
        self._last = self.data.qpos[: self.model.nu].copy()
        self.data.ctrl[:] = self._last
        mujoco.mj_forward(self.model, self.data)

    def step(self, command: NDArray[np.float64]) -> None:
        """Step a control period."""
        model, data, step = self.model, self.data, mujoco.mj_step
        for controls in self._last + self._parts * (command - self._last):
            data.ctrl[:] = controls
            step(model, data)
        self._last = command

    def observe(self) -> NDArray[np.float64]:
        """Return positions, velocities, the tip and the target."""
        mujoco.mj_forward(self.model, self.data)
        sites = self.data.site_xpos
        return np.concatenate([self.data.qpos, self.data.qvel, sites[self._tip], sites[self._target]])

    def distance_m(self) -> float:
        """Return the distance of the tip from the target."""
        sites = self.data.site_xpos
        return float(np.linalg.norm(sites[self._tip] - sites[self._target]))


class PlainEnv(gymnasium.Env[NDArray[np.float64], NDArray[np.float64]]):
    """Minimal environment that takes commands and returns an observation and a distance.

    It has no limits, reports or recording.
    """

    def __init__(self, model: mujoco.MjModel | str, substeps: int, horizon: int = 1000) -> None:
        """Step `model`, or that of the file (`mujoco.mj_saveModel`)."""
        if isinstance(model, str):
            model = mujoco.MjModel.from_binary_path(model)
        self._world = PlainWorld(model, substeps)
        size, seen = model.nu, self._world.observe().size
        self.action_space: gymnasium.spaces.Box = gymnasium.spaces.Box(-np.pi, np.pi, (size,), np.float64)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (seen,), np.float64)
        self._horizon, self._count = horizon, 0

    @property
    def positions(self) -> NDArray[np.float64]:
        """Return the joint positions."""
        return np.array(self._world.data.qpos)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float64], dict[str, Any]]:
        """Start at the keyframe."""
        super().reset(seed=seed, options=options)
        self._world.reset()
        self._count = 0
        return self._world.observe(), {}

    def step(self, action: NDArray[np.float64]) -> tuple[NDArray[np.float64], float, bool, bool, dict[str, Any]]:
        """Step a control period."""
        self._world.step(np.clip(action, self.action_space.low, self.action_space.high))
        observation, distance_m = self._world.observe(), self._world.distance_m()
        self._count += 1
        return observation, -distance_m, distance_m < 0.02, self._count >= self._horizon, {"distance_m": distance_m}
