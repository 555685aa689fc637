"""The interface of a learned policy without a policy file: arrays by the contract's names, or one flat vector."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.policy import NoAction, Observation
from embodied_env.errors import UsageError

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
    """Converts observations to a model's inputs, and its answer to actions of the contract.

    Attributes:
        inputs: input of the model -> key of the observation, or `FLAT`.
    """

    def __init__(self, label: str, contract: Contract, inputs: Mapping[str, Sequence[int | None]]) -> None:
        """Match `inputs` (name -> shape without the batch, None: any length) with the observation by name or size."""
        self._label, self._layout = label, ActionLayout(contract)
        self._space = contract.observation_space
        keys = self._space.spaces
        sizes = {key: int(np.prod(space.shape or ())) for key, space in keys.items()}
        total = sum(sizes.values())
        self.inputs: dict[str, str] = {}
        for name, shape in inputs.items():
            if name in keys and _fits(shape, keys[name].shape or ()):
                self.inputs[name] = name
            elif name in keys:
                raise UsageError(f"{label}: input {name!r} has the shape {_text(shape)} (expected {keys[name].shape})")
            elif len(inputs) == 1 and _fits(shape, (total,)):
                self.inputs[name] = FLAT
            elif len(inputs) == 1:
                parts = ", ".join(f"{key} {size}" for key, size in sizes.items())
                expected = f"expected ({total},): {parts}"
                raise UsageError(f"{label}: input {name!r} has the shape {_text(shape)} ({expected})")
            else:
                raise UsageError(
                    f"{label}: unknown input {name!r} (expected keys of the observation: {', '.join(keys)})"
                )

    def arrays(self, observation: Observation) -> dict[str, NDArray[Any]]:
        """Return the value of each input, without a batch."""
        return {
            name: flatten(observation, self._space.spaces) if key == FLAT else np.asarray(observation[key])
            for name, key in self.inputs.items()
        }

    def zeros(self) -> dict[str, NDArray[Any]]:
        """Return an observation of zeros."""
        return {key: np.zeros(space.shape or (), dtype=space.dtype) for key, space in self._space.spaces.items()}

    def check_answer(self, answer: NDArray[Any]) -> None:
        """Raise UsageError unless the answer is an action (n_joints,) or a chunk (n, n_joints) of finite numbers."""
        size, joints = self._layout.size, ", ".join(self._layout.joints)
        if answer.ndim not in (1, 2) or answer.shape[-1] != size or 0 in answer.shape:
            raise UsageError(f"{self._label}: action of the shape {answer.shape} (expected ({size},): {joints})")
        if answer.dtype.kind not in "fiu" or not np.isfinite(answer).all():
            raise UsageError(f"{self._label}: no finite action for an observation of zeros (expected numbers)")

    def to_action(self, answer: NDArray[Any]) -> Any:  # noqa: ANN401 - of the action space
        """Return the action or the chunk in the structure of the action space."""
        if answer.ndim == 2 and len(self._layout.slices) > 1:
            return {name: answer[:, part] for name, part in self._layout.slices.items()}
        if answer.ndim == 1 and answer.shape == (self._layout.size,):
            return self._layout.as_action(answer)  # not clipped: the gate does, and reports it
        return answer if answer.ndim == 2 else NoAction(f"answer of the shape {answer.shape}")


def flatten(observation: Observation, keys: Mapping[str, Any]) -> NDArray[np.float64]:
    """Return the observation as one vector, in the order of its space."""
    return np.concatenate([np.asarray(observation[key], dtype=np.float64).ravel() for key in keys])


def _fits(shape: Sequence[int | None], expected: tuple[int, ...]) -> bool:
    return len(shape) == len(expected) and all(a in (None, b) for a, b in zip(shape, expected, strict=True))


def _text(shape: Sequence[int | None]) -> str:
    return "(" + ", ".join("any" if length is None else str(length) for length in shape) + ")"
