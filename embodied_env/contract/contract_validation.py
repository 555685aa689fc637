"""Validation of a contract: rules in a fixed order; the first broken one is reported."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np

from embodied_env.contract.actuator_validation import actuator_checks
from embodied_env.contract.contract_schema import EACH_ITS_OWN, ActuatorSpec, ContractFields, ResetOption, TaskSpec
from embodied_env.contract.fingerprint import SHIPPED_TASKS
from embodied_env.contract.plugins import BUILT_IN
from embodied_env.contract.required_sensors import commanded_joint_names, required_sensors
from embodied_env.contract.safety_schema import KeepOutSpec, Margins, OwnMargins, Tracking, WorkspaceSpec
from embodied_env.contract.sensor_validation import check_keys, check_sensor, check_topics_differ
from embodied_env.contract.spaces import ActionLayout
from embodied_env.contract.value_checks import (
    allow,
    check_bounds,
    check_count,
    check_magnitude,
    check_name,
    check_not_negative,
    check_plain,
    check_positive,
    check_share,
    one_of,
    require,
)
from embodied_env.errors import ContractError

MAX_APPLIED_ACTIONS = 1000
MAX_INSTRUCTION = 1000  # characters

_TASK = re.compile(r"(([A-Za-z_][\w.]*|[^\0:]+\.py):)?[A-Za-z_]\w*")

_MAX_TURN_RAD = 4 * math.pi  # joints with limits turn at most twice in each direction
_MAX_TURN_RATE_RAD_S = 50.0  # of a joint with position limits

PLACEHOLDER_VELOCITY = 10.0
"""rad/s or m/s: a limit of this or more, equal in all joints, was never measured."""

_NO_ACCELERATION = 1000.0  # rad/s^2 or m/s^2


def validate_contract(contract: ContractFields) -> None:
    """Validate every rule of a contract; raises ContractError for the first broken one, with the `others`."""
    errors: list[ContractError] = []
    for check in _checks(contract):
        try:
            check()
        except ContractError as error:
            errors.append(ContractError(error.path, error.problem, source=contract.source))
        except (ValueError, TypeError, LookupError):  # a consequence of an earlier error
            if not errors:
                raise
    if errors:
        first = errors[0]
        raise ContractError(first.path, first.problem, source=first.source, others=errors[1:])


def _checks(contract: ContractFields) -> Iterator[Callable[[], None]]:
    """Yield the independent checks of a contract, in order."""
    yield lambda: check_name("name", contract.name)
    yield lambda: check_count("version", contract.version, "")
    yield lambda: _check_period(contract.control_period_s)
    yield lambda: check_count("episode.horizon_steps", contract.episode.horizon_steps, "steps")
    yield lambda: check_count("policy.max_missed", contract.policy.max_missed, "steps")
    expected = f"0 to {MAX_APPLIED_ACTIONS} actions"
    kept = contract.applied_actions
    yield lambda: allow(0 <= kept <= MAX_APPLIED_ACTIONS, "applied_actions", kept, expected)
    yield lambda: allow(len(contract.sensors) > 0, "sensors", "empty", "at least one sensor")
    for name, sensor in contract.sensors.items():
        yield functools.partial(check_sensor, name, sensor)
    yield lambda: check_keys(contract)
    yield lambda: _check_safety(contract)
    yield lambda: _check_plugins(contract)
    yield from actuator_checks(contract)
    yield lambda: check_topics_differ(contract.sensors, contract.actuators)
    yield lambda: _check_precision(contract)
    for name, option in contract.reset_options.items():
        yield functools.partial(_check_reset_option, name, option)
    yield lambda: _check_task(contract.task)
    yield lambda: _check_robot(contract)
    for name, profile in contract.backends.items():
        yield functools.partial(check_plain, f"backends.{name}", profile)


def _check_period(period_s: float) -> None:
    check_positive("control_period_s", period_s, "seconds")
    check_magnitude("control_period_s", period_s, least=1e-6, most=1e3)


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
    """Yield path and problem of each valid limit in rad or rad/s that looks like degrees. Wheels are skipped."""
    for name, actuator in contract.actuators.items():
        for joint, limits in actuator.joints.items():
            if limits.unit != "rad" or limits.position is None:
                continue
            path = f"actuators.{name}.joints.{joint}"
            remedy = "if this is in degrees, convert it: degrees * pi / 180"
            if max(map(abs, limits.position)) > _MAX_TURN_RAD:
                yield f"{path}.position", f"{list(limits.position)} rad is more than two turns; {remedy}"
            if limits.fastest > _MAX_TURN_RATE_RAD_S:
                yield f"{path}.velocity", f"{limits.fastest} rad/s (expected at most {_MAX_TURN_RATE_RAD_S}); {remedy}"


def _check_precision(contract: ContractFields) -> None:
    if contract.action.dtype == "float64":
        return
    with np.errstate(all="ignore"):  # of limits that another check refuses
        layout = ActionLayout(contract)
    for joint, low, high in zip(layout.joints, layout.low, layout.high, strict=True):
        found = f"float32 has at most one value within the bounds of joint {joint!r}"
        allow(low < high, "action.dtype", found, "a larger range, or float64")


def _check_reset_option(name: str, option: ResetOption) -> None:
    path, kind, is_vector = f"reset_options.{name}", option.distribution, option.type == "vector"
    check_name(path, name)
    needed = {"choice": ("values",), "normal": ("low", "high", "mean", "std")}.get(kind, ("low", "high"))
    for key in ("low", "high", "mean", "std", "values"):
        value, has_key = getattr(option, key), getattr(option, key) is not None
        require(has_key or key not in needed, f"{path}.{key}", f"missing key (expected with distribution: {kind})")
        problem = f"{value} (expected none with distribution: {kind}); remove it"
        require(key in needed or not has_key, f"{path}.{key}", problem)
    hidden = option.visibility == "evaluator"
    allow(not (option.observed and hidden), f"{path}.observed", "true", "false: visibility is evaluator")
    expected = "lists for a vector, numbers for a scalar"
    if option.values is not None:
        allow(len(option.values) > 0, f"{path}.values", "[]", "at least one value")
        shape = np.shape(option.values[0])
        for i, each in enumerate(option.values):
            allow(isinstance(each, tuple) == is_vector, f"{path}.values[{i}]", each, expected)
            is_fitting = np.shape(each) == shape != (0,) and bool(np.isfinite(each).all())
            allow(is_fitting, f"{path}.values[{i}]", each, "finite numbers, and lists of one length")
            _check_drawn(f"{path}.values[{i}]", each)
        return
    low, high = (0.0 if bound is None else bound for bound in (option.low, option.high))
    check_bounds(path, low, high, None)
    _check_drawn(f"{path}.low", low)
    _check_drawn(f"{path}.high", high)
    fits = isinstance(low, tuple) == isinstance(high, tuple) == is_vector
    allow(fits, path, f"type {option.type!r} with low {low} and high {high}", expected)
    is_positive = kind != "log_uniform" or bool((option.low_array > 0).all())
    allow(is_positive, f"{path}.low", low, "numbers > 0 with distribution: log_uniform")
    if option.mean is not None and option.std is not None:
        for key, value in (("mean", option.mean), ("std", option.std)):
            is_fitting = np.shape(value) in ((), option.low_array.shape) and bool(np.isfinite(value).all())
            allow(is_fitting, f"{path}.{key}", value, "one finite number, or one for each component")
        is_inside = (option.low_array <= option.mean) & (option.mean <= option.high_array)
        allow(bool(is_inside.all()), f"{path}.mean", option.mean, f"numbers from {low} to {high}")
        allow(bool(np.greater(option.std, 0).all()), f"{path}.std", option.std, "numbers > 0")


def _check_drawn(path: str, value: float | tuple[float, ...]) -> None:
    for number in value if isinstance(value, tuple) else (value,):
        check_magnitude(path, number, least=0.0)


def _check_task(task: TaskSpec) -> None:
    expected = "the name of a task such as reach, or module:NAME or FILE.py:NAME of a class or function"
    allow(_TASK.fullmatch(task.type) is not None, "task.type", repr(task.type), expected)
    is_ours = task.type.startswith("embodied_env.")  # one text only has the fingerprint of a shipped task
    require(not is_ours, "task.type", f"unknown task {one_of(task.type, SHIPPED_TASKS)}")
    if task.instruction is not None:
        problem = f"text of {len(task.instruction)} characters (expected 1 to {MAX_INSTRUCTION})"
        require(0 < len(task.instruction) <= MAX_INSTRUCTION, "task.instruction", problem)
    for name, parameter in task.parameters.items():
        check_plain(f"task.{name}", parameter)


def _check_robot(contract: ContractFields) -> None:
    chosen = contract.all_chosen
    for path in contract.confirmed:
        require(path in chosen, "confirmed", f"not a chosen value: {one_of(path, chosen)}")


def _check_plugins(contract: ContractFields) -> None:
    """Check the parameters of plug-ins as plain data; whether they are installed matters when they are used."""
    for kind, named in (("gates", contract.safety.gates), ("interlocks", contract.safety.interlocks)):
        for name, parameters in named.items():
            allow(name not in BUILT_IN[kind], f"safety.{kind}.{name}", f"reserved name {name!r}", "another name")
            check_plain(f"safety.{kind}.{name}", parameters)
    for name, block in contract.blocks.items():
        check_name(f"blocks.{name}", name)
        flag = block.get("fingerprint", True)
        allow(isinstance(flag, bool), f"blocks.{name}.fingerprint", flag, "true or false")
        check_plain(f"blocks.{name}", block)


def _check_safety(contract: ContractFields) -> None:
    safety, margins = contract.safety, contract.safety.margins
    joints = commanded_joint_names(contract.actuators)
    _check_margins("safety.margins", margins)
    for path, own in _own("safety.margins", margins, contract.actuators, joints):
        _check_margins(path, own)
    check_count("safety.nonfinite.stop_after", safety.nonfinite.stop_after, "actions")
    hold, stop = safety.watchdog.hold_steps, safety.watchdog.stop_steps
    allow(1 <= hold < stop, "safety.watchdog", f"hold_steps {hold}, stop_steps {stop}", "1 <= hold_steps < stop_steps")
    _check_observation(contract)
    check_count("safety.action.max_age_steps", safety.action.max_age_steps, "steps")
    if (tracking := safety.tracking) is not None:
        check_positive("safety.tracking.tolerance", tracking.tolerance, "the joint's range")
        for path, tolerance in _own("safety.tracking", tracking, contract.actuators, joints):
            if tolerance is not None:
                check_positive(path, tolerance, "the joint's range")
        check_count("safety.tracking.delay_steps", tracking.delay_steps, "steps", least=0)
        value = f"debounce_steps {tracking.debounce_steps}, stop_steps {tracking.stop_steps}"
        is_ordered = 1 <= tracking.debounce_steps < tracking.stop_steps
        allow(is_ordered, "safety.tracking", value, "1 <= debounce_steps < stop_steps")
    latency = safety.latency
    if latency.budget_s is not None:
        check_positive("safety.latency.budget_s", latency.budget_s, "seconds")
    value = f"misses {latency.misses}, window_steps {latency.window_steps}"
    allow(1 <= latency.misses <= latency.window_steps, "safety.latency", value, "1 <= misses <= window_steps")
    intervention = safety.intervention
    check_count("safety.intervention.window_steps", intervention.window_steps, "steps")
    check_share("safety.intervention.warn_share", intervention.warn_share)
    if intervention.stop_share is not None:
        check_share("safety.intervention.stop_share", intervention.stop_share)
    for name, limit in safety.forces.items():
        path = f"safety.forces.{name}"
        require(name in contract.sensors, path, f"unknown sensor {one_of(name, contract.sensors)}")
        fields = contract.sensors[name].fields
        require(limit.field in fields, f"{path}.field", f"unknown field {one_of(limit.field, fields)}")
        check_positive(f"{path}.limit", limit.limit, str(fields[limit.field].unit))
    if safety.workspace is not None:
        check_workspace("safety.workspace", safety.workspace, contract.actuators)


def _own(path: str, spec: Margins | Tracking, *known: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Yield path and value of what actuators and joints have of their own; raise ContractError for unknown names."""
    for key, own, names in zip(("actuators", "joints"), (spec.actuators, spec.joints), known, strict=True):
        for name, value in own.items():
            require(name in names, f"{path}.{key}.{name}", f"unknown name {one_of(name, names)}")
            yield f"{path}.{key}.{name}", value


def _check_margins(path: str, margins: Margins | OwnMargins) -> None:
    if margins.position is not None:
        check_not_negative(f"{path}.position", margins.position, "rad or m")
    for key, share in (("velocity", margins.velocity), ("acceleration", margins.acceleration)):
        if share is not None:
            check_share(f"{path}.{key}", share, "fraction")
            check_magnitude(f"{path}.{key}", share, least=1e-6)


def _check_observation(contract: ContractFields) -> None:
    path, observation = "safety.observation", contract.safety.observation
    check_count(f"{path}.stop_steps", observation.stop_steps, "steps")
    check_not_negative(f"{path}.future_tolerance_s", observation.future_tolerance_s, "seconds")
    visible = [name for name, sensor in contract.sensors.items() if sensor.visibility == "agent"]
    is_robot = contract.task.type != EACH_ITS_OWN and any(each.joints for each in contract.actuators.values())
    if observation.required is None and is_robot:  # each robot of a team has its own
        expected = "expected one without a mask; `required: []` accepts a robot that no lost sensor stops"
        require(bool(required_sensors(contract)), f"{path}.required", f"no sensor that stops the robot ({expected})")
    for name in observation.required or ():
        require(name in visible, f"{path}.required", f"no agent-visible sensor {one_of(name, visible)}")


def check_workspace(path: str, spec: WorkspaceSpec, actuators: Mapping[str, ActuatorSpec]) -> None:
    """Check the workspace at `path` of a robot with these actuators; raises ContractError."""
    is_used = bool(spec.keep_in or spec.keep_out or spec.self_collision)
    allow(is_used, path, "no region", "keep_in, keep_out or self_collision: true")
    for name, box in spec.keep_in.items():
        check_name(f"{path}.keep_in.{name}", name)
        check_bounds(f"{path}.keep_in.{name}", box.low_m, box.high_m, 3)
    for name, region in spec.keep_out.items():
        check_name(f"{path}.keep_out.{name}", name)
        _check_region(f"{path}.keep_out.{name}", region)
    for i, pair in enumerate(spec.ignore_pairs):
        allow(pair[0] != pair[1], f"{path}.ignore_pairs[{i}]", list(pair), "two different links")
    check_not_negative(f"{path}.margin_m", spec.margin_m, "m")
    allow(0.0 < spec.gamma <= 1.0, f"{path}.gamma", spec.gamma, "above 0, up to 1")
    for name, actuator in actuators.items():
        allow(actuator.command != "twist", path, f"position unknown: actuator {name!r} takes a twist", "only joints")
        for joint, limits in actuator.joints.items():
            is_measured = not actuator.is_velocity or limits.position is not None
            problem = (
                f"position unknown: {joint!r} of actuator {name!r} is commanded by velocity without position limits"
            )
            require(is_measured, path, f"{problem}; add actuators.{name}.joints.{joint}.position")


def _check_region(path: str, region: KeepOutSpec) -> None:
    shapes = [shape for shape in (region.box, region.sphere, region.capsule) if shape is not None]
    allow(len(shapes) == 1, path, f"{len(shapes)} shapes", "exactly one of box, sphere, capsule")
    if region.box is not None:
        check_bounds(f"{path}.box", region.box.low_m, region.box.high_m, 3)
    if region.sphere is not None:
        check_positive(f"{path}.sphere.radius_m", region.sphere.radius_m, "m")
        _check_point(f"{path}.sphere.center_m", region.sphere.center_m)
    if region.capsule is not None:
        check_positive(f"{path}.capsule.radius_m", region.capsule.radius_m, "m")
        for i, end in enumerate(region.capsule.ends_m):
            _check_point(f"{path}.capsule.ends_m[{i}]", end)


def _check_point(path: str, point: tuple[float, ...]) -> None:
    allow(len(point) == 3 and all(map(math.isfinite, point)), path, list(point), "three finite numbers, in m")
