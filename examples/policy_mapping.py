"""The policy file of a training, and the environment with the inputs and outputs that it declares.

Training and deployment use one mapping, so that they cannot differ: the vectors of the observation in one input,
normalised by mean and standard deviation, and actions from -1 to 1. Images are neither mapped nor rendered. The ranges
of a laser scanner enter as reciprocals, so that near obstacles count and a ray without a return is close to 0. A vector
such as a goal can enter as its direction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray
from onnx_export import INPUT, OUTPUT

import embodied_env
from embodied_env.contract import Contract
from embodied_env.contract.spaces import ActionLayout
from embodied_env.contract.value_checks import one_of
from embodied_env.core.measured_joints import find_positions
from embodied_env.errors import UsageError
from embodied_env.policies.input_mapping import observed_fields, transform
from embodied_env.policies.policy_file import (
    InputPart,
    NormalizeSpec,
    OutputPart,
    OutputSpec,
    PolicyFile,
    PolicyInputSpec,
    read_policy_file,
    trained_on,
)
from embodied_env.policies.policy_file_interface import PolicyFileInterface

BOUND = 10.0
"""Inputs are clipped at this number of standard deviations."""

SPEED = 0.2
"""Share of the velocity limits that an output of 1 stands for with position commands: contacts need slow motions."""

LASER_SCAN = "sensor_msgs/msg/LaserScan"
NEAREST_M = 0.1
"""Least range in a reciprocal, and least length of a vector in its direction."""

CONSTANT = 1e-6
"""The standard deviation, in the unit of the reading, below which 1 is taken."""


class MappedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The environment with the input of a policy file as observation and its output as action, both float32."""

    def __init__(self, env: gymnasium.Env[Any, Any], contract: Contract, file: PolicyFile) -> None:
        """Wrap `env`."""
        super().__init__(env)
        self._interface = PolicyFileInterface(file, contract)
        self.observation_space, self.action_space = _mapped_spaces(contract, file)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._interface.reset()
        return self.features(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:  # noqa: ANN401 - Gymnasium's
        """Take one step."""
        observation, reward, terminated, truncated, info = self.env.step(self.action_of(action))
        return self.features(observation), reward, terminated, truncated, info

    def features(self, observation: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Return the input of the policy, shape (n,)."""
        return np.asarray(self._interface.to_inputs(observation)[INPUT], np.float32)

    def action_of(self, output: NDArray[Any]) -> Any:  # noqa: ANN401 - of the action space
        """Return the action of the output of a policy."""
        return self._interface.to_action({OUTPUT: np.asarray(output)})


class MappedVectorEnv(gymnasium.vector.VectorWrapper):
    """The slots of `embodied_env.make_vec` as `MappedEnv` maps one environment, bit for bit, all slots at once.

    Its autoreset mode is SAME_STEP; ``final_obs`` of the infos is mapped too.
    """

    def __init__(self, env: gymnasium.vector.VectorEnv[Any, Any, Any], contract: Contract, file: PolicyFile) -> None:
        """Wrap `env`, whose contract is `contract`, perhaps without its images."""
        super().__init__(env)
        self.single_observation_space, self.single_action_space = _mapped_spaces(contract, file)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)
        self.action_space = batch_space(self.single_action_space, env.num_envs)
        given: Any = file.inputs[INPUT]
        self._parts, self._statistics = given.parts, given.normalize
        (output,), self._range = file.outputs[OUTPUT].parts, file.outputs[OUTPUT].normalize
        known, relative = find_positions(contract), output.joints or () if output.mode == "relative" else ()
        self._positions = [(f"{known[joint][0]}_position", known[joint][1]) for joint in relative]
        self._measured, self._scale = np.zeros(0), ActionLayout(contract).scale

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:  # noqa: ANN401
        """Start the episodes."""
        observations, infos = self.env.reset(seed=seed, options=options)
        return self._observed(observations), infos

    def step(self, actions: NDArray[Any]) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Take one step in each slot."""
        sent = actions.astype(np.float64)
        if self._range is not None:
            low, high = np.array(self._range.min), np.array(self._range.max)
            sent = (sent + 1.0) / 2.0 * (high - low) + low
        if self._positions:
            sent = np.stack([self._scale.from_si(row) for row in sent + self._measured])
        observations, rewards, terminated, truncated, infos = self.env.step(sent)
        for slot in np.flatnonzero(terminated | truncated):
            last = infos["final_obs"][slot]
            infos["final_obs"][slot] = self._features({key: np.asarray(value)[None] for key, value in last.items()})[0]
        return self._observed(observations), rewards, terminated, truncated, infos

    def _observed(self, observations: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        if self._positions:
            self._measured = np.stack([observations[key][:, place] for key, place in self._positions], axis=1)
        return self._features(observations)

    def _features(self, observations: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        values = _vectors(observations, self._parts)
        values = (values - self._statistics.mean) / self._statistics.std
        return np.clip(values, -BOUND, BOUND).astype(np.float32)


def without_images(contract: Contract) -> Contract:
    """Return `contract` without the images of its observation, which take long to render."""
    images = {name for name, sensor in contract.sensors.items() if sensor.encoding is not None}
    if not images:
        return contract

    def kept(named: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in named.items() if name not in images}

    backends = {
        name: {**profile, "sources": kept(profile["sources"])} if "sources" in profile else profile
        for name, profile in contract.backends.items()
    }
    return replace(contract, sensors=kept(contract.sensors), backends=backends)


def measure_policy_file(
    contract: Contract, backend: str, *, name: str, seed: int, steps: int, direction: str | None = None
) -> PolicyFile:
    """Return the policy file with mean and standard deviation of the observations of a random policy.

    The vector with the key `direction` enters as its direction.
    """
    actions = action_box(contract)
    parts = _input_parts(contract, direction)
    env = embodied_env.make(without_images(contract), backend=backend)
    env.action_space.seed(seed)
    seen = []
    try:
        observation, _ = env.reset(seed=seed)
        for _ in range(steps):
            seen.append(observation)
            observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
            if terminated or truncated:
                observation, _ = env.reset()
    finally:
        env.close()
    vectors = _vectors({key: np.stack([each[key] for each in seen]) for key in seen[0]}, parts)
    spread = np.std(vectors, axis=0)
    std = np.where(spread > CONSTANT, spread, 1.0)
    statistics: dict[str, Any] = {"mean": _numbers(np.mean(vectors, axis=0)), "std": _numbers(std), "clip": BOUND}
    trained, files = trained_on(contract)
    return PolicyFile(
        name=name,
        control_period_s=contract.control_period_s,
        contract=trained,
        files=files,
        inputs={INPUT: PolicyInputSpec(parts=parts, normalize=NormalizeSpec(method="mean_std", **statistics))},
        outputs={OUTPUT: _output(contract, actions)},
    )


def resumed_policy_file(file: Path, contract: Contract) -> PolicyFile:
    """Return the policy file of a checkpoint.

    Raises:
        UsageError: it was written for another contract.
    """
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
    joints, unit = field.spec.joints, field.spec.unit if field.spec.joints else None
    return InputPart(field=key, joints=joints, unit=unit, quaternion="xyzw" if field.is_rotation else None)


def action_output(contract: Contract) -> OutputSpec:
    """Return the output that is the action of the contract, which has one actuator."""
    ((name, actuator),) = contract.actuators.items()
    return OutputSpec(parts=(OutputPart(actuator=name, joints=tuple(actuator.joints), unit="action"),))


def _input_parts(contract: Contract, direction: str | None) -> tuple[InputPart, ...]:
    """Return the vectors of the observation without its images."""
    vectors = (key for key, box in contract.observation_space.items() if len(box.shape or ()) <= 1)
    if not (parts := tuple(input_part(contract, key) for key in vectors)):
        raise UsageError(f"{contract.name}: every observation is an image (expected at least one vector)")
    scans = (name for name, each in contract.sensors.items() if each.type == LASER_SCAN)
    changes: dict[str, dict[str, Any]] = {f"{name}_ranges": {"reciprocal_from": NEAREST_M} for name in scans}
    if direction is not None:
        if direction not in (fields := [str(part.field) for part in parts]):
            raise UsageError(f"--direction: {one_of(direction, fields)}")
        changes[direction] = {"direction_from": NEAREST_M}
    return tuple(replace(part, **changes.get(str(part.field), {})) for part in parts)


def _output(contract: Contract, actions: gymnasium.spaces.Box) -> OutputSpec:
    """Return the output from -1 to 1 that spans the action space, or a motion from the measured position."""
    output, ((name, actuator),) = action_output(contract), contract.actuators.items()
    bounds: dict[str, Any] = {"min": _numbers(actions.low), "max": _numbers(actions.high)}
    if actuator.command == "position" and find_positions(contract).keys() >= actuator.joints.keys():
        units = tuple(joint.unit for joint in actuator.joints.values())
        output = OutputSpec(parts=(OutputPart(actuator=name, joints=(*actuator.joints,), unit=units, mode="relative"),))
        furthest = SPEED * ActionLayout(contract).limits.fastest * contract.control_period_s
        bounds = {"min": _numbers(-furthest), "max": _numbers(furthest)}
    elif actuator.scale == "normalized":
        return output
    return replace(output, normalize=NormalizeSpec(method="min_max", **bounds))


def _mapped_spaces(contract: Contract, file: PolicyFile) -> tuple[gymnasium.spaces.Box, gymnasium.spaces.Box]:
    """Return the spaces of the input and the output of a policy."""
    normalize: Any = file.inputs[INPUT].normalize
    bound = np.full(len(normalize.mean), BOUND, dtype=np.float32)
    return (
        gymnasium.spaces.Box(-bound, bound),
        gymnasium.spaces.Box(-1.0, 1.0, action_box(contract).shape, dtype=np.float32),
    )


def _numbers(array: NDArray[Any]) -> tuple[float, ...]:
    return tuple(array.astype(np.float64).tolist())


def _vectors(observations: Mapping[str, NDArray[Any]], parts: Sequence[InputPart]) -> NDArray[np.float64]:
    """Return the inputs before normalisation, a row for each observation."""
    values = [transform(part, np.asarray(observations[str(part.field)], np.float64)) for part in parts]
    return np.concatenate([each.reshape(len(each), -1) for each in values], axis=1)
