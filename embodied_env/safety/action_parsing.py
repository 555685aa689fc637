"""The gate of forms: whatever an agent sends becomes one finite vector, or is refused. It is never written."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from embodied_env.contract import FloatArray
from embodied_env.contract.spaces import ActionLayout
from embodied_env.errors import described


class MalformedActionError(Exception):
    """An action that is not an element of the action space's shape and type."""

    def __init__(self, code: str, detail: str, vector: FloatArray | None = None) -> None:
        """Keep the finding's code, and the vector that was sent where it had the right shape."""
        self.finding_code = code
        self.vector = vector
        super().__init__(detail)


def parse_action(action: Any, layout: ActionLayout) -> FloatArray:  # noqa: ANN401 - agents send anything
    """Return a finite flat float64 copy of `action`; raises MalformedActionError."""
    try:
        vector = _read_structure(action, layout)
    except MalformedActionError:
        raise
    except Exception as error:  # noqa: BLE001 - a foreign object may raise anything; the robot must brake, not crash
        raise MalformedActionError("form.type", f"the action cannot be read: {described(error)}") from None
    if not all(map(math.isfinite, vector.tolist())):
        raise MalformedActionError("form.nan", f"the action {vector.tolist()} is not finite", vector)
    return vector


def _read_structure(action: Any, layout: ActionLayout) -> FloatArray:  # noqa: ANN401 - agents send anything
    """Copy an action: one vector, or a dict of them when there are several actuators."""
    if len(layout.slices) == 1:
        return _read_vector(action, layout.size, "the action")
    if not isinstance(action, Mapping) or set(action) != set(layout.slices):
        keys = sorted(map(str, action)) if isinstance(action, Mapping) else type(action).__name__
        raise MalformedActionError("form.shape", f"the action is {keys}; allowed: a dict of {sorted(layout.slices)}")
    return np.concatenate(
        [_read_vector(action[name], part.stop - part.start, name) for name, part in layout.slices.items()]
    )


def _read_vector(value: Any, size: int, name: str) -> FloatArray:  # noqa: ANN401 - agents send anything
    """Copy one actuator's part of an action: an array, a sequence or a tensor of `size` real numbers."""
    if hasattr(value, "detach"):  # a torch tensor, perhaps on a device, perhaps in a graph
        value = value.detach().cpu()
    array = np.asarray(value)
    if array.dtype.kind not in "fiu":
        raise MalformedActionError("form.type", f"{name} has dtype {array.dtype}; allowed: real numbers")
    if array.shape != (size,):
        raise MalformedActionError("form.shape", f"{name} has shape {array.shape}; allowed: ({size},)")
    if array.dtype == np.float64:
        return array.copy()
    with np.errstate(over="ignore", invalid="ignore"):
        return array.astype(np.float64)
