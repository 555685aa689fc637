"""The interface of a model without a policy file: arrays by the contract's names, or one flat vector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import flatdim, flatten

from embodied_env.contract import Contract
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.policy import NoAction, Observation
from embodied_env.errors import UsageError
from embodied_env.policies.policy_model import ArraySpec, Inputs, Interface, Outputs, PolicyModel, check_inference

FLAT = "the whole observation as one vector"
_REMEDY = "map others in a policy file"


class ArrayInterface(Interface):
    """Connects a model whose inputs are keys of the observation, and whose one output is an action of the contract.

    Attributes:
        inputs: input of the model -> key of the observation, or `FLAT`.
    """

    is_stateless = True

    def __init__(self, model: PolicyModel, contract: Contract) -> None:
        """Match the inputs of `model` with the observation by name or size, and its output with the action.

        Raises UsageError for a model that does not fit.
        """
        self._label, self._layout = f"policy {model.identity.name}", ActionLayout(contract)
        self._contract, self._space = contract, contract.observation_space
        self.inputs = {key: key for key in self._space.spaces} if model.inputs is None else self._match(model.inputs)

    def check(self, model: PolicyModel) -> None:
        """Raise UsageError for an output with other bounds than an action; makes one inference."""
        scale = self._layout.scale
        for name, spec in (model.outputs or {}).items():
            for bound, expected in ((spec.low, scale.low), (spec.high, scale.high)):
                if bound is not None and (bound.shape != expected.shape or not np.allclose(bound, expected, atol=1e-6)):
                    problem = f"output {name!r} has the bound {bound.tolist()}"
                    remedy = f"expected the action space {self._contract.action_space}); map it in a policy file"
                    raise UsageError(f"{self._label}: {problem} ({remedy}")
        check_inference(model, self, self._contract, label=self._label)

    def to_inputs(self, observation: Observation) -> Inputs:
        """Return the value of each input."""
        return {
            name: np.asarray(flatten(self._space, observation) if key == FLAT else observation[key])
            for name, key in self.inputs.items()
        }

    def to_action(self, outputs: Outputs) -> Any:  # noqa: ANN401 - of the action space
        """Return the action or the chunk in the structure of the action space, or `NoAction` if it is none."""
        if len(outputs) != 1:
            return NoAction(f"outputs {list(outputs)} (expected one, the action); {_REMEDY}")
        (answer,) = outputs.values()
        if answer.ndim not in (1, 2) or answer.shape[-1] != self._layout.size or not answer.size:
            joints = ", ".join(self._layout.joints)
            return NoAction(f"action of the shape {answer.shape} (expected ({self._layout.size},): {joints})")
        if answer.dtype.kind not in "fiu" or not np.isfinite(answer).all():
            return NoAction("action with values that are not finite numbers")
        return self._layout.as_action(answer)  # not clipped: the gate does, and reports it

    def _match(self, inputs: Mapping[str, ArraySpec]) -> dict[str, str]:
        found, shapes = {}, {key: space.shape or () for key, space in self._space.spaces.items()}
        for name, spec in inputs.items():
            if name in shapes:
                key, shape, parts = name, shapes[name], ""
            elif len(inputs) == 1:
                sizes = ", ".join(f"{key} {flatdim(space)}" for key, space in self._space.spaces.items())
                key, shape, parts = FLAT, (flatdim(self._space),), f": {sizes}; {_REMEDY}"
            else:
                expected = f"expected keys of the observation: {', '.join(shapes)}; {_REMEDY}"
                raise UsageError(f"{self._label}: unknown input {name!r} ({expected})")
            if not spec.fits(shape):
                problem = f"input {name!r} has the shape {spec.shape} (expected {shape}{parts})"
                raise UsageError(f"{self._label}: {problem}")
            found[name] = key
        return found
