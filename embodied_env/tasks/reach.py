"""Move the tip to the target."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

from numpy.typing import NDArray

from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.key_types import NotNegative, Positive
from embodied_env.contract.value_checks import allow
from embodied_env.core.policy import PolicyFunction
from embodied_env.core.types import TaskResult, Verdict
from embodied_env.tasks.task import SiteKinematics
from embodied_env.tasks.task_parts import (
    ArrayTask,
    approach_velocity,
    cartesian_policy,
    components,
    is_fresh,
    norm,
    reason_if,
    require_sensor,
    require_visible,
    squared_norm,
)

Point = tuple[float, float, float]

# Parameters of the scripted policy.
GAIN_PER_S = 3.0  # on the distance; braking from v at 3 v/s stays within the limits of the shipped contracts
SPEED_M_PER_S = 0.5  # maximum speed of the tip
DAMPING_M = 0.05  # lambda of the damped least squares


@dataclass(frozen=True, kw_only=True)
class ReachParameters:
    """The keys of `task`, whose sensors `tip` and `target` have a position in one frame."""

    tip: str  # sensor with the moving point's `position`
    target: str  # sensor with the target's `position`
    success_radius_m: Positive  # success within this distance
    success_bonus: float = 10.0  # reward at success
    effort_weight: NotNegative = 0.01  # penalty per squared norm of the applied action
    workspace_low_m: Point | None = None  # out of bounds when the tip is outside this box
    workspace_high_m: Point | None = None  # the opposite corner


class Reach(ArrayTask):
    """Penalizes the distance (m) and the squared action, with a bonus at success.

    The action is the applied one, and its square is weighted. Success means that the distance, by fresh readings, is at
    most the success radius.
    """

    version = 2
    terms = ("distance", "effort", "success")
    Parameters = ReachParameters

    def __init__(self, contract: Contract, parameters: ReachParameters) -> None:
        """Check the parameters against the contract, or raise ContractError."""
        self._contract = contract
        self._p = parameters
        require_sensor(contract, "task.tip", parameters.tip, "position")
        require_sensor(contract, "task.target", parameters.target, "position")
        low, high = parameters.workspace_low_m, parameters.workspace_high_m
        lows, highs = low or (-math.inf,) * 3, high or (math.inf,) * 3
        self._workspace = tuple(zip(lows, highs, strict=True)) if low or high else ()
        is_box = all(first < last for first, last in self._workspace)
        allow(is_box, "task.workspace_low_m", low, f"values below workspace_high_m {high}")

    def evaluate(self, previous: Any, current: Any, applied: FloatArray) -> TaskResult:  # noqa: ANN401, ARG002
        """Judge by the position of the tip after the step."""
        p, samples = self._p, current.samples
        tip, target = samples[p.tip].values["position"], samples[p.target].values["position"]
        distance_m = norm(target - tip)
        reached = (distance_m <= p.success_radius_m) & is_fresh(current, p.tip, p.target)
        out_of_bounds = ""
        if self._workspace:
            outside: Any = False
            for at, (low, high) in zip(components(tip), self._workspace, strict=True):
                outside = outside | (at < low) | (at > high)
            out_of_bounds = reason_if(outside, "tip")
        terms = {
            "distance": -distance_m,
            "effort": -p.effort_weight * squared_norm(applied),
            "success": p.success_bonus * reached,
        }
        verdict = Verdict(success=reached, out_of_bounds=out_of_bounds)
        return TaskResult(reward=reduce(add, terms.values()), verdict=verdict, terms=terms)

    def scripted(self, kinematics: SiteKinematics) -> PolicyFunction:
        """Return the policy that moves the tip straight to the target.

        It uses damped least squares on the Jacobian of the tip. It reads joint positions, tip and target. Raises
        UsageError when the observation lacks one of them.
        """
        tip, target = (require_visible(self._contract, name) + "_position" for name in (self._p.tip, self._p.target))

        def motion(observation: Mapping[str, NDArray[Any]], positions: FloatArray) -> tuple[FloatArray, FloatArray]:
            velocity = approach_velocity(observation[target] - observation[tip], GAIN_PER_S, SPEED_M_PER_S)
            return kinematics.jacobian(self._p.tip, positions), velocity

        return cartesian_policy(self._contract, motion, damping_m=DAMPING_M)
