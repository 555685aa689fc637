"""The policy file of a training, and the environment with the inputs and outputs that it declares.

Training and deployment use one mapping, so that they cannot differ: the vectors of the observation in one input,
normalised by mean and standard deviation, and actions from -1 to 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray
from onnx_export import INPUT, OUTPUT

import embodied_env
from embodied_env.contract import Contract
from embodied_env.errors import UsageError
from embodied_env.policies.input_mapping import observed_fields
from embodied_env.policies.mapping import PolicyFileInterface
from embodied_env.policies.policy_file import (
    InputPart,
    InputSpec,
    NormalizeSpec,
    OutputPart,
    OutputSpec,
    PolicyFile,
    read_policy_file,
    trained_on,
)

BOUND = 10.0
"""Inputs are clipped at this number of standard deviations."""

CONSTANT = 1e-6
"""The standard deviation, in the unit of the reading, below which 1 is taken."""


class MappedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The environment with the input of a policy file as observation and its output as action, both float32."""

    def __init__(self, env: gymnasium.Env[Any, Any], contract: Contract, file: PolicyFile) -> None:
        """Wrap `env`."""
        super().__init__(env)
        self._interface = PolicyFileInterface(file, contract)
        bound = np.full(len(file.inputs[INPUT].normalize.mean), BOUND, dtype=np.float32)
        self.observation_space = gymnasium.spaces.Box(-bound, bound)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, action_box(contract).shape, dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._interface.reset()
        return self.features(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:  # noqa: ANN401 - Gymnasium's
        """Take one step."""
        observation, *rest = self.env.step(self.action_of(action))
        return self.features(observation), *rest

    def features(self, observation: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Return the input of the policy, shape (n,)."""
        return self._interface.to_inputs(observation)[INPUT]

    def action_of(self, output: NDArray[Any]) -> Any:  # noqa: ANN401 - of the action space
        """Return the action of the output of a policy."""
        return self._interface.to_action({OUTPUT: np.asarray(output)})


def measure_policy_file(contract: Contract, backend: str, *, name: str, seed: int, steps: int) -> PolicyFile:
    """Return the policy file with mean and standard deviation of the observations of a random policy."""
    actions = action_box(contract)
    parts = _input_parts(contract)
    env = embodied_env.make(contract, backend=backend)
    env.action_space.seed(seed)
    seen = []
    try:
        observation, _ = env.reset(seed=seed)
        for _ in range(steps):
            seen.append(_vector(observation, parts))
            observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
            if terminated or truncated:
                observation, _ = env.reset()
    finally:
        env.close()
    spread = np.std(seen, axis=0)
    std = np.where(spread > CONSTANT, spread, 1.0)
    statistics = {"mean": _numbers(np.mean(seen, axis=0)), "std": _numbers(std), "clip": BOUND}
    trained, files = trained_on(contract)
    return PolicyFile(
        name=name,
        control_period_s=contract.control_period_s,
        contract=trained,
        files=files,
        inputs={INPUT: InputSpec(parts=parts, normalize=NormalizeSpec(method="mean_std", **statistics))},
        outputs={OUTPUT: _output(contract, actions)},
    )


def resumed_policy_file(file: Path, contract: Contract) -> PolicyFile:
    """Return the policy file of a checkpoint; raises UsageError for one of another contract."""
    found = read_policy_file(file)
    if difference := found.difference(contract):
        raise UsageError(f"cannot resume {file.parent}: trained under another contract: {difference}")
    return found


def action_box(contract: Contract) -> gymnasium.spaces.Box:
    """Return the action space of `contract`.

    Raises:
        UsageError: when it is not one bounded Box.
    """
    space = contract.action_space
    if not isinstance(space, gymnasium.spaces.Box) or not space.is_bounded():
        raise UsageError(f"{contract.name}: unsupported action space {space} (expected one bounded Box)")
    return space


def input_part(contract: Contract, key: str) -> InputPart:
    """Return the vector `key` of the observation as it is, with joints by name."""
    if (field := observed_fields(contract).get(key)) is None:  # a mask
        return InputPart(field=key)
    joints, quaternion = field.spec.joints, "xyzw" if field.is_rotation else None
    return InputPart(field=key, joints=joints, unit=field.spec.unit if joints else None, quaternion=quaternion)


def action_output(contract: Contract) -> OutputSpec:
    """Return the output that is the action of the contract, which has one actuator."""
    ((name, actuator),) = contract.actuators.items()
    return OutputSpec(parts=(OutputPart(actuator=name, joints=tuple(actuator.joints), unit="action"),))


def _input_parts(contract: Contract) -> tuple[InputPart, ...]:
    """Return the vectors of the observation; images are left out."""
    vectors = (key for key, box in contract.observation_space.items() if len(box.shape) <= 1)
    if not (parts := tuple(input_part(contract, key) for key in vectors)):
        raise UsageError(f"{contract.name}: every observation is an image (expected at least one vector)")
    return parts


def _output(contract: Contract, actions: gymnasium.spaces.Box) -> OutputSpec:
    """Return the output whose values from -1 to 1 span the action space."""
    output, (actuator,) = action_output(contract), contract.actuators.values()
    if actuator.scale == "normalized":
        return output
    bounds = {"min": _numbers(actions.low), "max": _numbers(actions.high)}
    return replace(output, normalize=NormalizeSpec(method="min_max", **bounds))


def _numbers(array: NDArray[Any]) -> tuple[float, ...]:
    return tuple(array.astype(np.float64).tolist())


def _vector(observation: Mapping[str, NDArray[Any]], parts: tuple[InputPart, ...]) -> NDArray[np.float64]:
    return np.concatenate([np.asarray(observation[part.field], dtype=np.float64).ravel() for part in parts])
