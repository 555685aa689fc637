"""Validation of a contract by rules in a fixed order, of which the first broken one is reported."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from embodied_env.contract.actuator_schema import ActuatorSpec
from embodied_env.contract.actuator_validation import actuator_checks
from embodied_env.contract.contract_schema import EACH_ITS_OWN, INSTRUCTION, ContractFields, ResetOption, TaskSpec
from embodied_env.contract.fingerprint import SHIPPED_TASKS
from embodied_env.contract.required_sensors import commanded_joint_names, required_sensors
from embodied_env.contract.safety_schema import WorkspaceSpec
from embodied_env.contract.sensor_validation import check_keys, check_sensor, check_topics_differ
from embodied_env.contract.spaces import ActionLayout
from embodied_env.contract.typed_values import check_types
from embodied_env.contract.value_checks import allow, check_all, check_bounds, check_names, check_plain, one_of, require
from embodied_env.errors import ContractError
from embodied_env.messages.message_types import JOINT_SENSOR
from embodied_env.plugins.plugin_table import BUILT_IN, built_in_classes

MAX_TURN_RAD = 4 * math.pi
"""Largest angle that does not look like degrees, two turns in each direction."""

_MAX_TURN_RATE_RAD_S = 50.0  # fastest joint with position limits

PLACEHOLDER_VELOCITY = 10.0
"""rad/s or m/s: a limit of this or more, equal in all joints, was never measured."""

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
    yield from actuator_checks(contract)
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
    """Raise ContractError for the first of the suspected degrees, or report that there are none."""
    for path, problem in suspected_degrees(contract):
        raise ContractError(path, problem, source=contract.source)
    return "none looks like degrees"


def _limits_like_degrees(contract: ContractFields) -> Iterator[tuple[str, str]]:
    """Yield path and problem of each limit in rad or rad/s that looks like degrees, except for wheels."""
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
    """Check the parameters of plug-ins as plain data, since installation matters only when they are used."""
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
