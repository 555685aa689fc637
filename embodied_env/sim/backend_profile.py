"""The profile of a simulated world: ``backends.<name>`` of a contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from embodied_env.contract import Contract
from embodied_env.contract.loader import parse_as, profile_of
from embodied_env.contract.value_checks import naming_file, one_of, require


@dataclass(frozen=True, kw_only=True)
class Rays:
    """A planar scanner with evenly spaced rays in the x-y plane of a site, both angles included.

    It sees the geoms of groups 0 to 2, except those of the site's own body.
    """

    site: str
    angle_min_rad: float
    angle_max_rad: float
    range_min_m: float
    range_max_m: float


@dataclass(frozen=True, kw_only=True)
class WheelOdometry:
    """The motion of a site in its own plane, integrated with errors from zero at each reset.

    The standard deviations are those along the path after one metre, and of the heading after one radian.
    """

    site: str
    noise_per_m: float = 0.0
    noise_per_rad: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Contact:
    """Whether a body or one of its descendants had contact since the last reading."""

    body: str
    ignore: tuple[str, ...] = ()  # geoms whose contacts do not count


@dataclass(frozen=True, kw_only=True)
class Source:
    """The source of a sensor's readings, exactly one of `KINDS` (none for a JointState), and its errors."""

    site: str | None = None  # the pose of a site in the world frame, or in that of `relative_to`
    distance: tuple[str, str] | None = None  # the distance between two sites
    sensors: Mapping[str, str] | None = None  # field -> a sensor of the model
    rays: Rays | None = None
    camera: str | None = None
    odometry: WheelOdometry | None = None
    contact: Contact | None = None
    relative_to: str | None = None  # a site
    delay_s: float = 0.0  # from the stamp of a reading to its delivery
    dropout: float = 0.0  # the probability of losing a reading
    noise: Mapping[str, float] = field(default_factory=dict)  # field -> standard deviation, in the field's unit


KINDS = ("site", "distance", "sensors", "rays", "camera", "odometry", "contact")
"""The mutually exclusive keys of a `Source`."""


@dataclass(frozen=True, kw_only=True)
class Draw:
    """The effect of a drawn reset option: exactly one of the keys."""

    mocap: str | None = None  # the position of a mocap body: x, y, or x, y, z, m
    pose: str | None = None  # a free joint: x, y, m, and the heading, rad
    mover: str | None = None  # the phase of a mover, in [0, 1]


@dataclass(frozen=True, kw_only=True)
class Mover:
    """A mocap body that moves back and forth between two points at constant speed. Phase 0 is at the first one."""

    mocap: str
    from_m: tuple[float, float, float]
    to_m: tuple[float, float, float]
    speed_m_per_s: float


@dataclass(frozen=True, kw_only=True)
class Drive:
    """A differential drive: two wheel joints with velocity servos of the same names."""

    left: str
    right: str
    radius_m: float
    separation_m: float


@dataclass(frozen=True, kw_only=True)
class Render:
    """The view of `env.render()`: a camera of the model; None: its first one."""

    camera: str | None = None
    width: int = 640
    height: int = 480


@dataclass(frozen=True, kw_only=True)
class Driver:
    """The emulated driver of a sensor.

    `stamp` is the content of the header. With ``publication`` or ``zero``, stamps do not show the driver's delay.
    """

    rate_hz: float | None = None  # None: the contract's
    driver_delay_s: float = 0.0  # from the end of the source's delay to the publication
    clock_offset_s: float = 0.0  # of its clock, ahead of the robot's
    stamp: Literal["acquisition", "publication", "zero"] = "acquisition"


@dataclass(frozen=True, kw_only=True)
class StandIn:
    """The robot emulator: delays on the wall clock, and clocks of its own. Free running only."""

    tick_s: float | None = None  # duration of a step; None: about a fifth of the control period
    command_delay_s: float = 0.0  # from the arrival of a command to its activation
    command_jitter_s: float = 0.0  # maximum of a uniform addition; commands stay in order
    servo_lag_s: float = 0.0  # time constant from the active command to the set-points of the servos
    clock_offset_s: float = 0.0  # of the robot's clock, ahead of UTC
    sensors: Mapping[str, Driver] = field(default_factory=dict)
    controller_state: bool = False  # whether the active command is published


@dataclass(frozen=True, kw_only=True)
class WorldProfile:
    """A world: its model, its initial state, and the mapping of its names to the contract."""

    model: str  # a file in sim/models, or a path; a relative one starts from the contract's folder
    keyframe: str | None = None  # the state after a reset; None: the model's own
    sources: Mapping[str, Source] = field(default_factory=dict)  # by sensor
    draws: Mapping[str, Draw] = field(default_factory=dict)  # by reset option
    movers: Mapping[str, Mover] = field(default_factory=dict)
    drives: Mapping[str, Drive] = field(default_factory=dict)  # by actuator whose command is a twist
    render: Render = field(default_factory=Render)
    command_timeout_s: float | None = None  # free running: timeout of a velocity that is not commanded again
    stand_in: StandIn = field(default_factory=StandIn)  # free running: the emulated robot
    step_timeout_s: float = 5.0
    reset_timeout_s: float = 30.0


def load_profile(contract: Contract, backend: str, *, stand_in: Mapping[str, Any] | None = None) -> WorldProfile:
    """Read the profile ``backends.<backend>``, `stand_in` merged over its key; raises ContractError."""
    path = f"backends.{backend}"
    data = profile_of(contract, backend)
    if stand_in is not None:
        data = {**data, "stand_in": _merged(data.get("stand_in") or {}, stand_in)}
    profile = parse_as(WorldProfile, data, path=path, source=contract.source)
    with naming_file(contract.source):
        for name in profile.stand_in.sensors:
            known = name in contract.sensors
            require(known, f"{path}.stand_in.sensors.{name}", f"no such sensor: {one_of(name, contract.sensors)}")
        _check_numbers(profile, path)
    return profile


def only_key(spec: object, keys: Sequence[str], path: str) -> str:
    """Return the one of `keys` that `spec` sets; raises ContractError at `path` for none or several."""
    given = [key for key in keys if getattr(spec, key) is not None]
    require(len(given) == 1, path, f"{' and '.join(given) or 'none'} given (expected one of: {', '.join(keys)})")
    return given[0]


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge one mapping over another, recursively."""
    merged = dict(under)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def _check_numbers(profile: WorldProfile, path: str) -> None:
    """Raise ContractError for a number or a pair of numbers out of range."""
    emulator = profile.stand_in
    positive = {
        "step_timeout_s": profile.step_timeout_s,
        "reset_timeout_s": profile.reset_timeout_s,
        "command_timeout_s": profile.command_timeout_s,
        "render.width": profile.render.width,
        "render.height": profile.render.height,
        "stand_in.tick_s": emulator.tick_s,
    }
    not_negative = {
        "stand_in.command_delay_s": emulator.command_delay_s,
        "stand_in.command_jitter_s": emulator.command_jitter_s,
        "stand_in.servo_lag_s": emulator.servo_lag_s,
    }
    for name, driver in emulator.sensors.items():
        positive[f"stand_in.sensors.{name}.rate_hz"] = driver.rate_hz
        not_negative[f"stand_in.sensors.{name}.driver_delay_s"] = driver.driver_delay_s
    for name, drive in profile.drives.items():
        positive[f"drives.{name}.radius_m"] = drive.radius_m
        positive[f"drives.{name}.separation_m"] = drive.separation_m
    for name, source in profile.sources.items():
        where = f"sources.{name}"
        not_negative[f"{where}.delay_s"] = source.delay_s
        not_negative |= {f"{where}.noise.{key}": deviation for key, deviation in source.noise.items()}
        if (odometry := source.odometry) is not None:
            not_negative[f"{where}.odometry.noise_per_m"] = odometry.noise_per_m
            not_negative[f"{where}.odometry.noise_per_rad"] = odometry.noise_per_rad
        if (rays := source.rays) is not None:
            angles, ranges = (rays.angle_min_rad, rays.angle_max_rad), (rays.range_min_m, rays.range_max_m)
            problem = f"{angles} (expected angle_min_rad < angle_max_rad)"
            require(angles[0] < angles[1], f"{path}.{where}.rays", problem)
            problem = f"{ranges} (expected 0 <= range_min_m < range_max_m)"
            require(0 <= ranges[0] < ranges[1], f"{path}.{where}.rays", problem)
        is_share = 0 <= source.dropout < 1
        require(is_share, f"{path}.{where}.dropout", f"{source.dropout} (expected a probability in [0, 1))")
    for name, mover in profile.movers.items():
        not_negative[f"movers.{name}.speed_m_per_s"] = mover.speed_m_per_s
        is_path = mover.from_m != mover.to_m
        require(is_path, f"{path}.movers.{name}", f"{mover.to_m} (expected a point other than from_m)")
    for key, value in positive.items():
        require(value is None or value > 0, f"{path}.{key}", f"{value} (expected a number > 0)")
    for key, value in not_negative.items():
        require(value >= 0, f"{path}.{key}", f"{value} (expected a number >= 0)")
