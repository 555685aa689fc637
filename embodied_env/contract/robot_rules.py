"""Rules by key of a robot file: whether a contract's value is as tight as the robot file's.

Every key of sensors, actuators, joints, safety and ``backends.real`` has one, so that a new key cannot be forgotten.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from embodied_env.contract.contract_schema import velocity_range

Rule = Callable[[Any, Any], bool]
"""Whether a contract's value (second) is as tight as its robot file's (first)."""


_at_least: Rule = operator.le
_equal: Rule = operator.eq


def _at_most(robot: Any, own: Any) -> bool:  # noqa: ANN401 - numbers; None: no limit
    return robot is None or (own is not None and own <= robot)


def _within(robot: Any, own: Any) -> bool:  # noqa: ANN401 - intervals; None: no limit
    return robot is None or (own is not None and robot[0] <= own[0] and own[1] <= robot[1])


def _keeps(robot: Any, own: Any) -> bool:  # noqa: ANN401 - mappings
    return all(name in own and own[name] == value for name, value in robot.items())


def _none_but(robot: Any, own: Any) -> bool:  # noqa: ANN401 - lists
    return all(item in robot for item in own)


def _boxes_within(robot: Any, own: Any) -> bool:  # noqa: ANN401 - mappings of boxes
    def axes(box: Any) -> Iterator[Any]:  # noqa: ANN401 - a box
        return zip(box["low_m"], box["high_m"], strict=True)

    return all(name in own and all(map(_within, axes(box), axes(own[name]))) for name, box in robot.items())


def _is_kept(robot: Any, own: Any) -> bool:  # noqa: ANN401 - an optional group
    return robot is None or own is not None


def _forces_at_most(robot: Any, own: Any) -> bool:  # noqa: ANN401 - mappings of force limits
    return all(
        name in own and own[name]["field"] == limit["field"] and own[name]["limit"] <= limit["limit"]
        for name, limit in robot.items()
    )


def _margins_as_large(robot: Any, own: Any) -> bool:  # noqa: ANN401 - margins by joint
    """Compare the margins of position, velocity and acceleration of the joints of both."""
    pairs = [(each, own[joint]) for joint, each in robot.items() if joint in own]
    return all(ours[0] >= theirs[0] and ours[1] <= theirs[1] and ours[2] <= theirs[2] for theirs, ours in pairs)


def _tolerances_at_most(robot: Any, own: Any) -> bool:  # noqa: ANN401 - tolerances by joint; None: not checked
    return all(_at_most(tolerance, own[joint]) for joint, tolerance in robot.items() if joint in own)


def _harmless(robot: Any, own: Any) -> bool:  # noqa: ANN401, ARG001 - any values
    """Accept a key that loosens nothing by itself."""
    return True


def _inward(start_outside: Any) -> set[str]:  # noqa: ANN401 - a word or a mapping by joint
    """Return the joints that may start outside their limits; "" is all of them."""
    if isinstance(start_outside, str):
        return set() if start_outside == "refuse" else {""}
    return {joint for joint, word in start_outside.items() if word != "refuse"}


RESET_RULES: Mapping[str, tuple[Any, Rule]] = {  # of `backends.real.reset`: the default, and the rule
    "service": (None, _equal),
    "parameters": (False, _harmless),
    "home": (None, _is_kept),
    "speed": (0.2, _at_most),
    "tolerance": (0.02, _at_most),
    "timeout_s": (None, _at_most),
    "confirm": ("none", lambda robot, own: robot in ("", "none", own)),
    "confirm_topic": (None, _equal),
    "confirm_service": (None, _equal),
}


def _starts_as_safely(robot: Any, own: Any) -> bool:  # noqa: ANN401 - mappings of a reset, None: nothing moves
    """Require every stage of a reset, the operator's confirmation by the same channel, and homing that is no looser."""
    if own is None:
        return robot is None
    stages = robot or {}
    return all(rule(stages.get(key, each), own.get(key, each)) for key, (each, rule) in RESET_RULES.items())


_CLOCK = {"sync": "auto", "error_s": None, "least_delay_s": None}


def _stamped_alike(robot: Any, own: Any) -> bool:  # noqa: ANN401 - mappings of clocks by sensor
    def clock(clocks: Any, name: str) -> dict[str, Any]:  # noqa: ANN401 - a mapping of clocks
        return {**_CLOCK, **(clocks.get(name) or clocks.get("default") or {})}

    return all(clock(robot, name) == clock(own, name) for name in (*robot, *own))


def _fills_no_more(robot: Any, own: Any) -> bool:  # noqa: ANN401 - fields by name
    """Compare the values that replace missing measurements, without which the reading is not valid."""
    pairs = [(each, own[name]) for name, each in robot.items() if name in own]
    keys = ("no_return", "nan")
    return all(getattr(ours, key) in (None, getattr(each, key)) for each, ours in pairs for key in keys)


SENSOR_RULES: Mapping[str, Rule] = {
    "max_age_s": _at_most,
    "on_gap": lambda robot, own: own in (robot, "stop"),
    "timeline": lambda robot, own: own in (robot, "header"),
    "visibility": lambda robot, own: own in (robot, "agent"),
    "frame": lambda robot, own: robot in (None, own),
    "child_frame": lambda robot, own: robot in (None, own),
    "fields": _fills_no_more,
    **dict.fromkeys(("topic", "type", "rate_hz", "encoding", "confidence_radius_m", "qos"), _harmless),
    "mask": _harmless,  # whether a masked sensor is still required has a rule of its own
}

ACTUATOR_RULES: Mapping[str, Rule] = {  # of actuators with the same topic; by joint for a gripper
    "setpoint_rate_hz": _equal,
    "trajectory_steps": _equal,
    "gripper": lambda robot, own: (robot is None) == (own is None),
    "gripper.open": _equal,
    "gripper.closed": _equal,
    "gripper.on_stop": _equal,
    "gripper.hysteresis": _at_most,
    "gripper.max_effort": _at_most,
    "gripper.max_silent_s": _at_most,
    "gripper.threshold": _harmless,
    **dict.fromkeys(("topic", "scale", "frame", "qos"), _harmless),
    **dict.fromkeys(("type", "command", "joints"), _harmless),  # compared by joint and by what is published
}

JOINT_RULES: Mapping[str, Rule] = {
    "position": _within,
    "velocity": lambda robot, own: _within(velocity_range(robot), velocity_range(own)),
    "acceleration": _at_most,
    "deceleration": _at_most,
    "jerk": _at_most,
    "unit": _equal,
}

SAFETY_RULES: Mapping[str, Rule] = {
    "mode": lambda robot, own: own in (robot, "enforce"),
    "margins.position": _at_least,
    "margins.velocity": _at_most,
    "margins.acceleration": _at_most,
    "margins.joints": _margins_as_large,
    "margins.actuators": _harmless,  # resolved by joint
    "nonfinite.stop_after": _at_most,
    "watchdog.hold_steps": _at_most,
    "watchdog.stop_steps": _at_most,
    "observation.required": lambda robot, own: set(robot) <= set(own),
    "observation.stop_steps": _at_most,
    "observation.future_tolerance_s": _at_most,
    "observation.require_stamp": _at_least,
    "action.max_age_steps": _at_most,
    "tracking": _is_kept,
    "tracking.tolerance": _at_most,
    "tracking.delay_steps": _at_most,
    "tracking.debounce_steps": _at_most,
    "tracking.stop_steps": _at_most,
    "tracking.joints": _tolerances_at_most,
    "tracking.actuators": _harmless,  # resolved by joint
    "latency.budget_s": _at_most,
    "latency.misses": _at_most,
    "latency.window_steps": _at_least,
    "latency.action": lambda robot, own: own in (robot, "hold"),
    "intervention.window_steps": _equal,
    "intervention.warn_share": _at_most,
    "intervention.stop_share": _at_most,
    "forces": _forces_at_most,
    "urdf": lambda robot, own: robot in (None, own),
    "workspace": _is_kept,
    "workspace.keep_in": _boxes_within,
    "workspace.keep_out": _keeps,
    "workspace.self_collision": _at_least,
    "workspace.ignore_pairs": _none_but,
    "workspace.ignore_links": _none_but,
    "workspace.margin_m": _at_least,
    "workspace.gamma": _at_most,
    "gates": _keeps,
    "interlocks": _keeps,
}

REAL_RULES: Mapping[str, tuple[Any, Rule]] = {  # of `backends.real`: the default, and the rule
    "estop": ({}, _keeps),
    "active": ({}, _keeps),
    "relay": (False, _at_least),
    "downstream_timeout_s": (None, _equal),
    "allow_no_downstream_timeout": (False, lambda robot, own: own <= robot),
    "clocks": ({}, _stamped_alike),
    "discovery_s": (3.5, _at_least),
    "step_timeout_s": (1.0, _at_most),
    "tf": ({}, _harmless),
    **dict.fromkeys(("controller_state", "actuation_s"), (None, _harmless)),  # evidence of what has happened
    "reset_timeout_s": (30.0, _harmless),
    "connect_timeout_s": (8.0, _harmless),  # waits in which nothing moves
    "start_outside": ("refuse", lambda robot, own: robot == "inward" or _inward(own) <= _inward(robot)),
    "security": ("off", lambda robot, own: own in (robot, "required")),
    "use_sim_time": (False, lambda robot, own: own <= robot),
    "shared": ([], _none_but),
    "reset": (None, _starts_as_safely),
}
