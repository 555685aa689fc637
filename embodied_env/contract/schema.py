"""The keys of a contract file, as frozen dataclasses.

Field names are the YAML keys (``docs/reference/contract.md``). A `contract.contract.Contract` validates the values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract.frozen_dict import FrozenFields
from embodied_env.errors import ContractError

FloatArray = NDArray[np.float64]

SCHEMA = "embodied_env/1"

RESERVED = ("source", "text", "files", "trusted")
"""Fields of a `Contract` that are not keys of its file."""

PROVENANCE = ("robot", "override_robot_limits", "confirmed")
"""Keys about the origin of a contract's values; not part of the fingerprint."""

SHAPE = "safety.workspace"
"""The key of `Contract.files` for the robot's shape as read from a MuJoCo model (`contract.recorded_shapes`)."""

TIME_REMAINING = "time_remaining"
APPLIED_ACTIONS = "applied_actions"
"""Observation keys that belong to no sensor."""

EACH_ITS_OWN = "embodied_env.contract.team:EachItsOwn"
"""The task of a team's world, in which each robot has its own contract, gate and task."""


@dataclass(frozen=True, kw_only=True)
class QosSpec:
    """DDS policies of a subscription or publisher. The history is "keep last" with `depth` messages."""

    depth: int = 10
    reliability: Literal["reliable", "best_effort"] = "reliable"
    durability: Literal["volatile", "transient_local"] = "volatile"


QosPreset: TypeAlias = Literal["sensor_data", "default", "reliable", "latched"]
Qos: TypeAlias = QosPreset | QosSpec | None
"""None: the default for sensors (`SENSOR_QOS`) or actuators (`COMMAND_QOS`)."""

SENSOR_QOS = QosSpec(reliability="best_effort")
"""Compatible with every publisher."""

COMMAND_QOS = QosSpec()

PRESETS: Mapping[str, QosSpec] = {
    "sensor_data": QosSpec(depth=5, reliability="best_effort"),  # as in ROS 2
    "default": QosSpec(),  # as in ROS 2
    "reliable": QosSpec(),
    "latched": QosSpec(depth=1, durability="transient_local"),  # late subscribers get the last message
}


def resolved(qos: Qos, otherwise: QosSpec) -> QosSpec:
    """Return the policies of `qos`; None gives `otherwise`."""
    if qos is None:
        return otherwise
    return qos if isinstance(qos, QosSpec) else PRESETS[qos]


def is_latched(qos: Qos) -> bool:
    """Return whether late subscribers get the last message, which holds until the next one."""
    return resolved(qos, SENSOR_QOS).durability == "transient_local"


Point = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class BoxSpec:
    """An axis-aligned box between two corners."""

    low_m: Point
    high_m: Point


@dataclass(frozen=True, kw_only=True)
class SphereSpec:
    """A sphere."""

    center_m: Point
    radius_m: float


@dataclass(frozen=True, kw_only=True)
class CapsuleSpec:
    """All points within `radius_m` of the segment between two ends."""

    ends_m: tuple[Point, Point]
    radius_m: float


@dataclass(frozen=True, kw_only=True)
class KeepOutSpec:
    """A region that no link may enter: exactly one shape."""

    box: BoxSpec | None = None
    sphere: SphereSpec | None = None
    capsule: CapsuleSpec | None = None


@dataclass(frozen=True, kw_only=True)
class WorkspaceSpec(FrozenFields):
    """The regions in which the robot's links may be.

    Every moving link stays inside each box of `keep_in` and outside each region of `keep_out`. With `self_collision`
    it also stays clear of the other links, except adjacent ones and `ignore_pairs`. `margin_m` applies to all of it.
    `ignore_links` are not checked. Per step, a distance may shrink by at most the fraction `gamma`.
    """

    keep_in: Mapping[str, BoxSpec] = field(default_factory=dict)
    keep_out: Mapping[str, KeepOutSpec] = field(default_factory=dict)
    self_collision: bool = False
    ignore_pairs: tuple[tuple[str, str], ...] = ()
    ignore_links: tuple[str, ...] = ()
    margin_m: float = 0.02
    gamma: float = 0.2


@dataclass(frozen=True, kw_only=True)
class Margins:
    """Distance of the enforced limits from the joint limits."""

    position: float = 0.02  # inset at both ends, in the joint's unit
    velocity: float = 0.95  # usable fraction of the limit
    acceleration: float = 0.9  # usable fraction of the limit, braking included


@dataclass(frozen=True, kw_only=True)
class Nonfinite:
    """Response to a malformed action (NaN, infinite, wrong shape or type): HOLD, then STOP."""

    stop_after: int = 3  # consecutive malformed actions before STOP


@dataclass(frozen=True, kw_only=True)
class WatchdogSpec:
    """Timeouts of the in-process watchdog, in control periods without a step. Free-running worlds only."""

    hold_steps: int = 2
    stop_steps: int = 10


@dataclass(frozen=True, kw_only=True)
class ObservationAge:
    """Sensors that must be valid and younger than ``max_age_s`` for an action to be accepted: else HOLD, then STOP.

    `required` None: the sensors that report the positions of the commanded joints. `future_tolerance_s`: how far a
    stamp may be in the future in a free-running world, where a clock is read twice; in lockstep it is 0.
    `require_stamp` False: a robot's message without a stamp gets the time of its publication or reception.
    """

    required: tuple[str, ...] | None = None
    stop_steps: int = 10  # consecutive steps of HOLD before STOP
    future_tolerance_s: float = 0.005
    require_stamp: bool = True


@dataclass(frozen=True, kw_only=True)
class ActionAge:
    """Maximum time from the return of an observation to its action. Free-running worlds only."""

    max_age_steps: int = 2


@dataclass(frozen=True, kw_only=True)
class Tracking:
    """Tracking error of a joint that leads to HOLD and then STOP.

    `tolerance` is a fraction of the range of the joint's position limits; without limits, of a turn or of a metre.
    """

    tolerance: float = 0.05
    delay_steps: int = 2  # the joint may be at any of this many earlier commands
    debounce_steps: int = 3  # consecutive steps before HOLD
    stop_steps: int = 10  # consecutive steps before STOP


@dataclass(frozen=True, kw_only=True)
class LatencyBudget:
    """Maximum time from observation to command, s. `misses` in `window_steps` lead to `action`."""

    budget_s: float | None = None
    misses: int = 3
    window_steps: int = 10
    action: Literal["warn", "hold"] = "warn"


@dataclass(frozen=True, kw_only=True)
class Intervention:
    """Fraction of recent steps in which the gate may change the action before it warns, or stops."""

    window_steps: int = 50
    warn_share: float = 0.5
    stop_share: float | None = None


@dataclass(frozen=True, kw_only=True)
class ForceLimit:
    """Maximum norm of a sensor's field, in its unit; STOP beyond it."""

    field: str
    limit: float


@dataclass(frozen=True, kw_only=True)
class Safety(FrozenFields):
    """Settings of the safety gate.

    `urdf` is a file relative to the contract's folder. The tighter of its limits and the contract's apply, and the
    workspace uses its shape (otherwise that of a profile's MuJoCo model). `gates` are plug-ins by name, with their
    parameters.
    """

    mode: Literal["enforce", "monitor"] = "enforce"
    margins: Margins = field(default_factory=Margins)
    nonfinite: Nonfinite = field(default_factory=Nonfinite)
    watchdog: WatchdogSpec = field(default_factory=WatchdogSpec)
    observation: ObservationAge = field(default_factory=ObservationAge)
    action: ActionAge = field(default_factory=ActionAge)
    tracking: Tracking | None = field(default_factory=Tracking)
    latency: LatencyBudget = field(default_factory=LatencyBudget)
    intervention: Intervention = field(default_factory=Intervention)
    forces: Mapping[str, ForceLimit] = field(default_factory=dict)
    urdf: str | None = None
    workspace: WorkspaceSpec | None = None
    gates: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Episode:
    """The end of an episode by its length.

    ``time_limit``: the episode is truncated after `horizon_steps`; the task itself has no horizon.
    ``finite_horizon``: the task has a horizon, so the episode terminates and observations contain ``time_remaining``.
    """

    horizon_steps: int
    kind: Literal["time_limit", "finite_horizon"] = "time_limit"


@dataclass(frozen=True, kw_only=True)
class FieldSpec:
    """One field of a sensor message. `low` and `high` are scalars or, for a vector, one value each, in `unit`."""

    unit: str | tuple[str, ...]  # one per joint where revolute and prismatic joints are mixed
    low: float | tuple[float, ...]
    high: float | tuple[float, ...]
    joints: tuple[str, ...] | None = None
    shape: tuple[int, ...] | None = None  # where the message type does not fix it
    path: str | None = None  # in the message, e.g. pose.pose.position.x; None: the type's own field
    dtype: str | None = None  # of a field with a path; None: float64
    no_return: float | None = None  # replaces +inf, a ray without a hit; None: +inf makes the sample invalid
    nan: float | None = None  # replaces NaN, a ray without a measurement; None: NaN makes the sample invalid

    def units_by_joint(self) -> dict[str, str]:
        """Return the unit of each joint."""
        joints = self.joints or ()
        units = self.unit if isinstance(self.unit, tuple) else (self.unit,) * len(joints)
        return dict(zip(joints, units, strict=True))


@dataclass(frozen=True, kw_only=True)
class SensorSpec(FrozenFields):
    """One sensor: a topic, its fields, and the response to a late reading."""

    topic: str
    type: str
    fields: Mapping[str, FieldSpec]
    max_age_s: float
    rate_hz: float = 0.0  # 0: due at every step; else at multiples of 1/rate of simulated time since the reset
    on_gap: Literal["hold", "stop"] = "hold"
    timeline: Literal["header", "receive"] = "header"
    visibility: Literal["agent", "evaluator"] = "agent"
    mask: bool = False
    frame: str | None = None  # required header.frame_id; None: any
    child_frame: str | None = None  # required child_frame_id; None: any
    encoding: str | None = None  # of an image
    confidence_radius_m: float = 0.1  # the confidence is the probability of an error below it, by the covariance
    qos: Qos = None  # of the subscription to a robot's topic; None: `SENSOR_QOS`


@dataclass(frozen=True, kw_only=True)
class JointLimits:
    """The limits of one joint or twist axis, in `unit`, unit/s and unit/s^2. `position` None: unlimited."""

    position: tuple[float, float] | None
    velocity: float
    acceleration: float
    deceleration: float | None = None  # None: the same as acceleration
    jerk: float | None = None  # unit/s^3; enforced where the world steps at a fixed rate; None: unlimited
    unit: Literal["rad", "m"] = "rad"


@dataclass(frozen=True, kw_only=True)
class EffectiveLimits:
    """Joint limits after margins, as arrays of shape (n_joints,), in the order of the actuator's joints.

    A continuous joint has position limits of -inf and +inf; a joint without a jerk limit has one of +inf.
    """

    joints: tuple[str, ...]
    position_low: FloatArray
    position_high: FloatArray
    velocity: FloatArray
    acceleration: FloatArray
    deceleration: FloatArray
    jerk: FloatArray


@dataclass(frozen=True, kw_only=True)
class ActuatorSpec(FrozenFields):
    """One actuator topic. The order of `joints` is that of the action; the joints of a twist are its axes."""

    topic: str
    type: str
    command: Literal["position", "position_delta", "velocity", "twist"]
    joints: Mapping[str, JointLimits]
    scale: Literal["normalized", "physical"] = "normalized"
    frame: str | None = None  # header.frame_id of its messages
    qos: Qos = None  # of the publisher to a robot's topic; None: `COMMAND_QOS`

    @property
    def is_velocity(self) -> bool:
        """Whether velocities are published, not positions."""
        return self.command in ("velocity", "twist")

    def limits(self, margins: Margins) -> EffectiveLimits:
        """Return the limits that the gate enforces."""
        joints = tuple(self.joints.values())
        low, high = zip(*(j.position or (-np.inf, np.inf) for j in joints), strict=True)
        decelerations = [j.acceleration if j.deceleration is None else j.deceleration for j in joints]
        return EffectiveLimits(
            joints=tuple(self.joints),
            position_low=np.array(low, dtype=np.float64) + margins.position,
            position_high=np.array(high, dtype=np.float64) - margins.position,
            velocity=np.array([j.velocity for j in joints], dtype=np.float64) * margins.velocity,
            acceleration=np.array([j.acceleration for j in joints], dtype=np.float64) * margins.acceleration,
            deceleration=np.array(decelerations, dtype=np.float64) * margins.acceleration,
            jerk=np.array([np.inf if j.jerk is None else j.jerk for j in joints], dtype=np.float64),
        )


@dataclass(frozen=True, kw_only=True)
class ActionSpec:
    """The action space. The gate converts an action to float64 once, which is exact."""

    dtype: Literal["float32", "float64"] = "float64"


@dataclass(frozen=True, kw_only=True)
class ResetOption:
    """A value that each reset draws uniformly from [low, high] by its seed, unless `reset(options=...)` sets it."""

    type: Literal["vector", "scalar"]
    low: float | tuple[float, ...]
    high: float | tuple[float, ...]
    visibility: Literal["agent", "evaluator"] = "agent"  # evaluator: not in info["reset"]["sampled"]

    @property
    def low_array(self) -> FloatArray:
        """Lower bound: shape (n,) for a vector, () for a scalar."""
        return np.array(self.low, dtype=np.float64)

    @property
    def high_array(self) -> FloatArray:
        """Upper bound: shape (n,) for a vector, () for a scalar."""
        return np.array(self.high, dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class TaskSpec(FrozenFields):
    """The task's class (``module:Class``), its instruction to a language-conditioned policy, and its own parameters."""

    type: str
    parameters: Mapping[str, Any]
    instruction: str | None = None


@dataclass(frozen=True, kw_only=True)
class RobotSource(FrozenFields):
    """The robot file that a contract was merged over (`contract.robot_files`)."""

    name: str
    sha256: str  # hex, of the file's text
    chosen: Mapping[str, str] = field(default_factory=dict)  # path -> reason: values without a source, still in force
    overridden: tuple[str, ...] = ()  # limits of the robot file that the contract loosens


@dataclass(frozen=True, kw_only=True)
class ContractFields(FrozenFields):
    """The fields of a contract without validation, as read by validation, spaces and fingerprint."""

    name: str
    version: int
    control_period_s: float
    episode: Episode
    sensors: Mapping[str, SensorSpec]
    actuators: Mapping[str, ActuatorSpec]
    task: TaskSpec
    action: ActionSpec = field(default_factory=ActionSpec)
    safety: Safety = field(default_factory=Safety)
    reset_options: Mapping[str, ResetOption] = field(default_factory=dict)
    applied_actions: int = 0  # number of last applied actions in the observation, oldest first
    backends: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    robot: RobotSource | None = None
    override_robot_limits: bool = False
    confirmed: tuple[str, ...] = ()  # paths of chosen values that were checked on the robot
    source: str = field(default="", compare=False)  # the file it was read from
    text: str = field(default="", compare=False, repr=False)  # the YAML as written
    files: Mapping[str, bytes] = field(default_factory=dict, compare=False, repr=False)
    """Contents of the named files at load time, by name; also that of the key `SHAPE`."""
    trusted: bool = field(default=True, compare=False, repr=False)
    """False for the contract of a run: none of the files it names is opened and its task is not imported."""

    @property
    def unconfirmed(self) -> Mapping[str, str]:
        """The chosen values of the robot file that are in force and not confirmed: path -> reason."""
        chosen = {} if self.robot is None else self.robot.chosen
        return {path: reason for path, reason in chosen.items() if path not in self.confirmed}

    @cached_property
    def control_period_ns(self) -> int:
        """The control period in integer nanoseconds."""
        return round(self.control_period_s * 1e9)

    def resolve_path(self, file: str) -> Path:
        """Return the path of a file that the contract names, from its folder; raises ContractError unless trusted."""
        if not self.trusted:
            problem = f"file not opened: {file!r}, named by the contract of a run; give the contract's own file instead"
            raise ContractError("", problem, source=self.source)
        return Path(self.source).parent / file

    def content_of(self, file: str) -> bytes:
        """Return the content at load time of a file that the contract names; raises ContractError if not read."""
        if file not in self.files:
            problem = f"content not known: {file!r} (expected one read with the contract); load the contract again"
            raise ContractError("safety.urdf", problem, source=self.source)
        return self.files[file]
