"""Scale the observations of a contract to features around 0, and its actions to -1 to 1.

The folder of a policy contains the scaling as ``scaling.json``, next to the file of the network.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

import embodied_env
from embodied_env.contract import Contract
from embodied_env.errors import UsageError

FILE = "scaling.json"
LEARNED_POLICY = "LEARNED_POLICY"
"""The environment variable with the folder of the policy that `sb3_policy` and `torch_policy` load."""

BOUND = 10.0
"""Features are clipped at this number of standard deviations."""

CONSTANT = 1e-6
"""The standard deviation, in the unit of the reading, below which the scale is 1."""


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Scales observations to features, and outputs of a network to actions.

    Attributes:
        fingerprint: of the contract that the policy was trained under.
        keys: keys of the observation, in the order of the features.
        mean: of each feature, in its unit.
        scale: of each feature, in its unit, > 0.
        low: of the action space.
        high: of the action space.
    """

    fingerprint: str
    keys: tuple[str, ...]
    mean: NDArray[Any]
    scale: NDArray[Any]
    low: NDArray[Any]
    high: NDArray[Any]

    def features(self, observation: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Return the features of `observation`, shape (n,)."""
        scaled = (_vector(observation, self.keys) - self.mean) / self.scale
        return np.clip(scaled, -BOUND, BOUND).astype(np.float32)

    def action(self, output: NDArray[Any]) -> NDArray[np.float64]:
        """Return the action of `output`, whose elements from -1 to 1 stand for low to high."""
        unit = np.asarray(output, dtype=np.float64)
        return np.clip(self.low + 0.5 * (unit + 1.0) * (self.high - self.low), self.low, self.high)

    def save(self, folder: Path) -> None:
        """Write the scaling into `folder`."""
        arrays = {name: getattr(self, name).tolist() for name in ("mean", "scale", "low", "high")}
        text = json.dumps({"fingerprint": self.fingerprint, "keys": list(self.keys), **arrays}, indent=1)
        (folder / FILE).write_text(text, encoding="utf-8")


def load_scaling(folder: str | Path, contract: Contract | None = None) -> Scaling:
    """Read the scaling in `folder`.

    Raises:
        UsageError: when there is none, or it is of another contract than `contract`.
    """
    file = Path(folder) / FILE
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"policy not readable in {folder}: {error}") from None
    if contract is not None and data["fingerprint"] != contract.fingerprint:
        raise UsageError(
            f"{folder}: the policy was trained under the fingerprint {data['fingerprint'][:16]} "
            f"(expected {contract.fingerprint[:16]}, that of {contract.name})"
        )
    arrays = {name: np.asarray(data[name], dtype=np.float64) for name in ("mean", "scale", "low", "high")}
    return Scaling(fingerprint=data["fingerprint"], keys=tuple(data["keys"]), **arrays)


def learned_policy_folder() -> Path:
    """Return the folder that the environment variable `LEARNED_POLICY` names."""
    folder = os.environ.get(LEARNED_POLICY)
    if not folder:
        raise UsageError(f"{LEARNED_POLICY} is not set (expected the folder of a learned policy)")
    return Path(folder)


def measure_scaling(contract: Contract, backend: str, *, seed: int, steps: int) -> Scaling:
    """Return the scaling by mean and standard deviation of the observations in `steps` steps of a random policy."""
    actions = action_box(contract)
    keys = _vector_keys(contract)
    env = embodied_env.make(contract, backend=backend)
    env.action_space.seed(seed)
    seen = []
    try:
        observation, _ = env.reset(seed=seed)
        for _ in range(steps):
            seen.append(_vector(observation, keys))
            observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
            if terminated or truncated:
                observation, _ = env.reset()
    finally:
        env.close()
    spread = np.std(seen, axis=0)
    return Scaling(
        fingerprint=contract.fingerprint,
        keys=keys,
        mean=np.mean(seen, axis=0),
        scale=np.where(spread > CONSTANT, spread, 1.0),
        low=actions.low.astype(np.float64),
        high=actions.high.astype(np.float64),
    )


def action_box(contract: Contract) -> gymnasium.spaces.Box:
    """Return the action space of `contract`.

    Raises:
        UsageError: when it is not one bounded Box.
    """
    space = contract.action_space
    if not isinstance(space, gymnasium.spaces.Box) or not space.is_bounded():
        raise UsageError(f"{contract.name}: unsupported action space {space} (expected one bounded Box)")
    return space


class ScaledEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The environment with features (n,) as observations and actions from -1 to 1, both float32."""

    def __init__(self, env: gymnasium.Env[Any, Any], scaling: Scaling) -> None:
        """Wrap `env`."""
        super().__init__(env)
        self._scaling = scaling
        bound = np.full(len(scaling.mean), BOUND, dtype=np.float32)
        self.observation_space = gymnasium.spaces.Box(-bound, bound)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, scaling.low.shape, dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._scaling.features(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:  # noqa: ANN401 - Gymnasium's
        """Take one step; the safety gate judges NaN."""
        observation, *rest = self.env.step(self._scaling.action(action))
        return self._scaling.features(observation), *rest


def _vector_keys(contract: Contract) -> tuple[str, ...]:
    """Return the keys of the observation without images."""
    keys = tuple(key for key, box in contract.observation_space.items() if len(box.shape or ()) <= 1)
    if not keys:
        raise UsageError(f"{contract.name}: every observation is an image (expected at least one vector)")
    return keys


def _vector(observation: Mapping[str, NDArray[Any]], keys: tuple[str, ...]) -> NDArray[np.float64]:
    return np.concatenate([np.asarray(observation[key], dtype=np.float64).ravel() for key in keys])
