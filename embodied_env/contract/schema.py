"""The keys of a contract file, as frozen dataclasses.

Field names are the YAML keys (``docs/contract.md``). Values are validated when a `contract.contract.Contract` is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract.frozen_dict import freeze
from embodied_env.errors import ContractError

FloatArray = NDArray[np.float64]

SCHEMA = "embodied_env/1"

RESERVED = ("source", "text", "files", "trusted")
"""Fields of a `Contract` that are not keys of its file."""

SHAPE = "safety.workspace"
"""The key of `Contract.files` for the shape that a MuJoCo model gave the robot (`contract.recorded_shapes`)."""

TIME_REMAINING = "time_remaining"
APPLIED_ACTIONS = "applied_actions"
"""Keys of the observation that are no sensor's."""

EACH_ITS_OWN = "embodied_env.contract.team:EachItsOwn"
"""The task of the world of a team, in which each robot has a contract, a gate and a task of its own."""


@dataclass(frozen=True, kw_only=True)
class QosSpec:
    """The policies of DDS that a topic is read or written with; the history keeps the last `depth` messages."""

    depth: int = 10
    reliability: Literal["reliable", "best_effort"] = "reliable"
    durability: Literal["volatile", "transient_local"] = "volatile"


QosPreset: TypeAlias = Literal["sensor_data", "default", "reliable", "latched"]
Qos: TypeAlias = QosPreset | QosSpec | None
"""None: as ever for a sensor or an actuator (`SENSOR_QOS`, `COMMAND_QOS`)."""

SENSOR_QOS = QosSpec(reliability="best_effort")
"""It matches every publisher that is volatile or better, which is all of them."""

COMMAND_QOS = QosSpec()

PRESETS: Mapping[str, QosSpec] = {
    "sensor_data": QosSpec(depth=5, reliability="best_effort"),  # that of ROS 2
    "default": QosSpec(),  # that of ROS 2
    "reliable": QosSpec(),  # the same, by what matters of it
    "latched": QosSpec(depth=1, durability="transient_local"),  # the last message is kept for late comers
}


def resolved(qos: Qos, otherwise: QosSpec) -> QosSpec:
    """Return the policies that `qos` stands for; None stands for `otherwise`."""
    if qos is None:
        return otherwise
    return qos if isinstance(qos, QosSpec) else PRESETS[qos]


def is_latched(qos: Qos) -> bool:
    """Return whether a late comer gets the last message: it says what holds until the next one."""
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
class WorkspaceSpec:
    """Where the links of the robot may be.

    Every link that moves stays inside of each box of `keep_in` and outside of each region of `keep_out`, and with
    `self_collision` apart from the other links, but for those that a joint joins and the `ignore_pairs`; all of it by
    `margin_m`. `ignore_links` are not looked at. At each step a distance may shrink by no more than the share `gamma`.
    """

    keep_in: Mapping[str, BoxSpec] = field(default_factory=dict)
    keep_out: Mapping[str, KeepOutSpec] = field(default_factory=dict)
    self_collision: bool = False
    ignore_pairs: tuple[tuple[str, str], ...] = ()
    ignore_links: tuple[str, ...] = ()
    margin_m: float = 0.02
    gamma: float = 0.2

    def __post_init__(self) -> None:
        """Freeze the mappings."""
        freeze(self, "keep_in", "keep_out", "ignore_pairs", "ignore_links")


@dataclass(frozen=True, kw_only=True)
class Margins:
    """How far inside the joint limits the commands stay."""

    position: float = 0.02  # inset at both ends, in the joint's unit
    velocity: float = 0.95  # fraction of the limit that is used
    acceleration: float = 0.9  # fraction of the limit that is used, braking included


@dataclass(frozen=True, kw_only=True)
class Nonfinite:
    """What a malformed action (NaN, infinite, wrong shape or type) leads to: HOLD, then STOP."""

    stop_after: int = 3  # malformed actions in a row that make a STOP


@dataclass(frozen=True, kw_only=True)
class WatchdogSpec:
    """When the in-process watchdog acts, in control periods without a step. Only in free-running worlds."""

    hold_steps: int = 2
    stop_steps: int = 10


@dataclass(frozen=True, kw_only=True)
class ObservationAge:
    """Which sensors must be valid, and younger than their ``max_age_s``, for an action to count: else HOLD, then STOP.

    `required` None: the sensors that report the positions of the commanded joints. `future_tolerance_s` is how far a
    stamp may be ahead of now in a free-running world, where a clock is read twice; in lockstep nothing is.
    `require_stamp` false: a robot's message without a stamp counts from its publication, or from its arrival.
    """

    required: tuple[str, ...] | None = None
    stop_steps: int = 10  # steps of HOLD in a row that make a STOP
    future_tolerance_s: float = 0.005
    require_stamp: bool = True


@dataclass(frozen=True, kw_only=True)
class ActionAge:
    """How long after its observation was returned an action still counts. Only in free-running worlds."""

    max_age_steps: int = 2


@dataclass(frozen=True, kw_only=True)
class Tracking:
    """How far a joint may be from where it was sent, before HOLD and then STOP.

    `tolerance` is a share of the range of the joint's position limits; of a joint without, of a turn or of a metre.
    """

    tolerance: float = 0.05
    delay_steps: int = 2  # a joint may be where any of so many commands before the last sent it
    debounce_steps: int = 3  # steps in a row before HOLD
    stop_steps: int = 10  # steps in a row before STOP


@dataclass(frozen=True, kw_only=True)
class LatencyBudget:
    """How long from the observation to the command, s. So many misses of so many steps are told, or HOLD."""

    budget_s: float | None = None
    misses: int = 3
    window_steps: int = 10
    action: Literal["warn", "hold"] = "warn"


@dataclass(frozen=True, kw_only=True)
class Intervention:
    """Which share of the last steps the gate may change before it is told, or makes a STOP."""

    window_steps: int = 50
    warn_share: float = 0.5
    stop_share: float | None = None


@dataclass(frozen=True, kw_only=True)
class ForceLimit:
    """The largest length of a field of a sensor, in its unit: beyond it STOP."""

    field: str
    limit: float


@dataclass(frozen=True, kw_only=True)
class Safety:
    """The safety gate's settings.

    `urdf` is a file, relative to the contract's folder: the tighter of its limits and the contract's hold, and the
    workspace takes its shape (else that of the MuJoCo model of a profile). `gates`: those of third parties, by name,
    each with its parameters.
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

    def __post_init__(self) -> None:
        """Freeze the mappings."""
        freeze(self, "forces", "gates")


@dataclass(frozen=True, kw_only=True)
class Episode:
    """How an episode ends by itself.

    ``time_limit``: after `horizon_steps` the episode is truncated, the task itself has no horizon.
    ``finite_horizon``: the horizon belongs to the task: it terminates, and the observation has ``time_remaining``.
    """

    horizon_steps: int
    kind: Literal["time_limit", "finite_horizon"] = "time_limit"


@dataclass(frozen=True, kw_only=True)
class FieldSpec:
    """One field of a sensor message. `low` and `high` are scalars or, for a vector, one value each, in `unit`."""

    unit: str | tuple[str, ...]  # of joints that turn and slide, one for each
    low: float | tuple[float, ...]
    high: float | tuple[float, ...]
    joints: tuple[str, ...] | None = None
    shape: tuple[int, ...] | None = None  # where the message type does not fix it
    path: str | None = None  # where in the message it stands, e.g. pose.pose.position.x; None: the type's own field
    dtype: str | None = None  # of a field with a path; None: float64
    no_return: float | None = None  # what stands for +inf, a ray that met nothing; None: +inf makes the sample invalid
    nan: float | None = None  # what stands for NaN, a ray that measured nothing; None: NaN makes the sample invalid

    def units_by_joint(self) -> dict[str, str]:
        """Return the unit of each joint."""
        joints = self.joints or ()
        units = self.unit if isinstance(self.unit, tuple) else (self.unit,) * len(joints)
        return dict(zip(joints, units, strict=True))


@dataclass(frozen=True, kw_only=True)
class SensorSpec:
    """One sensor: a topic, its fields, and what is done when it is late."""

    topic: str
    type: str
    fields: Mapping[str, FieldSpec]
    max_age_s: float
    rate_hz: float = 0.0  # 0: due at every step; else due at multiples of 1/rate of simulated time since the reset
    on_gap: Literal["hold", "stop"] = "hold"
    timeline: Literal["header", "receive"] = "header"
    visibility: Literal["agent", "evaluator"] = "agent"
    mask: bool = False
    frame: str | None = None  # what header.frame_id must be; None: anything
    child_frame: str | None = None  # the same for child_frame_id
    encoding: str | None = None  # of an image
    confidence_radius_m: float = 0.1  # with a covariance: the confidence is the probability to be this near the truth
    qos: Qos = None  # what a robot's topic is read with; None: best effort, the last ten

    def __post_init__(self) -> None:
        """Freeze the mappings."""
        freeze(self, "fields")


@dataclass(frozen=True, kw_only=True)
class JointLimits:
    """The limits of one joint or axis of a twist, in `unit`, unit/s and unit/s^2. `position` None: unlimited."""

    position: tuple[float, float] | None
    velocity: float
    acceleration: float
    deceleration: float | None = None  # None: the same as acceleration
    jerk: float | None = None  # unit/s^3; kept where the world steps at a fixed rate; None: not limited
    unit: Literal["rad", "m"] = "rad"


@dataclass(frozen=True, kw_only=True)
class EffectiveLimits:
    """Joint limits after margins, as arrays of shape (n_joints,), in the order of the actuator's joints.

    A continuous joint has position limits of -inf and +inf, one without a limit of jerk one of +inf.
    """

    joints: tuple[str, ...]
    position_low: FloatArray
    position_high: FloatArray
    velocity: FloatArray
    acceleration: FloatArray
    deceleration: FloatArray
    jerk: FloatArray


@dataclass(frozen=True, kw_only=True)
class ActuatorSpec:
    """One actuator topic. The order of `joints` is the order of the action. The joints of a twist are its axes."""

    topic: str
    type: str
    command: Literal["position", "position_delta", "velocity", "twist"]
    joints: Mapping[str, JointLimits]
    scale: Literal["normalized", "physical"] = "normalized"
    frame: str | None = None  # header.frame_id of its messages
    qos: Qos = None  # what a robot's topic is written with; None: reliable, the last ten

    @property
    def is_velocity(self) -> bool:
        """Whether what is published are velocities; else they are positions."""
        return self.command in ("velocity", "twist")

    def __post_init__(self) -> None:
        """Freeze the mappings."""
        freeze(self, "joints")

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
class ResetOption:
    """A value that each reset draws uniformly from [low, high] by its seed, unless `reset(options=...)` sets it."""

    type: Literal["vector", "scalar"]
    low: float | tuple[float, ...]
    high: float | tuple[float, ...]
    visibility: Literal["agent", "evaluator"] = "agent"  # evaluator: what was drawn is not in info["reset"]["sampled"]

    @property
    def low_array(self) -> FloatArray:
        """Lower bound: shape (n,) for a vector, () for a scalar."""
        return np.array(self.low, dtype=np.float64)

    @property
    def high_array(self) -> FloatArray:
        """Upper bound: shape (n,) for a vector, () for a scalar."""
        return np.array(self.high, dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """The task's class (``module:Class``) and its own parameters."""

    type: str
    parameters: Mapping[str, Any]

    def __post_init__(self) -> None:
        """Freeze the mappings."""
        freeze(self, "parameters")


@dataclass(frozen=True, kw_only=True)
class ContractFields:
    """The fields of a contract, not validated: what validation, spaces and fingerprint read."""

    name: str
    version: int
    control_period_s: float
    episode: Episode
    sensors: Mapping[str, SensorSpec]
    actuators: Mapping[str, ActuatorSpec]
    task: TaskSpec
    safety: Safety = field(default_factory=Safety)
    reset_options: Mapping[str, ResetOption] = field(default_factory=dict)
    applied_actions: int = 0  # so many of the last applied actions are in the observation, oldest first
    backends: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    source: str = field(default="", compare=False)  # where it was read from
    text: str = field(default="", compare=False, repr=False)  # the YAML as written
    files: Mapping[str, bytes] = field(default_factory=dict, compare=False, repr=False)
    """The content of the files that it names, by name, as read when it was loaded; see `SHAPE` for another key."""
    trusted: bool = field(default=True, compare=False, repr=False)
    """False: it was read from a run, so no file that it names is opened and no task that it names is imported."""

    def __post_init__(self) -> None:
        """Freeze the mappings."""
        freeze(self, "sensors", "actuators", "reset_options", "backends", "files")

    @cached_property
    def control_period_ns(self) -> int:
        """The control period in integer nanoseconds."""
        return round(self.control_period_s * 1e9)

    def beside(self, file: str) -> Path:
        """Return the path of a file that the contract names, relative to the folder that it was read from.

        Raises:
            ContractError: when the contract is not trusted: its files are not opened.
        """
        if not self.trusted:
            problem = f"file not opened: {file!r}, named by the contract of a run; give the contract's own file instead"
            raise ContractError("", problem, source=self.source)
        return Path(self.source).parent / file

    def content_of(self, file: str) -> bytes:
        """Return the content that a file, which the contract names, had when the contract was loaded.

        Raises:
            ContractError: when it was not read then: its fingerprint and its limits are not known.
        """
        if file not in self.files:
            problem = f"content not known: {file!r} (expected one read with the contract); load the contract again"
            raise ContractError("safety.urdf", problem, source=self.source)
        return self.files[file]
