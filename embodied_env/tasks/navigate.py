"""Drive to the goal without collisions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.key_types import NotNegative, Positive
from embodied_env.contract.spaces import ActionLayout
from embodied_env.contract.value_checks import allow
from embodied_env.core.policy import PolicyFunction
from embodied_env.core.types import TaskResult, Verdict
from embodied_env.errors import UsageError
from embodied_env.tasks.task import SiteKinematics
from embodied_env.tasks.task_parts import (
    ArrayTask,
    components,
    is_fresh,
    norm,
    reason_if,
    require_sensor,
    require_visible,
    squared_norm,
)

# Parameters of the scripted policy. Lengths are added to the radius of the robot.
LOOKAHEAD_M = 1.0  # free distance of a clear course, unless the goal is closer
CLEARANCE_M = 0.1  # to each side of a course; below it, the course counts as blocked
COMFORT_M = 0.3  # preferred clearance to each side
STOP_M = 0.2  # distance kept from obstacles straight ahead
BLOCKED_COST_RAD = 6.0  # turn that costs as much as a blocked course
NARROW_COST_RAD = 1.0  # turn that costs as much as a course below COMFORT_M
TURN_COST = 0.25  # per rad away from straight ahead, so that it does not alternate between two equal courses
BRAKING = 0.6  # usable fraction of the deceleration
TURN_GAIN_PER_S = 2.0
ARRIVAL_GAIN_PER_S = 1.5
CREEP_M_PER_S = 0.1

COURSES_RAD = np.linspace(-2.2, 2.2, 89)  # candidates relative to straight ahead; the scanner does not see backwards
_ALONG = np.stack([np.cos(COURSES_RAD), np.sin(COURSES_RAD)])
_ACROSS = np.stack([-np.sin(COURSES_RAD), np.cos(COURSES_RAD)])
_FAR_M = 1e3  # beyond the range of any scanner


@dataclass(frozen=True, kw_only=True)
class Pilot:
    """Sensors that the scripted policy reads and the robot's size, keys of `task.pilot`.

    The sensors are those of the agent. Their frame is that of the robot: origin at the middle of the axle, x forward, y
    left.
    """

    odometry: str  # sensor with `linear` and `angular`
    laser: str  # sensor with `ranges`
    laser_angles_rad: tuple[float, float]  # angles of the first and the last ray
    detection: str  # sensor with the goal's `position`
    detection_age_s: NotNegative  # mean age of a detection when it is read
    radius_m: Positive  # radius of the robot


@dataclass(frozen=True, kw_only=True)
class NavigateParameters:
    """The keys of `task`, whose sensors `pose`, `goal` and `collision` may be the evaluator's."""

    pose: str  # sensor with the robot's `position`
    goal: str  # sensor with the goal's `position`, in the same frame
    collision: str  # sensor whose `data` is not 0 after a contact: failure `collision`
    success_radius_m: Positive  # success within this distance
    progress_weight: NotNegative = 1.0  # reward per metre of progress
    effort_weight: NotNegative = 0.01  # penalty per squared norm of the applied action
    success_bonus: NotNegative = 10.0  # reward at success
    collision_penalty: NotNegative = 10.0  # penalty for a collision
    pilot: Pilot | None = None  # inputs of the scripted policy; null: no scripted policy


class Navigate(ArrayTask):
    """Rewards progress to the goal and success, and penalizes effort and collision.

    Progress is the decrease of the distance, and success gives a bonus. Distances are horizontal, m. The effort is the
    weighted square of the applied action. The failure is ``collision``. Success means that the distance, by fresh
    readings, is at most the success radius, without a collision.
    """

    version = 1
    terms = ("progress", "effort", "collision", "success")
    Parameters = NavigateParameters

    def __init__(self, contract: Contract, parameters: NavigateParameters) -> None:
        """Check the parameters against the contract, or raise ContractError."""
        self._contract = contract
        self._p = p = parameters
        require_sensor(contract, "task.pose", p.pose, "position")
        require_sensor(contract, "task.goal", p.goal, "position")
        require_sensor(contract, "task.collision", p.collision, "data")
        if (pilot := p.pilot) is not None:
            require_sensor(contract, "task.pilot.odometry", pilot.odometry, "linear", "angular")
            require_sensor(contract, "task.pilot.laser", pilot.laser, "ranges")
            require_sensor(contract, "task.pilot.detection", pilot.detection, "position")
            first, last = angles = pilot.laser_angles_rad
            allow(first < last, "task.pilot.laser_angles_rad", angles, "two angles, the first below the last")

    def evaluate(self, previous: Any, current: Any, applied: FloatArray) -> TaskResult:  # noqa: ANN401
        """Judge by the changes in the step and the position of the robot after it."""
        p = self._p
        distance_m = self._distance_m(current)
        contact = components(current.samples[p.collision].values["data"])[0]
        collided, is_close = contact != 0, (distance_m <= p.success_radius_m) & (contact == 0)
        arrived = is_close & is_fresh(current, p.pose, p.goal, p.collision)
        terms = {
            "progress": p.progress_weight * (self._distance_m(previous) - distance_m),
            "effort": -p.effort_weight * squared_norm(applied),
            "collision": 0.0 - p.collision_penalty * collided,
            "success": p.success_bonus * arrived,
        }
        verdict = Verdict(success=arrived, failure=reason_if(collided, "collision"))
        return TaskResult(reward=reduce(add, terms.values()), verdict=verdict, terms=terms)

    def scripted(self, kinematics: SiteKinematics) -> PolicyFunction:  # noqa: ARG002 - protocol; a cart has no Jacobian
        """Return the policy that steers to the clear course nearest to the goal.

        It slows down before obstacles. It is stateless: it reads velocity, ranges and the detected goal, corrects the
        detection for the motion since, and stops without a valid one. Raises UsageError when the observation lacks a
        reading or the action an axis.
        """
        pilot = self._p.pilot
        if pilot is None:
            raise UsageError("the scripted policy needs task.pilot (expected its sensors and the radius of the robot)")
        for sensor in (pilot.odometry, pilot.laser, pilot.detection):
            require_visible(self._contract, sensor)
        layout = ActionLayout(self._contract)
        missing = [axis for axis in ("linear.x", "angular.z") if axis not in layout.joints]
        if missing:
            raise UsageError(f"action without {', '.join(missing)} (the scripted policy commands a twist)")
        forward, turn = layout.joints.index("linear.x"), layout.joints.index("angular.z")
        fastest_m_per_s = layout.limits.velocity_high[forward]
        braking_m_per_s2 = BRAKING * layout.limits.deceleration[forward]
        read_obstacles = self._scanner(pilot)

        def act(observation: Mapping[str, NDArray[Any]]) -> Any:  # noqa: ANN401 - of the action space
            velocity = np.zeros(layout.size)
            if observation.get(f"{pilot.detection}_valid", np.ones(1))[0]:
                goal, obstacles = _present_goal(observation, pilot), read_obstacles(observation)
                course_rad = _course_rad(goal, obstacles, pilot.radius_m)
                able_to_stop_m_per_s = math.sqrt(2.0 * braking_m_per_s2 * _free_ahead_m(obstacles, pilot.radius_m))
                arriving_m_per_s = ARRIVAL_GAIN_PER_S * float(np.linalg.norm(goal)) + CREEP_M_PER_S
                speed_m_per_s = min(fastest_m_per_s, able_to_stop_m_per_s, arriving_m_per_s)
                velocity[forward] = speed_m_per_s * max(0.0, math.cos(course_rad))
                velocity[turn] = TURN_GAIN_PER_S * course_rad
            return layout.to_space(layout.scale.from_si(velocity))

        return act

    def _scanner(self, pilot: Pilot) -> Callable[[Mapping[str, NDArray[Any]]], FloatArray]:
        """Return the function from an observation to the points hit by the scanner, (n, 2), m."""
        spec = self._contract.sensors[pilot.laser].fields["ranges"]
        (beams,) = spec.shape or (0,)
        angles_rad = np.linspace(*pilot.laser_angles_rad, beams)
        rays = np.stack([np.cos(angles_rad), np.sin(angles_rad)], axis=1)
        nothing_m = math.inf if spec.no_return is None else spec.no_return

        def read_obstacles(observation: Mapping[str, NDArray[Any]]) -> FloatArray:
            ranges = observation[f"{pilot.laser}_ranges"].astype(np.float64)
            return (rays * ranges[:, np.newaxis])[ranges < nothing_m]

        return read_obstacles

    def _distance_m(self, snapshot: Any) -> Any:  # noqa: ANN401 - as `norm`
        goal, pose = (snapshot.samples[name].values["position"] for name in (self._p.goal, self._p.pose))
        return norm((goal - pose)[..., :2])


def _present_goal(observation: Mapping[str, NDArray[Any]], pilot: Pilot) -> FloatArray:
    """Return the goal's position, shape (2,), m, corrected for the motion since its detection."""
    speed_m_per_s = float(observation[f"{pilot.odometry}_linear"][0])
    turned_rad = float(observation[f"{pilot.odometry}_angular"][2]) * pilot.detection_age_s
    x, y = observation[f"{pilot.detection}_position"][:2].tolist()
    x -= speed_m_per_s * pilot.detection_age_s
    cos, sin = math.cos(turned_rad), math.sin(turned_rad)
    return np.array([cos * x + sin * y, cos * y - sin * x])


def _course_rad(goal: FloatArray, obstacles: FloatArray, radius_m: float) -> float:
    """Return the cheapest of COURSES_RAD near the goal (2,), clear of obstacles (n, 2), m."""
    needed_m = min(LOOKAHEAD_M, float(np.linalg.norm(goal)))
    toward_rad = math.atan2(goal[1], goal[0])
    cost = np.abs(np.remainder(COURSES_RAD - toward_rad + math.pi, math.tau) - math.pi)
    cost += TURN_COST * np.abs(COURSES_RAD)
    along, across = obstacles @ _ALONG, np.abs(obstacles @ _ACROSS)  # shape (n, courses)
    for side_m, weight_rad in ((CLEARANCE_M, BLOCKED_COST_RAD), (COMFORT_M, NARROW_COST_RAD)):
        in_the_way = (across < radius_m + side_m) & (along > 0)
        free_m = np.where(in_the_way, along, _FAR_M).min(axis=0, initial=_FAR_M) - radius_m
        cost += weight_rad * np.clip(1.0 - free_m / max(needed_m, 1e-9), 0.0, 1.0)
    return float(COURSES_RAD[np.argmin(cost)])


def _free_ahead_m(obstacles: FloatArray, radius_m: float) -> float:
    """Return the free distance straight ahead, m, or 0 when an obstacle is closer than STOP_M."""
    x, y = obstacles.T
    ahead = x[(np.abs(y) < radius_m) & (x > radius_m / 2)]  # without obstacles to the robot's sides
    return max(0.0, float(ahead.min(initial=_FAR_M)) - radius_m - STOP_M)
