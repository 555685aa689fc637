"""The profile of an external simulator, ``backends.gazebo`` of a contract, and the poses that a reset samples by it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from embodied_env.contract import Contract
from embodied_env.contract.loader import parse_as, profile_of
from embodied_env.contract.spaces import ActionLayout
from embodied_env.contract.value_checks import allow, check_topic, one_of, require
from embodied_env.core.reset_spec import validate_home
from embodied_env.core.types import FloatArray, ResetRequest
from embodied_env.errors import BackendNotReadyError, ContractError
from embodied_env.ros.external_sim.control.api import ControlCapabilities

_CONTROLS = {"gazebo": "ros_gz", "simulation_interfaces": "simulation_interfaces"}
"""Backend -> default API."""

_POSES = ("position", "orientation", "covariance")  # the covariance is zero: simulated poses are exact
_KINDS = ("entity", "distance", "event")
_UNIT_TOLERANCE = 1e-6  # of the length of a quaternion


@dataclass(frozen=True, kw_only=True)
class Place:
    """The pose of an entity in the world frame: m, and a quaternion x, y, z, w."""

    position: tuple[float, float, float]  # x, y, z, m
    orientation: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 1.0)  # unit quaternion x, y, z, w


@dataclass(frozen=True, kw_only=True)
class SimulatorDraw:
    """The target of a sampled reset option: exactly one of the keys."""

    entity: str | None = None  # entity whose position it sets: x, y or x, y, z, m
    pose: str | None = None  # entity whose pose it sets: x, y, m, and the heading, rad

    @property
    def name(self) -> str:
        """The entity."""
        return self.entity or self.pose or ""


@dataclass(frozen=True, kw_only=True)
class SimulatorSource:
    """The source of a sensor without a topic of its own: exactly one of the first three keys."""

    entity: str | None = None  # pose of an entity: from its topic, a state query, or where it was placed
    distance: tuple[str, str] | None = None  # distance between two sensors or entities at one instant
    event: str | None = None  # topic: 1 if it had a message since the last reading, else 0
    relative_to: str | None = None  # entity in whose frame the pose of `entity` is expressed


@dataclass(frozen=True, kw_only=True)
class StateTopic:
    """A topic with the pose of an entity in the world frame at every physics step."""

    topic: str  # topic with the entity's pose in the world
    type: Literal["geometry_msgs/msg/PoseStamped", "nav_msgs/msg/Odometry"]


@dataclass(frozen=True, kw_only=True)
class SimulatorProfile:
    """A running simulator: the backend connects to it and never starts it."""

    world: str  # name of the world
    # control interface; null: `ros_gz` for `gazebo`, else `simulation_interfaces`
    control: Literal["ros_gz", "simulation_interfaces", "embedded"] | None = None
    prefix: str | None = None  # prefix of its services; null: the interface's default
    step_s: float  # physics step, a whole part of `control_period_s`
    reset: Literal["soft", "world"] = "soft"  # `world` may rewind the clock; `soft` places entities and homes joints
    settle_steps: int = 5  # physics steps after a reset, before sensors are read, >= 1
    home: Mapping[str, float] = field(default_factory=dict)  # joint to homing target, through the gate, rad or m
    entities: Mapping[str, Place] = field(default_factory=dict)  # pose after a reset, in the world frame
    draws: Mapping[str, SimulatorDraw] = field(default_factory=dict)  # entity that a reset option places
    states: Mapping[str, StateTopic] = field(default_factory=dict)  # pose of an entity, required at every step
    # origin of a sensor without a topic, exactly one of the first three keys
    sources: Mapping[str, SimulatorSource] = field(default_factory=dict)
    command_settle_s: float = 0.0  # wall time between commands and step, below `step_timeout_s`
    # topic on which the receiver repeats each command; awaited before the step
    echo: Mapping[str, str] = field(default_factory=dict)
    sensor_grace_s: float = 1.0  # wall time to wait for a due sensor or an echo, > 0
    step_timeout_s: float = 5.0  # maximum duration of a step, > 0
    reset_timeout_s: float = 30.0  # maximum duration of a reset, > 0

    @property
    def step_ns(self) -> int:
        """Length of a physics step, ns."""
        return round(self.step_s * 1e9)


@dataclass(frozen=True, kw_only=True)
class SampledPoses:
    """The places of entities, by name, and the sampled or given values, by reset option."""

    places: Mapping[str, Place]
    sampled: Mapping[str, FloatArray]


def sample_poses(contract: Contract, profile: SimulatorProfile, request: ResetRequest) -> SampledPoses:
    """Sample the reset options of `profile.draws` with the request's seed, and place entities accordingly.

    Every option of `contract` is sampled, so that setting one, or leaving it out of the profile, shifts no other.
    """
    rng = np.random.default_rng(request.seed)
    places, sampled = dict(profile.entities), {}
    for name, option in sorted(contract.reset_options.items()):
        drawn = np.asarray(rng.uniform(option.low_array, option.high_array))
        if name not in profile.draws:
            continue
        value = sampled[name] = np.array(request.options.get(name, drawn), dtype=np.float64)
        numbers: list[float] = value.tolist()
        draw = profile.draws[name]
        before = places.get(draw.name, Place(position=(0.0, 0.0, 0.0)))
        orientation = before.orientation
        if draw.pose is not None:
            heading_rad = numbers.pop()
            orientation = (0.0, 0.0, math.sin(heading_rad / 2.0), math.cos(heading_rad / 2.0))
        x, y, z = (*numbers, *before.position[len(numbers) :])
        places[draw.name] = Place(position=(x, y, z), orientation=orientation)
    return SampledPoses(places=places, sampled=sampled)


def check_offered(profile: SimulatorProfile, control: str, offered: ControlCapabilities) -> None:
    """Raise BackendNotReadyError for what the profile needs and `offered`, the abilities of `control`, lack."""
    if profile.reset == "world" and not offered.reset:
        raise BackendNotReadyError(f"{control} offers no reset of the world; use reset: soft")
    placed = [*profile.entities, *(draw.name for draw in profile.draws.values())]
    if placed and not offered.set_state:
        names = ", ".join(placed)
        remedy = "with ros_gz: a bridge of 2025 or newer, and set_pose in its configuration"
        raise BackendNotReadyError(f"{control} offers no service that puts {names} anywhere ({remedy})")


def load_simulator_profile(contract: Contract, backend: str) -> tuple[SimulatorProfile, str]:
    """Read the profile ``backends.<backend>`` of `contract`; return it, and the name of its API.

    Raises:
        ContractError: when it is missing, or has an unknown or missing key or a wrong value.
    """
    path = f"backends.{backend}"
    profile = parse_as(SimulatorProfile, profile_of(contract, backend), path=path, source=contract.source)
    control = profile.control or _CONTROLS[backend]
    try:
        _check_numbers(profile, control, contract, path)
        _check_draws(profile, contract, path)
        _check_sources(profile, contract, path)
        is_sent = not ActionLayout(contract).is_velocity.all()
        if profile.home or (profile.reset == "soft" and is_sent):
            for joint, problem in validate_home(contract, profile.home).items():
                require(False, f"{path}.home.{joint}", problem)
            require(is_sent, f"{path}.home", "no joint is commanded by position: leave it out")
        for name, topic in profile.echo.items():
            require(name in contract.actuators, f"{path}.echo.{name}", one_of(name, contract.actuators))
            check_topic(f"{path}.echo.{name}", topic)
    except ContractError as error:
        raise ContractError(error.path, error.problem, source=contract.source) from None
    return profile, control


def _check_numbers(profile: SimulatorProfile, control: str, contract: Contract, path: str) -> None:
    allow(bool(profile.world), f"{path}.world", repr(profile.world), "the name of a world")
    for key in ("sensor_grace_s", "step_timeout_s", "reset_timeout_s"):
        value = getattr(profile, key)
        allow(value > 0, f"{path}.{key}", value, "seconds > 0")
    allow(profile.settle_steps >= 1, f"{path}.settle_steps", profile.settle_steps, "an integer >= 1")
    settle_s, most_s = profile.command_settle_s, profile.step_timeout_s
    allowed = f"seconds >= 0, below step_timeout_s {most_s}"
    allow(0 <= settle_s < most_s, f"{path}.command_settle_s", settle_s, allowed)
    for name, place in profile.entities.items():
        is_unit = abs(math.hypot(*place.orientation) - 1) < _UNIT_TOLERANCE
        allow(is_unit, f"{path}.entities.{name}.orientation", place.orientation, "a quaternion of length 1")
    step_ns, period_ns, period_s = profile.step_ns, contract.control_period_ns, contract.control_period_s
    is_part = step_ns > 0 and period_ns % step_ns == 0
    allow(is_part, f"{path}.step_s", profile.step_s, f"a whole part of control_period_s {period_s}")
    if control == "embedded":
        allowed = f"control_period_s {period_s}: it takes no smaller steps"
        allow(step_ns == period_ns, f"{path}.step_s", profile.step_s, allowed)
        allow(profile.settle_steps == 1, f"{path}.settle_steps", profile.settle_steps, "1, a control period")


def _check_draws(profile: SimulatorProfile, contract: Contract, path: str) -> None:
    """Check that each sampled reset option has the shape of what it sets."""
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
    """Check that each source provides the fields of its sensor, and that no distance uses another distance."""
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
        _check_source(source, contract, name, f"{where}.{given[0]}", entities)


def _check_source(
    source: SimulatorSource, contract: Contract, name: str, where: str, entities: Collection[str]
) -> None:
    sensor = contract.sensors[name]
    if source.distance is not None:
        require(tuple(sensor.fields) == ("range",), where, f"it has {', '.join(sensor.fields)}; allowed: a Range")
        measured = [key for key, other in contract.sensors.items() if "position" in other.fields]
        for end in source.distance:
            require(end in measured or end in entities, where, one_of(end, [*measured, *sorted(entities)]))
    elif source.event is not None:
        check_topic(where, source.event)
        is_bool = sensor.type == "std_msgs/msg/Bool"
        require(is_bool, where, f"it is a {sensor.type}; allowed: std_msgs/msg/Bool")
    else:
        odd = [each for each in sensor.fields if each not in _POSES]
        require(not odd, where, f"it has no {', '.join(odd)}; allowed: {', '.join(_POSES)}")
