"""Profile of a simulated world, which is ``backends.<name>`` of a contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias

from annotated_types import Interval

from embodied_env.contract import Contract
from embodied_env.contract.contract_loader import backend_profile
from embodied_env.contract.key_types import Count, NotNegative, Positive
from embodied_env.contract.robot_files import merged_over
from embodied_env.contract.typed_values import parse_as
from embodied_env.contract.value_checks import naming_file, one_of, require
from embodied_env.messages.message_types import JOINT_SENSOR

Probability: TypeAlias = Annotated[float, Interval(ge=0, lt=1)]


RENDERED = ("rgb8", "bgr8", "32FC1")  # the encodings of rendered images

EXACT_RESAMPLING = ("nearest", "area")
"""The filters of `resize` that return the pixels of an image from one in which they are repeated."""


@dataclass(frozen=True, kw_only=True)
class Rays:
    """Planar scanner with evenly spaced rays, that does not see its site's own body."""

    site: str  # origin; the rays are in its x-y plane
    angle_min_rad: float  # first ray
    angle_max_rad: float  # last ray, above the first
    range_min_m: NotNegative
    range_max_m: float  # a ray without a hit in this range reads +inf

    def __post_init__(self) -> None:
        angles, ranges = (self.angle_min_rad, self.angle_max_rad), (self.range_min_m, self.range_max_m)
        if not angles[0] < angles[1]:
            raise ValueError(f"{angles} (expected angle_min_rad < angle_max_rad)")
        if not ranges[0] < ranges[1]:
            raise ValueError(f"{ranges} (expected range_min_m < range_max_m)")


@dataclass(frozen=True, kw_only=True)
class WheelOdometry:
    """The motion of a site in its own plane, integrated with errors from zero at each reset."""

    site: str  # site that moves in its own plane
    noise_per_m: NotNegative = 0.0  # standard deviation along the path, per metre
    noise_per_rad: NotNegative = 0.0  # standard deviation of the heading, per radian


@dataclass(frozen=True, kw_only=True)
class Contact:
    """Whether a body or one of its descendants had contact since the last reading."""

    body: str  # body, with its descendants
    ignore: tuple[str, ...] = ()  # geoms whose contacts do not count


@dataclass(frozen=True, kw_only=True)
class Source:
    """Source of a sensor's readings and errors, one of `KINDS` (none for a JointState)."""

    site: str | None = None  # pose of a site in the world frame, or in that of `relative_to`
    distance: tuple[str, str] | None = None  # distance between two sites, for a `Range`
    sensors: Mapping[str, str] | None = None  # sensor of the model for each field
    rays: Rays | None = None  # planar scanner, for a `LaserScan`; it sees geoms of groups 0 to 2
    camera: str | None = None  # camera of the model, for an `Image` in `rgb8`, `bgr8` or `32FC1`
    # size in which the camera is rendered: that of the `message`, or that of the `observation`, whose pixels are then
    # repeated in the message. The latter needs a `resize` by one whole factor with `nearest` or `area`: the observation
    # has exactly the rendered pixels, which are not those of a larger rendered image after the same `resize`
    render_size: Literal["message", "observation"] = "message"
    odometry: WheelOdometry | None = None  # planar motion of a site, integrated with errors from zero at each reset
    contact: Contact | None = None  # whether a body had contact since the last reading, for a `Bool`
    relative_to: str | None = None  # site whose frame the pose of `site` is expressed in
    delay_s: NotNegative = 0.0  # from the stamp of a reading to its delivery
    dropout: Probability = 0.0  # probability that a reading is lost
    # standard deviation for each field, in its unit; of an orientation in rad
    noise: Mapping[str, NotNegative] = field(default_factory=dict)


KINDS = ("site", "distance", "sensors", "rays", "camera", "odometry", "contact")
"""The mutually exclusive keys of a `Source`."""


@dataclass(frozen=True, kw_only=True)
class Draw:
    """Effect of a drawn reset option, given by exactly one of the keys.

    A list takes one value for all, or one for each.
    """

    mocap: str | None = None  # mocap body whose position it sets: x, y or x, y, z, m
    pose: str | None = None  # free joint that it sets: x, y, m, and the heading, rad
    mover: str | None = None  # mover whose phase it sets: a scalar in [0, 1]
    joints: tuple[str, ...] | None = None  # joints whose start position it is added to, rad or m, within their limits
    absolute: bool = False  # with `joints`: it is the start position
    mass: tuple[str, ...] | None = None  # bodies whose mass and inertia it scales, > 0
    friction: tuple[str, ...] | None = None  # geoms, or bodies with all their geoms, whose friction it scales, >= 0
    gain: tuple[str, ...] | None = None  # joints whose actuators' force it scales, within its limits, > 0
    damping: tuple[str, ...] | None = None  # joints whose damping it scales, >= 0
    delay: tuple[str, ...] | None = None  # sensors whose `delay_s` it replaces, s, >= 0
    command_delay: bool | None = None  # true: it is the time from a command to its effect, s, >= 0

    @property
    def changes_model(self) -> bool:
        """Whether it changes the compiled model, and not only the state of the world."""
        return any(names is not None for names in (self.mass, self.friction, self.gain, self.damping))


DRAWS = ("mocap", "pose", "mover", "joints", "mass", "friction", "gain", "damping", "delay", "command_delay")
"""The mutually exclusive keys of a `Draw`."""


@dataclass(frozen=True, kw_only=True)
class Mover:
    """Mocap body that moves between two points at constant speed, from phase 0 at the first."""

    mocap: str  # mocap body to move
    from_m: tuple[float, float, float]  # point at phase 0
    to_m: tuple[float, float, float]  # the other end point
    speed_m_per_s: NotNegative

    def __post_init__(self) -> None:
        if self.from_m == self.to_m:
            raise ValueError(f"{self.to_m} (expected a point to_m other than from_m)")


@dataclass(frozen=True, kw_only=True)
class Drive:
    """Differential drive of two wheel joints with velocity servos."""

    left: str  # wheel joint with a velocity servo
    right: str  # the other wheel joint
    radius_m: Positive  # wheel radius
    separation_m: Positive  # track width


@dataclass(frozen=True, kw_only=True)
class SiteDrive:
    """Kinematic drive of a base by added velocity servos that push a site of it."""

    # site that moves along its own x and y (linear.x, linear.y) and turns about its z (angular.z); its body has a free
    # joint, or joints for these motions, and nothing rubs on the floor
    site: str


@dataclass(frozen=True, kw_only=True)
class ServoGains:
    """Gains of a joint's position servo or, without stiffness, velocity servo."""

    stiffness: NotNegative = 0.0  # stiffness of position servos, N m/rad or N/m; leave it out for velocities
    damping: NotNegative = 0.0  # N m s/rad or N s/m

    def __post_init__(self) -> None:
        if not (self.stiffness or self.damping):
            raise ValueError("no gain (expected stiffness or damping > 0)")


@dataclass(frozen=True, kw_only=True)
class Identified:
    """Parameters of the model and the delay of commands, from `embodied-env identify`.

    A `delay_profile` is refused with it, as are draws of what it draws or delays.
    """

    file: str  # `NAME.identified.yaml`, a path relative to the contract
    draw: Literal["intervals"] | None = None  # `intervals`: each reset draws from the 95 % intervals; null: the values
    # SHA-256 of the file's content; set when the contract is loaded. A contract that gives it is refused once the file
    # has changed
    sha256: str | None = None


@dataclass(frozen=True, kw_only=True)
class Render:
    """The view of `env.render()`."""

    # camera of the model, or `free`: MuJoCo's free camera, which frames the model; null: the model's first camera, or
    # `free` without one
    camera: str | None = None
    width: Count = 640  # pixels
    height: Count = 480  # pixels


@dataclass(frozen=True, kw_only=True)
class Driver:
    """The emulated driver of a sensor."""

    rate_hz: Positive | None = None  # null: the contract's
    driver_delay_s: NotNegative = 0.0  # from the end of the source's delay to the publication
    clock_offset_s: float = 0.0  # how far its clock is ahead of the robot's
    # content of the header; the last two hide the delay
    stamp: Literal["acquisition", "publication", "zero"] = "acquisition"


@dataclass(frozen=True, kw_only=True)
class EmulatorSpec:
    """Robot emulator with delays and clocks of its own, for a free-running world only."""

    tick_s: Positive | None = None  # simulation and publication interval; null: about a fifth of the control period
    command_delay_s: NotNegative = 0.0  # from the arrival of a command to its effect
    command_jitter_s: NotNegative = 0.0  # maximum of a uniform additional delay; commands stay in order
    # time of a straight line to a commanded position. 0: at once; null: one control or setpoint period
    interpolation_s: NotNegative | None = None
    servo_lag_s: NotNegative = 0.0  # time constant from the command to the servo setpoints
    clock_offset_s: float = 0.0  # how far the robot's clock is ahead of UTC
    sensors: Mapping[str, Driver] = field(default_factory=dict)  # emulated drivers
    controller_state: bool = False  # publish the active command on `simulator/controller_state`
    joint_order: tuple[str, ...] | None = None  # order of the joints in published JointStates; null: the contract's
    # URDF published latched on `robot_description`: a file relative to the contract, or `generated` from the model
    robot_description: str | None = None


@dataclass(frozen=True, kw_only=True)
class WorldProfile:
    """World with its model, its initial state, and the mapping of its names to the contract."""

    # file of `embodied_env/sim/models`, or a path relative to the contract. null: a generated model, with a servo per
    # joint or a chassis for a drive, and the names of this profile
    model: str | None = None
    # SHA-256 of the content of your own model and of each file that it names; set when the contract is loaded. A
    # contract that gives it is refused once a file has changed
    model_sha256: str | None = None
    keyframe: str | None = None  # state after a reset; null: the model's own, `qpos0`
    home: Mapping[str, float] = field(default_factory=dict)  # joint positions after a reset over the keyframe's; rad, m
    joints: Mapping[str, str] = field(default_factory=dict)  # joint of the model, where the contract's has another name
    # actuator of a joint that several drive; otherwise the one whose transmission is the joint
    actuators: Mapping[str, str] = field(default_factory=dict)
    # makes a servo of the motor that drives a joint, or changes the gains of its servo
    servo_gains: Mapping[str, ServoGains] = field(default_factory=dict)
    # parameters that were fitted to recorded runs, see [identified parameters](identification.md)
    identified: Identified | None = None
    # origin of readings, for every sensor but a `JointState`
    sources: Mapping[str, Source] = field(default_factory=dict)
    draws: Mapping[str, Draw] = field(default_factory=dict)  # effect of each reset option
    movers: Mapping[str, Mover] = field(default_factory=dict)  # bodies that move back and forth at constant speed
    # differential drive of each actuator with the command `twist`
    drives: Mapping[str, Drive] = field(default_factory=dict)
    # kinematic drive of an actuator with the command `twist`, for a base that moves sideways on wheels or legs
    site_drives: Mapping[str, SiteDrive] = field(default_factory=dict)
    render: Render = field(default_factory=Render)  # view of `env.render()`
    command_timeout_s: Positive | None = None  # free-running: a velocity command expires after this time; null: never
    emulator: EmulatorSpec = field(default_factory=EmulatorSpec)  # free-running: delays and clocks of the robot
    step_timeout_s: Positive = 5.0  # maximum duration of a step
    reset_timeout_s: Positive = 60.0  # maximum duration of a reset

    @property
    def has_cameras(self) -> bool:
        """Whether a sensor is a camera of the model."""
        return any(source.camera is not None for source in self.sources.values())


def load_profile(contract: Contract, backend: str, *, emulator: Mapping[str, Any] | None = None) -> WorldProfile:
    """Read ``backends.<backend>`` with `emulator` merged in, or raise ContractError."""
    path = f"backends.{backend}"
    data = backend_profile(contract, backend)
    if emulator is not None:
        data = {**data, "emulator": merged_over(data.get("emulator") or {}, emulator)}
    profile = parse_as(WorldProfile, data, path=path, source=contract.source)
    with naming_file(contract.source):
        for name in profile.emulator.sensors:
            known = name in contract.sensors
            require(known, f"{path}.emulator.sensors.{name}", f"no such sensor: {one_of(name, contract.sensors)}")
        if (order := profile.emulator.joint_order) is not None:
            sensors = [sensor for sensor in contract.sensors.values() if sensor.type == JOINT_SENSOR]
            joints = {joint for sensor in sensors for spec in sensor.fields.values() for joint in spec.joints or ()}
            problem = f"{list(order)} (expected each of these once: {', '.join(sorted(joints))})"
            require(sorted(order) == sorted(joints), f"{path}.emulator.joint_order", problem)
    return profile


def only_key(spec: object, keys: Sequence[str], path: str) -> str:
    """Return the one of `keys` that `spec` sets, or raise ContractError at `path`."""
    given = [key for key in keys if getattr(spec, key) is not None]
    require(len(given) == 1, path, f"{' and '.join(given) or 'none'} given (expected one of: {', '.join(keys)})")
    return given[0]
