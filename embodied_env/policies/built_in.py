"""The policies ``hold``, ``random`` and ``scripted``."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np

from embodied_env._version import __version__
from embodied_env.contract import Contract
from embodied_env.contract.spaces import ActionLayout
from embodied_env.contract.value_checks import one_of
from embodied_env.core.policy import FunctionPolicy, Observation, Policy, PolicyFunction, PolicyIdentity
from embodied_env.errors import UsageError
from embodied_env.plugins.plugin_lookup import known_backends
from embodied_env.tasks import ScriptedTask, load_task
from embodied_env.tasks.task_parts import joint_reader


def make_hold(contract: Contract) -> Policy:
    """Return the policy that keeps the measured joint positions."""
    layout = ActionLayout(contract)
    is_absolute = ~(layout.is_delta | layout.is_velocity)  # for the others, zero displacement or velocity holds
    joints = [joint for joint, absolute in zip(layout.joints, is_absolute, strict=True) if absolute]
    positions = joint_reader(contract, joints, reader="the policy hold")

    def hold(observation: Observation) -> Any:  # noqa: ANN401 - of the action space
        held = np.zeros(layout.size)
        held[is_absolute] = positions(observation)
        return layout.to_space(layout.scale.from_si(held))

    return FunctionPolicy(hold, _identity("hold"))


def make_random(contract: Contract) -> Policy:
    """Return the policy that draws actions uniformly from the action space of the environment."""
    return _RandomPolicy(contract)


def make_scripted(contract: Contract, *, backend: str = "mujoco") -> Policy:
    """Return the task's own policy, with the robot model of `backend` or of a simulator."""
    from embodied_env.sim.mujoco_kinematics import MujocoKinematics
    from embodied_env.sim.world_profile import load_profile

    if backend not in (known := known_backends()):
        raise UsageError(f"unknown backend of the policy scripted: {one_of(backend, known)}")
    task = load_task(contract, trust=contract.trusted)
    if not isinstance(task, ScriptedTask):
        raise UsageError(f"no scripted policy in the task {contract.task.type} (expected a method scripted)")
    simulated = [name for name in (backend, "mujoco", "mujoco_ros") if "model" in contract.backends.get(name, {})]
    if not simulated:
        raise UsageError(f"no model for the scripted policy in the contract {contract.name} (expected backends.mujoco)")
    kinematics = MujocoKinematics(contract, load_profile(contract, simulated[0]), path=f"backends.{simulated[0]}")
    return FunctionPolicy(_ScriptedActions(task, kinematics), _identity("scripted"))


class _RandomPolicy:
    def __init__(self, contract: Contract) -> None:
        self.identity = _identity("random")
        self.draw_from(contract.action_space)

    def draw_from(self, space: gymnasium.Space[Any], /) -> None:
        self._space = deepcopy(space)

    def reset(self, *, seed: int, episode_index: int) -> None:  # noqa: ARG002 - the protocol's
        self._space.seed(seed)

    def __call__(self, _observation: Observation, /) -> Any:  # noqa: ANN401 - of the action space
        return self._space.sample()

    def close(self) -> None:
        pass


class _ScriptedActions:
    """The scripted policy of a task, made for each episode."""

    def __init__(self, task: ScriptedTask, kinematics: Any) -> None:  # noqa: ANN401 - MujocoKinematics
        self._task, self._kinematics = task, kinematics
        self._act: PolicyFunction = task.scripted(kinematics)

    def reset(self, *, seed: int, episode_index: int) -> None:  # noqa: ARG002 - the protocol's
        self._act = self._task.scripted(self._kinematics)

    def __call__(self, observation: Observation) -> Any:  # noqa: ANN401 - of the action space
        return self._act(observation)


def _identity(name: str) -> PolicyIdentity:
    return PolicyIdentity(name=name, format="built-in", library=f"embodied_env {__version__}")
