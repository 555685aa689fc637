"""The keys of a contract's actuators and their joints, as frozen dataclasses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Annotated, Literal, TypeAlias

import numpy as np
from annotated_types import Interval, MinLen
from numpy.typing import NDArray

from embodied_env.contract.driver_units import Conversion, DriverUnits, conversion_of, same_line
from embodied_env.contract.frozen_dict import FrozenFields
from embodied_env.contract.key_types import Positive, Quantity, Range, Such, Text, Topic
from embodied_env.contract.qos_schema import Qos
from embodied_env.contract.safety_schema import Margins
from embodied_env.contract.tightening_rules import (
    AtMost,
    Fixed,
    FixedGroup,
    Free,
    Rule,
    Within,
    speeds_within,
    tighten,
    velocity_range,
)
from embodied_env.errors import UsageError
from embodied_env.messages.commands import Command

FloatArray = NDArray[np.float64]
_FINGERS = 1e-6  # rad or m: how far a finger may be from the one that it mimics
_Velocities: TypeAlias = Annotated[
    tuple[Quantity, Quantity],
    Such(
        expected="[low, high] with low <= 0 <= high, not both 0, of a magnitude >= 1e-9",
        holds=lambda v: v[0] <= 0.0 <= v[1] and v[0] < v[1] and all(abs(each) >= 1e-9 for each in v if each),
    ),
]


@dataclass(frozen=True, kw_only=True)
class JointLimits:
    """Limits of one joint or twist axis in `unit`, unit/s and unit/s^2."""

    # low and high; null: unlimited (not for `position` commands); a twist axis has none and may leave it out
    position: Within[Range | None]
    # maximum speed in both directions, unit/s; or [low, high], the lowest and the highest velocity, with
    # low <= 0 <= high and not both 0; of an action server: the speed of the simulated gripper, a number
    velocity: Annotated[Positive | _Velocities, tighten(speeds_within)]
    # maximum acceleration, unit/s²; null for an action server, which may leave it out
    acceleration: AtMost[Positive | None]
    deceleration: AtMost[Positive | None] = None  # maximum deceleration, unit/s²; null: as `acceleration`
    # maximum jerk, unit/s³; guaranteed in lockstep only, and not while braking; null: unlimited
    jerk: AtMost[Positive | None] = None
    unit: Fixed[Literal["rad", "m"]] = "rad"  # unit of the position
    # the commands that the driver takes, where they are not in `unit` or unit/s; the same in a robot file
    driver: Annotated[DriverUnits | None, Rule("fixed", same_line)] = None

    def __post_init__(self) -> None:
        """Replace opposite velocities by one number, so that equal limits have equal fingerprints."""
        if isinstance(self.velocity, (tuple, list)):
            try:
                low, high = self.velocity
                is_symmetric = low == -high < 0.0
            except (TypeError, ValueError):
                expected = "a number, or [low, high]"
                raise UsageError(f"invalid velocity limit: {self.velocity!r} (expected {expected})") from None
            object.__setattr__(self, "velocity", high if is_symmetric else (low, high))

    @property
    def velocities(self) -> tuple[float, float]:
        """The lowest and the highest velocity, unit/s."""
        return velocity_range(self.velocity)

    @property
    def fastest(self) -> float:
        """The larger speed of both directions, unit/s."""
        low, high = self.velocities
        return max(-low, high)


@dataclass(frozen=True, kw_only=True)
class EffectiveLimits:
    """Joint limits after margins, as arrays (n_joints,) in the order of the joints.

    The velocities satisfy `velocity_low` <= 0 <= `velocity_high`, and differ only in sign unless the contract gives
    both. A continuous joint has position limits of -inf and +inf, and a joint without a jerk limit has one of +inf. The
    goal of an action server is limited in position only, so that all its other limits are infinite.
    """

    joints: tuple[str, ...]
    position_low: FloatArray
    position_high: FloatArray
    velocity_low: FloatArray
    velocity_high: FloatArray
    acceleration: FloatArray
    deceleration: FloatArray
    jerk: FloatArray

    @property
    def is_goal(self) -> NDArray[np.bool_]:
        """Whether each joint is commanded by goals of an action server, shape (n_joints,)."""
        return np.isinf(self.velocity_high)

    @cached_property
    def fastest(self) -> FloatArray:
        """The larger speed of both directions, unit/s, shape (n_joints,)."""
        return np.maximum(-self.velocity_low, self.velocity_high)

    def vectors(self) -> dict[str, FloatArray]:
        """Return the limits by name, with `velocity_low` only where it is not minus `velocity`."""
        found = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "joints"}
        low = found.pop("velocity_low")
        named = {"velocity" if name == "velocity_high" else name: vector for name, vector in found.items()}
        return named if np.array_equal(low, -self.velocity_high) else {**named, "velocity_low": low}


_Multiplier: TypeAlias = Annotated[Quantity, Such(expected="a number other than 0", holds=bool)]


@dataclass(frozen=True, kw_only=True)
class GripperSpec(FrozenFields):
    """The positions of a gripper in the joint's unit, and how its action server is used."""

    open: Fixed[float]  # position of the open gripper, within the joint's limits
    closed: Fixed[float]  # position of the closed gripper, other than `open`
    # `scale: binary`: an action below it closes, any other opens
    threshold: Free[Annotated[float, Interval(gt=-1, lt=1)]] = 0.0
    # what a STOP or ESTOP does; `open` and `close` for an action server only
    on_stop: Fixed[Literal["hold", "open", "close"]] = "hold"
    # further fingers in the same message, after the gripper's joint: joint -> multiplier of its position, such as -1
    mimic: Fixed[Mapping[Text, _Multiplier]] = field(default_factory=dict)
    # action server: smallest change of the goal that is sent, as a share of the way from `closed` to `open`
    hysteresis: AtMost[Annotated[float, Interval(ge=0, lt=1)]] = 0.01
    # action server: maximum effort, N or N·m; null: that of the server
    max_effort: AtMost[Positive | None] = None
    # action server: STOP after this time without its answer to a goal
    max_silent_s: AtMost[Positive] = 5.0


@dataclass(frozen=True, kw_only=True)
class ActuatorSpec(FrozenFields):
    """One actuator topic, whose `joints` are in the order of the action, or twist axes."""

    topic: Free[Topic]  # one actuator per topic; of an action server: the name of the action
    type: Free[str]  # message or action type, see [commands](#commands)
    # meaning of an action; a delta is relative to the last applied command
    command: Free[Command]
    # limits by joint or axis, in the order of the action
    joints: Free[Annotated[Mapping[Text, JointLimits], MinLen(1)]]
    # `normalized`: [-1, 1] maps onto the limits after margins; `physical`: SI units; `binary`: open or close a gripper
    scale: Free[Literal["normalized", "physical", "binary"]] = "normalized"
    frame: Free[str | None] = None  # `header.frame_id` of the commands; null: empty
    qos: Free[Qos] = None  # QoS of the publisher, see [QoS](#qos); null: reliable, depth 10
    # positions of a gripper with one joint, which has no position margin, and may close on an object
    gripper: FixedGroup[GripperSpec | None] = None
    # real time: setpoints between steps, a multiple of the control rate, the same for every topic, all
    # commanded by position, and none for an action server; null: one setpoint per step
    setpoint_rate_hz: Fixed[Annotated[float, Interval(gt=0, le=1000)] | None] = None
    # real time, JointTrajectory only: publish with each command at most this many actions after it, then
    # braking to rest; the same for every actuator but action servers; null: one point per step
    trajectory_steps: Fixed[Annotated[int, Interval(ge=0, le=50)] | None] = None

    @property
    def is_velocity(self) -> bool:
        """Whether velocities are published, not positions."""
        return self.command in ("velocity", "twist")

    @property
    def is_action(self) -> bool:
        """Whether an action server takes the commands, as goals."""
        return "/action/" in self.type

    @property
    def mimic(self) -> Mapping[str, float]:
        """The further fingers of a gripper, and the multiplier of its position for each."""
        return {} if self.gripper is None else self.gripper.mimic

    @property
    def published_joints(self) -> tuple[str, ...]:
        """The joints in a message, which are those of the action followed by the further fingers."""
        return (*self.joints, *self.mimic)

    @cached_property
    def conversion(self) -> Conversion | None:
        """The conversion of the values in a message, or None without one."""
        units = [limits.driver for limits in self.joints.values()]
        return conversion_of([*units, *units[:1] * len(self.mimic)], self._with_fingers(self.centres))

    def _with_fingers(self, values: Sequence[float]) -> list[float]:
        return [*values, *(multiplier * values[0] for multiplier in self.mimic.values())]

    @property
    def centres(self) -> list[float]:
        """The middle of each joint's limits regardless of margins, or NaN without limits."""
        if self.is_velocity:
            return [0.0] * len(self.joints)
        return [np.nan if each.position is None else sum(each.position) / 2.0 for each in self.joints.values()]

    def to_driver(self, values: FloatArray) -> FloatArray:
        """Return the message values of `published_joints` for a command, in the driver's units."""
        if self.mimic:
            values = np.array(self._with_fingers(values.tolist()))
        return values if self.conversion is None else self.conversion.to_driver(values)

    def from_driver(self, published: FloatArray) -> FloatArray | None:
        """Return the command in a message, (n_joints,), or None where fingers disagree."""
        values = published if self.conversion is None else self.conversion.to_si(published)
        if not self.mimic:
            return values
        command = values[: len(self.joints)]
        return command if np.allclose(values, self._with_fingers(command.tolist()), rtol=0.0, atol=_FINGERS) else None

    def turns(self, joint: str) -> bool:
        """Return whether a joint is unlimited, so that readings may differ by whole turns."""
        limits = self.joints[joint]
        return limits.unit == "rad" and limits.position is None and not self.is_velocity

    def as_topic(self) -> ActuatorSpec:
        """Return the actuator of a simulator in lockstep, where a topic carries the goals."""
        return replace(self, type="std_msgs/msg/Float64") if self.is_action else self

    def in_si(self) -> ActuatorSpec:
        """Return the actuator of a simulator, which takes the contract's values."""
        return replace(self, joints={name: replace(limits, driver=None) for name, limits in self.joints.items()})

    def margins_of(self, joint: str, margins: Margins, name: str) -> tuple[float, float, float]:
        """Return the margins of position (0 for a gripper by default), velocity and acceleration."""
        return margins.of(name, joint, position=None if self.gripper is None else 0.0)

    def limits(self, margins: Margins, name: str = "") -> EffectiveLimits:
        """Return the limits that the gate enforces, after the margins of the actuator `name`."""
        joints = tuple(self.joints.values())
        shares = [self.margins_of(joint, margins, name) for joint in self.joints]
        inset, speed, change = np.array(shares).reshape(-1, 3).T
        low, high = zip(*(j.position or (-np.inf, np.inf) for j in joints), strict=True)
        lowest, highest = zip(*((-np.inf, np.inf) if self.is_action else j.velocities for j in joints), strict=True)

        def limits_of(values: list[float | None]) -> FloatArray:
            unlimited = [np.inf if value is None or self.is_action else value for value in values]
            return np.array(unlimited, dtype=np.float64)

        return EffectiveLimits(
            joints=tuple(self.joints),
            position_low=np.array(low, dtype=np.float64) + inset,
            position_high=np.array(high, dtype=np.float64) - inset,
            velocity_low=np.array(lowest, dtype=np.float64) * speed,
            velocity_high=np.array(highest, dtype=np.float64) * speed,
            acceleration=limits_of([j.acceleration for j in joints]) * change,
            deceleration=limits_of([j.acceleration if j.deceleration is None else j.deceleration for j in joints])
            * change,
            jerk=limits_of([j.jerk for j in joints]),
        )
