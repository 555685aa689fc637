"""The profile of a robot: what a contract's ``backends.real`` declares. It needs no ROS."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from embodied_env.contract import Contract, SensorSpec
from embodied_env.contract.loader import parse_as, profile_of
from embodied_env.contract.message_types import JOINT_SENSOR, message_class
from embodied_env.contract.value_checks import check_positive, check_topic, one_of, require
from embodied_env.core.reset_spec import ResetRoutine, validate_home
from embodied_env.errors import ContractError
from embodied_env.ros.message_fields import follow
from embodied_env.ros.robot.estops import EstopSpec, estop_specs

BACKEND = "real"
PATH = f"backends.{BACKEND}"

RESET_LEVELS = ("none", "robot", "world")
"""How deep a reset goes: only the readings are new, the robot was sent home, a service was called."""

SETTLE_S = 3.5
"""How long the graph must stay right before the first motion: another publisher may not have been discovered yet.

Fast DDS repeats its announcements every 3 s; nodes that all ran already were found within 3.2 s of each other.
"""

EVERY_SENSOR = "default"
"""Stands in ``backends.real.clocks`` for the sensors that are not named there."""

TRANSFORMABLE = (
    "geometry_msgs/msg/PointStamped",
    "geometry_msgs/msg/PoseStamped",
    "geometry_msgs/msg/PoseWithCovarianceStamped",
)
"""What stands in one frame, at a place. A velocity or a force would also need to know how that frame moves."""

GET_STATE = "lifecycle_msgs/srv/GetState"
TRANSITION_EVENT = "lifecycle_msgs/msg/TransitionEvent"
LIST_CONTROLLERS = "controller_manager_msgs/srv/ListControllers"

_KINDS = ("node", "controller", "topic")
_OF_TOPICS = ("type", "path", "safe", "reason", "latched")


@dataclass(frozen=True, kw_only=True)
class RealProfile:
    """A robot that is driven over its topics."""

    reset: ResetSpec | None = None  # None: the robot stays where it is
    estop: Mapping[str, InputSpec] = field(default_factory=dict)
    active: Mapping[str, ActiveSpec] = field(default_factory=dict)
    tf: Mapping[str, str] = field(default_factory=dict)  # sensor -> the frame that its values are wanted in
    shared: tuple[str, ...] = ()  # sensors of joints on whose topic others tell of other joints
    relay: bool = False
    downstream_timeout_s: float | None = None  # the timeout of the robot's own controller, as its owner declares it
    allow_no_downstream_timeout: bool = False
    start_outside: Literal["refuse", "inward"] = "refuse"  # a robot outside its limits: `check_positions`
    security: Literal["off", "required"] = "off"  # SROS2
    controller_state: ControllerStateSpec | None = None  # where a controller says which command is in force
    actuation_s: float | None = None  # from a command to its effect, as a calibration found it, where nothing tells it
    use_sim_time: bool = False  # stamps and ages are of /clock
    clocks: Mapping[str, ClockSpec] = field(default_factory=dict)  # by sensor: whose clock stamps it
    discovery_s: float = SETTLE_S  # how long the graph must be right before the first motion: `preflight`
    step_timeout_s: float = 1.0  # without any reading for so long the robot is lost
    reset_timeout_s: float = 30.0

    @property
    def reset_spec(self) -> ResetSpec:
        """How an episode begins."""
        return ResetSpec() if self.reset is None else self.reset

    def inputs(self) -> tuple[EstopSpec, ...]:
        """Return the safety inputs, checked against their message types; raises ContractError."""
        return estop_specs({name: vars(spec) for name, spec in self.estop.items()}, f"{PATH}.estop")


def load_real_profile(contract: Contract) -> RealProfile:
    """Read the profile ``backends.real`` of `contract`.

    Raises:
        ContractError: when there is none, or when it has an unknown key, misses one, or has a wrong value.
        MissingDependencyError: for the messages of a safety input that are not installed.
    """
    profile = parse_as(RealProfile, profile_of(contract, BACKEND), path=PATH, source=contract.source)
    try:
        for key, value, allowed, holds in _conditions(profile, contract):
            require(holds, f"{PATH}.{key}", f"{value} is not allowed; allowed: {allowed}")
        check_reset(profile.reset_spec, contract, profile.reset_timeout_s, f"{PATH}.reset")
        profile.inputs()
        if profile.controller_state is not None:
            check_controller_state(profile.controller_state, f"{PATH}.controller_state")
        check_active(profile.active, f"{PATH}.active")
        _check_sensors(profile, contract)
    except ContractError as error:
        raise ContractError(error.path, error.problem, source=contract.source) from None
    return profile


def profile_in_force(contract: Contract, *, is_relayed: bool) -> Mapping[str, Any]:
    """Return the profile as it is written, with the relay that is really used."""
    return {**contract.backends[BACKEND], "relay": is_relayed}


def node_parameters(
    contract: Contract, profile: RealProfile, *, is_relayed: bool
) -> dict[str, bool | int | float | str]:
    """Return what ``ros2 param list`` shows of an environment; nobody can set it."""
    return {
        "backend": BACKEND,
        "contract": contract.name,
        "contract_version": contract.version,
        "fingerprint": contract.fingerprint,
        "control_period_s": contract.control_period_s,
        "relay": is_relayed,
        "security": profile.security,
    }


@dataclass(frozen=True, kw_only=True)
class ResetSpec:
    """How an episode begins: a service that is called once, then the way home, then a person's word; each if named."""

    service: str | None = None  # a std_srvs/Trigger
    parameters: bool = False  # the node of the service takes seed and options as parameters: an embedded simulator
    home: Mapping[str, float] | None = None  # joint -> position, rad or m
    speed: float = 0.2
    tolerance: float = 0.02
    timeout_s: float | None = None
    confirm: Literal["none", "prompt", "topic", "service"] = "none"
    confirm_topic: str | None = None
    confirm_service: str | None = None

    def routine(self) -> ResetRoutine:
        """Return what follows the service."""
        return ResetRoutine(
            home=dict(self.home or {}),
            speed=self.speed,
            tolerance=self.tolerance,
            timeout_s=self.timeout_s,
            confirm="" if self.confirm == "none" else self.confirm,
        )

    @property
    def level(self) -> str:
        """How deep the reset goes."""
        if self.service is not None:
            return "world"
        return "robot" if self.home is not None else "none"


@dataclass(frozen=True, kw_only=True)
class InputSpec:
    """One safety input as it is written; what its values mean is in `embodied_env.ros.robot.estops`."""

    topic: str
    type: str = "std_msgs/msg/Bool"
    path: str = "data"
    safe: tuple[bool | int | float | str, ...] = (False,)
    timeout_s: float = 0.5
    kind: Literal["estop", "robot_mode"] = "estop"
    latched: bool = False


@dataclass(frozen=True, kw_only=True)
class ActiveSpec:
    """One thing that must be active: a lifecycle `node`, a `controller` of a `manager`, or a value of a `topic`.

    `safe`: the values at `path` that mean active. `reason`: the path of a text in the same message that says why it is
    not. `latched`: published when it changes only, and kept for late comers; then its last value stays. Anything else
    that says nothing for `timeout_s` is inactive.
    """

    node: str | None = None
    controller: str | None = None
    manager: str = "/controller_manager"
    topic: str | None = None
    type: str = "std_msgs/msg/Bool"
    path: str = "data"
    safe: tuple[bool | int | float | str, ...] = (True,)
    reason: str | None = None
    latched: bool = False
    timeout_s: float = 2.0

    @property
    def service(self) -> str | None:
        """The service that is asked; None: it is heard by a topic."""
        if self.node is not None:
            return f"{self.node}/get_state"
        return f"{self.manager}/list_controllers" if self.controller is not None else None

    @property
    def types(self) -> tuple[str, ...]:
        """The messages and services that are needed."""
        if self.node is not None:
            return (GET_STATE, TRANSITION_EVENT)
        return (LIST_CONTROLLERS,) if self.controller is not None else (self.type,)


@dataclass(frozen=True, kw_only=True)
class ClockSpec:
    """Whose clock stamps a sensor's messages: ``backends.real.clocks.<sensor>``.

    `sync`: ``auto`` asks the middleware whether the publisher is on our host; ``ptp`` and ``chrony`` agree with ours
    within `error_s`. `least_delay_s`, for a clock that is not synchronised: how long the quickest message takes.
    """

    sync: Literal["auto", "same_host", "ptp", "chrony", "none"] = "auto"
    error_s: float | None = None
    least_delay_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class ControllerStateSpec:
    """Where a controller says which command is in force.

    A JointState is read by joint. Of another type `path` leads to the numbers, in the order of the joints, and
    `names` to the names of the joints where the message has them.
    """

    topic: str
    type: str = "sensor_msgs/msg/JointState"
    path: str | None = None
    names: str | None = None


def _check_sensors(profile: RealProfile, contract: Contract) -> None:
    """Check what the profile says of single sensors, and that no two inputs have one name."""
    for name in profile.active:
        free = name not in profile.estop
        require(free, f"{PATH}.active.{name}", "the name is also that of an estop; allowed: one name for each")
    for name, frame in profile.tf.items():
        require(name in contract.sensors, f"{PATH}.tf.{name}", one_of(name, contract.sensors))
        check_frame(f"{PATH}.tf.{name}", contract.sensors[name], frame)
    for name in profile.shared:
        joint_sensors = [key for key, sensor in contract.sensors.items() if sensor.type == JOINT_SENSOR]
        require(name in joint_sensors, f"{PATH}.shared", f"{one_of(name, joint_sensors)} (sensors of joints)")


def check_reset(spec: ResetSpec, contract: Contract, reset_timeout_s: float, path: str) -> None:
    """Raise ContractError for the first key, under `path`, whose value is not allowed."""
    for key, name in (
        ("service", spec.service),
        ("confirm_topic", spec.confirm_topic),
        ("confirm_service", spec.confirm_service),
    ):
        if name is not None:
            check_topic(f"{path}.{key}", name)
    for key, value, allowed, holds in _reset_conditions(spec, reset_timeout_s):
        require(holds, f"{path}.{key}", f"{value} is not allowed; allowed: {allowed}")
    if spec.home is not None:
        for joint, problem in validate_home(contract, spec.home).items():
            require(False, f"{path}.home.{joint}", problem)
        require(bool(spec.home), f"{path}.home", "no joint is commanded by position: leave it out")


def _reset_conditions(spec: ResetSpec, reset_timeout_s: float) -> Iterator[tuple[str, object, str, bool]]:
    """Yield for each value its key, itself, what is allowed, and whether it is so."""
    if spec.parameters:
        yield "parameters", "true", "with the service of a node, as <node>/<service>", "/" in (spec.service or "")
    yield "speed", spec.speed, "0 < speed <= 1, a share of the velocity limits", 0.0 < spec.speed <= 1.0
    yield "tolerance", spec.tolerance, "> 0, in the unit of each joint", spec.tolerance > 0.0
    if spec.timeout_s is not None:
        allowed = f"0 to reset_timeout_s {reset_timeout_s}, or null"
        yield "timeout_s", spec.timeout_s, allowed, 0.0 < spec.timeout_s <= reset_timeout_s
    for kind in ("topic", "service"):
        name = getattr(spec, f"confirm_{kind}")
        yield f"confirm_{kind}", repr(name), f"with confirm: {kind} only", name is None or spec.confirm == kind


def check_active(active: Mapping[str, ActiveSpec], path: str) -> None:
    """Check what stands in a profile under ``active``, at `path`.

    Raises:
        ContractError: for a value that is not allowed.
        MissingDependencyError: for the messages of a topic that are not installed.
    """
    for name, spec in active.items():
        where = f"{path}.{name}"
        given = [key for key in _KINDS if getattr(spec, key) is not None]
        problem = f"{', '.join(given) or 'nothing'} is not allowed; allowed: exactly one of {', '.join(_KINDS)}"
        require(len(given) == 1, where, problem)
        check_positive(f"{where}.timeout_s", spec.timeout_s, "seconds")
        if spec.topic is not None:
            _check_topic(name, spec, path)
            continue
        for key in _OF_TOPICS:
            is_default = getattr(spec, key) == getattr(ActiveSpec(), key)
            require(is_default, f"{where}.{key}", f"a {given[0]} has none; allowed: only with a topic")
        check_topic(f"{where}.{given[0]}", spec.node or spec.controller or "")
        check_topic(f"{where}.manager", spec.manager)


def _check_topic(name: str, spec: ActiveSpec, path: str) -> None:
    keys = ("topic", "type", "path", "safe", "timeout_s", "latched")
    estop_specs({name: {key: getattr(spec, key) for key in keys}}, path)
    if spec.reason is None:
        return
    try:
        text = follow(message_class(spec.type)(), spec.reason)
    except (AttributeError, IndexError) as error:
        problem = f"{spec.reason!r} leads nowhere in a {spec.type}: {error}"
        raise ContractError(f"{path}.{name}.reason", problem) from None
    require(isinstance(text, str), f"{path}.{name}.reason", f"{spec.reason!r} is no text in a {spec.type}")


def check_controller_state(spec: ControllerStateSpec, path: str) -> None:
    """Check it against its message type; raises ContractError."""
    check_topic(f"{path}.topic", spec.topic)
    is_joint_state = spec.type == "sensor_msgs/msg/JointState"
    require(
        is_joint_state == (spec.path is None),
        f"{path}.path",
        f"{spec.path!r} is not allowed for a {spec.type}; allowed: none for a JointState, a path for any other",
    )
    message = message_class(spec.type)()
    for key in ("path", "names"):
        leads = getattr(spec, key)
        try:
            if leads is not None:
                follow(message, leads)
        except AttributeError as error:
            raise ContractError(f"{path}.{key}", f"{leads!r} leads nowhere in a {spec.type}: {error}") from None
        except IndexError:
            pass  # an element of a sequence that is empty in a new message


def check_frame(path: str, sensor: SensorSpec, target: str) -> None:
    """Check that the values of `sensor` can be wanted in the frame `target`; raises ContractError at `path`."""
    allowed = ", ".join(TRANSFORMABLE)
    require(sensor.type in TRANSFORMABLE, path, f"a {sensor.type} cannot be transformed; allowed: {allowed}")
    by_path = [name for name, spec in sensor.fields.items() if spec.path is not None]
    require(not by_path, path, f"the fields {by_path} have a path of their own; allowed: the type's own fields")
    require(sensor.timeline == "header", path, "its stamp is not to be trusted; allowed: timeline header")
    require(
        target != "" and sensor.frame in (None, target),
        path,
        f"{target!r} is not allowed; allowed: {sensor.frame or 'the name of a frame'}",
    )


def _conditions(profile: RealProfile, contract: Contract) -> Iterator[tuple[str, object, str, bool]]:
    """Yield for each value its key, itself, what is allowed, and whether it is so."""
    period_s, step_s, reset_s = contract.control_period_s, profile.step_timeout_s, profile.reset_timeout_s
    yield "step_timeout_s", step_s, f"more than the control period of {period_s} s", step_s > period_s
    yield "reset_timeout_s", reset_s, "seconds > 0", reset_s > 0
    allowed = f"0 to less than reset_timeout_s {reset_s}"
    yield "discovery_s", profile.discovery_s, allowed, 0 <= profile.discovery_s < reset_s
    if (actuation_s := profile.actuation_s) is not None:
        yield "actuation_s", actuation_s, "seconds >= 0, or null", actuation_s >= 0
    for name, clock in profile.clocks.items():
        yield from _clock_conditions(name, clock, contract)
    if (timeout_s := profile.downstream_timeout_s) is not None:
        allowed = f"more than the control period of {period_s} s, or null"
        yield "downstream_timeout_s", timeout_s, allowed, timeout_s > period_s


def _clock_conditions(name: str, clock: ClockSpec, contract: Contract) -> Iterator[tuple[str, object, str, bool]]:
    key, error_s, least_s = f"clocks.{name}", clock.error_s, clock.least_delay_s
    allowed = f"a sensor of the contract: {', '.join(contract.sensors)}; or {EVERY_SENSOR}"
    yield key, repr(name), allowed, name in (*contract.sensors, EVERY_SENSOR)
    if clock.sync in ("ptp", "chrony"):
        is_bound = error_s is not None and 0 < error_s < math.inf
        yield (
            f"{key}.error_s",
            error_s,
            f"with sync: {clock.sync}, seconds > 0: how far it keeps the clock from that of this host",
            is_bound,
        )
    else:
        yield f"{key}.error_s", error_s, "none: it is of sync: ptp and chrony", error_s is None
    is_delay = least_s is None or (0 <= least_s < math.inf and clock.sync in ("auto", "none"))
    yield f"{key}.least_delay_s", least_s, "seconds >= 0, with sync: none or auto", is_delay
