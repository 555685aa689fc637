"""Parsing of actions: any object becomes a list of finite floats, or is refused. The object is never written."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.policy import NoAction
from embodied_env.errors import described

NO_ACTION = "form.none"
"""Code of a `NoAction`, which is not malformed."""


class MalformedActionError(Exception):
    """An action whose shape or type is not that of the action space, or a `NoAction`.

    Attributes:
        finding_code: the code of its finding.
        values: the numbers of an action that is not finite; None: it has none.
    """

    def __init__(self, code: str, detail: str, values: list[float] | None = None) -> None:
        self.finding_code = code
        self.values = values
        super().__init__(detail)


def parse_action(action: Any, layout: ActionLayout) -> list[float]:  # noqa: ANN401 - agents send anything
    """Return `action` as finite floats, one per joint in contract order.

    An action is one vector, or with several actuators a dict of them by name.

    Raises:
        MalformedActionError: for anything else.
    """
    if isinstance(action, NoAction):
        raise MalformedActionError(NO_ACTION, action.reason)
    try:
        if len(layout.slices) == 1:
            values = _parse_vector(action, layout.size, "action")
        elif isinstance(action, Mapping) and set(action) == set(layout.slices):
            values = []
            for name, part in layout.slices.items():
                values += _parse_vector(action[name], part.stop - part.start, name)
        else:
            keys = sorted(map(str, action)) if isinstance(action, Mapping) else type(action).__name__
            detail = f"action has the wrong structure: {keys} (expected a dict with the keys {sorted(layout.slices)})"
            raise MalformedActionError("form.shape", detail)  # noqa: TRY301 - one exit for all malformed actions
    except MalformedActionError:
        raise
    except Exception as error:  # noqa: BLE001 - a foreign object may raise anything; the robot must brake, not crash
        raise MalformedActionError("form.type", f"action could not be parsed: {described(error)}") from None
    if not all(map(math.isfinite, values)):
        raise MalformedActionError("form.nan", f"action is not finite: {values}", values)
    return values


def _parse_vector(value: Any, size: int, name: str) -> list[float]:  # noqa: ANN401 - agents send anything
    """Return an array, a sequence or a tensor of `size` real numbers as floats."""
    if hasattr(value, "detach"):  # a torch tensor, possibly on a device or in a graph
        value = value.detach().cpu()
    array = np.asarray(value)
    if array.dtype.kind not in "fiu":
        raise MalformedActionError("form.type", f"{name} has dtype {array.dtype} (expected real numbers)")
    if array.shape != (size,):
        raise MalformedActionError("form.shape", f"{name} has shape {array.shape} (expected ({size},))")
    if array.dtype != np.float64:
        with np.errstate(over="ignore", invalid="ignore"):
            array = array.astype(np.float64)
    values: list[float] = array.tolist()
    return values
