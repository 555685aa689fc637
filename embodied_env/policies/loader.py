"""Load a policy by its address: built in, or a callable of a module."""

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
from embodied_env.contract.message_types import JOINT_SENSOR
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.policy import Policy
from embodied_env.errors import UsageError, described
from embodied_env.tasks import ScriptedTask, load_task

BUILT_IN = ("hold", "random", "scripted")


def make_policy(name: str, contract: Contract, *, backend: str, seed: int) -> Policy:
    """Return the policy at the address `name`.

    Args:
        name: ``hold`` (stay where the joints are), ``random`` (uniform over the action space), ``scripted`` (the
            task's own), or ``module:callable``: a callable that takes an observation and returns an action.
        contract: the contract of its observations and actions.
        backend: whose profile describes the robot to a scripted policy; one of the contract's other profiles when it
            has none of its own.
        seed: seed of ``random``.

    Raises:
        UsageError: when there is no such policy.
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
    moves = layout.is_delta | layout.is_velocity  # no displacement, no velocity: it stays
    if moves.all():
        return lambda _observation: layout.as_action(layout.scale.from_si(np.zeros(layout.size)))
    places = {
        joint: (f"{name}_position", index)
        for name, sensor in contract.sensors.items()
        if sensor.type == JOINT_SENSOR and sensor.visibility == "agent" and "position" in sensor.fields
        for index, joint in enumerate(sensor.fields["position"].joints or ())
    }
    absolute = [joint for joint, by_moving in zip(layout.joints, moves, strict=True) if not by_moving]
    unseen = [joint for joint in absolute if joint not in places]
    if unseen:
        raise UsageError(f"--policy hold: the agent does not see the position of {', '.join(unseen)}")

    def hold(observation: Mapping[str, NDArray[Any]]) -> Any:  # noqa: ANN401 - of the action space
        held = np.zeros(layout.size)
        held[~moves] = [observation[places[joint][0]][places[joint][1]] for joint in absolute]
        return layout.as_action(layout.scale.from_si(held))

    return hold


def _scripted(contract: Contract, backend: str) -> Policy:
    from embodied_env.sim.kinematics import MujocoKinematics
    from embodied_env.sim.profile import load_profile

    task = load_task(contract, trust=contract.trusted)
    if not isinstance(task, ScriptedTask):
        raise UsageError(f"--policy scripted: the task {contract.task.type} has none")
    simulated = [name for name in (backend, "mujoco", "mujoco_ros") if "model" in contract.backends.get(name, {})]
    if not simulated:
        raise UsageError("--policy scripted: no backend profile of the contract describes the robot's model")
    profile = load_profile(contract, simulated[0])
    return task.scripted(MujocoKinematics(contract, profile, path=f"backends.{simulated[0]}"))


def _imported(name: str) -> Policy:
    module_name, _, attribute = name.partition(":")
    if not (module_name and attribute):
        raise UsageError(f"--policy {name!r} is not known; allowed: {', '.join(BUILT_IN)}, or module:callable")
    if os.getcwd() not in sys.path:  # noqa: PTH109 - sys.path holds strings
        sys.path.append(os.getcwd())  # noqa: PTH109 - as for python -m
    try:
        policy = getattr(importlib.import_module(module_name), attribute)
    except Exception as error:
        raise UsageError(f"--policy {name!r} cannot be imported: {described(error)}") from error
    if not callable(policy):
        raise UsageError(f"--policy {name!r} is not callable")
    return cast("Policy", policy)
