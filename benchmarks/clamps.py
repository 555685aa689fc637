"""The action checks that `gate.py` is compared with: lerobot's clamp, and the approvers of inspect-robots.

Where a package is installed its own code runs; what is written out here, from what it does to the numbers, is then run
after it, and must return the same numbers, bit for bit. Where it is not installed, this copy replaces it.

- lerobot's ``ensure_safe_goal_position``: each goal at most so far from the measured position, by name. It logs a
  warning of those that it clamped; here without a handler. The copy logs nothing.
- a chain of inspect-robots' ``ClampApprover`` (into the box) and ``DeltaLimitApprover`` (at most so far from the action
  approved last; the first has none before it). Either refuses NaN, and marks an action that it changed.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

CLAMP, APPROVERS = "lerobot's clamp", "inspect-robots' approvers"
STEP_LIMIT = 0.05  # of a joint in one step, in rad: for the clamp and the approvers
WRITTEN_OUT = "written out"
_ROUNDING = 1 + 1e-12

Vector = NDArray[np.float64]
Review = Callable[[Vector], Mapping[str, float] | Vector]
"""An action in; what may be sent out: by joint, or in the order of the action."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check of another package.

    `make` and `write_out` return a review at the beginning of an episode: with the code of whom it is called after
    (None: not installed), and as it is written out here. `whose`: the package and its version, or that it is written
    out. `is_absolute`: a step is measured from the last action approved; else from zero, where the joints stay.
    """

    name: str
    whose: str
    make: Callable[[], Review] | None
    write_out: Callable[[], Review]
    is_absolute: bool


def checks(joints: Sequence[str]) -> list[Check]:
    """Return both checks for these joints."""
    return [_lerobot(joints), _inspect_robots(len(joints))]


def timed(check: Check, inputs: Vector) -> Iterator[int]:
    """Yield the duration of each review, ns; raise SystemExit if it differs from the copy or exceeds its limits."""
    review, written_out = (check.make or check.write_out)(), check.write_out()
    last: Vector | None = None if check.is_absolute else np.zeros(inputs.shape[1])
    for action in inputs:
        start_ns = time.perf_counter_ns()
        left = review(action)
        yield time.perf_counter_ns() - start_ns
        found, expected = _vector(left), _vector(written_out(action))
        if found.tobytes() != expected.tobytes():
            raise SystemExit(f"{check.name}: of {action} {check.whose} leaves {found}, what is written out {expected}")
        if last is not None and not (np.abs(found - last) <= STEP_LIMIT * _ROUNDING).all():
            raise SystemExit(f"{check.name}: let {found} through after {last}")
        last = found if check.is_absolute else last


def _vector(left: Mapping[str, float] | Vector) -> Vector:
    return np.array([*left.values()]) if isinstance(left, Mapping) else left


# ------------------------------------------------------------------------------------------------------------- lerobot


def clamped(goals: Mapping[str, tuple[float, float]], at_most: float) -> dict[str, float]:
    """Return each goal, limited to a distance from the joint position: joint -> (goal, present) to joint -> goal."""
    return {name: present + max(min(goal - present, at_most), -at_most) for name, (goal, present) in goals.items()}


def _lerobot(joints: Sequence[str]) -> Check:
    present = dict.fromkeys(joints, 0.0)

    def maker(clamp: Callable[[dict[str, tuple[float, float]], float], dict[str, float]]) -> Callable[[], Review]:
        def review(action: Vector) -> dict[str, float]:
            goals = dict(zip(joints, action.tolist(), strict=True))
            return clamp({name: (goal, present[name]) for name, goal in goals.items()}, STEP_LIMIT)

        return lambda: review

    try:
        from lerobot.robots.utils import ensure_safe_goal_position  # noqa: PLC0415 - it may not be installed
    except ImportError as reason:
        whose, make = f"{WRITTEN_OUT} ({reason})", None
    else:
        logging.getLogger().handlers = [logging.NullHandler()]  # otherwise each warning is printed
        whose, make = f"lerobot {version('lerobot')}", maker(ensure_safe_goal_position)
    return Check(name=CLAMP, whose=whose, make=make, write_out=maker(clamped), is_absolute=False)


# ------------------------------------------------------------------------------------------------------ inspect-robots


class Approved:
    """The effect of the chain on the numbers of an episode."""

    def __init__(self, size: int) -> None:
        """Start an episode: there is no action before the first."""
        self._low, self._high = np.full(size, -math.pi), np.full(size, math.pi)
        self._last: Vector | None = None

    def review(self, action: Vector) -> Vector:
        """Return the resulting action; raises ValueError for NaN."""
        boxed, _ = self._limited(action, self._low, self._high)
        if self._last is not None:
            boxed, _ = self._limited(boxed, self._last - STEP_LIMIT, self._last + STEP_LIMIT)
        self._last = boxed
        return boxed

    def _limited(self, action: Vector, low: Vector, high: Vector) -> tuple[Vector, dict[str, Any]]:
        """Return the clamped action, and a message."""
        if np.isnan(action).any():
            raise ValueError("the action contains NaN")
        limited = np.clip(action, low, high)
        return (action, {}) if np.array_equal(limited, action) else (limited, {"clamped": True})


def _inspect_robots(size: int) -> Check:
    def write_out() -> Review:
        return Approved(size).review

    try:
        from inspect_robots.approver import (  # noqa: PLC0415 - it may not be installed
            ChainApprover,
            ClampApprover,
            DeltaLimitApprover,
        )
        from inspect_robots.spaces import ActionSemantics, Box  # noqa: PLC0415 - the same
        from inspect_robots.types import Action  # noqa: PLC0415 - the same
    except ImportError as reason:
        whose = f"{WRITTEN_OUT} ({reason})"
        return Check(name=APPROVERS, whose=whose, make=None, write_out=write_out, is_absolute=True)
    space = Box(
        shape=(size,),
        low=np.full(size, -math.pi),
        high=np.full(size, math.pi),
        semantics=ActionSemantics(control_mode="joint_pos"),
    )
    chain = ChainApprover(ClampApprover(space), DeltaLimitApprover(space, max_delta=STEP_LIMIT))

    def make() -> Review:
        store: dict[str, Any] = {}
        return lambda action: chain.review(Action(data=action), store).data

    whose = f"inspect-robots {version('inspect-robots')}"
    return Check(name=APPROVERS, whose=whose, make=make, write_out=write_out, is_absolute=True)
