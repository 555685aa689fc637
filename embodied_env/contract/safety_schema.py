"""The keys of a contract's safety gate, ``safety``, as frozen dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias

from annotated_types import Interval

from embodied_env.contract.frozen_dict import FrozenFields
from embodied_env.contract.key_types import Count, Name, NotNegative, Positive, Share, Such, exactly_one
from embodied_env.contract.tightening_rules import (
    AtLeast,
    AtMost,
    Fixed,
    Free,
    Keeps,
    KeptGroup,
    NoneBut,
    OnceSet,
    boxes_within,
    margins_as_large,
    tighten,
    towards,
)
from embodied_env.plugins.plugin_table import built_in_classes

Point = tuple[float, float, float]

MarginShare: TypeAlias = Annotated[float, Interval(ge=1e-6, le=1)]
LinkPair: TypeAlias = Annotated[
    tuple[str, str], Such(expected="two different links", holds=lambda pair: pair[0] != pair[1])
]


@dataclass(frozen=True, kw_only=True)
class BoxSpec:
    """An axis-aligned box between two corners."""

    low_m: Point  # corner below high_m
    high_m: Point  # the opposite corner


Box: TypeAlias = Annotated[
    BoxSpec,
    Such(
        expected="low_m below high_m",
        holds=lambda box: all(low < high for low, high in zip(box.low_m, box.high_m, strict=True)),
        shown=lambda box: f"low_m {list(box.low_m)}, high_m {list(box.high_m)}",
    ),
]


@dataclass(frozen=True, kw_only=True)
class SphereSpec:
    """A sphere."""

    center_m: Point  # center
    radius_m: Positive  # radius


@dataclass(frozen=True, kw_only=True)
class CapsuleSpec:
    """All points within `radius_m` of the segment between two ends."""

    ends_m: tuple[Point, Point]  # ends of the segment
    radius_m: Positive  # distance from the segment


@dataclass(frozen=True, kw_only=True)
class KeepOutSpec:
    """A region of exactly one shape that no link may enter."""

    box: Box | None = None
    sphere: SphereSpec | None = None
    capsule: CapsuleSpec | None = None


KeepOut: TypeAlias = Annotated[KeepOutSpec, exactly_one("box", "sphere", "capsule")]


@dataclass(frozen=True, kw_only=True)
class WorkspaceSpec(FrozenFields):
    """The regions in which the robot's links may be. `margin_m` applies to all of them."""

    # boxes that no link leaves; the lower side is the floor
    keep_in: Annotated[Mapping[Name, Box], tighten(boxes_within)] = field(default_factory=dict)
    # regions that no link enters: exactly one shape each, not around the fixed base
    keep_out: Keeps[Mapping[Name, KeepOut]] = field(default_factory=dict)
    self_collision: AtLeast[bool] = False  # keep links apart, except those connected by a joint
    ignore_pairs: NoneBut[tuple[LinkPair, ...]] = ()  # pairs of links exempt from self-collision
    ignore_links: NoneBut[tuple[str, ...]] = ()  # links that are not checked
    margin_m: AtLeast[NotNegative] = 0.02  # minimum distance; more than 0.005 also covers path sampling
    gamma: AtMost[Share] = 0.2  # share by which a distance may shrink in one step


@dataclass(frozen=True, kw_only=True)
class OwnMargins:
    """Margins of one actuator or joint, or those of all where null."""

    position: NotNegative | None = None  # inset of the position limits at both ends, in the joint's unit
    velocity: MarginShare | None = None  # usable fraction of the velocity limit
    acceleration: MarginShare | None = None  # usable fraction of the acceleration and deceleration limits


@dataclass(frozen=True, kw_only=True)
class Margins(FrozenFields):
    """Distance of the enforced limits from the joint limits."""

    position: AtLeast[NotNegative] = 0.02  # inset of the position limits at both ends, in the joint's unit
    velocity: AtMost[MarginShare] = 0.95  # usable fraction of the velocity limit
    acceleration: AtMost[MarginShare] = 0.9  # usable fraction of the acceleration and deceleration limits
    actuators: Free[Mapping[str, OwnMargins]] = field(default_factory=dict)  # other margins, by actuator
    # other margins, by joint; before `actuators`
    joints: Annotated[Mapping[str, OwnMargins], tighten(margins_as_large)] = field(default_factory=dict)

    def of(self, actuator: str, joint: str, *, position: float | None = None) -> tuple[float, float, float]:
        """Return a joint's margins of position (by default `position`), velocity and acceleration."""
        found = [self.position if position is None else position, self.velocity, self.acceleration]
        for own in (self.actuators.get(actuator), self.joints.get(joint)):
            if own is not None:
                others = (own.position, own.velocity, own.acceleration)
                found = [each if other is None else other for each, other in zip(found, others, strict=True)]
        return found[0], found[1], found[2]


@dataclass(frozen=True, kw_only=True)
class Nonfinite:
    """HOLD, then STOP, after an action with NaN, infinity, or a wrong shape or type."""

    stop_after: AtMost[Count] = 3  # consecutive malformed actions before STOP


@dataclass(frozen=True, kw_only=True)
class WatchdogSpec:
    """Timeouts of the watchdog of free-running worlds, in control periods without a step."""

    hold_steps: AtMost[Count] = 2  # real time: control periods without a step before HOLD
    stop_steps: AtMost[Count] = 10  # real time: control periods without a step before STOP, above `hold_steps`


@dataclass(frozen=True, kw_only=True)
class ObservationAge:
    """Sensors without a valid, recent reading of which an action leads to HOLD, then STOP."""

    # sensors that must be valid and younger than `max_age_s`; null: those that report the commanded joints, and for an
    # actuator without them, such as a twist, each odometry, pose and velocity without a mask, or if there is none that
    # stops the robot, each sensor without a mask; `[]` (none) must be written out
    required: Annotated[tuple[str, ...] | None, tighten(lambda robot, own: set(robot) <= set(own))] = None
    stop_steps: AtMost[Count] = 10  # consecutive steps of HOLD before STOP
    # how far a stamp may be in the future in real time; in lockstep it is 0
    future_tolerance_s: AtMost[NotNegative] = 0.005
    # `real`: refuse messages with a zero stamp; false: use the time of publication or reception
    require_stamp: AtLeast[bool] = True


@dataclass(frozen=True, kw_only=True)
class Intervention:
    """Share of recent steps in which the gate may change the action before it warns or stops."""

    window_steps: Fixed[Count] = 50  # steps in which interventions are counted
    warn_share: AtMost[Share] = 0.5  # larger share of changed actions that is reported (`rate.intervention`)
    stop_share: AtMost[Share | None] = None  # larger share that ends the episode; null: none


@dataclass(frozen=True, kw_only=True)
class Safety(*(each.keys for each in reversed(built_in_classes("interlocks"))), FrozenFields):  # type: ignore[misc] # typed there
    """Settings of the safety gate, with the keys that each interlock declares."""

    # `monitor` reports limits without applying them; malformed actions still brake
    mode: Annotated[Literal["enforce", "monitor"], towards("enforce")] = "enforce"
    margins: Margins = field(default_factory=Margins)
    nonfinite: Nonfinite = field(default_factory=Nonfinite)
    watchdog: WatchdogSpec = field(default_factory=WatchdogSpec)
    observation: ObservationAge = field(default_factory=ObservationAge)
    intervention: Intervention = field(default_factory=Intervention)
    # relative to the contract, at most 4 MiB; the tighter of its limits and the contract's apply
    urdf: OnceSet[str | None] = None
    workspace: KeptGroup[WorkspaceSpec | None] = None  # regions in which the links may be; null: not checked
    # third-party filter (entry point `embodied_env.gates`) and its parameters
    gates: Keeps[Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    # interlock of another package (entry point `embodied_env.interlocks`) and its parameters
    interlocks: Keeps[Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
