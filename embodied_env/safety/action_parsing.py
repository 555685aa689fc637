"""Parsing of actions: any object becomes one finite vector, or is refused. The object is never written."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from embodied_env.contract import FloatArray
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.policy import NoAction
from embodied_env.errors import described

NO_ACTION = "form.none"
"""Code of a `NoAction`, which is not malformed."""


class MalformedActionError(Exception):
    """An action whose shape or type is not that of the action space, or a `NoAction`."""

    def __init__(self, code: str, detail: str, vector: FloatArray | None = None) -> None:
        self.finding_code = code
        self.vector = vector
        super().__init__(detail)


def parse_action(action: Any, layout: ActionLayout) -> FloatArray:  # noqa: ANN401 - agents send anything
    """Return `action` as a new finite float64 vector, shape (n_joints,).

    An action is one vector, or with several actuators a dict of them by name.

    Raises:
        MalformedActionError: for anything else.
    """
    if isinstance(action, NoAction):
        raise MalformedActionError(NO_ACTION, action.reason)
    try:
        if len(layout.slices) == 1:
            vector = _parse_vector(action, layout.size, "action")
        elif isinstance(action, Mapping) and set(action) == set(layout.slices):
            parts = [_parse_vector(action[name], part.stop - part.start, name) for name, part in layout.slices.items()]
            vector = np.concatenate(parts)
        else:
            keys = sorted(map(str, action)) if isinstance(action, Mapping) else type(action).__name__
            detail = f"action has the wrong structure: {keys} (expected a dict with the keys {sorted(layout.slices)})"
            raise MalformedActionError("form.shape", detail)  # noqa: TRY301 - one exit for all malformed actions
    except MalformedActionError:
        raise
    except Exception as error:  # noqa: BLE001 - a foreign object may raise anything; the robot must brake, not crash
        raise MalformedActionError("form.type", f"action could not be parsed: {described(error)}") from None
    if not all(map(math.isfinite, vector.tolist())):
        raise MalformedActionError("form.nan", f"action is not finite: {vector.tolist()}", vector)
    return vector


def _parse_vector(value: Any, size: int, name: str) -> FloatArray:  # noqa: ANN401 - agents send anything
    """Copy an array, a sequence or a tensor of `size` real numbers."""
    if hasattr(value, "detach"):  # a torch tensor, possibly on a device or in a graph
        value = value.detach().cpu()
    array = np.asarray(value)
    if array.dtype.kind not in "fiu":
        raise MalformedActionError("form.type", f"{name} has dtype {array.dtype} (expected real numbers)")
    if array.shape != (size,):
        raise MalformedActionError("form.shape", f"{name} has shape {array.shape} (expected ({size},))")
    if array.dtype == np.float64:
        return array.copy()
    with np.errstate(over="ignore", invalid="ignore"):
        return array.astype(np.float64)
