"""Sensor checks, fresh readings and Cartesian motion for tasks and scripted policies."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract, FloatArray, SensorSpec
from embodied_env.contract.spaces import ActionLayout
from embodied_env.contract.value_checks import one_of, require
from embodied_env.core.code_types import Quality
from embodied_env.core.measured_joints import find_positions
from embodied_env.core.policy import PolicyFunction
from embodied_env.core.types import Snapshot, TaskResult, Verdict
from embodied_env.errors import UsageError
from embodied_env.tasks.task import Task

_OK, _OUT_OF_RANGE = int(Quality.OK), int(Quality.OUT_OF_RANGE)  # NumPy compares arrays with enums slowly


def require_sensor(contract: Contract, path: str, name: str, *fields: str, joints: bool = False) -> SensorSpec:
    """Return the sensor with `fields` (one value per joint if `joints`) or raise ContractError."""
    fitting = [
        known
        for known, sensor in contract.sensors.items()
        if all(field in sensor.fields and (sensor.fields[field].joints is not None) == joints for field in fields)
    ]
    wanted = " and ".join(fields) + (" of joints" if joints else "")
    require(name in fitting, path, f"no sensor with {wanted}: {one_of(name, fitting)}")
    return contract.sensors[name]


def is_fresh(snapshot: Any, *sensors: str) -> Any:  # noqa: ANN401 - as `ArrayTask.evaluate`
    """Return whether the readings of `sensors` are new, not held, as a bool or one per slot."""
    fresh: Any = True
    for name in sensors:
        quality = snapshot.samples[name].quality
        fresh = fresh & ((quality == _OK) | (quality == _OUT_OF_RANGE))
    return fresh


def components(vectors: NDArray[Any]) -> Any:  # noqa: ANN401 - a sequence
    """Return the components of a vector as numbers, or of rows as arrays (n_slots,)."""
    return vectors.tolist() if vectors.ndim == 1 else np.asarray(vectors.T, dtype=np.float64)


def squared_norm(vectors: NDArray[Any]) -> Any:  # noqa: ANN401 - a number, or an array of them
    """Return the sum of squares over the last axis.

    The squares are added in order, so that each row of a batch has the bits of the row alone, which ``dot`` and ``sum``
    do not guarantee.
    """
    squares = 0.0
    for each in vectors.tolist() if vectors.ndim == 1 else components(vectors):
        squares = squares + each * each
    return squares


def norm(vectors: NDArray[Any]) -> Any:  # noqa: ANN401 - a number, or an array of them
    """Return the Euclidean norm over the last axis, added like `squared_norm`."""
    if vectors.ndim > 1:
        return np.sqrt(squared_norm(vectors))
    squares = 0.0
    for each in vectors.tolist():
        squares += each * each
    return math.sqrt(squares)


class ArrayTask(Task):
    """Base of tasks with one formula, `evaluate`, for one slot and for several at once.

    It is elementwise: the `components` of a field are numbers in a snapshot and arrays (n_slots,) in a batch, and so
    are reward, terms and the fields of the verdict. ``+ - * /``, ``sqrt``, ``min`` and ``max`` have the same bits in
    both; ``dot``, ``sum`` and ``np.linalg.norm`` have not (`norm` has). If a subclass overrides `judge` or `reset`, for
    example to keep state for an episode, its slots are judged one by one.

    Attributes:
        n_joints: the number of joints of the contract, set by `load_task`.
    """

    n_joints = 1

    def evaluate(self, previous: Any, current: Any, applied: FloatArray) -> TaskResult:  # noqa: ANN401
        """Return the result for `applied`, (n_joints,) or (n_slots, n_joints), and change nothing."""
        raise NotImplementedError

    def judge(self, previous: Snapshot, current: Snapshot, applied: FloatArray) -> TaskResult:
        """Judge one step."""
        return self.evaluate(previous, current, applied)

    def reset(self, snapshot: Snapshot, options: Mapping[str, FloatArray]) -> Verdict:  # noqa: ARG002 - protocol
        """Judge the first snapshot, before the first step, without motion."""
        return self.evaluate(snapshot, snapshot, np.zeros(self.n_joints)).verdict


def reason_if(holds: Any, reason: str) -> Any:  # noqa: ANN401 - a string, or an array of them
    """Return the `reason` of a verdict where it holds, and an empty string elsewhere."""
    return np.where(holds, reason, "") if isinstance(holds, np.ndarray) else reason if holds else ""


def require_visible(contract: Contract, sensor: str) -> str:
    """Return `sensor`, or raise UsageError when it is hidden from the agent."""
    if contract.sensors[sensor].visibility != "agent":
        raise UsageError(f"sensor not in the observation: {sensor!r} (the scripted policy reads it)")
    return sensor


def joint_reader(
    contract: Contract, joints: Sequence[str], *, reader: str = "the scripted policy"
) -> Callable[[Mapping[str, NDArray[Any]]], FloatArray]:
    """Return the reader of the positions of `joints`, or raise UsageError for a hidden joint."""
    found = find_positions(contract)
    if unseen := [joint for joint in joints if joint not in found]:
        raise UsageError(f"joints not in the observation: {', '.join(unseen)} ({reader} needs their positions)")
    places = [(f"{found[joint][0]}_position", found[joint][1]) for joint in joints]
    return lambda observation: np.array([observation[key][index] for key, index in places])


Motion = Callable[[Mapping[str, NDArray[Any]], FloatArray], tuple[FloatArray, FloatArray]]
"""Returns a Jacobian (m, n_joints) and the velocity (m,), m/s, from an observation and the joint positions."""


def cartesian_policy(contract: Contract, motion: Motion, *, damping_m: float) -> PolicyFunction:
    """Return the policy that makes `motion` by joints within the velocity limits.

    Its actions are joint positions or displacements. Damped least squares, J^T (J J^T + lambda^2 I)^-1 v, keep joint
    velocities bounded near singularities.
    """
    layout, period_s = ActionLayout(contract), contract.control_period_s
    joint_positions = joint_reader(contract, layout.joints)

    def act(observation: Mapping[str, NDArray[Any]]) -> Any:  # noqa: ANN401 - of the action space
        positions = joint_positions(observation)
        jacobian, velocity = motion(observation, positions)
        inverse = jacobian.T @ np.linalg.inv(jacobian @ jacobian.T + damping_m**2 * np.eye(len(jacobian)))
        delta = period_s * (inverse @ velocity)
        delta /= max(1.0, float(np.max(np.abs(delta) / (layout.limits.fastest * period_s))))
        action = layout.scale.from_si(np.where(layout.is_delta, delta, positions + delta))
        return layout.to_space(action)

    return act


def approach_velocity(error_m: FloatArray, gain_per_s: float, speed_m_per_s: float) -> FloatArray:
    """Return the velocity, m/s, that closes `error_m` (3,) at a gain, up to a speed."""
    return error_m * min(gain_per_s, speed_m_per_s / max(float(np.linalg.norm(error_m)), 1e-9))
