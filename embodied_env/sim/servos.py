"""Actuators of a MuJoCo model as servos, and gains for those that are not.

A position servo has the force ``k * (ctrl - q) - d * v``, a velocity servo ``d * (ctrl - v)``, with a fixed gain and an
affine bias and without gear. A motor has no bias and becomes either of them by `set_gains`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from embodied_env.sim.world_profile import ServoGains

ELEMENTS: Mapping[str, tuple[str, str]] = {  # MJCF element -> whether it takes positions, and velocities
    "`position`, also with `timeconst`": ("yes", "with `servo_gains`, without `timeconst`"),
    "`velocity`": ("with `servo_gains`", "yes"),
    "`motor`": ("with `servo_gains`", "with `servo_gains`"),
    "`general`, `biastype` affine": ("if `gainprm[0]` = -`biasprm[1]`", "if `gainprm[0]` = -`biasprm[2]`"),
    "`general`, `biastype` none": ("with `servo_gains`", "with `servo_gains`"),
}
REFUSED: Mapping[str, tuple[str, str]] = {  # type of MuJoCo -> its MJCF, and why no joint follows its command
    "mjTRN_TENDON": ("any with `tendon`", "a tendon may move several joints, or none"),
    "mjTRN_SITE": ("any with `site`", "it pushes a site, not a joint"),
    "mjTRN_SLIDERCRANK": ("any with `cranksite`", "its length is not linear in a joint position"),
    "mjTRN_BODY": ("`adhesion`", "it attracts bodies and drives no joint"),
    "mjDYN_INTEGRATOR": ("`intvelocity`", "it integrates its command into a position of its own"),
    "mjDYN_FILTER": ("`cylinder`", "its force builds up behind its command"),
    "mjDYN_MUSCLE": ("`muscle`", "its force depends on its length, and it only pulls"),
    "mjDYN_USER": ("plugins and callbacks", "its force is that of other code"),
    "mjGAIN_DCMOTOR": ("`dcmotor`", "its command is a voltage"),
    "mjGAIN_PID": ("`pid`", "it has a control law and a state of its own"),
    "mjGAIN_AFFINE": ("`damper`", "its command sets a damping, not a position or velocity"),
}
"""With `ELEMENTS`, the table of supported actuators in the reference."""

SITE_AXES: Mapping[str, int] = {"linear.x": 0, "linear.y": 1, "angular.z": 5}
"""Axis of a twist -> its place in the gear of a servo that pushes a site, in the site's own frame."""

_SITE_GAIN = 0.5  # share of a velocity error that a servo of a site removes in one physics step
_LEAST_MOBILITY = 1e-9  # acceleration by a unit of force, below which nothing moves
_DRIVING = ("mjTRN_JOINT", "mjTRN_JOINTINPARENT", "mjDYN_NONE", "mjDYN_FILTEREXACT", "mjGAIN_FIXED")
_SUPPORTED = (*_DRIVING, "mjBIAS_NONE", "mjBIAS_AFFINE")


def actuators_of(mujoco: Any, mj: Any, joint: int) -> list[int]:  # noqa: ANN401 - mujoco has no type stubs
    """Return the indices of the actuators that drive the hinge or slide joint of this index."""
    by_joint = (int(mujoco.mjtTrn.mjTRN_JOINT), int(mujoco.mjtTrn.mjTRN_JOINTINPARENT))
    return [i for i, kind in enumerate(mj.actuator_trntype) if kind in by_joint and mj.actuator_trnid[i, 0] == joint]


def why_no_servo(mujoco: Any, mj: Any, index: int, *, velocity: bool) -> str | None:  # noqa: ANN401 - as above
    """Return why an actuator follows no position or velocity, or None if it does."""
    kind = "velocity" if velocity else "position"
    if (reason := refusal(mujoco, mj, index)) is not None:
        return f"{reason} (expected a {kind} servo)"
    gain, gear = mj.actuator_gainprm[index, 0], mj.actuator_gear[index, 0]
    offset, stiffness, damping = 0.0 - mj.actuator_biasprm[index, :3]
    found = f"gain {gain:g}, stiffness {stiffness:g}, damping {damping:g}, gear {gear:g}"
    if is_motor(mujoco, mj, index):
        found = "its command is a force"
    elif gain == (damping if velocity else stiffness) > 0 and not (velocity and stiffness) and (offset, gear) == (0, 1):
        return None
    elif offset:
        found += f", constant force {-offset:g}"
    keys = "damping: ..." if velocity else "stiffness: ..., damping: ..."
    return f"{found} (expected a {kind} servo); set servo_gains: {{JOINT: {{{keys}}}}} in the profile"


def set_gains(mujoco: Any, mj: Any, index: int, gains: ServoGains) -> str | None:  # noqa: ANN401 - as above
    """Make an actuator a position or (without stiffness) velocity servo, or return why not.

    The range of its force stays, and that of a motor's command, times gain and gear, becomes one.
    """
    if (reason := refusal(mujoco, mj, index)) is not None:
        return reason
    if mj.actuator_dyntype[index] != int(mujoco.mjtDyn.mjDYN_NONE):
        return "its command is filtered"
    gear, ranges = mj.actuator_gear[index, 0], list[list[float]]()
    if mj.actuator_forcelimited[index]:
        ranges.append(sorted(gear * mj.actuator_forcerange[index]))
    if mj.actuator_ctrllimited[index] and is_motor(mujoco, mj, index):
        ranges.append(sorted(gear * mj.actuator_gainprm[index, 0] * mj.actuator_ctrlrange[index]))
    if ranges:
        mj.actuator_forcelimited[index] = True
        mj.actuator_forcerange[index] = max(low for low, _ in ranges), min(high for _, high in ranges)
    mj.actuator_ctrllimited[index] = False
    mj.actuator_gear[index] = (1, 0, 0, 0, 0, 0)
    mj.actuator_biastype[index] = int(mujoco.mjtBias.mjBIAS_AFFINE)
    mj.actuator_gainprm[index], mj.actuator_biasprm[index] = 0.0, 0.0
    mj.actuator_gainprm[index, 0] = gains.stiffness or gains.damping
    mj.actuator_biasprm[index, 1:3] = -gains.stiffness, -gains.damping
    return None


def add_site_servos(mujoco: Any, spec: Any, actuator: str, site: str) -> None:  # noqa: ANN401 - as above
    """Add a velocity servo for each axis of a site to an ``MjSpec``, without gains."""
    for axis, place in SITE_AXES.items():
        servo = spec.add_actuator(name=f"{actuator}.{axis}", trntype=mujoco.mjtTrn.mjTRN_SITE, target=site)
        servo.gear = np.eye(6)[place]
        servo.biastype = mujoco.mjtBias.mjBIAS_AFFINE


def set_site_gains(mujoco: Any, mj: Any, data: Any, actuator: str, site: int) -> str | None:  # noqa: ANN401 - as above
    """Set a site's servo gains by the inertia at `data`, or return an axis that cannot move."""
    linear, angular, moved = np.zeros((3, mj.nv)), np.zeros((3, mj.nv)), np.zeros((1, mj.nv))
    mujoco.mj_jacSite(mj, data, None, angular, site)
    mujoco.mj_jacSubtreeCom(mj, data, linear, mj.site_bodyid[site])  # the floor keeps the base from tilting
    turn = data.site_xmat[site].reshape(3, 3).T
    rows = np.concatenate([turn @ linear, turn @ angular])
    for axis, place in SITE_AXES.items():
        mujoco.mj_solveM(mj, data, moved, rows[place : place + 1])
        mobility = float(moved[0] @ rows[place])
        if mobility < _LEAST_MOBILITY:
            return axis
        servo = mj.actuator(f"{actuator}.{axis}")
        gain = _SITE_GAIN / (mobility * float(mj.opt.timestep))
        servo.gainprm[0], servo.biasprm[2] = gain, -gain
    return None


def is_motor(mujoco: Any, mj: Any, index: int) -> bool:  # noqa: ANN401 - as above
    """Return whether an actuator exerts its command as a force, so that gains make a servo."""
    types = mj.actuator_dyntype[index], mj.actuator_biastype[index]
    return types == (mujoco.mjtDyn.mjDYN_NONE, mujoco.mjtBias.mjBIAS_NONE) and refusal(mujoco, mj, index) is None


def refusal(mujoco: Any, mj: Any, index: int) -> str | None:  # noqa: ANN401 - as above
    """Return why this type of actuator follows no command, or None if its gains decide."""
    kinds = (("trn", mujoco.mjtTrn), ("dyn", mujoco.mjtDyn), ("gain", mujoco.mjtGain), ("bias", mujoco.mjtBias))
    types = [str(enum(getattr(mj, f"actuator_{part}type")[index]).name) for part, enum in kinds]
    unsupported = [each for each in types if each not in _SUPPORTED]
    if mj.actuator_plugin[index] >= 0:
        unsupported.append("mjDYN_USER")
    if not unsupported:
        return None
    return next((REFUSED[each][1] for each in unsupported if each in REFUSED), f"unsupported type {unsupported[0]}")
