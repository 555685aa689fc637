"""The keys of a contract file, as frozen dataclasses.

Field names are the YAML keys (``docs/reference/contract.md``). A `contract.contract.Contract` validates the values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract.frozen_dict import FrozenFields
from embodied_env.contract.safety_schema import Margins, Safety
from embodied_env.errors import ContractError, UsageError

FloatArray = NDArray[np.float64]

SCHEMA = "embodied_env/1"

RESERVED = ("source", "text", "files", "trusted")
"""Fields of a `Contract` that are not keys of its file."""

PROVENANCE = ("robot", "override_robot_limits", "chosen", "confirmed")
"""Keys about the origin of a contract's values; not part of the fingerprint."""

SHAPE = "safety.workspace"
"""The key of `Contract.files` for the robot's shape as read from a MuJoCo model (`contract.recorded_shapes`)."""

INFINITIES: Mapping[str, float] = {".inf": np.inf, "-.inf": -np.inf}
"""Infinite numbers by their text in YAML, which represents them in JSON."""

TIME_REMAINING = "time_remaining"
APPLIED_ACTIONS = "applied_actions"
"""Observation keys that belong to no sensor."""

AGES = "_age_s"
"""Ends the observation key of the ages of a field's history."""

EACH_ITS_OWN = "each_its_own"
"""The task in the contract of a team's world, never loaded: each robot has its own contract, gate and task."""


@dataclass(frozen=True, kw_only=True)
class QosSpec:
    """DDS policies of a subscription or publisher. The history is "keep last" with `depth` messages."""

    depth: int = 10  # 1 to 10000
    reliability: Literal["reliable", "best_effort"] = "reliable"
    durability: Literal["volatile", "transient_local"] = "volatile"  # `transient_local` with `reliable` only


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


@dataclass(frozen=True, kw_only=True)
class EpisodeSpec:
    """The end of an episode by its length."""

    horizon_steps: int  # maximum number of steps, >= 1
    # `time_limit` truncates; `finite_horizon` terminates, and adds `time_remaining` to the observation
    kind: Literal["time_limit", "finite_horizon"] = "time_limit"


@dataclass(frozen=True, kw_only=True)
class AngleRange:
    """Evenly spaced angles, both ends included."""

    min_rad: float  # angle of the first value, in the frame of the scan
    max_rad: float  # angle of the last value, above `min_rad`
    count: int  # number of values, >= 2


@dataclass(frozen=True, kw_only=True)
class ResampleSpec:
    """Fixed angles for a LaserScan whose number of rays varies, from the angles that each message declares."""

    # fixed angles of the observation: a number of them all around, from 0 (ahead) counter-clockwise, or a range
    angles: int | AngleRange
    # `nearest` ray, NaN where none is within an increment; `min`: smallest return within half a step, conservative
    method: Literal["nearest", "min"] = "nearest"


@dataclass(frozen=True, kw_only=True)
class ResizeSpec:
    """The size of an image in the observation, bit for bit as Pillow resizes."""

    size: tuple[int, int]  # height and width in the observation
    # `letterbox` pads with 0 (depth: NaN), `crop` cuts the longer side off, `stretch` changes the aspect ratio
    method: Literal["letterbox", "stretch", "crop"] = "letterbox"
    # filter of Pillow; `area` is its BOX. Depth images: `nearest`
    resample: Literal["nearest", "bilinear", "bicubic", "lanczos", "area"] = "bilinear"


class _MayBeInfinite:
    """Let a number be infinite, in JSON by its text in YAML (`INFINITIES`)."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Callable[[Any], Any]) -> Any:  # noqa: ANN401 - pydantic's
        read = {"type": "no-info", "function": lambda x: INFINITIES.get(x, x) if isinstance(x, str) else x}
        return {"type": "function-before", "function": read, "schema": {**handler(source), "allow_inf_nan": True}}


_Bound = Annotated[float, _MayBeInfinite]


@dataclass(frozen=True, kw_only=True)
class FieldSpec:
    """One field of a sensor message. `low` and `high` are scalars or, for a vector, one value each, in `unit`."""

    unit: str | tuple[str, ...]  # unit of values and bounds; one per joint for mixed joints: `[rad, m]`
    # lower bound of the space; a list has one number per component. `-.inf` where nothing bounds the value, which no
    # distance, pixel, integer or field that saturates may have. A reading outside keeps its value and is OUT_OF_RANGE;
    # simulated forces, torques, angular velocities and accelerations of an IMU saturate, as real ones do
    low: _Bound | tuple[_Bound, ...]
    high: _Bound | tuple[_Bound, ...]  # upper bound, above `low`, or `.inf`
    # joints to read by name, in this order; required by fields with one value per joint
    joints: tuple[str, ...] | None = None
    # array lengths, where the message type does not fix them; before `resize`; with `resample`: the rays of a simulator
    shape: tuple[int, ...] | None = None
    path: str | None = None  # place in the message, such as `pose.pose.position.x` or `points[0].positions`
    dtype: str | None = None  # precision of a field with a `path`; null: that of the message type, else float64
    no_return: float | None = None  # replaces +inf, a ray without a return; null: +inf makes the reading invalid
    nan: float | None = None  # replaces NaN, a ray without a measurement; null: NaN makes the reading invalid
    resample: ResampleSpec | None = None  # fixed angles for a LaserScan of any number of rays
    resize: ResizeSpec | None = None  # size of an image in the observation; null: as published
    # readings of the last 1 to 1000 control steps in the observation, along a first axis, oldest first, with their ages
    # in `<sensor>_<field>_age_s`; a reset repeats its reading. null: the newest reading, without that axis
    history: int | None = None

    def units_by_joint(self) -> dict[str, str]:
        """Return the unit of each joint."""
        joints = self.joints or ()
        units = self.unit if isinstance(self.unit, tuple) else (self.unit,) * len(joints)
        return dict(zip(joints, units, strict=True))


@dataclass(frozen=True, kw_only=True)
class SensorSpec(FrozenFields):
    """One sensor: a topic, its fields, and the response to a late reading."""

    topic: str  # one sensor per topic
    type: str  # message type, see [messages](#messages)
    fields: Mapping[str, FieldSpec]  # each becomes the observation `<sensor>_<field>`
    max_age_s: float  # maximum age of a valid reading, > 0
    rate_hz: float = 0.0  # 0: due at every step; else at multiples of 1/rate of simulated time since the reset
    # `hold` keeps the last valid reading; `stop` also ends the episode with `sensor_gap`
    on_gap: Literal["hold", "stop"] = "hold"
    timeline: Literal["header", "receive"] = "header"  # acquisition time: the header stamp, or the time of reception
    visibility: Literal["agent", "evaluator"] = "agent"  # `evaluator`: never in the observation
    mask: bool = False  # adds `<sensor>_valid` (int8) to the observation
    frame: str | None = None  # required `header.frame_id`; null: any
    child_frame: str | None = None  # required `child_frame_id` of an Odometry; null: any
    encoding: str | None = None  # pixel encoding, required for images, see [images](#images)
    confidence_radius_m: float = 0.1  # confidence: probability that the true position is within this radius
    qos: Qos = None  # of the subscription, see [QoS](#qos); null: best effort, depth 10


def velocity_range(velocity: float | tuple[float, float] | list[float]) -> tuple[float, float]:
    """Return the lowest and the highest velocity of a limit: [low, high], or one speed for both directions."""
    if isinstance(velocity, (tuple, list)):
        low, high = velocity
        return low, high
    return -velocity, velocity


@dataclass(frozen=True, kw_only=True)
class JointLimits:
    """The limits of one joint or twist axis, in `unit`, unit/s and unit/s^2. `position` None: unlimited."""

    # low and high; null: unlimited (not for `position` commands); a twist axis has none and may leave it out
    position: tuple[float, float] | None
    # maximum speed in both directions, unit/s, > 0; or [low, high], the lowest and the highest velocity, with
    # low <= 0 <= high and not both 0; of an action server: the speed of the simulated gripper, a number
    velocity: float | tuple[float, float]
    acceleration: float | None  # maximum acceleration, unit/s², > 0; null for an action server, which may leave it out
    deceleration: float | None = None  # maximum deceleration, unit/s²; null: as `acceleration`
    # maximum jerk, unit/s³; guaranteed in lockstep only, and not while braking; null: unlimited
    jerk: float | None = None
    unit: Literal["rad", "m"] = "rad"  # unit of the position

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
    """Joint limits after margins, as arrays of shape (n_joints,), in the order of the actuator's joints.

    `velocity_low` <= 0 <= `velocity_high`; they differ only in sign unless the contract gives both. A continuous joint
    has position limits of -inf and +inf; a joint without a jerk limit has one of +inf. The goal of an action server is
    limited in position only: all its other limits are infinite.
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
        """Return the limits by name, as records have them; `velocity` is the highest.

        The lowest is its opposite, or has the key `velocity_low`.
        """
        found = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "joints"}
        low = found.pop("velocity_low")
        named = {"velocity" if name == "velocity_high" else name: vector for name, vector in found.items()}
        return named if np.array_equal(low, -self.velocity_high) else {**named, "velocity_low": low}


@dataclass(frozen=True, kw_only=True)
class GripperSpec:
    """The positions of a gripper, and how its action server is used. Positions are in the joint's unit."""

    open: float  # position of the open gripper, within the joint's limits
    closed: float  # position of the closed gripper, other than `open`
    threshold: float = 0.0  # `scale: binary`: an action below it closes, any other opens; in (-1, 1)
    # what a STOP or ESTOP does; `open` and `close` for an action server only
    on_stop: Literal["hold", "open", "close"] = "hold"
    # action server: smallest change of the goal that is sent, as a share of the way from `closed` to `open`, in [0, 1)
    hysteresis: float = 0.01
    max_effort: float | None = None  # action server: maximum effort, N or N·m, > 0; null: that of the server
    # action server: STOP after this time without its answer to a goal, s, > 0
    max_silent_s: float = 5.0


@dataclass(frozen=True, kw_only=True)
class ActuatorSpec(FrozenFields):
    """One actuator topic. The order of `joints` is that of the action; the joints of a twist are its axes."""

    topic: str  # one actuator per topic; of an action server: the name of the action
    type: str  # message or action type, see [commands](#commands)
    # meaning of an action; a delta is relative to the last applied command
    command: Literal["position", "position_delta", "velocity", "twist"]
    joints: Mapping[str, JointLimits]  # limits by joint or axis, in the order of the action
    # `normalized`: [-1, 1] maps onto the limits after margins; `physical`: SI units; `binary`: open or close a gripper
    scale: Literal["normalized", "physical", "binary"] = "normalized"
    frame: str | None = None  # `header.frame_id` of the commands; null: empty
    qos: Qos = None  # of the publisher, see [QoS](#qos); null: reliable, depth 10
    # positions of a gripper with one joint, which has no position margin, and may close on an object
    gripper: GripperSpec | None = None
    # real time: setpoints between steps, a multiple of the control rate, up to 1000, the same for every topic, all
    # commanded by position, and none for an action server; null: one setpoint per step
    setpoint_rate_hz: float | None = None
    # real time, JointTrajectory only: publish with each command at most this many (0 to 50) actions after it, then
    # braking to rest; the same for every actuator but action servers; null: one point per step
    trajectory_steps: int | None = None

    @property
    def is_velocity(self) -> bool:
        """Whether velocities are published, not positions."""
        return self.command in ("velocity", "twist")

    @property
    def is_action(self) -> bool:
        """Whether an action server takes the commands, as goals."""
        return "/action/" in self.type

    def turns(self, joint: str) -> bool:
        """Return whether a joint turns without limits, so that its reading may differ by whole turns."""
        limits = self.joints[joint]
        return limits.unit == "rad" and limits.position is None and not self.is_velocity

    def as_topic(self) -> ActuatorSpec:
        """Return the actuator of a simulator in lockstep, in which a topic carries the goals of an action server."""
        return replace(self, type="std_msgs/msg/Float64") if self.is_action else self

    def margins_of(self, joint: str, margins: Margins, name: str) -> tuple[float, float, float]:
        """Return the margins of position, velocity and acceleration of a joint of this actuator, which is `name`.

        Without its own, a gripper has no margin of position, since its ends are contacts.
        """
        return margins.of(name, joint, position=None if self.gripper is None else 0.0)

    def limits(self, margins: Margins, name: str = "") -> EffectiveLimits:
        """Return the limits that the gate enforces; `name`: that of the actuator, which may have its own margins."""
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


@dataclass(frozen=True, kw_only=True)
class ActionSpec:
    """The action space. The gate converts an action to float64 once, which is exact."""

    # precision of the action space; bounds of float32 are rounded inwards
    dtype: Literal["float32", "float64"] = "float64"


@dataclass(frozen=True, kw_only=True)
class ResetOption:
    """A value that each reset draws by its seed, unless `reset(options=...)` sets it."""

    type: Literal["vector", "scalar"]  # lists or numbers
    low: float | tuple[float, ...] | None = None  # lower bound of the draw; not with `choice`
    high: float | tuple[float, ...] | None = None  # upper bound, above `low`; not with `choice`
    # `log_uniform`: its logarithm is uniform, for `low` above 0; `normal`: with `mean` and `std`, truncated to the
    # bounds; `choice`: one of `values`, each as probable
    distribution: Literal["uniform", "log_uniform", "normal", "choice"] = "uniform"
    mean: float | tuple[float, ...] | None = None  # `normal`: the mean before truncation, within the bounds
    std: float | tuple[float, ...] | None = None  # `normal`: the standard deviation before truncation, > 0
    values: tuple[float | tuple[float, ...], ...] | None = None  # `choice`: numbers, or vectors of one length
    observed: bool = False  # the agent observes it under its name, constant in an episode, in every backend
    visibility: Literal["agent", "evaluator"] = "agent"  # `evaluator`: in `info` only with `evaluator_info=True`

    @property
    def low_array(self) -> FloatArray:
        """Lower bound: shape (n,) for a vector, () for a scalar."""
        return np.array(self.low if self.values is None else np.min(self.values, axis=0), dtype=np.float64)

    @property
    def high_array(self) -> FloatArray:
        """Upper bound: shape (n,) for a vector, () for a scalar."""
        return np.array(self.high if self.values is None else np.max(self.values, axis=0), dtype=np.float64)

    def allows(self, value: FloatArray) -> bool:
        """Return whether `value` has the shape and is in the support of the draw."""
        if value.shape != self.low_array.shape:
            return False
        if self.values is not None:
            return any(np.array_equal(value, each) for each in self.values)
        return bool(((self.low_array <= value) & (value <= self.high_array)).all())

    @property
    def support(self) -> str:
        """The values that `allows` accepts, for errors."""
        if self.values is not None:
            return f"one of: {', '.join(str(np.array(each).tolist()) for each in self.values)}"
        return f"shape {self.low_array.shape} from {self.low_array.tolist()} to {self.high_array.tolist()}"


@dataclass(frozen=True, kw_only=True)
class TaskSpec(FrozenFields):
    """The task's class or function, its instruction to a language-conditioned policy, and its own parameters."""

    # name of a task of this package or of another (entry point `embodied_env.tasks`), or a class or function:
    # `module:NAME`, or `FILE.py:NAME` relative to the contract
    type: str
    parameters: Mapping[str, Any]  # in YAML, written next to `type`: the parameters of the class or function
    instruction: str | None = None  # prompt of a language-conditioned policy


@dataclass(frozen=True, kw_only=True)
class PolicySpec:
    """The limits of a policy that may fail to answer in time."""

    # steps in a row without an action (`NoAction`), >= 1, after which `policy_lost` truncates the episode
    max_missed: int = 10


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

    name: str  # lower-case letters, digits and `_`; a letter first
    version: int  # revision of the contract, >= 1
    control_period_s: float  # time between steps, > 0; a whole number of the embedded model's timesteps
    episode: EpisodeSpec
    sensors: Mapping[str, SensorSpec]  # see [sensors](#sensors)
    actuators: Mapping[str, ActuatorSpec]  # see [actuators](#actuators)
    task: TaskSpec  # see [task](#task)
    action: ActionSpec = field(default_factory=ActionSpec)
    safety: Safety = field(default_factory=Safety)  # see [safety](#safety)
    policy: PolicySpec = field(default_factory=PolicySpec)
    reset_options: Mapping[str, ResetOption] = field(default_factory=dict)  # see [reset options](#reset-options)
    applied_actions: int = 0  # number of last applied actions in the observation, oldest first, 0 to 1000
    # profiles by backend, see [backends](#backends)
    backends: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # keys of plug-ins by name, see [blocks](#blocks)
    blocks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # name or path of the robot file that the contract builds on, see [robot files](#robot-files)
    robot: RobotSource | None = None
    override_robot_limits: bool = False  # allow looser limits and safety settings than the robot file's
    # conservative values without a source, path -> reason, in addition to the robot file's; `contract init` writes them
    chosen: Mapping[str, str] = field(default_factory=dict)
    confirmed: tuple[str, ...] = ()  # paths of `chosen` values that were checked on the robot
    source: str = field(default="", compare=False)  # the file it was read from
    text: str = field(default="", compare=False, repr=False)  # the YAML as written
    files: Mapping[str, bytes] = field(default_factory=dict, compare=False, repr=False)
    """Contents of the named files at load time, by name; also that of the key `SHAPE`."""
    trusted: bool = field(default=True, compare=False, repr=False)
    """False for the contract of a run: none of the files it names is opened and its task is not imported."""

    @property
    def unconfirmed(self) -> Mapping[str, str]:
        """The chosen values that are in force and not confirmed: path -> reason."""
        return {path: reason for path, reason in self.all_chosen.items() if path not in self.confirmed}

    @property
    def all_chosen(self) -> Mapping[str, str]:
        """The chosen values that are in force, of the robot file and the contract: path -> reason."""
        return {**({} if self.robot is None else self.robot.chosen), **self.chosen}

    @cached_property
    def control_period_ns(self) -> int:
        """The control period in integer nanoseconds."""
        return round(self.control_period_s * 1e9)

    @cached_property
    def setpoints_per_step(self) -> int:
        """The number of setpoints in a control period; 1 without `setpoint_rate_hz`."""
        rates_hz = {actuator.setpoint_rate_hz for actuator in self.actuators.values()} - {None}
        return max((round(rate_hz * self.control_period_s) for rate_hz in rates_hz if rate_hz is not None), default=1)

    @cached_property
    def trajectory_steps(self) -> int | None:
        """The most actions that follow the command in a trajectory; None without `trajectory_steps`."""
        return next((a.trajectory_steps for a in self.actuators.values() if a.trajectory_steps is not None), None)

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
