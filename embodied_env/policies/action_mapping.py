"""Actions of a contract from a policy with other orders, units, modes or control periods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract
from embodied_env.contract.actuator_schema import ActuatorSpec, FloatArray
from embodied_env.contract.spaces import ActionLayout
from embodied_env.contract.value_checks import allow, one_of, require
from embodied_env.core.measured_joints import find_positions
from embodied_env.core.policy import NoAction, Observation
from embodied_env.policies.input_mapping import find_conversion, joint_places
from embodied_env.policies.normalization import make_normalizer
from embodied_env.policies.policy_file import OutputPart, PolicyFile, ThresholdSpec

_MODES = {"position": ("absolute", "relative"), "position_delta": ("delta",)}  # the others: absolute
_ACTION = "action"
_EQUAL = 1e-6  # relative difference of control periods
_ROUNDING = 1e-9
_MOST_STEPS = 10_000  # control periods of one inference


class ActionMapping:
    """Maps the outputs of one inference to the actions of a contract.

    Attributes:
        shapes: of each output.
        labels: output -> name of each component.
        ratio: control periods of the contract in one of the policy.
        is_relative: whether an action depends on the observation.
        steps: control periods of the contract that an inference covers.
    """

    def __init__(self, file: PolicyFile, contract: Contract) -> None:
        """Find the joints by name, or raise ContractError for those that do not fit."""
        self._layout = ActionLayout(contract)
        size, chunk = self._layout.size, file.chunk
        self._is_single, rows = chunk is None, () if chunk is None else (chunk.length,)
        self.shapes = {name: (*rows, spec.size) for name, spec in file.outputs.items()}
        self.labels: dict[str, list[str]] = {name: [] for name in file.outputs}
        self._normalizers = {
            name: make_normalizer(file, f"outputs.{name}", spec.normalize, spec.size)
            for name, spec in file.outputs.items()
        }
        self._sources: list[tuple[str, int] | None] = [None] * size  # by column of the action
        self._gain, self._bias = np.ones(size), np.zeros(size)
        self._thresholds: dict[int, ThresholdSpec] = {}
        self._is_action, self._is_relative = np.zeros(size, dtype=np.bool_), np.zeros(size, dtype=np.bool_)
        for name, spec in file.outputs.items():
            for index, part in enumerate(spec.parts):
                self._add(file, contract, f"outputs.{name}.parts[{index}]", name, part)
        joints = self._layout.joints
        lost = [repr(joint) for joint, source in zip(joints, self._sources, strict=True) if source is None]
        require(not lost, "outputs", f"no counterpart in the policy for {', '.join(lost)} (expected all joints)")
        self.is_relative, known = bool(self._is_relative.any()), find_positions(contract)
        relative = [joint for joint, is_so in zip(joints, self._is_relative, strict=True) if is_so]
        unseen = [joint for joint in relative if joint not in known]
        require(not unseen, "outputs", f"relative to joints that are not observed: {', '.join(unseen)}")
        self._positions = [(f"{sensor}_position", place) for sensor, place in map(known.__getitem__, relative)]
        self.ratio = file.control_period_s / contract.control_period_s
        is_equal = abs(self.ratio - 1.0) <= _EQUAL
        self._resample = None if is_equal else file.resample
        problem = f"{file.control_period_s:g} s, that of the contract is {contract.control_period_s:g} s"
        is_known = is_equal or file.resample is not None
        require(is_known, "control_period_s", f"{problem} (expected the same); or set resample: hold or linear")
        length = 1 if chunk is None else chunk.length
        count = length if chunk is None else chunk.execute or length
        self.steps, self._most = round(count * self.ratio), min(round(length * self.ratio), _MOST_STEPS)
        duration = f"{count} actions of {file.control_period_s:g} s are {self.steps} steps of the contract"
        allow(1 <= self.steps <= _MOST_STEPS, "resample", duration, f"1 to {_MOST_STEPS}")

    @np.errstate(over="ignore", invalid="ignore")  # checked below
    def read(self, outputs: Mapping[str, NDArray[Any]], observation: Observation) -> Any:  # noqa: ANN401
        """Return the action or the whole chunk for the outputs for `observation`, or `NoAction`."""
        values: dict[str, FloatArray] = {}
        for name, shape in self.shapes.items():
            found = outputs.get(name)
            if not isinstance(found, np.ndarray) or found.shape != shape:
                given = "no array" if not isinstance(found, np.ndarray) else f"the shape {found.shape}"
                return NoAction(f"output {name} has {given} (expected {shape})")
            if found.dtype.kind not in "fiu" or not np.isfinite(found).all():
                return NoAction(f"output {name} has values that are not finite numbers")
            values[name] = np.atleast_2d(found.astype(np.float64))
            if (normalizer := self._normalizers[name]) is not None:
                values[name] = normalizer.unnormalize(values[name])
        columns = [values[name][:, index] for name, index in filter(None, self._sources)]
        rows = np.stack(columns, axis=1) * self._gain + self._bias
        for column, threshold in self._thresholds.items():
            value = np.where(columns[column] > threshold.at, threshold.above, threshold.below)
            rows[:, column] = value * self._gain[column] + self._bias[column]
        if self.is_relative:
            newest = [np.asarray(observation[key])[..., place].ravel()[-1] for key, place in self._positions]
            rows[:, self._is_relative] += newest
        rows = self._resampled(rows) if self._resample is not None else rows
        actions = np.array([np.where(self._is_action, row, self._layout.scale.from_si(row)) for row in rows])
        if not np.isfinite(actions).all():
            return NoAction("action with values that are not finite numbers")
        is_single = self._is_single and self.steps == 1  # not clipped: the gate does, and reports it
        return self._layout.as_action(actions[0] if is_single else actions)

    def _resampled(self, rows: FloatArray) -> FloatArray:
        """Return one row per control period of the contract, from one per control period of the policy."""
        times = np.arange(self._most + 1) / self.ratio
        held = rows[np.minimum((times[:-1] + _ROUNDING).astype(np.int64), len(rows) - 1)]
        knots, sums = np.arange(len(rows) + 1), np.vstack([np.zeros(rows.shape[1]), np.cumsum(rows, axis=0)])
        for column in range(rows.shape[1]):
            if self._layout.is_delta[column]:
                held[:, column] = np.diff(np.interp(times, knots, sums[:, column]))
            elif self._resample == "linear" and column not in self._thresholds:
                held[:, column] = np.interp(times[:-1], knots[:-1], rows[:, column])
        return held

    def _add(self, file: PolicyFile, contract: Contract, path: str, output: str, part: OutputPart) -> None:
        if part.ignore is not None:
            self.labels[output] += ["ignored"] * part.ignore
            return
        name = str(part.actuator)
        require(name in contract.actuators, f"{path}.actuator", one_of(name, contract.actuators))
        actuator = contract.actuators[name]
        known = tuple(actuator.joints)
        places = joint_places(file, f"{path}.joints", part.joints or (), known, f"joints of actuators.{name}")
        joints = [known[place] for place in places]
        is_action, modes = part.unit == _ACTION, _MODES.get(actuator.command, ("absolute",))
        if is_action:
            allow(part.mode == "absolute", f"{path}.mode", part.mode, "absolute with the unit action")
            units = [_ACTION] * len(joints)
        else:
            problem = f"{part.mode} for actuators.{name}.command {actuator.command} (expected {' or '.join(modes)})"
            remedy = "correct it, or declare another command in the contract"
            require(part.mode in modes, f"{path}.mode", f"{problem}; {remedy}")
            units = [_unit_of(actuator, joint) for joint in joints]
        columns = [self._layout.slices[name].start + place for place in places]
        for index, (joint, column) in enumerate(zip(joints, columns, strict=True), start=len(self.labels[output])):
            require(self._sources[column] is None, f"{path}.joints", f"{joint!r} is in two parts (expected one)")
            self._sources[column] = (output, index)
            self.labels[output].append(f"{name}[{joint}]")
            if part.threshold is not None:
                self._thresholds[column] = part.threshold
        factor, zero, gain, offset = find_conversion(file, contract, path, part, [*zip(joints, units, strict=True)])
        self._gain[columns] = gain / factor
        self._bias[columns] = (offset - (zero if part.mode == "absolute" else 0.0)) / factor
        self._is_action[columns], self._is_relative[columns] = is_action, part.mode == "relative"


def _unit_of(actuator: ActuatorSpec, joint: str) -> str:
    if actuator.command == "twist":
        return "m/s" if joint.startswith("linear") else "rad/s"
    return f"{actuator.joints[joint].unit}/s" if actuator.is_velocity else actuator.joints[joint].unit
