"""The profile ``backends.gazebo`` of an external simulator, and poses sampled at resets."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias

from embodied_env.contract import Contract
from embodied_env.contract.contract_loader import backend_profile
from embodied_env.contract.key_types import Count, NotNegative, Positive, Such, Text, Topic
from embodied_env.contract.spaces import ActionLayout
from embodied_env.contract.typed_values import parse_as
from embodied_env.contract.value_checks import allow, naming_file, one_of, require
from embodied_env.core.measured_joints import find_positions
from embodied_env.core.reset_draws import draw_options, validate_home
from embodied_env.core.types import FloatArray, ResetRequest
from embodied_env.errors import BackendNotReadyError
from embodied_env.extensions.gazebo.control.simulator_api import ControlCapabilities
from embodied_env.sim.world_profile import only_key

_CONTROLS = {"gazebo": "ros_gz", "simulation_interfaces": "simulation_interfaces"}  # backend -> default API

FORCE_TYPE = "geometry_msgs/msg/WrenchStamped"
_POSES = ("position", "orientation", "covariance")  # the covariance is zero, since simulated poses are exact

Orientation: TypeAlias = Annotated[
    tuple[float, float, float, float],
    Such(expected="a quaternion of length 1", holds=lambda parts: abs(math.hypot(*parts) - 1) < 1e-6),
]


@dataclass(frozen=True, kw_only=True)
class EntityPose:
    """The pose of an entity in the world frame, in m and as a quaternion x, y, z, w."""

    position: tuple[float, float, float]  # x, y, z, m
    orientation: Orientation = (0.0, 0.0, 0.0, 1.0)  # unit quaternion x, y, z, w


@dataclass(frozen=True, kw_only=True)
class SimulatorDraw:
    """The target of a sampled reset option, given by exactly one of the keys."""

    entity: str | None = None  # entity whose position it sets: x, y or x, y, z, m
    pose: str | None = None  # entity whose pose it sets: x, y, m, and the heading, rad

    @property
    def name(self) -> str:
        """The entity."""
        return self.entity or self.pose or ""


@dataclass(frozen=True, kw_only=True)
class SimulatorSource:
    """The source of a sensor without a topic, by exactly one of the first three keys."""

    entity: str | None = None  # pose of an entity: from its topic, a state query, or where it was placed
    distance: tuple[str, str] | None = None  # distance between two sensors or entities at one instant
    force: Topic | None = None  # topic of a WrenchStamped: 1 if it exceeded `above_n` since the last reading, else 0
    relative_to: str | None = None  # entity in whose frame the pose of `entity` is expressed
    above_n: float = 0.0  # force that counts as a contact, N, > 0, with `force`


@dataclass(frozen=True, kw_only=True)
class StateTopic:
    """A topic with the pose of an entity in the world frame.

    It has one at least at the end of each control period.
    """

    topic: Topic  # topic with the entity's pose in the world
    type: Literal["geometry_msgs/msg/PoseStamped", "nav_msgs/msg/Odometry"]


@dataclass(frozen=True, kw_only=True)
class SimulatorProfile:
    """A running simulator to which the backend connects without ever starting it."""

    world: Text  # name of the world
    # control interface; null: `ros_gz` for `gazebo`, else `simulation_interfaces`
    control: Literal["ros_gz", "simulation_interfaces"] | None = None
    prefix: str | None = None  # prefix of its services; null: the interface's default
    step_s: float  # physics step, a whole part of `control_period_s`
    reset: Literal["soft", "world"] = "soft"  # `world` may rewind the clock; `soft` places entities and homes joints
    settle_steps: Count = 5  # physics steps after a reset; more follow to the end of a control period
    home: Mapping[str, float] = field(default_factory=dict)  # joint to homing target, through the gate, rad or m
    home_tolerance: Positive = 0.02  # largest distance of a joint from home at the start of an episode, rad or m
    joint_zeros: Mapping[str, float] = field(default_factory=dict)  # joint to its position where the simulator has 0
    entities: Mapping[str, EntityPose] = field(default_factory=dict)  # pose after a reset, in the world frame
    draws: Mapping[str, SimulatorDraw] = field(default_factory=dict)  # entity that a reset option places
    states: Mapping[str, StateTopic] = field(default_factory=dict)  # pose of an entity, required at every step
    # origin of a sensor without a topic, exactly one of the first three keys
    sources: Mapping[str, SimulatorSource] = field(default_factory=dict)
    command_settle_s: NotNegative = 0.0  # wall time between commands and step, below `step_timeout_s`
    # topic on which the receiver repeats each command (a goal: `std_msgs/msg/Float64`); awaited before the step
    echo: Mapping[str, Topic] = field(default_factory=dict)
    sensor_grace_s: Positive = 1.0  # wall time to wait for a due sensor or an echo
    reply_timeout_s: Positive = 5.0  # maximum time from a request to its reply
    step_timeout_s: Positive = 20.0  # maximum duration of a step
    reset_timeout_s: Positive = 60.0  # maximum duration of a reset

    @property
    def step_ns(self) -> int:
        """Length of a physics step, ns."""
        return round(self.step_s * 1e9)


def sample_poses(
    contract: Contract, profile: SimulatorProfile, request: ResetRequest
) -> tuple[dict[str, EntityPose], dict[str, FloatArray]]:
    """Draw the reset options, and return entity poses by name and the values of `draws`."""
    places, sampled = dict(profile.entities), {}
    for name, value in draw_options(contract.reset_options, request.seed, request.options).items():
        if name not in profile.draws:
            continue
        sampled[name] = value
        numbers: list[float] = value.tolist()
        draw = profile.draws[name]
        before = places.get(draw.name, EntityPose(position=(0.0, 0.0, 0.0)))
        orientation = before.orientation
        if draw.pose is not None:
            heading_rad = numbers.pop()
            orientation = (0.0, 0.0, math.sin(heading_rad / 2.0), math.cos(heading_rad / 2.0))
        x, y, z = (*numbers, *before.position[len(numbers) :])
        places[draw.name] = EntityPose(position=(x, y, z), orientation=orientation)
    return places, sampled


def check_offered(profile: SimulatorProfile, control: str, offered: ControlCapabilities) -> None:
    """Raise BackendNotReadyError if the profile needs an ability that `control` lacks."""
    if profile.reset == "world" and not offered.reset:
        raise BackendNotReadyError(f"{control} cannot reset the world; set reset: soft")
    placed = [*profile.entities, *(draw.name for draw in profile.draws.values())]
    if placed and not offered.set_state:
        names = ", ".join(placed)
        remedy = "ros_gz needs a bridge of 2025 or newer with set_pose in its configuration"
        raise BackendNotReadyError(f"{control} has no service to place {names}; {remedy}")


def load_simulator_profile(contract: Contract, backend: str) -> tuple[SimulatorProfile, str]:
    """Read ``backends.<backend>`` and return it with its API's name, or raise ContractError."""
    path = f"backends.{backend}"
    profile = parse_as(SimulatorProfile, backend_profile(contract, backend), path=path, source=contract.source)
    control = profile.control or _CONTROLS[backend]
    with naming_file(contract.source):
        problem = f"{profile.command_settle_s} (expected below step_timeout_s {profile.step_timeout_s})"
        require(profile.command_settle_s < profile.step_timeout_s, f"{path}.command_settle_s", problem)
        step_ns, period_ns = profile.step_ns, contract.control_period_ns
        problem = f"{profile.step_s} (expected a whole part of control_period_s {contract.control_period_s})"
        require(step_ns > 0 and period_ns % step_ns == 0, f"{path}.step_s", problem)
        _check_draws(profile, contract, path)
        _check_sources(profile, contract, path)
        is_sent = not ActionLayout(contract).is_velocity.all()
        if profile.home or (profile.reset == "soft" and is_sent):
            for joint, problem in validate_home(contract, profile.home).items():
                require(False, f"{path}.home.{joint}", problem)
            require(is_sent, f"{path}.home", "no joint is commanded by position; remove it")
        joints = {*ActionLayout(contract).joints, *find_positions(contract)}
        for joint in profile.joint_zeros:
            require(joint in joints, f"{path}.joint_zeros.{joint}", f"no such joint: {one_of(joint, joints)}")
        for name in profile.echo:
            require(name in contract.actuators, f"{path}.echo.{name}", one_of(name, contract.actuators))
    return profile, control


def _check_draws(profile: SimulatorProfile, contract: Contract, path: str) -> None:
    for name, draw in profile.draws.items():
        where = f"{path}.draws.{name}"
        require(name in contract.reset_options, where, f"no such reset option: {one_of(name, contract.reset_options)}")
        only_key(draw, ("entity", "pose"), where)
        shape = contract.reset_options[name].low_array.shape
        is_flat = draw.pose is None and draw.name in profile.entities
        expected = "(2,) or (3,)" if is_flat else "(3,)"
        more = "" if is_flat or draw.pose else f", or (2,) with a height in entities.{draw.name}"
        problem = f"wrong shape of the reset option {name!r}: {shape} (expected {expected}{more})"
        require(shape == (3,) or (is_flat and shape == (2,)), where, problem)


def _check_sources(profile: SimulatorProfile, contract: Contract, path: str) -> None:
    entities = {*profile.states, *profile.entities, *(draw.name for draw in profile.draws.values())}
    for name, source in profile.sources.items():
        where = f"{path}.sources.{name}"
        require(name in contract.sensors, where, f"no such sensor: {one_of(name, contract.sensors)}")
        kind = only_key(source, ("entity", "distance", "force"), where)
        is_alone = source.relative_to is None or source.entity is not None
        require(is_alone, f"{where}.relative_to", "given without entity (expected with entity only)")
        is_alone = source.above_n == 0.0 or source.force is not None
        require(is_alone, f"{where}.above_n", "given without force (expected with force only)")
        _check_source(source, contract, name, f"{where}.{kind}", entities)


def _check_source(
    source: SimulatorSource, contract: Contract, name: str, where: str, entities: Collection[str]
) -> None:
    sensor = contract.sensors[name]
    if source.distance is not None:
        require(tuple(sensor.fields) == ("range",), where, f"fields {', '.join(sensor.fields)} (expected range only)")
        measured = [key for key, other in contract.sensors.items() if "position" in other.fields]
        for end in source.distance:
            require(end in measured or end in entities, where, one_of(end, [*measured, *sorted(entities)]))
    elif source.force is not None:
        allow(source.above_n > 0, f"{where.rpartition('.')[0]}.above_n", source.above_n, "newtons > 0")
        is_bool = sensor.type == "std_msgs/msg/Bool"
        require(is_bool, where, f"wrong sensor type {sensor.type} (expected std_msgs/msg/Bool)")
    else:
        other = [each for each in sensor.fields if each not in _POSES]
        require(not other, where, f"no source for {', '.join(other)} (expected fields: {', '.join(_POSES)})")
