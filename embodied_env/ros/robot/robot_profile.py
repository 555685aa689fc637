"""Parse and validate a robot's profile, ``backends.real``, without creating a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Literal, TypeAlias

from annotated_types import MinLen

from embodied_env.contract import Contract, SensorSpec
from embodied_env.contract.contract_loader import backend_profile
from embodied_env.contract.field_paths import check_messages
from embodied_env.contract.key_types import NotNegative, Positive, Share, Topic, exactly_one
from embodied_env.contract.required_sensors import commanded_joint_names
from embodied_env.contract.robot_files import rules_with_defaults
from embodied_env.contract.tightening_rules import (
    AtLeast,
    AtMost,
    Fixed,
    Free,
    Keeps,
    Kept,
    NoneBut,
    Rule,
    tighten,
    towards,
)
from embodied_env.contract.typed_values import parse_as
from embodied_env.contract.value_checks import allow, one_of, require
from embodied_env.core.reset_draws import ResetRoutine, validate_home
from embodied_env.errors import ContractError, UsageError
from embodied_env.messages.message_types import JOINT_SENSOR
from embodied_env.messages.sensor_types import SENSOR_MESSAGES
from embodied_env.ros.robot.estops import (
    SafetyInputSpec,
    Variant,
    check_field_path,
    check_input,
    check_message_type,
    is_installed,
    spec_in_use,
)
from embodied_env.ros.wire.simulator_protocol import RESET_SERVICE
from embodied_env.ros.wire.world_clock import ClockSpec

BACKEND = "real"
PATH = f"backends.{BACKEND}"

RESET_LEVELS = ("none", "robot", "world")
"""Depth of a reset, in which nothing moves, the robot is homed, or a service is called."""

SETTLE_S = 3.5
"""Time for which the graph must pass before the first motion, so that every other publisher is discovered.

Fast DDS repeats its announcements every 3 s; running nodes discovered each other within 3.2 s.
"""

EVERY_SENSOR = "default"
"""The key of ``backends.real.clocks`` for all other sensors."""

TRANSFORMABLE = sorted(name for name, message in SENSOR_MESSAGES.items() if message.is_pose)
"""Types whose transform needs only the pose of a frame, not its motion."""

GET_STATE = "lifecycle_msgs/srv/GetState"
TRANSITION_EVENT = "lifecycle_msgs/msg/TransitionEvent"
LIST_CONTROLLERS = "controller_manager_msgs/srv/ListControllers"

_ACTIVE_KINDS = ("node", "controller", "topic")
_INPUT_KEYS = ("type", "path", "safe", "latched", "variant")
_TOPIC_KEYS = (*_INPUT_KEYS, "reason")


@dataclass(frozen=True, kw_only=True)
class ResetSpec:
    """Start of an episode by a service, then homing, then an operator, each only if declared."""

    service: Fixed[Topic | None] = None  # a `std_srvs/srv/Trigger`, called once before an episode
    parameters: Free[bool] = False  # the service's node accepts `reset.seed` and `reset.options`, as the emulator does
    home: Kept[Mapping[str, float] | None] = None  # joint to position, rad or m: every joint commanded by position
    speed: AtMost[Share] = 0.2  # share of the velocity limits used for homing
    tolerance: AtMost[Positive] = 0.02  # maximum measured distance from home, rad or m
    timeout_s: AtMost[Positive | None] = None  # time limit of homing; null: that of the reset
    # how an operator confirms, after the service and homing, that the episode may begin
    confirm: Annotated[
        Literal["none", "prompt", "topic", "service"], tighten(lambda robot, own: robot in ("", "none", own))
    ] = "none"
    confirm_topic: Fixed[Topic | None] = None  # a `std_msgs/msg/Bool`; null: `~/confirm`
    # a `std_srvs/srv/Trigger` that the environment offers; null: `~/confirm`
    confirm_service: Fixed[Topic | None] = None

    def routine(self) -> ResetRoutine:
        """Return the steps that follow the service call."""
        return ResetRoutine(
            home=dict(self.home or {}),
            speed=self.speed,
            tolerance=self.tolerance,
            timeout_s=self.timeout_s,
            confirm="" if self.confirm == "none" else self.confirm,
        )

    @property
    def level(self) -> str:
        """Depth of the reset."""
        if self.service is not None:
            return "world"
        return "robot" if self.home is not None else "none"


EMULATOR_RESET = ResetSpec(service=RESET_SERVICE, parameters=True)
"""The reset of the robot emulator. No robot has this service, whose reply has the contract's fingerprint."""


StartOutside: TypeAlias = Literal["refuse", "inward"]


@dataclass(frozen=True, kw_only=True)
class ActiveSpec:
    """Requirement that a lifecycle node, a controller or a topic's value is active."""

    node: Topic | None = None  # lifecycle node
    controller: Topic | None = None  # ros2_control controller
    manager: Topic = "/controller_manager"  # controller manager of the controller
    topic: Topic | None = None  # topic that reports the state
    type: str = "std_msgs/msg/Bool"  # message type of the topic
    path: str = "data"  # field of the message to compare with `safe`
    safe: Annotated[tuple[bool | int | float | str, ...], MinLen(1)] = (True,)  # values that mean active
    reason: str | None = None  # path of a text that explains why it is inactive
    latched: bool = False  # published on a change only; the last value does not expire
    timeout_s: Positive = 2.0  # inactive without a message or response for this time
    variant: Variant | None = None  # type and path in use where the message package of `type` is not installed

    def as_input(self) -> SafetyInputSpec:
        """Return the topic as a safety input."""
        keys = {key: getattr(self, key) for key in _INPUT_KEYS}
        return SafetyInputSpec(topic=self.topic or "", timeout_s=self.timeout_s, **keys)

    @property
    def service(self) -> str | None:
        """Service that is polled, or None if a topic reports the state."""
        if self.node is not None:
            return f"{self.node}/get_state"
        return f"{self.manager}/list_controllers" if self.controller is not None else None

    @property
    def types(self) -> tuple[str, ...]:
        """The required message and service types."""
        if self.node is not None:
            return (GET_STATE, TRANSITION_EVENT)
        return (LIST_CONTROLLERS,) if self.controller is not None else (self.type,)


Active: TypeAlias = Annotated[ActiveSpec, exactly_one(*_ACTIVE_KINDS)]


@dataclass(frozen=True, kw_only=True)
class ControllerStateSpec:
    """The topic on which a controller reports the active command."""

    topic: Topic  # topic of the controller
    type: str = "sensor_msgs/msg/JointState"  # message type
    path: str | None = None  # field with the values, in the order of the joints; not for a JointState
    names: str | None = None  # field with the names of the joints


def starts_as_safely(robot: Any, own: Any) -> bool:  # noqa: ANN401 - mappings of a reset, None: nothing moves
    """Require every stage of a reset, the same channel to the operator, and no looser homing."""
    if own is None:
        return robot is None
    stages, rules = robot or {}, rules_with_defaults(ResetSpec)
    return all(rule(stages.get(key, each), own.get(key, each)) for key, (each, rule) in rules.items())


def starts_inside(robot: Any, own: Any) -> bool:  # noqa: ANN401 - words, or mappings by joint
    """Accept fewer joints that may start outside their limits."""

    def inward(start_outside: Any) -> set[str]:  # noqa: ANN401 - as above
        if isinstance(start_outside, str):
            return set() if start_outside == "refuse" else {""}  # all joints
        return {joint for joint, word in start_outside.items() if word != "refuse"}

    return robot == "inward" or inward(own) <= inward(robot)


def is_stamped_alike(robot: Any, own: Any) -> bool:  # noqa: ANN401 - mappings of clocks by sensor
    """Require the same clock of every sensor."""

    def clock(clocks: Any, name: str) -> dict[str, Any]:  # noqa: ANN401 - a mapping of clocks
        return {**asdict(ClockSpec()), **(clocks.get(name) or clocks.get(EVERY_SENSOR) or {})}

    return all(clock(robot, name) == clock(own, name) for name in (*robot, *own))


@dataclass(frozen=True, kw_only=True)
class RealProfile:
    """A robot that is driven over its topics."""

    reset: Annotated[ResetSpec | None, tighten(starts_as_safely)] = None  # how an episode starts; null: nothing moves
    estop: Keeps[Mapping[str, SafetyInputSpec]] = field(default_factory=dict)  # safety inputs
    # what must be active while the robot moves: exactly one of `node`, `controller`, `topic`
    active: Keeps[Mapping[str, Active]] = field(default_factory=dict)
    tf: Free[Mapping[str, str]] = field(default_factory=dict)  # target frame of a pose or point sensor, by tf2
    shared: NoneBut[tuple[str, ...]] = ()  # joint sensors whose topic has several publishers, of different joints
    relay: AtLeast[bool] = False  # route commands through a [relay](#relay)
    # command timeout of the robot's own controller, above `control_period_s`
    downstream_timeout_s: Fixed[float | None] = None
    allow_no_downstream_timeout: AtMost[bool] = False  # allow velocity commands without it
    # what to do with joints outside their limits, or by joint with `refuse` for the others; `inward`: they may only
    # move inwards
    start_outside: Annotated[StartOutside | Mapping[str, StartOutside], tighten(starts_inside)] = "refuse"
    security: Annotated[Literal["off", "required"], towards("required")] = "off"  # SROS2
    # topic on which a controller reports the active command: evidence for `actuation_s`
    controller_state: Free[ControllerStateSpec | None] = None
    actuation_s: Free[NotNegative | None] = None  # declared delay from a command to its effect, if no topic shows it
    use_sim_time: AtMost[bool] = False  # stamps and ages use `/clock`; not with a relay
    # clock that stamps each sensor; `default` for sensors without an entry
    clocks: Annotated[Mapping[str, ClockSpec], Rule("fixed", is_stamped_alike)] = field(default_factory=dict)
    discovery_s: AtLeast[NotNegative] = SETTLE_S  # how long the graph must stay valid before the first motion
    step_timeout_s: AtMost[float] = 1.0  # without any reading for this time the robot is lost
    reset_timeout_s: Free[Positive] = 30.0  # maximum duration of a reset
    connect_timeout_s: Free[Positive] = 8.0  # a reset fails if topics or services are still missing after this time

    @property
    def reset_spec(self) -> ResetSpec:
        """Start of an episode, as declared or by default."""
        return ResetSpec() if self.reset is None else self.reset

    def clock_of(self, sensor: str) -> ClockSpec:
        """Return the clock of a sensor's stamps as declared for it, for all sensors, or by default."""
        return self.clocks.get(sensor) or self.clocks.get(EVERY_SENSOR) or ClockSpec()


def parse_real_profile(contract: Contract) -> RealProfile:
    """Parse ``backends.real`` of `contract`, or raise ContractError for a wrong key or type."""
    return parse_as(RealProfile, backend_profile(contract, BACKEND), path=PATH, source=contract.source)


def unreadable_inputs(profile: RealProfile) -> dict[str, str]:
    """Return each safety input whose message package is not installed, with its missing type."""
    types: dict[str, tuple[str, ...]] = {name: (spec.type,) for name, spec in profile.estop.items()}
    types |= {name: spec.types for name, spec in profile.active.items()}
    return {name: kind for name, kinds in types.items() for kind in kinds if not is_installed(kind)}


def with_inputs_in_use(profile: RealProfile, ignored: Sequence[str] = ()) -> RealProfile:
    """Return `profile` without `ignored` inputs and with variants in use, or raise UsageError.

    Only an input whose message package is not installed can be ignored.
    """
    unreadable = unreadable_inputs(profile)
    is_list = isinstance(ignored, (list, tuple))
    if not is_list or any(name not in unreadable for name in ignored):
        expected = ", ".join(unreadable) or "none: every safety input can be read"
        raise UsageError(
            f"invalid ignore_inputs={ignored!r} (expected a list of inputs that cannot be read: {expected})"
        )
    active = {}
    for name, spec in profile.active.items():
        used = spec if spec.topic is None else spec_in_use(spec.as_input())
        active[name] = spec if used.type == spec.type else replace(spec, type=used.type, path=used.path, reason=None)
    return replace(
        profile,
        estop={name: spec_in_use(spec) for name, spec in profile.estop.items() if name not in ignored},
        active={name: spec for name, spec in active.items() if name not in ignored},
    )


def inputs_by_variant(profile: RealProfile) -> tuple[str, ...]:
    """Return the safety inputs that are read as their variant, for a profile in use."""
    inputs: dict[str, SafetyInputSpec | ActiveSpec] = {**profile.estop, **profile.active}
    return tuple(name for name, spec in inputs.items() if spec.variant is not None and spec.type == spec.variant.type)


def load_real_profile(contract: Contract, *, ignored: Sequence[str] = ()) -> RealProfile:
    """Parse and check ``backends.real``, with variants in use and without `ignored` inputs.

    Raises ContractError, MissingDependencyError for messages, or UsageError for `ignored`.
    """
    profile = with_inputs_in_use(parse_real_profile(contract), ignored)
    check_messages(contract.sensors, contract.source)
    try:
        _check_times(profile, contract)
        for name, clock in profile.clocks.items():
            _check_clock(f"{PATH}.clocks.{name}", name, clock, contract)
        _check_reset(profile, contract)
        for name, spec in profile.estop.items():
            check_input(spec, f"{PATH}.estop.{name}")
        if profile.controller_state is not None:
            check_controller_state(profile.controller_state, f"{PATH}.controller_state")
        check_active(profile.active, f"{PATH}.active")
        for name in profile.active:
            problem = f"{name!r} is also the name of an estop (expected a unique name)"
            require(name not in profile.estop, f"{PATH}.active.{name}", problem)
        for name, frame in profile.tf.items():
            require(name in contract.sensors, f"{PATH}.tf.{name}", one_of(name, contract.sensors))
            check_frame(f"{PATH}.tf.{name}", contract.sensors[name], frame)
        joint_sensors = [key for key, sensor in contract.sensors.items() if sensor.type == JOINT_SENSOR]
        if not isinstance(profile.start_outside, str):
            joints = commanded_joint_names(contract.actuators)
            for joint in profile.start_outside:
                require(joint in joints, f"{PATH}.start_outside.{joint}", f"unknown joint {one_of(joint, joints)}")
        for name in profile.shared:
            require(name in joint_sensors, f"{PATH}.shared", f"{one_of(name, joint_sensors)} (joint sensors)")
    except ContractError as error:
        raise ContractError(error.path, error.problem, source=contract.source) from None
    return profile


def _check_times(profile: RealProfile, contract: Contract) -> None:
    period_s, step_s, reset_s = contract.control_period_s, profile.step_timeout_s, profile.reset_timeout_s
    allow(step_s > period_s, f"{PATH}.step_timeout_s", step_s, f"more than the control period of {period_s} s")
    expected = f"less than reset_timeout_s {reset_s}"
    allow(profile.discovery_s < reset_s, f"{PATH}.discovery_s", profile.discovery_s, expected)
    if (timeout_s := profile.downstream_timeout_s) is not None:
        allowed = f"more than the control period of {period_s} s, or null"
        allow(timeout_s > period_s, f"{PATH}.downstream_timeout_s", timeout_s, allowed)


def _check_clock(path: str, name: str, clock: ClockSpec, contract: Contract) -> None:
    error_s, least_s = clock.error_s, clock.least_delay_s
    sensors = (*contract.sensors, EVERY_SENSOR)
    require(name in sensors, path, one_of(name, sensors))
    if clock.sync in ("ptp", "chrony"):
        allow(error_s is not None, f"{path}.error_s", error_s, f"seconds > 0, the error bound of sync: {clock.sync}")
    else:
        allow(error_s is None, f"{path}.error_s", error_s, "none unless sync is ptp or chrony")
    is_delay = least_s is None or clock.sync in ("auto", "none")
    allow(is_delay, f"{path}.least_delay_s", least_s, "none unless sync is none or auto")


def _check_reset(profile: RealProfile, contract: Contract) -> None:
    spec, path = profile.reset_spec, f"{PATH}.reset"
    if spec.parameters:
        allowed = "with the service of a node, as <node>/<service>"
        allow("/" in (spec.service or ""), f"{path}.parameters", "true", allowed)
    if spec.timeout_s is not None:
        allowed = f"at most reset_timeout_s {profile.reset_timeout_s}, or null"
        allow(spec.timeout_s <= profile.reset_timeout_s, f"{path}.timeout_s", spec.timeout_s, allowed)
    for kind in ("topic", "service"):
        name = getattr(spec, f"confirm_{kind}")
        is_used = name is None or spec.confirm == kind
        allow(is_used, f"{path}.confirm_{kind}", repr(name), f"with confirm: {kind} only")
    if spec.home is not None:
        for joint, problem in validate_home(contract, spec.home).items():
            require(False, f"{path}.home.{joint}", problem)
        require(bool(spec.home), f"{path}.home", "no joint is commanded by position; remove the key")


def check_active(active: Mapping[str, ActiveSpec], path: str) -> None:
    """Raise ContractError at `path` for an invalid ``active``.

    Raises MissingDependencyError for a message package that is not installed.
    """
    for name, spec in active.items():
        where = f"{path}.{name}"
        if spec.topic is not None:
            check_input(spec.as_input(), where)
            if spec.reason is not None:
                text = check_field_path(f"{where}.reason", spec.type, spec.reason)
                problem = f"field {spec.reason!r} of {spec.type} is not a string"
                require(isinstance(text, str), f"{where}.reason", problem)
            continue
        for key in _TOPIC_KEYS:
            is_default = getattr(spec, key) == getattr(ActiveSpec(), key)
            require(is_default, f"{where}.{key}", "only a topic has this key (expected with a topic); remove it")


def check_controller_state(spec: ControllerStateSpec, path: str) -> None:
    """Check a controller's state topic against its message type, or raise ContractError."""
    is_joint_state = spec.type == JOINT_SENSOR
    require(
        is_joint_state == (spec.path is None),
        f"{path}.path",
        f"invalid path {spec.path!r} for {spec.type} (expected none for JointState, a path for any other type)",
    )
    check_message_type(f"{path}.type", spec.type)
    for key in ("path", "names"):
        if (field_path := getattr(spec, key)) is not None:
            check_field_path(f"{path}.{key}", spec.type, field_path)


def check_frame(path: str, sensor: SensorSpec, target: str) -> None:
    """Raise ContractError at `path` if `sensor` cannot be transformed to the frame `target`."""
    expected = f"(expected one of: {', '.join(TRANSFORMABLE)})"
    require(sensor.type in TRANSFORMABLE, path, f"{sensor.type} cannot be transformed {expected}")
    by_path = [name for name, spec in sensor.fields.items() if spec.path is not None]
    require(not by_path, path, f"fields with a path cannot be transformed: {by_path} (expected fields of the type)")
    require(sensor.timeline == "header", path, f"timeline {sensor.timeline} has no stamp (expected timeline: header)")
    is_possible = target != "" and sensor.frame in (None, target)
    allow(is_possible, path, repr(target), sensor.frame or "the name of a frame")
