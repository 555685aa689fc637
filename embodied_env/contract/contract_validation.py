"""Validate a contract by rules in a fixed order, and report the first broken one."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from embodied_env.contract.actuator_schema import ActuatorSpec, JointLimits
from embodied_env.contract.contract_schema import EACH_ITS_OWN, INSTRUCTION, ContractFields, ResetOption, TaskSpec
from embodied_env.contract.fingerprint import SHIPPED_TASKS
from embodied_env.contract.required_sensors import commanded_joint_names, required_sensors
from embodied_env.contract.safety_schema import WorkspaceSpec
from embodied_env.contract.sensor_validation import check_keys, check_qos, check_sensor, check_topics_differ
from embodied_env.contract.spaces import ActionLayout
from embodied_env.contract.typed_values import check_types
from embodied_env.contract.value_checks import (
    allow,
    check_all,
    check_bounds,
    check_driver,
    check_magnitude,
    check_names,
    check_plain,
    one_of,
    require,
)
from embodied_env.errors import ContractError
from embodied_env.messages.commands import COMMAND_TYPES, TWIST_AXES
from embodied_env.messages.message_types import JOINT_SENSOR, TRAJECTORY
from embodied_env.plugins.plugin_table import BUILT_IN, built_in_classes

MAX_TURN_RAD = 4 * math.pi  # largest angle that does not look like degrees, two turns in each direction
_MAX_TURN_RATE_RAD_S = 50.0  # fastest joint with position limits

PLACEHOLDER_VELOCITY = 10.0  # rad/s or m/s: a limit of this or more, equal in all joints, was never measured
MAX_BRAKING_STEPS = 200  # the points of a trajectory after its actions
_NO_ACCELERATION = 1000.0  # rad/s^2 or m/s^2


def validate_contract(contract: ContractFields) -> None:
    """Validate every rule, or raise ContractError for the first broken one with the `others`."""
    check_types(ContractFields, contract, source=contract.source)
    check_all(_checks(contract), contract.source)


def _checks(contract: ContractFields) -> Iterator[Callable[[], None]]:
    for name, sensor in contract.sensors.items():
        yield functools.partial(check_sensor, name, sensor)
    yield lambda: check_keys(contract)
    yield lambda: _check_safety(contract)
    for interlock in built_in_classes("interlocks"):
        yield functools.partial(interlock.validate, contract)
    yield lambda: _check_plugins(contract)
    yield from _actuator_checks(contract)
    yield lambda: check_topics_differ(contract.sensors, contract.actuators)
    yield lambda: _check_precision(contract)
    for name, option in contract.reset_options.items():
        yield functools.partial(_check_reset_option, f"reset_options.{name}", option)
    yield lambda: _check_task(contract.task)
    yield lambda: _check_robot(contract)
    for name, profile in contract.backends.items():
        yield functools.partial(check_plain, f"backends.{name}", profile)


def suspicious_values(contract: ContractFields) -> Iterator[tuple[str, str]]:
    """Yield path and reason of each valid limit that looks like a placeholder."""
    for name, actuator in contract.actuators.items():
        path, joints = f"actuators.{name}.joints", tuple(actuator.joints.values())
        speeds = {limits.fastest for limits in joints}
        if len(speeds) == 1 < len(joints) and (speed := speeds.pop()) >= PLACEHOLDER_VELOCITY:
            yield path, f"velocity {speed} in all joints looks like the placeholder of a URDF; use the data sheet's"
        for joint, limits in actuator.joints.items():
            if limits.acceleration is not None and limits.acceleration >= _NO_ACCELERATION:
                yield f"{path}.{joint}.acceleration", f"{limits.acceleration} is no limit; measure or choose one"


def suspected_degrees(contract: ContractFields) -> Iterator[tuple[str, str]]:
    """Yield path and problem of each unconfirmed limit that looks like degrees."""
    return ((path, problem) for path, problem in _limits_like_degrees(contract) if path not in contract.confirmed)


def refuse_degrees(contract: ContractFields) -> str:
    """Raise ContractError for limits in suspected degrees, or report that there are none."""
    for path, problem in suspected_degrees(contract):
        raise ContractError(path, problem, source=contract.source)
    return "none looks like degrees"


def _limits_like_degrees(contract: ContractFields) -> Iterator[tuple[str, str]]:
    """Yield path and problem of each limit that looks like degrees, except for wheels."""
    for name, actuator in contract.actuators.items():
        for joint, limits in actuator.joints.items():
            if limits.unit != "rad" or limits.position is None:
                continue
            path = f"actuators.{name}.joints.{joint}"
            remedy = "if this is in degrees, convert it: degrees * pi / 180; else list the path under confirmed"
            if max(map(abs, limits.position)) > MAX_TURN_RAD:
                yield f"{path}.position", f"{list(limits.position)} rad is more than two turns; {remedy}"
            if limits.fastest > _MAX_TURN_RATE_RAD_S:
                yield f"{path}.velocity", f"{limits.fastest} rad/s (expected at most {_MAX_TURN_RATE_RAD_S}); {remedy}"


def _check_precision(contract: ContractFields) -> None:
    if contract.action.dtype == "float64":
        return
    with np.errstate(all="ignore"):  # another check refuses such limits
        layout = ActionLayout(contract)
    for joint, low, high in zip(layout.joints, layout.low, layout.high, strict=True):
        found = f"float32 has at most one value within the bounds of joint {joint!r}"
        allow(low < high, "action.dtype", found, "a larger range, or float64")


def _check_reset_option(path: str, option: ResetOption) -> None:
    allow(path != f"reset_options.{INSTRUCTION}", path, "the key of the prompt in reset()", "another name")
    kind, is_vector = option.distribution, option.type == "vector"
    needed = {"choice": ("values",), "normal": ("low", "high", "mean", "std")}.get(kind, ("low", "high"))
    for key in ("low", "high", "mean", "std", "values"):
        value, has_key = getattr(option, key), getattr(option, key) is not None
        require(has_key or key not in needed, f"{path}.{key}", f"missing key (expected with distribution: {kind})")
        problem = f"{value} (expected none with distribution: {kind}); remove it"
        require(key in needed or not has_key, f"{path}.{key}", problem)
    hidden = option.visibility == "evaluator"
    allow(not (option.observed and hidden), f"{path}.observed", "true", "false: visibility is evaluator")
    expected = "lists for a vector, numbers for a scalar"
    values = option.values or ()
    for i, each in enumerate(values):
        allow(isinstance(each, tuple) == is_vector, f"{path}.values[{i}]", each, expected)
        is_fitting = np.shape(each) == np.shape(values[0])
        allow(is_fitting, f"{path}.values[{i}]", each, "lists of one length")
    if option.low is None or option.high is None:
        return
    low, high = option.low, option.high
    check_bounds(path, low, high, None)
    fits = isinstance(low, tuple) == isinstance(high, tuple) == is_vector
    allow(fits, path, f"type {option.type!r} with low {low} and high {high}", expected)
    is_positive = kind != "log_uniform" or bool((option.low_array > 0).all())
    allow(is_positive, f"{path}.low", low, "numbers > 0 with distribution: log_uniform")
    for key, value in (("mean", option.mean), ("std", option.std)):
        is_fitting = value is None or np.shape(value) in ((), option.low_array.shape)
        allow(is_fitting, f"{path}.{key}", value, "one number, or one for each component")
    if option.mean is not None:
        is_inside = (option.low_array <= option.mean) & (option.mean <= option.high_array)
        allow(bool(is_inside.all()), f"{path}.mean", option.mean, f"numbers from {low} to {high}")


def _check_task(task: TaskSpec) -> None:
    is_ours = task.type.startswith("embodied_env.")  # one text only has the fingerprint of a shipped task
    require(not is_ours, "task.type", f"unknown task {one_of(task.type, SHIPPED_TASKS)}")
    prompt = task.instruction or ""
    allow("\0" not in prompt, "task.instruction", f"{prompt!r:.80}", "text without NUL, which would end a ROS string")
    for name, parameter in task.parameters.items():
        check_plain(f"task.{name}", parameter)


def _check_robot(contract: ContractFields) -> None:
    chosen = contract.all_chosen
    known = {*chosen, *(path for path, _ in _limits_like_degrees(contract))}
    known |= {f"sensors.{name}.fields.position" for name, each in contract.sensors.items() if each.type == JOINT_SENSOR}
    for path in contract.confirmed:
        require(path in known, "confirmed", f"not a chosen value or suspected degrees: {one_of(path, known)}")


def _check_plugins(contract: ContractFields) -> None:
    """Check the parameters of plug-ins as plain data, without importing the plug-ins."""
    for kind, named in (("gates", contract.safety.gates), ("interlocks", contract.safety.interlocks)):
        for name, parameters in named.items():
            allow(name not in BUILT_IN[kind], f"safety.{kind}.{name}", f"reserved name {name!r}", "another name")
            check_plain(f"safety.{kind}.{name}", parameters)
    for name, block in contract.blocks.items():
        flag = block.get("fingerprint", True)
        allow(isinstance(flag, bool), f"blocks.{name}.fingerprint", flag, "true or false")
        check_plain(f"blocks.{name}", block)


def _check_safety(contract: ContractFields) -> None:
    safety, joints = contract.safety, commanded_joint_names(contract.actuators)
    check_names("safety.margins.actuators", safety.margins.actuators, contract.actuators)
    check_names("safety.margins.joints", safety.margins.joints, joints)
    hold, stop = safety.watchdog.hold_steps, safety.watchdog.stop_steps
    allow(hold < stop, "safety.watchdog", f"hold_steps {hold}, stop_steps {stop}", "hold_steps < stop_steps")
    _check_observation(contract)
    if safety.workspace is not None:
        check_workspace("safety.workspace", safety.workspace, contract.actuators)


def _check_observation(contract: ContractFields) -> None:
    path, observation = "safety.observation", contract.safety.observation
    visible = [name for name, sensor in contract.sensors.items() if sensor.visibility == "agent"]
    is_robot = contract.task.type != EACH_ITS_OWN and any(each.joints for each in contract.actuators.values())
    if observation.required is None and is_robot:  # each robot of a team has its own
        expected = "expected one without a mask; `required: []` accepts a robot that no lost sensor stops"
        require(bool(required_sensors(contract)), f"{path}.required", f"no sensor that stops the robot ({expected})")
    for name in observation.required or ():
        require(name in visible, f"{path}.required", f"no agent-visible sensor {one_of(name, visible)}")


def check_workspace(path: str, spec: WorkspaceSpec, actuators: Mapping[str, ActuatorSpec]) -> None:
    """Check the workspace at `path` of a robot with these actuators, or raise ContractError."""
    is_used = bool(spec.keep_in or spec.keep_out or spec.self_collision)
    allow(is_used, path, "no region", "keep_in, keep_out or self_collision: true")
    for name, actuator in actuators.items():
        allow(actuator.command != "twist", path, f"position unknown: actuator {name!r} takes a twist", "only joints")
        for joint, limits in actuator.joints.items():
            is_measured = not actuator.is_velocity or limits.position is not None
            problem = (
                f"position unknown: {joint!r} of actuator {name!r} is commanded by velocity without position limits"
            )
            require(is_measured, path, f"{problem}; add actuators.{name}.joints.{joint}.position")


def _actuator_checks(contract: ContractFields) -> Iterator[Callable[[], None]]:
    """Yield the independent checks of the actuators."""
    measured = {
        joint: unit
        for sensor in contract.sensors.values()
        if sensor.type == JOINT_SENSOR and sensor.visibility == "agent" and "position" in sensor.fields
        for joint, unit in sensor.fields["position"].units_by_joint().items()
    }
    seen: dict[str, str] = {}
    for name, actuator in contract.actuators.items():
        yield functools.partial(_check_actuator, f"actuators.{name}", actuator)
        yield functools.partial(_check_between_steps, name, actuator, contract)
        for joint, limits in actuator.joints.items():
            yield functools.partial(_check_joint, name, joint, limits, contract, measured, seen)


def _check_between_steps(name: str, actuator: ActuatorSpec, contract: ContractFields) -> None:
    path, rate_hz, steps = f"actuators.{name}", actuator.setpoint_rate_hz, actuator.trajectory_steps
    topics = [other for other in contract.actuators.values() if not other.is_action]
    is_same = actuator.is_action or len({(each.setpoint_rate_hz, each.trajectory_steps) for each in topics}) == 1
    found = f"setpoint_rate_hz: {rate_hz or 'null'}, trajectory_steps: {'null' if steps is None else steps}"
    allow(is_same, path, found, "the same for every actuator but action servers")
    if rate_hz is not None:
        where, found, control_hz = f"{path}.setpoint_rate_hz", f"{rate_hz:g} Hz", 1.0 / contract.control_period_s
        allow(not actuator.is_action, where, found, "none for an action server")
        allow(not actuator.is_velocity, where, found, f"none with command: {actuator.command}")
        count = rate_hz / control_hz
        is_multiple = count >= 2 and abs(count - round(count)) < 1e-6 * count
        expected = f"a multiple of the control rate of {control_hz:g} Hz, at least twice it"
        allow(is_multiple, where, found, expected)
    if steps is not None:
        where = f"{path}.trajectory_steps"
        allow(actuator.type == TRAJECTORY, where, actuator.type, f"only with type: {TRAJECTORY}")
        allow(rate_hz is None, where, "setpoint_rate_hz is set too", "one of the two")
        allow(contract.safety.mode == "enforce", where, f"safety.mode: {contract.safety.mode}", "enforce")
        limits = actuator.limits(contract.safety.margins, name)
        braking = float((limits.fastest / limits.deceleration).max()) / contract.control_period_s
        expected = f"at most {MAX_BRAKING_STEPS} control periods from the velocity limit to rest"
        allow(braking <= MAX_BRAKING_STEPS, where, f"{braking:.0f} control periods of braking", expected)


def _check_joint(
    name: str,
    joint: str,
    limits: JointLimits,
    contract: ContractFields,
    measured: Mapping[str, str],
    seen: dict[str, str],
) -> None:
    """Check a joint of the actuator `name`, where `seen` has the actuators of those before."""
    actuator, path = contract.actuators[name], f"actuators.{name}.joints.{joint}"
    own = f"{name}.{joint}" if actuator.command == "twist" and contract.task.type == EACH_ITS_OWN else joint
    allow(own not in seen, path, f"{joint!r} is also driven by {seen.get(own)}", "one actuator per joint")
    seen[own] = f"actuators.{name}"
    for finger in actuator.mimic if joint == next(iter(actuator.joints)) else ():
        where = f"actuators.{name}.gripper.mimic.{finger}"
        allow(finger not in seen, where, f"{finger!r} is also driven by {seen.get(finger)}", "one actuator per joint")
        seen[finger] = f"actuators.{name}"
    if limits.driver is not None:
        check_driver(f"{path}.driver", limits.driver, limits.unit + "/s" * actuator.is_velocity)
    if actuator.command == "twist":
        _check_axis(path, joint, limits)
    elif not actuator.is_velocity or limits.position is not None:
        _check_measured(path, joint, limits, measured)
    _check_limits(path, limits, actuator, actuator.margins_of(joint, contract.safety.margins, name)[0])


def _check_actuator(path: str, actuator: ActuatorSpec) -> None:
    check_qos(f"{path}.qos", actuator.qos)
    kind, count = actuator.type, len(actuator.joints)
    require(kind in COMMAND_TYPES, f"{path}.type", f"unknown message type {one_of(kind, COMMAND_TYPES)}")
    known = COMMAND_TYPES[kind]
    expected = f"{', '.join(known.commands)} for {kind}"
    allow(actuator.command in known.commands, f"{path}.command", repr(actuator.command), expected)
    allow(known.joints in (None, count), f"{path}.joints", f"{count} joints", f"{known.joints} for {kind}")
    allow(actuator.frame is None or known.header, f"{path}.frame", repr(actuator.frame), f"none: {kind} has no header")
    allow(actuator.qos is None or not actuator.is_action, f"{path}.qos", actuator.qos, "none for an action server")
    _check_gripper(path, actuator)


def _check_gripper(path: str, actuator: ActuatorSpec) -> None:
    gripper, is_action = actuator.gripper, actuator.is_action
    expected = "{open: POSITION, closed: POSITION}"
    if gripper is None:
        is_needed = is_action or actuator.scale == "binary"
        allow(not is_needed, f"{path}.gripper", "missing", f"{expected} for an action server, or with scale: binary")
        return
    path = f"{path}.gripper"
    is_one = len(actuator.joints) == 1 and actuator.command == "position"
    allow(is_one, path, f"{actuator.command} of {len(actuator.joints)} joints", "one joint with command: position")
    allow(is_action or gripper.on_stop == "hold", f"{path}.on_stop", repr(gripper.on_stop), "hold for a topic")
    low, high = next(iter(actuator.joints.values())).position or (-math.inf, math.inf)
    for key, position in (("open", gripper.open), ("closed", gripper.closed)):
        allow(low <= position <= high, f"{path}.{key}", position, f"{low} to {high}, the limits of its joint")
    is_several = not gripper.mimic or COMMAND_TYPES[actuator.type].joints is None
    allow(is_several, f"{path}.mimic", ", ".join(gripper.mimic), f"none for {actuator.type}, which has one value")
    allow(gripper.open != gripper.closed, f"{path}.closed", gripper.closed, "another position than open")


def _check_measured(path: str, joint: str, limits: JointLimits, measured: Mapping[str, str]) -> None:
    """Check that an agent's sensor reports the joint's position in the unit of its limits."""
    problem = f"no sensor reports the position of joint {joint!r} (reported: {', '.join(sorted(measured)) or 'none'})"
    require(joint in measured, path, f"{problem}; list it in the position field of an agent's {JOINT_SENSOR} sensor")
    unit = measured[joint]
    is_same = limits.unit == unit or unit not in ("rad", "m")
    allow(is_same, f"{path}.unit", repr(limits.unit), f"{unit!r}, the unit of its sensor")


def _check_axis(path: str, axis: str, limits: JointLimits) -> None:
    require(axis in TWIST_AXES, path, f"unknown twist axis {one_of(axis, TWIST_AXES)}")
    unit = TWIST_AXES[axis]
    allow(limits.unit == unit, f"{path}.unit", repr(limits.unit), unit)
    allow(limits.position is None, f"{path}.position", limits.position, "null: a twist axis has no position")


def _check_limits(path: str, limits: JointLimits, actuator: ActuatorSpec, margin: float) -> None:
    is_speed = not (actuator.is_action and isinstance(limits.velocity, tuple))
    allow(is_speed, f"{path}.velocity", limits.velocity, "one number for an action server")
    is_limited = limits.acceleration is not None or actuator.is_action
    allow(is_limited, f"{path}.acceleration", "null", f"{limits.unit}/s^2 > 0 for a topic")
    path = f"{path}.position"
    if limits.position is None:
        allow(actuator.command != "position", path, "null", "[low, high] with command: position")
        return
    low, high = limits.position
    expected = f"a range wider than {2 * margin}, twice safety.margins.position"
    allow(low + margin < high - margin, path, f"[{low}, {high}]", expected)
    check_magnitude(path, (high - margin) - (low + margin))
