"""The rules of ``safety``."""

from __future__ import annotations

import math

from embodied_env.contract.checks import check_magnitude, check_plain, check_positive, one_of, require
from embodied_env.contract.model import Contract
from embodied_env.contract.safety import LatencyBudget, Safety, Tracking
from embodied_env.contract.workspace_rules import check_workspace


def check_safety(contract: Contract) -> None:
    """Check the settings of the safety gate; raises ContractError."""
    safety = contract.safety
    _check_margins(safety)
    _check_count("safety.nonfinite.stop_after", safety.nonfinite.stop_after, "actions")
    watchdog = safety.watchdog
    require(
        1 <= watchdog.hold_steps < watchdog.stop_steps,
        "safety.watchdog",
        f"hold_steps {watchdog.hold_steps} and stop_steps {watchdog.stop_steps} are not allowed; "
        "allowed: 1 <= hold_steps < stop_steps",
    )
    _check_observation(contract)
    _check_count("safety.action.max_age_steps", safety.action.max_age_steps, "steps")
    if safety.tracking is not None:
        _check_tracking(safety.tracking)
    _check_latency(safety.latency)
    intervention = safety.intervention
    _check_count("safety.intervention.window_steps", intervention.window_steps, "steps")
    _check_share("safety.intervention.warn_share", intervention.warn_share)
    if intervention.stop_share is not None:
        _check_share("safety.intervention.stop_share", intervention.stop_share)
    _check_forces(contract)
    if safety.workspace is not None:
        check_workspace("safety.workspace", safety.workspace, contract.actuators)
    for name, parameters in safety.gates.items():
        require(name != "workspace", f"safety.gates.{name}", "the name is taken by the gate of the workspace")
        check_plain(f"safety.gates.{name}", parameters)


def _check_margins(safety: Safety) -> None:
    margin = safety.margins.position
    require(
        math.isfinite(margin) and margin >= 0,
        "safety.margins.position",
        f"{margin} is not allowed; allowed: a finite number >= 0, in the unit of the joint",
    )
    for key in ("velocity", "acceleration"):
        value = getattr(safety.margins, key)
        require(0 < value <= 1, f"safety.margins.{key}", f"{value} is not allowed; allowed: a fraction in (0, 1]")
        check_magnitude(f"safety.margins.{key}", value, least=1e-6)


def _check_observation(contract: Contract) -> None:
    observation = contract.safety.observation
    _check_count("safety.observation.stop_steps", observation.stop_steps, "steps")
    tolerance_s = observation.future_tolerance_s
    require(
        math.isfinite(tolerance_s) and tolerance_s >= 0,
        "safety.observation.future_tolerance_s",
        f"{tolerance_s} is not allowed; allowed: a finite number of seconds >= 0",
    )
    agents = [name for name, sensor in contract.sensors.items() if sensor.visibility == "agent"]
    for name in observation.required or ():
        require(name in agents, "safety.observation.required", f"no such sensor of the agent: {one_of(name, agents)}")


def _check_tracking(tracking: Tracking) -> None:
    check_positive("safety.tracking.tolerance", tracking.tolerance, "the range")
    delay = tracking.delay_steps
    require(delay >= 0, "safety.tracking.delay_steps", f"{delay} is not allowed; allowed: 0 or more steps")
    require(
        1 <= tracking.debounce_steps < tracking.stop_steps,
        "safety.tracking",
        f"debounce_steps {tracking.debounce_steps} and stop_steps {tracking.stop_steps} are not allowed; "
        "allowed: 1 <= debounce_steps < stop_steps",
    )


def _check_latency(latency: LatencyBudget) -> None:
    if latency.budget_s is not None:
        check_positive("safety.latency.budget_s", latency.budget_s, "seconds")
    require(
        1 <= latency.misses <= latency.window_steps,
        "safety.latency",
        f"misses {latency.misses} of window_steps {latency.window_steps} are not allowed; "
        "allowed: 1 <= misses <= window_steps",
    )


def _check_forces(contract: Contract) -> None:
    for name, limit in contract.safety.forces.items():
        path = f"safety.forces.{name}"
        require(name in contract.sensors, path, f"no such sensor: {one_of(name, contract.sensors)}")
        fields = contract.sensors[name].fields
        require(limit.field in fields, f"{path}.field", f"no such field of {name}: {one_of(limit.field, fields)}")
        check_positive(f"{path}.limit", limit.limit, str(fields[limit.field].unit))


def _check_count(path: str, value: int, what: str) -> None:
    require(value >= 1, path, f"{value} is not allowed; allowed: 1 or more {what}")


def _check_share(path: str, value: float) -> None:
    require(0 < value <= 1, path, f"{value} is not allowed; allowed: a share in (0, 1]")
