"""The profile of a simulator that others wrote: what a contract's ``backends.gazebo`` says of it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from embodied_env.contract import Contract
from embodied_env.contract.loader import parse_as, profile_of
from embodied_env.contract.spaces import ActionLayout
from embodied_env.contract.value_checks import check_topic, one_of, require
from embodied_env.core.reset_spec import validate_home
from embodied_env.errors import BackendNotReadyError, ContractError
from embodied_env.ros.external_sim.control.base import ControlCapabilities

_CONTROLS = {"gazebo": "ros_gz", "simulation_interfaces": "simulation_interfaces"}
"""Backend -> how it is moved, where its profile does not say."""

_POSES = ("position", "orientation", "covariance")  # the last is zero: what is told is exact
_KINDS = ("entity", "distance", "event")
_UNIT = 1e-6  # how far the length of a quaternion may be from 1


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where an entity belongs: m, and a quaternion x, y, z, w, in the frame of the world."""

    position: tuple[float, float, float]
    orientation: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class SimulatorDraw:
    """What a drawn reset option sets: exactly one of the keys."""

    entity: str | None = None  # its position: x, y, or x, y, z, m
    pose: str | None = None  # of an entity: x, y, m, and the heading, rad

    @property
    def name(self) -> str:
        """The entity."""
        return self.entity or self.pose or ""


@dataclass(frozen=True, kw_only=True)
class SimulatorSource:
    """Where a sensor without a topic of its own comes from: exactly one of the keys."""

    entity: str | None = None  # its pose, told on a topic or asked; where the simulator does not tell, as it was placed
    distance: tuple[str, str] | None = None  # between two other sensors or entities, at the same instant
    event: str | None = None  # a topic that speaks only when it is so: 1 when it did since the last reading, else 0
    relative_to: str | None = None  # an entity in whose frame the pose of `entity` is given


@dataclass(frozen=True, kw_only=True)
class StateTopic:
    """Where an entity tells its pose in the frame of the world, at every step of physics."""

    topic: str
    type: Literal["geometry_msgs/msg/PoseStamped", "nav_msgs/msg/Odometry"]


@dataclass(frozen=True, kw_only=True)
class SimulatorProfile:
    """A simulator that runs: it is attached to, never started."""

    world: str
    control: Literal["ros_gz", "simulation_interfaces", "embedded"] | None = None  # None: by the backend
    prefix: str | None = None  # of its services; None: what is usual
    step_s: float  # of its physics
    reset: Literal["soft", "world"] = "soft"
    settle_steps: int = 5  # of physics after a reset, before sensors are asked for
    home: Mapping[str, float] = field(default_factory=dict)  # joint -> where it is driven, through the gate; rad or m
    entities: Mapping[str, Place] = field(default_factory=dict)
    draws: Mapping[str, SimulatorDraw] = field(default_factory=dict)  # by reset option
    states: Mapping[str, StateTopic] = field(default_factory=dict)  # by entity
    sources: Mapping[str, SimulatorSource] = field(default_factory=dict)  # by sensor
    command_settle_s: float = 0.0  # wall time between the commands and the step
    echo: Mapping[str, str] = field(default_factory=dict)  # actuator -> topic on which its receiver repeats commands
    sensor_grace_s: float = 1.0  # wall time in which a sensor may come after its step
    step_timeout_s: float = 5.0
    reset_timeout_s: float = 30.0

    @property
    def step_ns(self) -> int:
        """Length of a step of physics, ns."""
        return round(self.step_s * 1e9)


def check_offered(profile: SimulatorProfile, control: str, offered: ControlCapabilities) -> None:
    """Raise BackendNotReadyError for what the profile wants, and what is `offered` through `control` cannot do."""
    if profile.reset == "world" and "world" not in offered.reset_levels:
        levels = ", ".join(offered.reset_levels) or "none"
        raise BackendNotReadyError(f"{control} offers no reset of the world, but: {levels}; use soft")
    placed = [*profile.entities, *(draw.name for draw in profile.draws.values())]
    if placed and not offered.set_state:
        raise BackendNotReadyError(f"{control} offers no service that puts {', '.join(placed)} anywhere")


def load_simulator_profile(contract: Contract, backend: str) -> tuple[SimulatorProfile, str]:
    """Read the profile ``backends.<backend>`` of `contract`; return it, and its control.

    Raises:
        ContractError: when there is none, or when it has an unknown key, misses one, or has a wrong value.
    """
    path = f"backends.{backend}"
    profile = parse_as(SimulatorProfile, profile_of(contract, backend), path=path, source=contract.source)
    control = profile.control or _CONTROLS[backend]
    try:
        _check_numbers(profile, control, contract, path)
        _check_entities(profile, contract, path)
        _check_sources(profile, contract, path)
        _check_home(profile, contract, path)
        for name, topic in profile.echo.items():
            require(name in contract.actuators, f"{path}.echo.{name}", one_of(name, contract.actuators))
            check_topic(f"{path}.echo.{name}", topic)
    except ContractError as error:
        raise ContractError(error.path, error.problem, source=contract.source) from None
    return profile, control


def _check_numbers(profile: SimulatorProfile, control: str, contract: Contract, path: str) -> None:
    for key, value, allowed, holds in _conditions(profile):
        require(holds, f"{path}.{key}", f"{value} is not allowed; allowed: {allowed}")
    step_ns, period_ns = profile.step_ns, contract.control_period_ns
    holds = step_ns > 0 and period_ns % step_ns == 0
    allowed = f"a whole part of control_period_s {contract.control_period_s}"
    require(holds, f"{path}.step_s", f"{profile.step_s} is not allowed; allowed: {allowed}")
    if control == "embedded":
        allowed = f"control_period_s {contract.control_period_s}: it takes no smaller steps"
        require(step_ns == period_ns, f"{path}.step_s", f"{profile.step_s} is not allowed; allowed: {allowed}")
        only = f"{profile.settle_steps} is not allowed; allowed: 1, a control period"
        require(profile.settle_steps == 1, f"{path}.settle_steps", only)


def _conditions(profile: SimulatorProfile) -> Iterator[tuple[str, object, str, bool]]:
    """Yield for each value its key, itself, what is allowed, and whether it is so."""
    yield "world", repr(profile.world), "the name of a world", bool(profile.world)
    for key in ("sensor_grace_s", "step_timeout_s", "reset_timeout_s"):
        value = getattr(profile, key)
        yield key, value, "seconds > 0", value > 0
    yield "settle_steps", profile.settle_steps, "an integer >= 1", profile.settle_steps >= 1
    settle_s, most_s = profile.command_settle_s, profile.step_timeout_s
    yield "command_settle_s", settle_s, f"seconds >= 0, below step_timeout_s {most_s}", 0 <= settle_s < most_s
    for name, place in profile.entities.items():
        length = math.sqrt(sum(part * part for part in place.orientation))
        yield f"entities.{name}.orientation", place.orientation, "a quaternion of length 1", abs(length - 1) < _UNIT


def _check_entities(profile: SimulatorProfile, contract: Contract, path: str) -> None:
    """Every reset option that is drawn has the shape of what it sets."""
    for name, draw in profile.draws.items():
        where = f"{path}.draws.{name}"
        require(name in contract.reset_options, where, f"no such reset option: {one_of(name, contract.reset_options)}")
        given = [key for key in ("entity", "pose") if getattr(draw, key) is not None]
        require(len(given) == 1, where, f"{' and '.join(given) or 'nothing'} is given; allowed: entity or pose")
        shape = contract.reset_options[name].low_array.shape
        flat = draw.name in profile.entities
        shapes = ((3,),) if draw.pose is not None else ((2,), (3,)) if flat else ((3,),)
        allowed = " or ".join(str(each) for each in shapes)
        more = "" if flat or draw.pose is not None else f"; (2,) when entities.{draw.name} says at what height"
        require(shape in shapes, where, f"{name!r} has shape {shape}; allowed: {allowed}{more}")


def _check_sources(profile: SimulatorProfile, contract: Contract, path: str) -> None:
    """Every source has the fields that its sensor wants, and no source follows from another distance."""
    for entity, state in profile.states.items():
        check_topic(f"{path}.states.{entity}.topic", state.topic)
    entities = {*profile.states, *profile.entities, *(draw.name for draw in profile.draws.values())}
    for name, source in profile.sources.items():
        where = f"{path}.sources.{name}"
        require(name in contract.sensors, where, f"no such sensor: {one_of(name, contract.sensors)}")
        given = [key for key in _KINDS if getattr(source, key) is not None]
        allowed = ", ".join(_KINDS[:-1]) + f" or {_KINDS[-1]}"
        require(len(given) == 1, where, f"{' and '.join(given) or 'nothing'} is given; allowed: {allowed}")
        is_alone = source.relative_to is None or source.entity is not None
        require(is_alone, f"{where}.relative_to", "it is given without entity; allowed: beside entity")
        if given == ["entity"]:
            odd = [each for each in contract.sensors[name].fields if each not in _POSES]
            require(not odd, f"{where}.entity", f"it has no {', '.join(odd)}; allowed: {', '.join(_POSES)}")
        elif given == ["distance"]:
            _check_distance(source.distance or (), contract, name, where, entities)
        else:
            _check_event(source.event or "", contract, name, where)


def _check_distance(ends: Sequence[str], contract: Contract, name: str, where: str, entities: Collection[str]) -> None:
    fields = tuple(contract.sensors[name].fields)
    require(fields == ("range",), f"{where}.distance", f"it has {', '.join(fields)}; allowed: a Range")
    measured = [key for key, sensor in contract.sensors.items() if "position" in sensor.fields]
    for end in ends:
        require(end in measured or end in entities, f"{where}.distance", one_of(end, [*measured, *sorted(entities)]))


def _check_event(topic: str, contract: Contract, name: str, where: str) -> None:
    check_topic(f"{where}.event", topic)
    kind = contract.sensors[name].type
    require(kind == "std_msgs/msg/Bool", f"{where}.event", f"it is a {kind}; allowed: std_msgs/msg/Bool")


def _check_home(profile: SimulatorProfile, contract: Contract, path: str) -> None:
    """All joints that are commanded by position go home, or, where the world is reset, none."""
    is_sent = not ActionLayout(contract).is_velocity.all()
    if profile.home or (profile.reset == "soft" and is_sent):
        for joint, problem in validate_home(contract, profile.home).items():
            require(False, f"{path}.home.{joint}", problem)
        require(is_sent, f"{path}.home", "no joint is commanded by position: leave it out")
