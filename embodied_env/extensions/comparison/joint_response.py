"""Fit delay, gain and offset of joint motion to commands in ordinary episodes."""

from __future__ import annotations

import math
from array import array
from typing import NamedTuple

import numpy as np

from embodied_env.core.actuator_response import peak
from embodied_env.core.types import FloatArray
from embodied_env.record.row_types import RecordedReset, StepAccount, TransitionRow
from embodied_env.record.step_values import CommandedJoint, read_joint

_LONGEST = 2_000  # steps of an episode that are used
_LONGEST_DELAY_S = 0.5
_LONGEST_DELAY_STEPS = 5
_DELAYS = 201
_MOST_UNEXPLAINED = 0.2  # share of the variance of the readings
_NEARLY_BEST = 1.1  # multiple of the least unexplained share
_LEAST_STEPS = 5


class Motion(NamedTuple):
    """Commands and readings of one joint in one episode, with times in s of one clock.

    A command counts from the observation that it answers, so that lockstep and real time compare. The position before
    the first command is one more command.
    """

    commanded_s: FloatArray
    commands: FloatArray
    read_s: FloatArray
    readings: FloatArray


class JointResponse(NamedTuple):
    """Motion as ``gain * command(t - delay_s)``, at a mean distance `offset` from it."""

    delay_s: float
    gain: float
    offset: float


class MotionRecorder:
    """Collects the motion of the tracked joints over `_LONGEST` steps of an episode."""

    def __init__(self, joints: list[CommandedJoint], *, period_s: float, is_lockstep: bool) -> None:
        self._joints, self._period_s, self._is_lockstep = joints, period_s, is_lockstep
        self._columns = [tuple(array("d") for _ in Motion._fields) for _ in joints]
        self._starts = [math.nan] * len(joints)
        self._previous_ns: int | None = None

    def begin(self, row: RecordedReset) -> None:
        """Start an episode with its reset, whose readings count as commands before the first one."""
        for column in (column for columns in self._columns for column in columns):
            del column[:]
        if row["inner"] is None:
            self._starts, self._previous_ns = [math.nan] * len(self._joints), None
        else:
            self._starts, self._previous_ns = [read_joint(row, joint) for joint in self._joints], row["inner"]["now_ns"]

    def add(self, row: TransitionRow) -> list[float]:
        """Add a step, and return reading minus command of each joint, NaN where one is unknown."""
        inner, previous_ns = row["inner"], self._previous_ns
        self._previous_ns = inner["now_ns"]
        observed_s, commanded_s = self._times(inner, previous_ns)
        errors = []
        sensors = row["info"]["sensors"]
        for joint, start, columns in zip(self._joints, self._starts, self._columns, strict=True):
            reading, command = read_joint(row, joint), row["info"]["action"]["applied_si"].get(joint.name)
            command = math.nan if command is None else command
            error = math.remainder(reading - command, math.tau) if joint.wraps else reading - command
            errors.append(error)
            read_s = observed_s - (sensors[joint.sensor]["age_s"] if joint.sensor in sensors else math.nan)
            if len(columns[0]) >= _LONGEST or not math.isfinite(error + read_s + commanded_s):
                continue
            if not columns[0] and math.isfinite(start):
                columns[0].append(commanded_s - self._period_s)
                columns[1].append(command + math.remainder(start - command, math.tau) if joint.wraps else start)
            for column, value in zip(columns, (commanded_s, command, read_s, command + error), strict=True):
                column.append(value)
        return errors

    def motions(self) -> list[Motion]:
        """Return the motion of each joint in the episode so far."""
        return [Motion(*(np.array(column) for column in columns)) for columns in self._columns]

    def _times(self, inner: StepAccount, previous_ns: int | None) -> tuple[float, float]:
        if self._is_lockstep:
            observed_ns = inner["now_ns"]
            commanded_ns = observed_ns - self._period_s * 1e9 if previous_ns is None else previous_ns
        else:
            stamps = inner["stamps_ns"]
            observed_ns = stamps["observed"]
            commanded_ns = max(stamps["previous_observed"], stamps["entered"] - self._period_s * 1e9)
        return observed_ns * 1e-9, commanded_ns * 1e-9


def fit_joint_response(motion: Motion, joint: CommandedJoint, period_s: float) -> JointResponse | None:
    """Fit the response of `joint`.

    Return None where it hardly moved or where commands do not explain its motion. Commands are joined by straight
    lines. The delay is dead time and lag together: the one at which commands and readings correlate best.
    """
    t, u, y = motion.commanded_s, motion.commands, motion.readings
    if len(t) < _LEAST_STEPS or np.ptp(u) < 0.2 * joint.step or np.any(np.diff(t) <= 0.0):
        return None
    delays = np.linspace(0.0, max(_LONGEST_DELAY_S, _LONGEST_DELAY_STEPS * period_s), _DELAYS)
    x = np.interp(motion.read_s - delays[:, np.newaxis], t, u)
    commanded, moved = x - x.mean(axis=1, keepdims=True), y - y.mean()
    both, power = commanded @ moved, (commanded * commanded).sum(axis=1) * (moved @ moved)
    score = np.where(power > 0.0, both / np.sqrt(np.maximum(power, 1e-300)), 0.0)
    unexplained = 1.0 - np.maximum(score, 0.0) ** 2
    if not unexplained.min() <= _MOST_UNEXPLAINED:
        return None
    best = int(np.argmax(unexplained <= _NEARLY_BEST * unexplained.min()))  # periodic commands fit longer delays too
    while best + 1 < len(score) and score[best + 1] > score[best]:
        best += 1
    gain = float(both[best] / (commanded[best] @ commanded[best]))
    return JointResponse(delay_s=peak(delays, score, best), gain=gain, offset=float(np.mean(y - x[best])))
