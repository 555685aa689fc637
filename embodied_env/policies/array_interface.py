"""The interface of a model without a policy file: arrays by the contract's names, or one flat vector."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.policy import NoAction, Observation, PolicyIdentity
from embodied_env.errors import UsageError, described
from embodied_env.policies.model import ArraySpec, Inputs, Model, Outputs

FLAT = "the whole observation as one vector"


def read_model(location: str, *, kind: str, most_bytes: int) -> tuple[bytes, str]:
    """Return content and SHA-256 of a model's file; raises UsageError for one that is missing or too large."""
    path = Path(location)
    try:
        size = path.stat().st_size
        if size > most_bytes:
            raise UsageError(f"{kind} too large: {location}: {size} bytes (expected at most {most_bytes})")
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {kind} {location!r}: {error} (expected a file)") from None
    return data, hashlib.sha256(data).hexdigest()


class ArrayInterface:
    """Connects a model whose inputs are keys of the observation, and whose one output is an action of the contract.

    Attributes:
        inputs: input of the model -> key of the observation, or `FLAT`.
        is_stateless: True.
    """

    is_stateless = True

    def __init__(self, model: Model, contract: Contract) -> None:
        """Match the inputs of `model` with the observation by name or size, and its output with the action.

        One inference of zeros is made. Raises UsageError for a model that does not fit.
        """
        self._label, self._layout = f"policy {model.identity.name}", ActionLayout(contract)
        self._space = contract.observation_space
        self.inputs = {key: key for key in self._space.spaces} if model.inputs is None else self._match(model.inputs)
        self._check_output(model, contract)

    def identify(self, identity: PolicyIdentity) -> PolicyIdentity:
        """Return `identity`: there is no policy file."""
        return identity

    def reset(self) -> None:
        """Do nothing: it has no state."""

    def observe(self, observation: Observation) -> None:
        """Do nothing: it has no history."""

    def to_inputs(self, observation: Observation) -> Inputs:
        """Return the value of each input."""
        return {
            name: flatten(observation, self._space.spaces) if key == FLAT else np.asarray(observation[key])
            for name, key in self.inputs.items()
        }

    def to_action(self, outputs: Outputs) -> Any:  # noqa: ANN401 - of the action space
        """Return the action or the chunk in the structure of the action space."""
        (answer,) = outputs.values()
        if answer.ndim == 2 and len(self._layout.slices) > 1:
            return {name: answer[:, part] for name, part in self._layout.slices.items()}
        if answer.ndim == 1 and answer.shape == (self._layout.size,):
            return self._layout.as_action(answer)  # not clipped: the gate does, and reports it
        return answer if answer.ndim == 2 else NoAction(f"answer of the shape {answer.shape}")

    def _match(self, inputs: Mapping[str, ArraySpec]) -> dict[str, str]:
        keys = self._space.spaces
        sizes = {key: int(np.prod(space.shape or ())) for key, space in keys.items()}
        total, label, found = sum(sizes.values()), self._label, {}
        for name, spec in inputs.items():
            if name in keys and _fits(spec.shape, keys[name].shape or ()):
                found[name] = name
            elif name in keys:
                problem = f"input {name!r} has the shape {_text(spec.shape)} (expected {keys[name].shape})"
                raise UsageError(f"{label}: {problem}")
            elif len(inputs) == 1 and _fits(spec.shape, (total,)):
                found[name] = FLAT
            elif len(inputs) == 1:
                parts = ", ".join(f"{key} {size}" for key, size in sizes.items())
                expected = f"expected ({total},): {parts}; map others in a policy file"
                raise UsageError(f"{label}: input {name!r} has the shape {_text(spec.shape)} ({expected})")
            else:
                expected = f"expected keys of the observation: {', '.join(keys)}; map others in a policy file"
                raise UsageError(f"{label}: unknown input {name!r} ({expected})")
        return found

    def _check_output(self, model: Model, contract: Contract) -> None:
        """Raise UsageError unless the answer is an action (n_joints,) or a chunk (n, n_joints) of finite numbers."""
        label, size, joints = self._label, self._layout.size, ", ".join(self._layout.joints)
        bounds = (self._layout.scale.low, self._layout.scale.high)
        for name, spec in (model.outputs or {}).items():
            for bound, expected in zip((spec.low, spec.high), bounds, strict=True):
                if bound is not None and (bound.shape != expected.shape or not np.allclose(bound, expected, atol=1e-6)):
                    problem = f"output {name!r} has the bound {bound.tolist()} (expected the action space "
                    raise UsageError(f"{label}: {problem}{contract.action_space}); map it in a policy file")
        model.reset(seed=0, episode_index=0)
        zeros = {key: np.zeros(space.shape or (), dtype=space.dtype) for key, space in self._space.spaces.items()}
        try:
            outputs = model.infer(self.to_inputs(zeros))
        except Exception as error:
            raise UsageError(f"{label}: inference of zeros failed: {described(error)}") from error
        if isinstance(outputs, NoAction):
            raise UsageError(f"{label}: no action for an observation of zeros: {outputs.reason}")
        if len(outputs) != 1:
            raise UsageError(
                f"{label}: outputs {list(outputs)} (expected one, the action); map others in a policy file"
            )
        (answer,) = outputs.values()
        if answer.ndim not in (1, 2) or answer.shape[-1] != size or 0 in answer.shape:
            raise UsageError(f"{label}: action of the shape {answer.shape} (expected ({size},): {joints})")
        if answer.dtype.kind not in "fiu" or not np.isfinite(answer).all():
            raise UsageError(f"{label}: no finite action for an observation of zeros (expected numbers)")


def flatten(observation: Observation, keys: Mapping[str, Any]) -> NDArray[np.float64]:
    """Return the observation as one vector, in the order of its space."""
    return np.concatenate([np.asarray(observation[key], dtype=np.float64).ravel() for key in keys])


def _fits(shape: Sequence[int | None], expected: tuple[int, ...]) -> bool:
    return len(shape) == len(expected) and all(a in (None, b) for a, b in zip(shape, expected, strict=True))


def _text(shape: Sequence[int | None]) -> str:
    return "(" + ", ".join("any" if length is None else str(length) for length in shape) + ")"
