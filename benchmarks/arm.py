"""Define the contract, the compiled model and the actions that the benchmarks of `arm_reach` share.

Episodes of the contract never end.
"""

from __future__ import annotations

from dataclasses import replace

import mujoco
import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract, load_contract
from embodied_env.sim.world_model import WorldModel
from embodied_env.sim.world_profile import load_profile

SUBSTEPS = 20  # physics steps of a control period


def endless_arm() -> Contract:
    """Return `arm_reach` with episodes that no step here ends."""
    contract = load_contract("arm_reach")
    return replace(
        contract,
        episode=replace(contract.episode, horizon_steps=10**6),
        task=replace(contract.task, parameters={**contract.task.parameters, "success_radius_m": 1e-6}),
    )


def arm_model() -> mujoco.MjModel:
    """Return the compiled model."""
    contract = load_contract("arm_reach")
    return WorldModel(contract, load_profile(contract, "mujoco"), "backends.mujoco").mj


def kept_actions(*shape: int) -> NDArray[np.float64]:
    """Return small actions, which no limit changes, shape (*shape, 6)."""
    return np.random.default_rng(0).uniform(-0.02, 0.02, (*shape, 6))


def limited_actions(steps: int) -> NDArray[np.float64]:
    """Return actions to and fro that the limits change at every step, shape (steps, 6)."""
    return 0.9 * np.resize([1, 1, -1, -1, -1, -1, 1, 1], steps)[:, np.newaxis] * np.ones(6)
