"""Turn any object into a list of finite floats or refuse it, without writing to it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.policy import NoAction
from embodied_env.core.types import Finding
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


def parse_action(  # noqa: C901 - one branch per rule
    action: Any,  # noqa: ANN401 - agents send anything
    layout: ActionLayout,
) -> list[float]:
    """Return `action` as finite floats, one per joint in contract order.

    An action is one vector of real numbers (an array, a sequence or a tensor), or with several actuators a dict of
    them by name.

    Raises:
        MalformedActionError: for anything else.
    """
    if isinstance(action, NoAction):
        raise MalformedActionError(NO_ACTION, action.reason)
    values: list[float] = []
    try:
        if len(layout.slices) == 1:
            parts = [("action", action, layout.size)]
        elif isinstance(action, Mapping) and set(action) == set(layout.slices):
            parts = [(name, action[name], part.stop - part.start) for name, part in layout.slices.items()]
        else:
            keys = sorted(map(str, action)) if isinstance(action, Mapping) else type(action).__name__
            detail = f"action has the wrong structure: {keys} (expected a dict with the keys {sorted(layout.slices)})"
            raise MalformedActionError("form.shape", detail)  # noqa: TRY301 - one exit for all malformed actions
        for name, value, size in parts:
            if hasattr(value, "detach"):  # a torch tensor, possibly on a device or in a graph
                value = value.detach().cpu()  # noqa: PLW2901 - the same vector
            array = np.asarray(value)
            if array.dtype.kind not in "fiu":
                detail = f"{name} has dtype {array.dtype} (expected real numbers)"
                raise MalformedActionError("form.type", detail)  # noqa: TRY301 - as above
            if array.shape != (size,):
                detail = f"{name} has shape {array.shape} (expected ({size},))"
                raise MalformedActionError("form.shape", detail)  # noqa: TRY301 - as above
            if array.dtype != np.float64:
                with np.errstate(over="ignore", invalid="ignore"):
                    array = array.astype(np.float64)
            values += array.tolist()
    except MalformedActionError:
        raise
    except Exception as error:  # noqa: BLE001 - a foreign object may raise anything; the robot must brake, not crash
        raise MalformedActionError("form.type", f"action could not be parsed: {described(error)}") from None
    if not all(map(math.isfinite, values)):
        raise MalformedActionError("form.nan", f"action is not finite: {values}", values)
    return values


def parse_chunk(actions: Sequence[Any], layout: ActionLayout) -> NDArray[np.float64] | None:
    """Return a chunk's actions in contract order, shape (n, n_joints), or None if malformed.

    Numbers that are not finite stay.
    """
    columns = []
    try:
        for name, part in layout.slices.items():
            rows = actions if len(layout.slices) == 1 else [action[name] for action in actions]
            array = np.asarray(rows)
            is_formed = array.dtype.kind in "fiu" and array.shape == (len(actions), part.stop - part.start)
            if not is_formed:
                return None
            with np.errstate(over="ignore", invalid="ignore"):
                columns.append(array.astype(np.float64))
    except Exception:  # noqa: BLE001 - a foreign object may raise anything; the gate reports it in its own step
        return None
    return np.concatenate(columns, axis=1)


def warn_of_malformed_action(findings: Iterable[Finding]) -> bool:
    """Log a warning where `findings` reject the form of an action, and return whether they do."""
    malformed = [finding for finding in findings if finding.code in ("form.shape", "form.type")]
    for finding in malformed:
        with suppress(UserWarning):  # a warning turned into an error must not stop the robot
            remedy = "the robot brakes at each such action; pass one of env.action_space"
            gymnasium.logger.warn(f"malformed action: {finding.detail}; {remedy}")
    return bool(malformed)
