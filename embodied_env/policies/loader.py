"""Load a policy by its address: a built-in policy, or a callable of a module."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.policy import Policy
from embodied_env.errors import UsageError, described, did_you_mean
from embodied_env.tasks import ScriptedTask, load_task
from embodied_env.tasks.common import joint_reader

BUILT_IN = ("hold", "random", "scripted")


def make_policy(name: str, contract: Contract, *, backend: str, seed: int) -> Policy:
    """Return the policy at the address `name`.

    Args:
        name: ``hold`` (keep the joint positions), ``random`` (uniform over the action space), ``scripted`` (provided by
            the task), or ``module:callable``, a callable from observation to action.
        contract: contract of its observations and actions.
        backend: backend whose profile gives ``scripted`` the robot model; without a model, a simulator's profile.
        seed: seed of ``random``.

    Raises:
        UsageError: for an unknown policy, or one that does not fit the contract.
    """
    if name == "hold":
        return _hold(contract)
    if name == "random":
        space = deepcopy(contract.action_space)
        space.seed(seed)
        return lambda _observation: space.sample()
    if name == "scripted":
        return _scripted(contract, backend)
    return _imported(name)


def _hold(contract: Contract) -> Policy:
    layout = ActionLayout(contract)
    is_absolute = ~(layout.is_delta | layout.is_velocity)  # for the others, zero displacement or velocity holds
    joints = [joint for joint, absolute in zip(layout.joints, is_absolute, strict=True) if absolute]
    positions = joint_reader(contract, joints, reader="--policy hold")

    def hold(observation: Mapping[str, NDArray[Any]]) -> Any:  # noqa: ANN401 - of the action space
        held = np.zeros(layout.size)
        held[is_absolute] = positions(observation)
        return layout.to_space(layout.scale.from_si(held))

    return hold


def _scripted(contract: Contract, backend: str) -> Policy:
    from embodied_env.sim.backend_profile import load_profile
    from embodied_env.sim.kinematics import MujocoKinematics

    task = load_task(contract, trust=contract.trusted)
    if not isinstance(task, ScriptedTask):
        raise UsageError(f"--policy scripted is not available: task {contract.task.type} has no scripted policy")
    simulated = [name for name in (backend, "mujoco", "mujoco_ros") if "model" in contract.backends.get(name, {})]
    if not simulated:
        raise UsageError("--policy scripted is not available: no backend profile of the contract has a model")
    profile = load_profile(contract, simulated[0])
    return task.scripted(MujocoKinematics(contract, profile, path=f"backends.{simulated[0]}"))


def _imported(name: str) -> Policy:
    module_name, _, attribute = name.partition(":")
    if not (module_name and attribute):
        expected = f"expected one of: {', '.join(BUILT_IN)}, module:callable"
        raise UsageError(f"unknown policy {name!r} ({expected}){did_you_mean(name, BUILT_IN)}")
    if os.getcwd() not in sys.path:  # noqa: PTH109 - sys.path holds strings
        sys.path.append(os.getcwd())  # noqa: PTH109 - as for python -m
    try:
        policy = getattr(importlib.import_module(module_name), attribute)
    except Exception as error:
        raise UsageError(f"cannot import policy {name!r}: {described(error)}") from error
    if not callable(policy):
        raise UsageError(f"policy {name!r} is not callable: {policy!r:.80}")
    return cast("Policy", policy)
