"""Reach: bring the tip to the target."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract, FloatArray, KinematicModel
from embodied_env.contract.messages import JOINT_SENSOR
from embodied_env.contract.rules import one_of
from embodied_env.contract.spaces import ActionLayout
from embodied_env.errors import ContractError, UsageError
from embodied_env.tasks.base import Policy
from embodied_env.transition import Judgement, Snapshot, Verdict

Point = tuple[float, float, float]

GAIN_PER_S = 3.0
"""Of the scripted policy: how fast it closes the distance. It brakes from v at 3 v /s, within any gate's limits."""

SPEED_M_PER_S = 0.5
"""Of the scripted policy: how fast the tip moves at most."""

DAMPING_M = 0.05
"""Of the scripted policy: the lambda of the damped least squares; near a singularity it is slow, not wild."""


@dataclass(frozen=True, kw_only=True)
class ReachParameters:
    """The keys of ``task:``. `tip` and `target` name sensors with a field position, in one frame."""

    tip: str
    target: str
    success_radius_m: float
    success_bonus: float = 10.0
    effort_weight: float = 0.01
    workspace_low_m: Point | None = None  # the tip outside of the box: out of bounds
    workspace_high_m: Point | None = None


class Reach:
    """The reward is minus the distance (m), minus the weighted square of the applied action, plus a bonus at success.

    Success: the distance is at most the success radius.
    """

    version = 1
    terms = ("distance", "effort", "success")
    Parameters = ReachParameters

    def __init__(self, contract: Contract, parameters: ReachParameters) -> None:
        """Check the parameters against the contract; raises ContractError at ``task.<parameter>``."""
        self._contract = contract
        self._p = parameters
        self._check_sensor("tip", parameters.tip)
        self._check_sensor("target", parameters.target)
        self._check("success_radius_m", "a radius > 0, in m", holds=parameters.success_radius_m > 0)
        self._check("effort_weight", "a weight >= 0", holds=parameters.effort_weight >= 0)
        low, high = parameters.workspace_low_m, parameters.workspace_high_m
        self._low = np.full(3, -math.inf) if low is None else np.array(low)
        self._high = np.full(3, math.inf) if high is None else np.array(high)
        ordered = bool((self._low < self._high).all())
        self._check("workspace_low_m", f"values below workspace_high_m {high}", holds=ordered)

    def judge(self, previous: Snapshot, current: Snapshot, applied: FloatArray) -> Judgement:  # noqa: ARG002 - protocol
        """Judge one step by where the tip is after it."""
        tip = current.samples[self._p.tip].values["position"]
        distance_m = float(np.linalg.norm(current.samples[self._p.target].values["position"] - tip))
        reached = distance_m <= self._p.success_radius_m
        outside = bool((tip < self._low).any() or (tip > self._high).any())
        terms = {
            "distance": -distance_m,
            "effort": -self._p.effort_weight * float(applied @ applied),
            "success": self._p.success_bonus if reached else 0.0,
        }
        verdict = Verdict(success=reached, out_of_bounds="tip" if outside else "")
        return Judgement(reward=sum(terms.values()), verdict=verdict, terms=terms)

    def scripted(self, kinematics: KinematicModel) -> Policy:
        """Return the policy that moves the tip straight to the target, by damped least squares on its Jacobian.

        It reads the joints' positions, the tip and the target from the observation, and nothing else.

        Raises:
            UsageError: when one of them is not in the observation.
        """
        layout = ActionLayout(self._contract)
        joints = self._joint_readings(layout.joints)
        tip, target = (self._visible(name) + "_position" for name in (self._p.tip, self._p.target))
        period_s = self._contract.control_period_s

        def act(observation: Mapping[str, NDArray[Any]]) -> Any:  # noqa: ANN401 - of the action space
            positions = np.array([observation[key][index] for key, index in joints])
            velocity_m_per_s = _approach(observation[target] - observation[tip])
            delta = period_s * _damped_inverse(kinematics.jacobian(self._p.tip, positions)) @ velocity_m_per_s
            delta /= max(1.0, float(np.max(np.abs(delta) / (layout.limits.velocity * period_s))))
            action = layout.scale.from_si(np.where(layout.is_delta, delta, positions + delta))
            return layout.as_action(np.clip(action, layout.scale.low, layout.scale.high))

        return act

    def _joint_readings(self, joints: tuple[str, ...]) -> list[tuple[str, int]]:
        """Return where in the observation the position of each joint stands: key and index."""
        found = {
            joint: (f"{name}_position", index)
            for name, sensor in self._contract.sensors.items()
            if sensor.type == JOINT_SENSOR and sensor.visibility == "agent" and "position" in sensor.fields
            for index, joint in enumerate(sensor.fields["position"].joints or ())
        }
        unseen = [joint for joint in joints if joint not in found]
        if unseen:
            raise UsageError(f"the scripted policy needs the joints {', '.join(unseen)} in the observation")
        return [found[joint] for joint in joints]

    def _visible(self, sensor: str) -> str:
        if self._contract.sensors[sensor].visibility != "agent":
            raise UsageError(f"the scripted policy needs the sensor {sensor!r} in the observation, not the evaluator's")
        return sensor

    def _check_sensor(self, key: str, name: str) -> None:
        sensors = self._contract.sensors
        located = [known for known, sensor in sensors.items() if "position" in sensor.fields]
        located = [known for known in located if sensors[known].type != JOINT_SENSOR]
        if name not in located:
            raise ContractError(
                f"task.{key}",
                f"no such sensor with a field position: {one_of(name, located)}",
                source=self._contract.source,
            )

    def _check(self, key: str, allowed: str, *, holds: bool) -> None:
        if not holds:
            value = getattr(self._p, key)
            raise ContractError(
                f"task.{key}", f"{value} is not allowed; allowed: {allowed}", source=self._contract.source
            )


def _approach(error_m: FloatArray) -> FloatArray:
    """Return the velocity of the tip, m/s, that closes `error_m` (3,) at a gain, up to a speed."""
    distance_m = float(np.linalg.norm(error_m))
    return error_m * min(GAIN_PER_S, SPEED_M_PER_S / max(distance_m, 1e-9))


def _damped_inverse(jacobian: FloatArray) -> FloatArray:
    """Return J^T (J J^T + lambda^2 I)^-1, shape (n, 3), of J of shape (3, n)."""
    return jacobian.T @ np.linalg.inv(jacobian @ jacobian.T + DAMPING_M**2 * np.eye(3))
