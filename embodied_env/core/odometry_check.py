"""Compare the odometry of a base with itself and with the velocities that it was commanded."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from embodied_env.timing.clock import NS_PER_S

if TYPE_CHECKING:
    from embodied_env.contract import Contract, FloatArray

ODOMETRY = "nav_msgs/msg/Odometry"
AXES: Mapping[str, tuple[str, float]] = {  # axis -> its unit, and the velocity up to which a base counts as standing
    "linear.x": ("m/s", 0.05),
    "linear.y": ("m/s", 0.05),
    "angular.z": ("rad/s", 0.1),
}

_WINDOW_NS = NS_PER_S  # velocities are means over this time
_LAG_NS = NS_PER_S  # a base may follow its commands this much later
_LEAST_READINGS, _LEAST_SPAN = 5, 0.7  # span of the readings as a share of the window
_SHARES = (0.5, 1.5)  # a base follows if it drives between these shares of its commands
_DEVIATION = 0.3  # largest difference of twist and pose, as a share of the larger one
_UNKNOWN = (math.nan,) * 3


class OdometryCheck:
    """The odometry of a base and its commands over the last seconds.

    Attributes:
        text: the problems found with the newest reading, or "".
        has_moved: whether the base has moved in this episode, by its odometry.
    """

    def __init__(self, sensor: str, axes: Sequence[str]) -> None:
        self.sensor, self._axes = sensor, axes
        self.begin()

    @classmethod
    def declared_by(cls, contract: Contract) -> Self | None:
        """Return the check of a contract with one odometry and one base, or else None."""
        bases = [actuator for actuator in contract.actuators.values() if actuator.command == "twist"]
        sensors = [name for name, sensor in contract.sensors.items() if sensor.type == ODOMETRY]
        return cls(sensors[0], tuple(bases[0].joints)) if len(bases) == len(sensors) == 1 else None

    def begin(self) -> None:
        """Begin an episode."""
        self._readings: deque[tuple[float, ...]] = deque()  # time in s, pose, twist
        self._commands: deque[tuple[int, Mapping[str, float]]] = deque()
        self._start_ns = self._last_ns = -1
        self.text, self.has_moved = "", False

    def add_command(self, now_ns: int, velocities: Mapping[str, float]) -> None:
        """Add the velocities by axis that were commanded at this time."""
        self._commands.append((now_ns, velocities))

    def add_reading(self, stamp_ns: int, values: Mapping[str, Any]) -> None:
        """Add a reading of the odometry, and compare it unless it is the previous one."""
        if stamp_ns <= self._last_ns:
            return
        self._start_ns, self._last_ns = stamp_ns if self._last_ns < 0 else self._start_ns, stamp_ns
        now_s = (stamp_ns - self._start_ns) / NS_PER_S
        self._readings.append((now_s, *_motion(values)))
        while self._readings[0][0] < now_s - _WINDOW_NS / NS_PER_S:
            self._readings.popleft()
        while self._commands and self._commands[0][0] < stamp_ns - _WINDOW_NS - _LAG_NS:
            self._commands.popleft()
        if len(self._readings) >= _LEAST_READINGS:
            self.text = "; ".join(self._problems(np.array(self._readings)))

    def _problems(self, readings: FloatArray) -> Iterator[str]:
        """Yield the problems of readings, shape (n, 7), NaN for a pose or twist that is not read."""
        times_s, poses, twists = readings[:, 0], readings[:, 1:4], readings[:, 4:]
        span_s = times_s[-1] - times_s[0]
        if span_s < _LEAST_SPAN * _WINDOW_NS / NS_PER_S:
            return
        x_m, y_m, turns = np.diff(poses, axis=0).T
        turns = np.arctan2(np.sin(turns), np.cos(turns))
        cos, sin = np.cos(poses[:-1, 2] + turns / 2.0), np.sin(poses[:-1, 2] + turns / 2.0)
        by_pose = np.array([cos @ x_m + sin @ y_m, cos @ y_m - sin @ x_m, turns.sum()]) / span_s
        by_twist = np.diff(times_s) @ (twists[:-1] + twists[1:]) / 2.0 / span_s
        is_commanded = self._commands and self._last_ns - self._commands[0][0] > 0.9 * (_WINDOW_NS + _LAG_NS)
        for (axis, (unit, standing)), moved, reported in zip(AXES.items(), by_pose, by_twist, strict=True):
            if abs(reported - moved) > standing + _DEVIATION * max(abs(reported), abs(moved)):
                yield f"its twist of {axis} is {reported:.2f} {unit}, but its pose moves with {moved:.2f} {unit}"
            driven = reported if math.isnan(moved) else moved
            self.has_moved = self.has_moved or abs(driven) > standing
            sent = (
                [velocities[axis] for _, velocities in self._commands] if is_commanded and axis in self._axes else [0.0]
            )
            forward = math.copysign(1.0, sent[0])
            slowest, fastest = min(forward * each for each in sent), max(forward * each for each in sent)
            follows = math.isnan(driven) or _SHARES[0] * slowest <= forward * driven <= _SHARES[1] * fastest
            if slowest > standing and not follows:
                yield f"{axis} does not follow: {np.mean(sent):.2f} {unit} applied, {driven:.2f} {unit} driven"


def _motion(values: Mapping[str, Any]) -> tuple[float, ...]:
    """Return x, y, heading, and the twist along x, y and about z, NaN for values not read."""
    pose = twist = _UNKNOWN
    if {"position", "orientation"} <= values.keys():
        x, y, z, w = values["orientation"].tolist()
        heading = math.atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))
        pose = (*values["position"].tolist()[:2], heading)
    if {"linear", "angular"} <= values.keys():
        twist = (*values["linear"].tolist()[:2], values["angular"].tolist()[2])
    return *pose, *twist
