"""The profile of a robot: what a contract's ``backends.real`` says of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from embodied_env.backends.ros.estops import EstopSpec, estop_specs
from embodied_env.backends.ros.evidence import ControllerStateSpec, check_controller_state
from embodied_env.backends.ros.preflight import SETTLE_S
from embodied_env.contract import Contract
from embodied_env.contract.checks import check_topic, require
from embodied_env.contract.loader import parse_as
from embodied_env.errors import ContractError

BACKEND = "real"
PATH = f"backends.{BACKEND}"


@dataclass(frozen=True, kw_only=True)
class ResetSpec:
    """How an episode begins: a std_srvs/Trigger that is called once. Without one the robot stays where it is."""

    service: str


@dataclass(frozen=True, kw_only=True)
class InputSpec:
    """One safety input as it is written; what its values mean is in `embodied_env.backends.ros.estops`."""

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

    reset: ResetSpec | None = None
    estop: Mapping[str, InputSpec] = field(default_factory=dict)
    relay: bool = False
    downstream_timeout_s: float | None = None  # the timeout of the robot's own controller, as its owner declares it
    allow_no_downstream_timeout: bool = False
    start_outside: Literal["refuse", "inward"] = "refuse"  # a robot outside its limits: `preflight.check_positions`
    security: Literal["off", "required"] = "off"  # SROS2
    controller_state: ControllerStateSpec | None = None  # where a controller says which command is in force
    actuation_s: float | None = None  # from a command to its effect, as a calibration found it, where nothing tells it
    discovery_s: float = SETTLE_S  # how long the graph must be right before the first motion: `preflight`
    step_timeout_s: float = 1.0  # without any reading for so long the robot is lost
    reset_timeout_s: float = 30.0

    def inputs(self) -> tuple[EstopSpec, ...]:
        """Return the safety inputs, checked against their message types; raises ContractError."""
        return estop_specs({name: vars(spec) for name, spec in self.estop.items()}, f"{PATH}.estop")


def load_real_profile(contract: Contract) -> RealProfile:
    """Read the profile ``backends.real`` of `contract`.

    Raises:
        ContractError: when there is none, or when it has an unknown key, misses one, or has a wrong value.
        MissingDependencyError: for the messages of a safety input that are not installed.
    """
    if BACKEND not in contract.backends:
        known = ", ".join(contract.backends) or "none"
        raise ContractError(PATH, f"the contract has no profile {BACKEND!r}; it has: {known}", source=contract.source)
    profile = parse_as(RealProfile, contract.backends[BACKEND], path=PATH, source=contract.source)
    try:
        for key, value, allowed, holds in _conditions(profile, contract):
            require(holds, f"{PATH}.{key}", f"{value} is not allowed; allowed: {allowed}")
        if profile.reset is not None:
            check_topic(f"{PATH}.reset.service", profile.reset.service)
        profile.inputs()
        if profile.controller_state is not None:
            check_controller_state(profile.controller_state, f"{PATH}.controller_state")
    except ContractError as error:
        raise ContractError(error.path, error.problem, source=contract.source) from None
    return profile


def profile_in_force(contract: Contract, *, is_relayed: bool) -> Mapping[str, Any]:
    """Return the profile as it is written, with the relay that is really used."""
    return {**contract.backends[BACKEND], "relay": is_relayed}


def _conditions(profile: RealProfile, contract: Contract) -> Iterator[tuple[str, object, str, bool]]:
    """Yield for each value its key, itself, what is allowed, and whether it is so."""
    period_s, step_s, reset_s = contract.control_period_s, profile.step_timeout_s, profile.reset_timeout_s
    yield "step_timeout_s", step_s, f"more than the control period of {period_s} s", step_s > period_s
    yield "reset_timeout_s", reset_s, "seconds > 0", reset_s > 0
    allowed = f"0 to less than reset_timeout_s {reset_s}"
    yield "discovery_s", profile.discovery_s, allowed, 0 <= profile.discovery_s < reset_s
    if (actuation_s := profile.actuation_s) is not None:
        yield "actuation_s", actuation_s, "seconds >= 0, or null", actuation_s >= 0
    if (timeout_s := profile.downstream_timeout_s) is not None:
        allowed = f"more than the control period of {period_s} s, or null"
        yield "downstream_timeout_s", timeout_s, allowed, timeout_s > period_s
