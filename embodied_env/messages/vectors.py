"""Vectors and quaternions of poses, twists, odometry, forces and inertial measurements."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.messages.declaration import (
    AXES,
    Column,
    Content,
    Field,
    InvalidReadingError,
    Message,
    MessageField,
    Read,
    SensorMessage,
    Shape,
    Window,
)
from embodied_env.messages.scalars import NOT_FINITE

NORM_TOLERANCE = 0.1  # maximum deviation of a quaternion's norm from 1: above rounding of float32, below a real error
_IDENTITY = (0.0, 0.0, 0.0, 1.0)  # x, y, z, w: viewers reject a quaternion of NaN
_ROUNDING = 1e-9  # relative asymmetry and negative eigenvalues that are attributed to rounding of an estimator


@dataclass(frozen=True, kw_only=True)
class _Vector(MessageField):
    shape: Shape | None = (3,)
    column: Column = "vector"

    def reader(self, field: Field) -> Read:
        get, dtype = attrgetter(*(f"{self.place}.{axis}" for axis in AXES[self.column])), field.dtype
        return lambda message: np.array(get(message), dtype=dtype)

    def write(self, message: Message, name: str, value: NDArray[Any] | None, content: Content) -> None:  # noqa: ARG002
        part, axes = attrgetter(self.place)(message), AXES[self.column]
        unknown = _IDENTITY if self.rotation else (math.nan,) * len(axes)
        for axis, component in zip(axes, unknown if value is None else value.tolist(), strict=True):
            setattr(part, axis, component)


@dataclass(frozen=True, kw_only=True)
class _Rotation(_Vector):
    shape: Shape | None = (4,)
    column: Column = "rotation"
    units: tuple[str, ...] | None = ("1",)
    bound: float = 1.01

    def accept(self, field: Field, values: NDArray[Any], window: Window) -> NDArray[Any]:  # noqa: ARG002
        norm = math.hypot(*values.tolist())
        if not abs(norm - 1.0) <= NORM_TOLERANCE:  # NaN included
            expected = f"(expected 1, within {NORM_TOLERANCE})"
            raise InvalidReadingError(f"{field.name} is not a rotation: norm {norm:g} {expected}")
        return values


class _Measured(_Vector):
    """A vector or quaternion of an Imu, whose covariance begins with -1 if it is absent."""

    def reader(self, field: Field) -> Read:
        get, covariance = super().reader(field), attrgetter(f"{self.place}_covariance")

        def read(message: Message) -> NDArray[Any]:
            if covariance(message)[0] == -1:
                raise InvalidReadingError(f"no {field.name}: its covariance starts with -1")
            return get(message)

        return read

    def write(self, message: Message, name: str, value: NDArray[Any] | None, content: Content) -> None:
        known = np.full(len(AXES[self.column]), math.nan) if value is None else value
        super().write(message, name, known, content)
        if name not in content.values:
            getattr(message, f"{self.place}_covariance")[0] = -1.0


class _MeasuredRotation(_Measured, _Rotation):
    pass


@dataclass(frozen=True, kw_only=True)
class _Covariance(MessageField):
    """The covariance of x, y, z (m), roll, pitch, yaw (rad), by rows."""

    shape: Shape | None = (36,)
    units: tuple[str, ...] | None = ("1",)

    def reader(self, field: Field) -> Read:
        return lambda message: np.array(message.pose.covariance, dtype=field.dtype)

    def write(self, message: Message, name: str, value: NDArray[Any] | None, content: Content) -> None:
        """Leave it to the message, since some types have a covariance that no contract declares."""


class _WithCovariance(SensorMessage):
    def write(self, message: Message, content: Content) -> None:
        super().write(message, content)
        covariance = content.values.get("covariance", content.extras.get("covariance"))
        if covariance is not None:
            message.pose.covariance = np.array(covariance, dtype=np.float64)


def position_confidence(covariance: NDArray[Any], radius_m: float) -> float:
    """Return the probability that the true position is within `radius_m`, on the worst axis.

    For a Gaussian error of standard deviation sigma: erf(radius / (sigma * sqrt(2))), with sigma^2 the largest
    eigenvalue of the covariance of x, y, z. NaN for an invalid covariance: zero (in ROS: unknown), not finite, not
    symmetric, or with a negative eigenvalue. Shape (36,), by rows, as in geometry_msgs/PoseWithCovariance.
    """
    block = np.asarray(covariance, dtype=np.float64).reshape(6, 6)[:3, :3]
    if not np.isfinite(covariance).all():
        return math.nan
    scale = float(np.abs(block).max())
    if scale == 0.0:
        return math.nan
    block = block / scale  # avoids overflow
    if float(np.abs(block - block.T).max()) > _ROUNDING:
        return math.nan
    variances = np.linalg.eigvalsh(block)  # ascending
    if variances[0] < -_ROUNDING or variances[-1] <= 0.0:
        return math.nan
    sigma_m = math.sqrt(scale) * math.sqrt(float(variances[-1]))
    return math.erf(radius_m / (math.sqrt(2.0) * sigma_m))


def _pose(place: str) -> dict[str, MessageField]:
    return {
        "position": _Vector(units=("m",), column="position", place=f"{place}.position"),
        "orientation": _Rotation(place=f"{place}.orientation"),
    }


def _twist(place: str) -> dict[str, MessageField]:
    parts = {"linear": ("m/s",), "angular": ("rad/s",)}
    return {name: _Vector(units=units, place=f"{place}{name}") for name, units in parts.items()}


_SATURATES = "The simulated values saturate at `low` and `high`"
_COVARIANCE = f"{NOT_FINITE}. A covariance that is zero, not finite or not positive semidefinite gives no confidence"
_FORCE = _Vector(units=("N",), place="wrench.force", saturates=True, bound=1000.0)
_RATE = _Measured(units=("rad/s",), place="angular_velocity", saturates=True, bound=50.0)
_ACCELERATION = _Measured(units=("m/s^2",), place="linear_acceleration", saturates=True, bound=200.0)

MESSAGES = (
    SensorMessage(type="geometry_msgs/msg/PoseStamped", fields=_pose("pose"), sources=("site",), invalid=NOT_FINITE),
    _WithCovariance(
        type="geometry_msgs/msg/PoseWithCovarianceStamped",
        fields={**_pose("pose.pose"), "covariance": _Covariance()},
        covariance=True,
        sources=("site",),
        invalid=_COVARIANCE,
    ),
    SensorMessage(
        type="geometry_msgs/msg/PointStamped",
        fields={"position": _Vector(units=("m",), column="position", place="point")},
        sources=("site",),
        invalid=NOT_FINITE,
    ),
    SensorMessage(type="geometry_msgs/msg/Twist", fields=_twist(""), header=False, of_robot=True, invalid=NOT_FINITE),
    SensorMessage(type="geometry_msgs/msg/TwistStamped", fields=_twist("twist."), of_robot=True, invalid=NOT_FINITE),
    SensorMessage(
        type="geometry_msgs/msg/WrenchStamped",
        fields={"force": _FORCE, "torque": replace(_FORCE, units=("N*m",), place="wrench.torque", bound=200.0)},
        of_robot=True,
        invalid=f"{NOT_FINITE}. {_SATURATES}",
    ),
    _WithCovariance(
        type="nav_msgs/msg/Odometry",
        fields={**_pose("pose.pose"), **_twist("twist.twist.")},
        child_frame=True,
        covariance=True,
        sources=("odometry",),
        of_robot=True,
        invalid=_COVARIANCE,
    ),
    SensorMessage(
        type="sensor_msgs/msg/Imu",
        fields={
            "orientation": _MeasuredRotation(place="orientation"),
            "angular_velocity": _RATE,
            "linear_acceleration": _ACCELERATION,
        },
        of_robot=True,
        invalid="the message marks a declared field as absent: its covariance begins with -1. "
        f"{_SATURATES}, except the orientation",
    ),
)
