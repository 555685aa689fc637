"""Inputs and outputs of a model by a policy file, checked against a contract before use."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract
from embodied_env.contract.actuator_schema import ActuatorSpec, FloatArray
from embodied_env.contract.spaces import ActionLayout, field_layouts
from embodied_env.contract.value_checks import allow, one_of, require
from embodied_env.core.measured_joints import find_positions
from embodied_env.core.policy import NoAction, Observation, PolicyIdentity
from embodied_env.core.types import EpisodeStart
from embodied_env.errors import ContractError, UsageError
from embodied_env.policies.input_mapping import ImageInput, VectorInput, find_conversion, joint_places
from embodied_env.policies.normalization import make_normalizer
from embodied_env.policies.policy_file import OutputPart, PolicyFile, ThresholdSpec
from embodied_env.policies.policy_model import (
    ArraySpec,
    Inputs,
    Interface,
    Outputs,
    PolicyModel,
    TimedModel,
    check_inference,
    plausible_observation,
)

_Seen = tuple[Observation, Mapping[str, NDArray[Any]], dict[str, NDArray[Any]]]
"""An observation, the last outputs before it, and the inputs that have been read from them."""

_log = logging.getLogger(__name__)

_LONGEST = 10_000  # history, in control periods
_MOST_VALUES = 2**26  # values of all inputs
_MOST_BYTES = 2**30  # bytes of a history
_MODES = {"position": ("absolute", "relative"), "position_delta": ("delta",)}  # the others: absolute
_ACTION = "action"
_EQUAL = 1e-6  # relative difference of control periods
_ROUNDING = 1e-9
_MOST_STEPS = 10_000  # control periods of one inference


class PolicyFileInterface(Interface):
    """Connects a model with a contract by its policy file.

    Attributes:
        inputs: reader of each vector and image, by the model's names.
        actions: the mapping of the outputs.
    """

    def __init__(self, file: PolicyFile, contract: Contract) -> None:
        """Find the names of `file` in `contract`, or raise UsageError for names that do not fit."""
        self.file, self._contract, self._label = file, contract, f"policy file {file.source}"
        if difference := file.difference(contract):
            problem = f"{contract.name} is not the contract of the training: {difference}"
            raise UsageError(f"{self._label}: {problem}; train again, or remove the key contract if that is harmless")
        self.inputs: dict[str, VectorInput | ImageInput] = {}
        self._texts: dict[str, str] = {}
        self._lags: dict[str, list[int]] = {}
        try:
            self.actions = ActionMapping(file, contract)
            self._add_inputs()
            self._check_joint_names()
        except ContractError as error:
            raise UsageError(f"{self._label}: {error}") from None
        self.required_sensors = _read_sensors(file, contract)
        self._outputs_seen = {
            part.last_output for spec in file.inputs.values() for part in spec.parts or () if part.last_output
        }
        longest = max((lag for lags in self._lags.values() for lag in lags), default=0)
        boxes = contract.observation_space.spaces.values()
        size = sum(math.prod(box.shape or ()) * np.dtype(box.dtype).itemsize for box in boxes)
        n_bytes = longest * (size + sum(4 * math.prod(reader.shape) for reader in self.inputs.values()))
        if n_bytes > _MOST_BYTES:
            problem = f"history of {longest} observations of the contract, {n_bytes / 2**20:.0f} MiB"
            raise UsageError(f"{self._label}: {problem} (expected at most {_MOST_BYTES / 2**20:g} MiB)")
        self._seen: deque[_Seen] = deque(maxlen=longest + 1)
        self.has_history = longest > 0
        self.is_stateless = longest == 0 and not self._outputs_seen and not self.actions.is_relative
        self.rows_per_step = None if self.actions.is_relative else 1.0 / self.actions.ratio
        self.n_action_steps = self.actions.steps
        self.reset()

    def identify(self, identity: PolicyIdentity) -> PolicyIdentity:
        """Return `identity` with the name and the SHA-256 of the policy file."""
        return replace(identity, policy_file=self.file.source, policy_file_sha256=self.file.sha256)

    def reset(self) -> None:
        """Discard history and last outputs."""
        self._seen.clear()
        self._last_outputs = {name: np.zeros(self.actions.shapes[name]) for name in self._outputs_seen}

    def instruct(self, instruction: str) -> bool:
        """Use this prompt in the inputs of text ``instruction``, or return False without any."""
        self._texts = dict.fromkeys(self._texts, instruction)
        return bool(self._texts)

    def observe(self, observation: Observation) -> None:
        """Add the observation of a step to the history."""
        kept = {key: np.array(value) for key, value in observation.items()} if self.has_history else observation
        self._seen.append((kept, self._last_outputs, {}))  # copied: the next step may overwrite the arrays

    def to_start(self, start: EpisodeStart) -> EpisodeStart:
        """Return a recorded start by joint names of the contract, without converted joints."""
        parts = (part for spec in self.file.outputs.values() for part in spec.parts)
        same = [joint for part in parts if (part.sign, part.offset) == (1, 0.0) for joint in part.joints or ()]
        named = {joint: self.file.joint_names.get(joint, joint) for joint in same if joint in start.positions}
        return replace(start, positions={own: start.positions[joint] for joint, own in named.items()})

    def to_inputs(self, observation: Observation) -> Inputs:
        """Return the value of each input."""
        self.observe(observation)
        return {name: self._texts[name] if name in self._texts else self._read(name) for name in self.file.inputs}

    def to_action(self, outputs: Outputs) -> Any:  # noqa: ANN401 - of the action space
        """Return the action, the chunk, or `NoAction` for outputs that are not valid."""
        action = self.actions.read(outputs, self._seen[-1][0])
        if self._last_outputs and not isinstance(action, NoAction):
            self._last_outputs = {name: np.asarray(outputs[name], dtype=np.float64) for name in self._last_outputs}
        return action

    def deviations(self, observation: Observation) -> list[tuple[str, float]]:
        """Return name and distance of each input of a reset from its statistics, without images."""
        last = {name: np.zeros(shape) for name, shape in self.actions.shapes.items()}
        vectors = [reader for reader in self.inputs.values() if isinstance(reader, VectorInput)]
        return [each for reader in vectors for each in reader.deviations(observation, last)]

    def check(self, model: PolicyModel) -> None:
        """Make one inference, and raise UsageError unless `model` has these inputs and outputs."""
        example = self.to_inputs(plausible_observation(self._contract))
        arrays = {name: value for name, value in example.items() if isinstance(value, np.ndarray)}
        labels = {name: reader.labels for name, reader in self.inputs.items() if isinstance(reader, VectorInput)}
        try:
            if isinstance(model, TimedModel):
                own, period_s = self.file.control_period_s, model.control_period_s
                allow(own == period_s, "control_period_s", f"{own:g} s", f"{period_s:g} s, that of the recorded run")
            _check_shapes("input", model.inputs, {name: value.shape for name, value in arrays.items()}, labels)
            _check_shapes("output", model.outputs, self.actions.shapes, self.actions.labels)
            for name, spec in (model.inputs or {}).items():
                require(name in example, f"inputs.{name}", f"no entry for the input {name!r} of the model")
                dtype = arrays[name].dtype if name in arrays else spec.dtype
                remedy = "" if name in labels else "; give the range of the training, or none for uint8"
                problem = f"{dtype}, the model's is {spec.dtype} (expected the same kind){remedy}"
                require(dtype.kind == spec.dtype.kind, f"inputs.{name}", problem)
            for name in self._texts:
                is_taken = model.inputs is None or name in model.inputs
                require(is_taken, f"inputs.{name}", f"unknown input of the model: {one_of(name, model.inputs or ())}")
            if _normalizes(model.identity):
                for kind, specs in (("inputs", self.file.inputs), ("outputs", self.file.outputs)):
                    for name, each in specs.items():
                        problem = "LeRobot's processors normalise (expected no normalize); omit it for lerobot:DIR"
                        require(each.normalize is None, f"{kind}.{name}.normalize", problem)
        except ContractError as error:
            raise UsageError(f"{self._label}: {error}") from None
        check_inference(model, self, self._contract, label=self._label)

    def _add_inputs(self) -> None:
        size, cameras = 0, dict[str, str]()  # image of the observation -> first input with it
        for name, spec in self.file.inputs.items():
            path, contract = f"inputs.{name}", self._contract
            if spec.text is not None:
                problem = f"no task.instruction in the contract {contract.name}"
                require(contract.task.instruction is not None, f"{path}.text", problem)
                self._texts[name] = str(contract.task.instruction)
                continue
            if spec.image is not None:
                if (other := cameras.setdefault(spec.image.field, name)) != name:
                    text = "%s: inputs.%s and inputs.%s are the same image, %s (expected a camera each)"
                    _log.warning(text, self._label, other, name, spec.image.field)
                self.inputs[name] = ImageInput(self.file, contract, path, spec, spec.image)
            else:
                self.inputs[name] = VectorInput(self.file, contract, path, spec)
            steps = (0,) if spec.history is None else spec.history.steps
            self._lags[name] = [self._find_lag(f"{path}.history.steps", step) for step in steps]
            size += len(steps) * math.prod(self.inputs[name].shape)
            allow(size <= _MOST_VALUES, path, f"{size} values up to here", f"at most {_MOST_VALUES} of all inputs")

    def _find_lag(self, path: str, step: int) -> int:
        """Return the control periods between a row of an input and the newest observation."""
        lag = -step * self.actions.ratio
        is_whole = abs(lag - round(lag)) <= _EQUAL * max(1.0, lag) and lag <= _LONGEST
        problem = f"{step} is {lag:g} control periods ago (expected a whole number, at most {_LONGEST})"
        require(is_whole, path, problem)
        return round(lag)

    def _check_joint_names(self) -> None:
        """Raise ContractError for a joint of `joint_names` or `limits` in no input or output."""
        used = {joint for _, spec in self.file.specs() for part in spec.parts or () for joint in part.joints or ()}
        for key, named in (("joint_names", self.file.joint_names), ("limits", self.file.limits)):
            for name in named:
                require(name in used, key, f"unused joint {name!r} (expected a joint of inputs or outputs)")

    def _read(self, name: str) -> NDArray[Any]:
        reader, history = self.inputs[name], self.file.inputs[name].history
        rows: list[NDArray[Any]] = []
        for lag in self._lags[name]:
            observation, last_outputs, known = self._seen[max(len(self._seen) - 1 - lag, 0)]
            if name not in known:
                known[name] = reader.read(observation, last_outputs)
            value = known[name]
            is_padded = lag >= len(self._seen) and history is not None and history.pad == "zeros"
            rows.append(np.zeros_like(value) if is_padded else value)
        if history is None:
            values = rows[0]
        elif history.layout == "by_part" and isinstance(reader, VectorInput):
            values = np.concatenate([row[part] for part in reader.slices for row in rows])
        else:
            values = np.stack(rows) if history.layout == "stacked" else np.concatenate(rows)
        return values if isinstance(reader, ImageInput) else values.astype(np.float32)


def _read_sensors(file: PolicyFile, contract: Contract) -> tuple[str, ...]:
    """Return the sensors of the inputs of `file`, without those that have a mask."""
    keys = {part.field for spec in file.inputs.values() for part in spec.parts or ()}
    keys |= {spec.image.field for spec in file.inputs.values() if spec.image is not None}
    return tuple(
        name
        for name, sensor in contract.sensors.items()
        if not sensor.mask and any(layout.key in keys for layout in field_layouts(name, sensor))
    )


def _normalizes(identity: PolicyIdentity) -> bool:
    """Return whether a local or served model is one of LeRobot with its processors."""
    found: Any = identity.server
    for key in ("embodied_env", "identity", "format"):
        found = found.get(key) if isinstance(found, Mapping) else None
    return "lerobot" in (identity.format, found)


def _check_shapes(
    kind: str,
    specs: Mapping[str, ArraySpec] | None,
    shapes: Mapping[str, tuple[int, ...]],
    labels: Mapping[str, Sequence[str]],
) -> None:
    """Raise ContractError unless known inputs or outputs have these names and shapes."""
    if specs is None:
        return
    for name, shape in shapes.items():
        path = f"{kind}s.{name}"
        require(name in specs, path, f"unknown {kind} of the model: {one_of(name, specs)}")
        of_what = f": {', '.join(labels[name])}" if name in labels else ""
        wanted = specs[name].shape
        remedy = "; declare the first axis as chunk.length" if kind == "output" and len(wanted) == 2 else ""
        problem = f"shape {shape} (expected {wanted}, the model's){of_what}{remedy}"
        require(specs[name].fits(shape), path, problem)


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
        """Return one row per control period of the contract, from one per policy period."""
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
