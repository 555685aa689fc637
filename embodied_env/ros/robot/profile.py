"""The profile of a robot: what a contract's ``backends.real`` says of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from embodied_env.contract import Contract
from embodied_env.contract.loader import parse_as, profile_of
from embodied_env.contract.message_types import JOINT_SENSOR
from embodied_env.contract.value_checks import check_topic, one_of, require
from embodied_env.core.reset_spec import ResetRoutine, validate_home
from embodied_env.errors import ContractError
from embodied_env.ros.robot.actuation_feedback import ControllerStateSpec, check_controller_state
from embodied_env.ros.robot.clock_sync import EVERY_SENSOR, ClockSpec
from embodied_env.ros.robot.estops import EstopSpec, estop_specs
from embodied_env.ros.robot.preflight import SETTLE_S
from embodied_env.ros.robot.required_active import ActiveSpec, check_active
from embodied_env.ros.transforms import check_frame

RESET_LEVELS = ("none", "robot", "world")
"""How deep a reset goes: only the readings are new, the robot was sent home, a service was called."""


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


BACKEND = "real"
PATH = f"backends.{BACKEND}"


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
    start_outside: Literal["refuse", "inward"] = "refuse"  # a robot outside its limits: `preflight.check_positions`
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
