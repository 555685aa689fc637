"""The keys of a contract's safety gate, ``safety``, as frozen dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from embodied_env.contract.frozen_dict import FrozenFields

Point = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class BoxSpec:
    """An axis-aligned box between two corners."""

    low_m: Point  # corner below high_m
    high_m: Point  # the opposite corner


@dataclass(frozen=True, kw_only=True)
class SphereSpec:
    """A sphere."""

    center_m: Point  # center
    radius_m: float  # > 0


@dataclass(frozen=True, kw_only=True)
class CapsuleSpec:
    """All points within `radius_m` of the segment between two ends."""

    ends_m: tuple[Point, Point]  # ends of the segment
    radius_m: float  # > 0


@dataclass(frozen=True, kw_only=True)
class KeepOutSpec:
    """A region that no link may enter: exactly one shape."""

    box: BoxSpec | None = None
    sphere: SphereSpec | None = None
    capsule: CapsuleSpec | None = None


@dataclass(frozen=True, kw_only=True)
class WorkspaceSpec(FrozenFields):
    """The regions in which the robot's links may be. `margin_m` applies to all of them."""

    # boxes that no link leaves; the lower side is the floor
    keep_in: Mapping[str, BoxSpec] = field(default_factory=dict)
    # regions that no link enters: exactly one shape each, not around the fixed base
    keep_out: Mapping[str, KeepOutSpec] = field(default_factory=dict)
    self_collision: bool = False  # keep links apart, except those connected by a joint
    ignore_pairs: tuple[tuple[str, str], ...] = ()  # pairs of links exempt from self-collision
    ignore_links: tuple[str, ...] = ()  # links that are not checked
    margin_m: float = 0.02  # minimum distance, >= 0; more than 0.005 also covers path sampling
    gamma: float = 0.2  # share by which a distance may shrink in one step, in (0, 1]


@dataclass(frozen=True, kw_only=True)
class OwnMargins:
    """Margins of one actuator or joint; null: those of all."""

    position: float | None = None  # inset of the position limits at both ends, in the joint's unit, >= 0
    velocity: float | None = None  # usable fraction of the velocity limit, in (0, 1]
    acceleration: float | None = None  # usable fraction of the acceleration and deceleration limits, in (0, 1]


@dataclass(frozen=True, kw_only=True)
class Margins(FrozenFields):
    """Distance of the enforced limits from the joint limits."""

    position: float = 0.02  # inset of the position limits at both ends, in the joint's unit, >= 0
    velocity: float = 0.95  # usable fraction of the velocity limit, in (0, 1]
    acceleration: float = 0.9  # usable fraction of the acceleration and deceleration limits, in (0, 1]
    actuators: Mapping[str, OwnMargins] = field(default_factory=dict)  # other margins, by actuator
    joints: Mapping[str, OwnMargins] = field(default_factory=dict)  # other margins, by joint; before `actuators`

    def of(self, actuator: str, joint: str, *, position: float | None = None) -> tuple[float, float, float]:
        """Return the margins of position, velocity and acceleration of a joint; `position`: instead of that of all."""
        found = [self.position if position is None else position, self.velocity, self.acceleration]
        for own in (self.actuators.get(actuator), self.joints.get(joint)):
            if own is not None:
                others = (own.position, own.velocity, own.acceleration)
                found = [each if other is None else other for each, other in zip(found, others, strict=True)]
        return found[0], found[1], found[2]


@dataclass(frozen=True, kw_only=True)
class Nonfinite:
    """Response to a malformed action (NaN, infinite, wrong shape or type): HOLD, then STOP."""

    stop_after: int = 3  # consecutive malformed actions before STOP, >= 1


@dataclass(frozen=True, kw_only=True)
class WatchdogSpec:
    """Timeouts of the in-process watchdog, in control periods without a step. Free-running worlds only."""

    hold_steps: int = 2  # real time: control periods without a step before HOLD, >= 1
    stop_steps: int = 10  # real time: control periods without a step before STOP, above `hold_steps`


@dataclass(frozen=True, kw_only=True)
class ObservationAge:
    """Sensors that must be valid and younger than ``max_age_s`` for an action to be accepted: else HOLD, then STOP."""

    # sensors that must be valid and younger than `max_age_s`; null: those that report the commanded joints, and for an
    # actuator without them, such as a twist, each odometry, pose and velocity without a mask, or if there is none that
    # stops the robot, each sensor without a mask; `[]` (none) must be written out
    required: tuple[str, ...] | None = None
    stop_steps: int = 10  # consecutive steps of HOLD before STOP, >= 1
    future_tolerance_s: float = 0.005  # how far a stamp may be in the future in real time, >= 0; in lockstep it is 0
    # `real`: refuse messages with a zero stamp; false: use the time of publication or reception
    require_stamp: bool = True


@dataclass(frozen=True, kw_only=True)
class ActionAge:
    """Maximum time from the return of an observation to its action. Free-running worlds only."""

    max_age_steps: int = 2  # real time: maximum age of an action after its observation, in control periods, >= 1


@dataclass(frozen=True, kw_only=True)
class Tracking(FrozenFields):
    """Tracking error of a joint that leads to HOLD and then STOP."""

    # largest distance from the command, as a fraction of the joint's range (of a turn or a metre if unlimited)
    tolerance: float = 0.05
    actuators: Mapping[str, float | None] = field(default_factory=dict)  # other tolerances; null: not checked
    joints: Mapping[str, float | None] = field(default_factory=dict)  # the same by joint; before `actuators`
    delay_steps: int = 2  # earlier commands at which the joint may still be, >= 0
    debounce_steps: int = 3  # consecutive steps before HOLD, >= 1
    stop_steps: int = 10  # consecutive steps before STOP, above `debounce_steps`

    def of(self, actuator: str, joint: str) -> float | None:
        """Return the tolerance of a joint; None: it is not checked."""
        return self.joints.get(joint, self.actuators.get(actuator, self.tolerance))


@dataclass(frozen=True, kw_only=True)
class LatencyBudget:
    """Maximum time from observation to command."""

    budget_s: float | None = None  # maximum time from observation to command, > 0; null: none
    misses: int = 3  # number of misses within the window that triggers `action`
    window_steps: int = 10  # steps in the window, >= `misses`
    action: Literal["warn", "hold"] = "warn"  # `warn` reports it, `hold` brakes


@dataclass(frozen=True, kw_only=True)
class Intervention:
    """Fraction of recent steps in which the gate may change the action before it warns, or stops."""

    window_steps: int = 50  # steps in which interventions are counted, >= 1
    warn_share: float = 0.5  # larger share of changed actions that is reported (`rate.intervention`), in (0, 1]
    stop_share: float | None = None  # larger share that ends the episode, in (0, 1]; null: none


@dataclass(frozen=True, kw_only=True)
class ForceLimit:
    """Maximum norm of a sensor's field, in its unit; STOP beyond it."""

    field: str  # field of the sensor
    limit: float  # maximum norm, in the field's unit, > 0; STOP above it


@dataclass(frozen=True, kw_only=True)
class Safety(FrozenFields):
    """Settings of the safety gate."""

    # `monitor` reports limits without applying them; malformed actions still brake
    mode: Literal["enforce", "monitor"] = "enforce"
    margins: Margins = field(default_factory=Margins)
    nonfinite: Nonfinite = field(default_factory=Nonfinite)
    watchdog: WatchdogSpec = field(default_factory=WatchdogSpec)
    observation: ObservationAge = field(default_factory=ObservationAge)
    action: ActionAge = field(default_factory=ActionAge)
    tracking: Tracking | None = field(default_factory=Tracking)  # tracking error of a joint; null: not checked
    latency: LatencyBudget = field(default_factory=LatencyBudget)
    intervention: Intervention = field(default_factory=Intervention)
    forces: Mapping[str, ForceLimit] = field(default_factory=dict)
    # relative to the contract, at most 4 MiB; the tighter of its limits and the contract's apply
    urdf: str | None = None
    workspace: WorkspaceSpec | None = None  # regions in which the links may be; null: not checked
    # third-party filter (entry point `embodied_env.gates`) and its parameters
    gates: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # interlock of another package (entry point `embodied_env.interlocks`) and its parameters
    interlocks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
