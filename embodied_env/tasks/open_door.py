"""Open the door by pressing its lever handle down and pushing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.key_types import NotNegative, Positive
from embodied_env.contract.value_checks import allow, one_of
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
)

# Parameters of the scripted policy. The finger crosses the lever near its free end; the tip extends beyond it.
INSET_M = 0.03  # from the lever's free end towards its hub
BEYOND_M = 0.03  # from the lever's axis towards the door
HOVER_M = 0.06  # height above the lever's axis before pressing
SIDE_TOLERANCE_M = 0.025  # accepted deviation from the contact point along the lever
FRONT_TOLERANCE_M = 0.02  # accepted distance in front of the contact point
BELOW_M = 0.02  # this far below the lever's axis, the tip has slipped off
RETREAT_M = 0.11  # this far in front of the contact point, the tip is clear of the lever and may rise
SPEED_M_PER_S = 0.25
PRESS_M_PER_S = 0.1
GAIN_PER_S = 4.0
AXIS_GAIN_PER_S = 2.0  # on the alignment of the finger with the door's normal
PRESS_UNTIL_RAD = (0.52, 0.62)  # lever angles between which pressing slows down to zero
PUSH_FROM_RAD = (0.42, 0.54)  # lever angles between which pushing speeds up from zero
DAMPING_M = 0.03  # lambda of the damped least squares


@dataclass(frozen=True, kw_only=True)
class OpenDoorParameters:
    """The keys of `task`, whose sensors `door`, `distance` and `wrench` may be the evaluator's."""

    door: str  # JointState sensor with the position of `hinge`: 0 when closed
    hinge: str  # joint of `door`
    distance: str  # Range sensor from the fingertip to the handle
    handle: str  # pose sensor at the free end of the lever: x out of the door, y along the lever
    opened_at_rad: Positive  # success at this angle
    wrench: str | None = None  # WrenchStamped sensor, with `max_force_n`
    max_force_n: Positive | None = None  # failure `excessive_force` above it
    latch: str | None = None  # JointState sensor with the position of `bolt`: 0 when it is extended, m
    bolt: str | None = None  # joint of `latch`
    opening_weight: NotNegative = 10.0  # reward per radian opened
    unlatching_weight: NotNegative = 100.0  # reward per metre that the bolt is drawn back
    approach_weight: NotNegative = 1.0  # reward per metre approached
    success_bonus: NotNegative = 10.0  # reward at success
    tip_site: str = "tcp"  # scripted policy: site at the end of the finger
    wrist_site: str = "wrist"  # scripted policy: site behind the tip, on the finger's axis


class OpenDoor(ArrayTask):
    """Rewards motion of door, bolt and fingertip towards opening, plus a bonus.

    The reward follows changes of the door's angle, of the bolt, and of the distance between fingertip and handle.
    Differences reward no back-and-forth motion. Success means that the hinge's angle, by a fresh reading, is at least
    `opened_at_rad`. The failure ``excessive_force`` means that the wrench's force exceeds `max_force_n`.
    """

    version = 2
    terms = ("opening", "unlatching", "approach", "success")
    Parameters = OpenDoorParameters

    def __init__(self, contract: Contract, parameters: OpenDoorParameters) -> None:
        """Check the parameters against the contract, or raise ContractError."""
        self._contract = contract
        self._p = p = parameters
        self._hinge = _joint_index(contract, "door", p.door, "hinge", p.hinge)
        both = (p.latch is None) == (p.bolt is None)
        allow(both, "task.bolt", p.bolt, "a joint of task.latch, or neither")
        self._bolt = 0 if p.latch is None else _joint_index(contract, "latch", p.latch, "bolt", str(p.bolt))
        require_sensor(contract, "task.distance", p.distance, "range")
        require_sensor(contract, "task.handle", p.handle, "position", "orientation")
        if p.wrench is not None:
            require_sensor(contract, "task.wrench", p.wrench, "force")
        both = (p.wrench is None) == (p.max_force_n is None)
        allow(both, "task.max_force_n", p.max_force_n, "a force in N with task.wrench, or neither")

    def evaluate(self, previous: Any, current: Any, applied: FloatArray) -> TaskResult:  # noqa: ANN401, ARG002
        """Judge by the changes in the step and the angle of the door after it."""
        p = self._p
        angle_rad = self._angle_rad(current)
        opened = (angle_rad >= p.opened_at_rad) & is_fresh(current, p.door)
        excessive: Any = False
        if p.wrench is not None:
            excessive = norm(current.samples[p.wrench].values["force"]) > p.max_force_n
        terms = {
            "opening": p.opening_weight * (angle_rad - self._angle_rad(previous)),
            "unlatching": p.unlatching_weight * (self._drawn_m(current) - self._drawn_m(previous)),
            "approach": p.approach_weight * (self._distance_m(previous) - self._distance_m(current)),
            "success": p.success_bonus * opened,
        }
        verdict = Verdict(success=opened, failure=reason_if(excessive, "excessive_force"))
        return TaskResult(reward=reduce(add, terms.values()), verdict=verdict, terms=terms)

    def scripted(self, kinematics: SiteKinematics) -> PolicyFunction:
        """Return the policy that presses the lever and pushes, by damped least squares.

        It has no state: it reads joint positions and the pose of the handle, and acts by the position of the tip
        relative to the handle and by the lever's angle. Raises UsageError when the observation lacks one of them.
        """
        handle, sites = require_visible(self._contract, self._p.handle), (self._p.tip_site, self._p.wrist_site)

        def motion(observation: Mapping[str, NDArray[Any]], positions: FloatArray) -> tuple[FloatArray, FloatArray]:
            tip, wrist = (kinematics.position_m(site, positions) for site in sites)
            out, along = _axes(observation[f"{handle}_orientation"])
            tip_m_per_s = _tip_velocity(observation[f"{handle}_position"] - tip, out, along)
            straight = tip + np.linalg.norm(tip - wrist) * _level(out)  # the wrist's position behind the tip
            wrist_m_per_s = tip_m_per_s + AXIS_GAIN_PER_S * (straight - wrist)
            jacobian = np.vstack([kinematics.jacobian(site, positions) for site in sites])
            return jacobian, np.concatenate([tip_m_per_s, wrist_m_per_s])

        return cartesian_policy(self._contract, motion, damping_m=DAMPING_M)

    def _angle_rad(self, snapshot: Any) -> Any:  # noqa: ANN401 - as `norm`
        return components(snapshot.samples[self._p.door].values["position"])[self._hinge]

    def _drawn_m(self, snapshot: Any) -> Any:  # noqa: ANN401 - as `norm`
        """Return how far the bolt is drawn back, 0 without a sensor of it."""
        latch = self._p.latch
        return 0.0 if latch is None else components(snapshot.samples[latch].values["position"])[self._bolt]

    def _distance_m(self, snapshot: Any) -> Any:  # noqa: ANN401 - as `norm`
        return components(snapshot.samples[self._p.distance].values["range"])[0]


def _joint_index(contract: Contract, sensor_key: str, sensor: str, joint_key: str, joint: str) -> int:
    spec = require_sensor(contract, f"task.{sensor_key}", sensor, "position", joints=True)
    joints = spec.fields["position"].joints or ()
    allow(joint in joints, f"task.{joint_key}", joint, f"a joint of {sensor}: {one_of(joint, joints)}")
    return joints.index(joint)


def _tip_velocity(handle: FloatArray, out: FloatArray, along: FloatArray) -> FloatArray:
    """Return the velocity of the tip, m/s, shape (3,).

    `handle` leads from the tip to the lever's free end, m; `out` is the normal of the door, towards the robot; `along`
    leads from the lever's hub to its free end.
    """
    drop_rad = -np.arcsin(np.clip(along[2], -1.0, 1.0))
    normal, up = _level(out), np.array([0.0, 0.0, 1.0])
    side = np.cross(up, normal)
    to_place = handle - INSET_M * along - BEYOND_M * normal
    in_front, sideways, above = float(to_place @ normal), float(to_place @ side), float(to_place @ up)
    if in_front > -RETREAT_M and above > BELOW_M:
        return SPEED_M_PER_S * normal  # slipped off: move back before rising
    if abs(sideways) > SIDE_TOLERANCE_M or in_front < -FRONT_TOLERANCE_M:
        rise = above + HOVER_M
        across = in_front * normal + sideways * side if rise < HOVER_M / 2 else np.zeros(3)
        return _capped(rise * up + across)
    press = float(np.interp(drop_rad, PRESS_UNTIL_RAD, (1.0, 0.0)))
    push = float(np.interp(drop_rad, PUSH_FROM_RAD, (0.0, 1.0)))
    away = (1.0 - push) * _capped(in_front * normal) - push * SPEED_M_PER_S * normal
    return away + _capped(sideways * side) - press * PRESS_M_PER_S * up


def _capped(error_m: FloatArray) -> FloatArray:
    return approach_velocity(error_m, GAIN_PER_S, SPEED_M_PER_S)


def _axes(quaternion: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the x and y columns of the rotation matrix of a unit quaternion x, y, z, w."""
    x, y, z, w = quaternion
    return (
        np.array([1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 2 * (x * z - w * y)]),
        np.array([2 * (x * y - w * z), 1 - 2 * (x * x + z * z), 2 * (y * z + w * x)]),
    )


def _level(axis: FloatArray) -> FloatArray:
    """Return the horizontal unit vector closest to `axis`."""
    flat = np.array([axis[0], axis[1], 0.0])
    return flat / max(float(np.linalg.norm(flat)), 1e-9)
