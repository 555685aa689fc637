"""A generated MuJoCo model for the emulator of a robot without a model of its own.

A servo for each commanded joint, with the contract's limits, along a chain of small balls; a chassis for a twist,
on two wheels or on casters alone; and the sites, cameras, mocap bodies and sensors that the profile names. Only wheels
and casters touch the floor.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from xml.etree.ElementTree import Element, SubElement, tostring

from embodied_env.contract import Contract, JointLimits
from embodied_env.sim.world_profile import Drive, WorldProfile

_LONGEST_TIMESTEP_S = 0.002
_LINK_M = 0.1
_CHASSIS_KG = 20.0
_SLIDE_M = 0.2  # half the size of a base without wheels, and its height
_BANDWIDTH_PER_S = 200.0  # of the servos: a joint trails a moving setpoint by 10 ms
_TIP = "tip"  # the site of the sensors
_NO_CONTACT = {"contype": 0, "conaffinity": 0}
_SENSORS = {
    "angular_velocity": "gyro",
    "linear_acceleration": "accelerometer",
    "orientation": "framequat",
    "force": "force",
    "torque": "torque",
}
"""The MuJoCo sensor of a message's field."""


def generate_model(contract: Contract, profile: WorldProfile) -> str:
    """Return a model for `profile`, which names no ``model``, as MJCF."""
    root = Element("mujoco", model=contract.name)
    _add(root, "compiler", angle="radian")
    timestep_s = _timestep_s(contract, profile)
    _add(root, "option", timestep=timestep_s, integrator="implicitfast", cone="elliptic", impratio=10)
    world, servos = _add(root, "worldbody"), _add(root, "actuator")
    _add(world, "light", pos="0 0 4")
    _add(world, "geom", name="floor", type="plane", size="50 50 1")
    base = world
    for drive in profile.drives.values():
        base = _add_chassis(world, servos, drive)
    for _ in profile.site_drives:
        base = _add_body(
            world, _SLIDE_M, [(x_m, y_m) for x_m in (-_SLIDE_M, _SLIDE_M) for y_m in (-_SLIDE_M, _SLIDE_M)]
        )
    mount, commanded = base, set[str]()
    for name, actuator in contract.actuators.items():
        for joint, limits in actuator.joints.items() if actuator.command != "twist" else ():
            commanded.add(joint)
            mount = _add_link(mount, joint, limits, ref=_start(contract, name, joint), turn=len(commanded) % 2)
            if actuator.is_velocity:
                _add(servos, "velocity", name=joint, joint=joint, kv=_BANDWIDTH_PER_S)
                continue
            gains = {"kp": _BANDWIDTH_PER_S**2, "kv": 2 * _BANDWIDTH_PER_S}
            _add(servos, "position", name=joint, joint=joint, **gains, **_limited("ctrl", limits))
        for finger, multiplier in actuator.mimic.items():
            ((joint, limits),) = actuator.joints.items()
            start = multiplier * _start(contract, name, joint)
            _add_link(base, finger, replace(limits, position=None), ref=start)
            _add(servos, "position", name=finger, joint=finger, kp=_BANDWIDTH_PER_S**2, kv=2 * _BANDWIDTH_PER_S)
            commanded.add(finger)
    moved = commanded.union(*({drive.left, drive.right} for drive in profile.drives.values()))
    fields = [field for sensor in contract.sensors.values() for field in sensor.fields.values()]
    for joint in _names(joint for field in fields for joint in field.joints or () if joint not in moved):
        _add_link(base, joint, JointLimits(position=None, velocity=1.0, acceleration=1.0))
    _add_names(root, world, base, mount, profile)
    return tostring(root, encoding="unicode")


def _add_link(parent: Element, joint: str, limits: JointLimits, *, ref: float = 0.0, turn: int = 0) -> Element:
    body = _add(parent, "body", name=joint, pos=f"0 0 {_LINK_M}", gravcomp=1)
    kind, axis = ("slide", "1 0 0") if limits.unit == "m" else ("hinge", "0 1 0" if turn else "0 0 1")
    _add(body, "joint", name=joint, type=kind, axis=axis, armature=1, ref=ref, **_limited("", limits))
    _add(body, "geom", size=0.02, mass=0.01, **_NO_CONTACT)
    return body


def _add_chassis(world: Element, servos: Element, drive: Drive) -> Element:
    radius_m, half_m = drive.radius_m, drive.separation_m / 2
    base = _add_body(world, radius_m, [(-half_m, 0), (half_m, 0)])
    for wheel, y_m in ((drive.left, half_m), (drive.right, -half_m)):
        body = _add(base, "body", pos=f"0 {y_m} {radius_m}")
        _add(body, "joint", name=wheel, axis="0 1 0", armature=0.1 * radius_m**2)
        _add(body, "geom", type="ellipsoid", size=f"{radius_m} {radius_m / 4} {radius_m}", mass=1)
        _add(servos, "velocity", name=wheel, joint=wheel, kv=20 * _CHASSIS_KG * radius_m**2)
    return base


def _add_body(world: Element, height_m: float, casters: Iterable[tuple[float, float]]) -> Element:
    """Add and return a base's body, which slides on frictionless casters at these places."""
    base = _add(world, "body", name="base_link")
    _add(base, "freejoint", name="base_link")
    places = list(casters)
    half_m = max(x_m for x_m, _ in places)
    size = f"{half_m} {half_m} {height_m / 4}"
    _add(base, "geom", type="box", pos=f"0 0 {height_m}", size=size, mass=_CHASSIS_KG, **_NO_CONTACT)
    caster = {"size": height_m / 2, "mass": 0.1, "condim": 1, "priority": 1, "friction": "0 0 0"}
    for x_m, y_m in places:
        _add(base, "geom", pos=f"{x_m} {y_m} {height_m / 2}", **caster)
    return base


def _add_names(root: Element, world: Element, base: Element, mount: Element, profile: WorldProfile) -> None:
    """Add the mocap bodies and sites of `profile`, and sites of base and last link."""
    sources, draws = profile.sources.values(), profile.draws.values()
    placed = _names([*(draw.mocap for draw in draws), *(mover.mocap for mover in profile.movers.values())])
    for name in placed:
        _add(_add(world, "body", name=name, mocap="true"), "site", name=name)
    of_base = [spec.site for s in sources for spec in (s.rays, s.odometry) if spec is not None]
    of_base += [drive.site for drive in profile.site_drives.values()]
    of_base += [s.relative_to for s in sources if s.relative_to is not None]
    of_link = [site for s in sources for site in (s.site, *(s.distance or ())) if site not in of_base]
    for body, sites in ((base, of_base), (mount, [*of_link, _TIP])):
        for name in _names(sites):
            if name not in placed:
                _add(body, "site", name=name)
    for name in _names([*(source.camera for source in sources), profile.render.camera]):
        _add(world, "camera", name=name, pos="0 -3 2", xyaxes="1 0 0 0 0.5 0.9")
    sensors = _add(root, "sensor")
    for field, name in ((f, n) for source in sources for f, n in (source.sensors or {}).items() if f in _SENSORS):
        place = {"objtype": "site", "objname": _TIP} if field == "orientation" else {"site": _TIP}
        _add(sensors, _SENSORS[field], name=name, **place)


def _limited(kind: str, limits: JointLimits) -> dict[str, str]:
    if limits.position is None:
        return {}
    return {f"{kind}limited": "true", f"{kind}range": " ".join(map(str, limits.position))}


def _timestep_s(contract: Contract, profile: WorldProfile) -> float:
    """Return a whole part of the control period, and of the emulator's tick if it divides it."""
    interval_s = profile.emulator.tick_s or contract.control_period_s
    return interval_s / math.ceil(interval_s / _LONGEST_TIMESTEP_S)


def _start(contract: Contract, actuator: str, joint: str) -> float:
    """Return the position after a reset, home, else 0 or the middle of limits without 0."""
    reset: Any = contract.backends.get("real", {}).get("reset") or {}
    spec = contract.actuators[actuator]
    low, high = spec.joints[joint].position or (-math.inf, math.inf)
    inset, _, _ = spec.margins_of(joint, contract.safety.margins, actuator)
    home = (reset.get("home") or {}).get(joint, 0.0)
    return float(home) if low + inset <= home <= high - inset else (low + high) / 2


def _add(parent: Element, tag: str, **attributes: object) -> Element:
    return SubElement(parent, tag, {key: str(value) for key, value in attributes.items()})


def _names(names: Iterable[str | None]) -> list[str]:
    return list(dict.fromkeys(name for name in names if name))
