"""The interface of a model by a policy file: its inputs and outputs in terms of a contract, checked before use."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract
from embodied_env.contract.value_checks import allow, one_of, require
from embodied_env.core.policy import NoAction, Observation, PolicyIdentity
from embodied_env.errors import ContractError, UsageError
from embodied_env.policies.action_mapping import ActionMapping
from embodied_env.policies.input_mapping import ImageInput, TextInput, VectorInput
from embodied_env.policies.model import ArraySpec, Inputs, Model, Outputs, check_inference, plausible_observation
from embodied_env.policies.policy_file import InputSpec, PolicyFile

_ROUNDING = 1e-6
_LONGEST = 10_000  # history, in control periods
_MOST_VALUES = 2**26  # of one input


class PolicyFileInterface:
    """Connects a model with a contract as its policy file says.

    Attributes:
        inputs: reader of each input, by the model's names.
        actions: the mapping of the outputs.
        is_stateless: whether an action depends on the observation of its step alone.
    """

    def __init__(self, file: PolicyFile, contract: Contract) -> None:
        """Find everything that `file` names in `contract`; raises UsageError for what does not fit."""
        self.file, self._contract, self._label = file, contract, f"policy file {file.source}"
        if difference := file.difference(contract):
            problem = f"{contract.name} is not the contract of the training: {difference}"
            raise UsageError(f"{self._label}: {problem}; train again, or remove the key contract if that is harmless")
        try:
            self.actions = ActionMapping(file, contract)
            self.inputs = {name: _reader(file, contract, f"inputs.{name}", spec) for name, spec in file.inputs.items()}
            self._lags = {name: self._find_lags(f"inputs.{name}", spec) for name, spec in file.inputs.items()}
            self._check_joint_names()
            for name, lags in self._lags.items():
                size = len(lags) * math.prod(getattr(self.inputs[name], "shape", ()))
                allow(size <= _MOST_VALUES, f"inputs.{name}.history.steps", f"{size} values", f"at most {_MOST_VALUES}")
        except ContractError as error:
            raise UsageError(f"{self._label}: {error}") from None
        self._outputs_seen = {part.last_output for spec in file.inputs.values() for part in spec.parts or ()} - {None}
        longest = max(lag for lags in self._lags.values() for lag in lags)
        self._seen: deque[tuple[Observation, Mapping[str, NDArray[Any]]]] = deque(maxlen=longest + 1)
        self.is_stateless = longest == 0 and not self._outputs_seen and not self.actions.is_relative
        self.reset()

    def identify(self, identity: PolicyIdentity) -> PolicyIdentity:
        """Return `identity` with the name and the SHA-256 of the policy file."""
        return replace(identity, policy_file=self.file.source, policy_file_sha256=self.file.sha256)

    def reset(self) -> None:
        """Discard history and last outputs."""
        self._seen.clear()
        self._last_outputs = {name: np.zeros(self.actions.shapes[name]) for name in self._outputs_seen if name}

    def observe(self, observation: Observation) -> None:
        """Add the observation of a step to the history."""
        self._seen.append((observation, self._last_outputs))

    def to_inputs(self, observation: Observation) -> Inputs:
        """Return the value of each input."""
        self.observe(observation)
        return {name: self._value(name, reader) for name, reader in self.inputs.items()}

    def to_action(self, outputs: Outputs) -> Any:  # noqa: ANN401 - of the action space
        """Return the action, the chunk, or `NoAction` for outputs that are not valid."""
        action = self.actions.read(outputs, self._seen[-1][0])
        if self._last_outputs and not isinstance(action, NoAction):
            self._last_outputs = {name: np.asarray(outputs[name], dtype=np.float64) for name in self._last_outputs}
        return action

    def check(self, model: Model) -> None:
        """Raise UsageError unless `model` has these inputs and outputs; makes one inference."""
        texts = {name for name, reader in self.inputs.items() if isinstance(reader, TextInput)}
        self._check_names("input", self.inputs.keys() - texts, model.inputs)
        self._check_names("output", self.actions.shapes.keys(), model.outputs)
        example = self.to_inputs(plausible_observation(self._contract))
        for name, spec in (model.inputs or {}).items():
            value = example.get(name)
            if isinstance(value, np.ndarray):
                self._check_input(name, value, spec)
        for name, spec in (model.outputs or {}).items():
            shape = self.actions.shapes.get(name, spec.shape)
            if not spec.fits(shape):
                labels = ", ".join(self.actions.labels[name])
                problem = f"output {name!r} of the model has the shape {_text(spec.shape)}"
                raise UsageError(f"{self._label}: {problem} (expected {_text(shape)}: {labels})")
        check_inference(model, self, self._contract, label=self._label)

    def _check_names(self, kind: str, named: Any, specs: Mapping[str, ArraySpec] | None) -> None:  # noqa: ANN401
        if specs is None:
            return
        if unknown := sorted(set(named) - specs.keys()):
            raise UsageError(f"{self._label}: unknown {kind} of the model: {one_of(unknown[0], specs)}")
        if kind == "input" and (lost := [name for name in specs if name not in self.inputs]):
            raise UsageError(
                f"{self._label}: no entry for the input {lost[0]!r} of the model (expected inputs.{lost[0]})"
            )

    def _check_input(self, name: str, value: NDArray[Any], spec: ArraySpec) -> None:
        reader = self.inputs[name]
        labels = f": {', '.join(reader.labels)}" if isinstance(reader, VectorInput) else ""
        if not spec.fits(value.shape):
            problem = f"input {name!r} has {_text(value.shape)} values, the model's has {_text(spec.shape)}"
            raise UsageError(f"{self._label}: {problem} (expected the same){labels}")
        if value.dtype.kind != spec.dtype.kind:
            remedy = "; give the range of the training, or none for uint8" if isinstance(reader, ImageInput) else ""
            problem = f"input {name!r} is {value.dtype}, the model's is {spec.dtype} (expected the same kind)"
            raise UsageError(f"{self._label}: {problem}{remedy}")

    def _check_joint_names(self) -> None:
        used: set[str] = set()
        for inputs in self.file.inputs.values():
            used.update(joint for part in inputs.parts or () for joint in part.joints or ())
        for outputs in self.file.outputs.values():
            used.update(joint for part in outputs.parts for joint in part.joints or ())
        for key, named in (("joint_names", self.file.joint_names), ("limits", self.file.limits)):
            for name in named:
                require(name in used, key, f"unused joint {name!r} (expected a joint of inputs or outputs)")

    def _find_lags(self, path: str, spec: InputSpec) -> list[int]:
        """Return the control steps between each row of an input and the newest observation."""
        lags = []
        for step in (0,) if spec.history is None else spec.history.steps:
            lag = -step * self.actions.ratio
            problem = f"{step} is {lag:g} control periods ago (expected a whole number, at most {_LONGEST})"
            is_whole = abs(lag - round(lag)) <= _ROUNDING * max(1.0, lag) and lag <= _LONGEST
            require(is_whole, f"{path}.history.steps", problem)
            lags.append(round(lag))
        return lags

    def _value(self, name: str, reader: VectorInput | ImageInput | TextInput) -> NDArray[Any] | str:
        history, lags = self.file.inputs[name].history, self._lags[name]
        if isinstance(reader, TextInput):
            return reader.read()
        rows: list[NDArray[Any]] = []
        for lag in lags:
            value = reader.read(*self._seen[max(len(self._seen) - 1 - lag, 0)])
            is_padded = lag >= len(self._seen) and history is not None and history.pad == "zeros"
            rows.append(np.zeros_like(value) if is_padded else value)
        if history is None:
            values = rows[0]
        elif history.layout == "by_part" and isinstance(reader, VectorInput):
            values = np.concatenate([row[part] for part in reader.slices for row in rows])
        else:
            values = np.stack(rows) if history.layout == "stacked" else np.concatenate(rows)
        return values if isinstance(reader, ImageInput) else values.astype(np.float32)


def _reader(file: PolicyFile, contract: Contract, path: str, spec: InputSpec) -> VectorInput | ImageInput | TextInput:
    if spec.text is not None:
        return TextInput(contract, path)
    if spec.image is not None:
        return ImageInput(file, contract, path, spec, spec.image)
    return VectorInput(file, contract, path, spec)


def _text(shape: tuple[int | None, ...]) -> str:
    return "x".join("any" if length is None else str(length) for length in shape)
