"""Validation of ``safety``: each violation names its path, the value and what is expected."""

from __future__ import annotations

import dataclasses
import math

import pytest
from strategies import changed, document, parse

from embodied_env.contract.safety_schema import Safety, Tracking
from embodied_env.errors import ContractError

COUNTS = ("nonfinite.stop_after", "observation.stop_steps", "action.max_age_steps", "intervention.window_steps")


def refused(path, value):
    with pytest.raises(ContractError) as caught:
        parse(changed(f"safety.{path}", value))
    return caught.value


def accepted(path, value):
    return parse(changed(f"safety.{path}", value)).safety


@pytest.mark.parametrize("key", COUNTS)
@pytest.mark.parametrize("value", [0, -1])
def test_count_below_one_is_rejected(key, value):
    error = refused(key, value)
    assert error.path == f"safety.{key}"
    assert f"{value} (expected 1 or more" in str(error)


@pytest.mark.parametrize("key", COUNTS)
def test_a_count_of_one_is_accepted(key):
    section, name = key.split(".")
    assert getattr(getattr(accepted(key, 1), section), name) == 1


@pytest.mark.parametrize("key", [*COUNTS, "tracking.debounce_steps", "latency.misses", "watchdog.hold_steps"])
@pytest.mark.parametrize("value", [1.5, "3", True, None])
def test_non_integer_count_is_rejected(key, value):
    assert f"safety.{key.split('.')[0]}" in str(refused(key, value))


@pytest.mark.parametrize(("hold", "stop"), [(0, 5), (5, 5), (6, 5), (-1, 1)])
def test_watchdog_steps_are_ordered(hold, stop):
    error = refused("watchdog", {"hold_steps": hold, "stop_steps": stop})
    assert error.path == "safety.watchdog"
    assert "expected 1 <= hold_steps < stop_steps" in str(error)


@pytest.mark.parametrize(("debounce", "stop"), [(0, 5), (5, 5), (6, 5), (-1, 1)])
def test_tracking_steps_are_ordered(debounce, stop):
    error = refused("tracking", {"debounce_steps": debounce, "stop_steps": stop})
    assert error.path == "safety.tracking"
    assert "expected 1 <= debounce_steps < stop_steps" in str(error)


def test_tracking_delay_is_zero_or_more():
    assert accepted("tracking", {"delay_steps": 0}).tracking == Tracking(delay_steps=0)
    assert "safety.tracking.delay_steps: -1 (expected 0 or more" in str(refused("tracking", {"delay_steps": -1}))


def test_tracking_may_be_disabled():
    assert accepted("tracking", None).tracking is None


@pytest.mark.parametrize("value", [0.0, -0.1, math.nan, math.inf])
@pytest.mark.parametrize("key", ["tracking.tolerance", "latency.budget_s"])
def test_a_tolerance_and_a_budget_are_positive_and_finite(key, value):
    assert refused(key, value).path == f"safety.{key}"


@pytest.mark.parametrize("value", [-1e-9, math.nan, math.inf])
def test_future_tolerance_is_finite_and_not_negative(value):
    assert refused("observation.future_tolerance_s", value).path == "safety.observation.future_tolerance_s"


def test_future_tolerance_may_be_zero():
    assert accepted("observation.future_tolerance_s", 0.0).observation.future_tolerance_s == 0.0


def test_required_sensor_must_be_agent_visible():
    error = refused("observation.required", ["joints", "lidar"])
    assert error.path == "safety.observation.required"
    assert "'lidar'" in str(error)
    hidden = changed("sensors.tcp.visibility", "evaluator", changed("safety.observation.required", ["tcp"]))
    with pytest.raises(ContractError, match="no agent-visible sensor 'tcp'"):
        parse(hidden)


@pytest.mark.parametrize(("misses", "window"), [(0, 10), (11, 10), (-1, 1)])
def test_latency_misses_are_within_the_window(misses, window):
    error = refused("latency", {"misses": misses, "window_steps": window})
    assert error.path == "safety.latency"
    assert "expected 1 <= misses <= window_steps" in str(error)


def test_latency_misses_may_equal_the_window():
    assert accepted("latency", {"misses": 4, "window_steps": 4}).latency.misses == 4


def test_unknown_latency_action_is_rejected():
    assert "safety.latency.action" in str(refused("latency", {"action": "stop"}))


@pytest.mark.parametrize("key", ["warn_share", "stop_share"])
@pytest.mark.parametrize("value", [0.0, -0.5, 1.0000001, math.nan, math.inf])
def test_intervention_share_is_in_range(key, value):
    assert refused(f"intervention.{key}", value).path == f"safety.intervention.{key}"


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
@pytest.mark.parametrize(
    ("section", "key"),
    [
        ("observation", "future_tolerance_s"),
        ("tracking", "tolerance"),
        ("latency", "budget_s"),
        ("intervention", "warn_share"),
        ("intervention", "stop_share"),
    ],
)
def test_contract_built_in_python_is_validated_too(section, key, value):
    contract = parse(document())
    spec = dataclasses.replace(getattr(contract.safety, section), **{key: value})
    with pytest.raises(ContractError) as caught:
        dataclasses.replace(contract, safety=dataclasses.replace(contract.safety, **{section: spec}))
    assert caught.value.path == f"safety.{section}.{key}"


def test_intervention_share_may_be_one_and_stop_share_null():
    assert accepted("intervention.warn_share", 1.0).intervention.warn_share == 1.0
    assert accepted("intervention.stop_share", None).intervention.stop_share is None


FORCE = {"field": "position", "limit": 5.0}


def test_force_limit_is_keyed_by_sensor():
    assert accepted("forces", {"tcp": FORCE}).forces["tcp"].limit == 5.0


@pytest.mark.parametrize(
    ("forces", "path"),
    [
        ({"wrench": FORCE}, "safety.forces.wrench"),
        ({"tcp": {**FORCE, "field": "force"}}, "safety.forces.tcp.field"),
        ({"tcp": {**FORCE, "limit": 0.0}}, "safety.forces.tcp.limit"),
        ({"tcp": {**FORCE, "limit": math.nan}}, "safety.forces.tcp.limit"),
        ({"tcp": {**FORCE, "limit": math.inf}}, "safety.forces.tcp.limit"),
    ],
)
def test_force_limit_is_checked(forces, path):
    assert refused("forces", forces).path == path


def test_unknown_safety_mode_is_rejected():
    assert "safety.mode" in str(refused("mode", "off"))


def test_workspace_filter_name_is_reserved():
    """A plug-in with this name would hide that no workspace is enforced."""
    assert refused("gates", {"workspace": {}}).path == "safety.gates.workspace"


def test_plug_in_parameters_are_kept():
    assert accepted("gates", {"slow": {"share": 0.5, "joints": ["a"]}}).gates["slow"]["share"] == 0.5


def test_unknown_safety_key_is_rejected():
    assert "safety" in str(refused("trackin", {}))


def test_safety_defaults_are_valid_and_read_only():
    safety = parse(changed("safety", {})).safety
    assert safety == Safety()
    with pytest.raises(TypeError):
        safety.gates["slow"] = {}
    with pytest.raises(TypeError):
        safety.forces["tcp"] = FORCE


# --------------------------------------------------------------------------------------------------------------- jerk


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_jerk_must_be_positive_and_finite(value):
    with pytest.raises(ContractError) as caught:
        parse(changed("actuators.arm.joints.a.jerk", value))
    assert caught.value.path == "actuators.arm.joints.a.jerk"


@pytest.mark.parametrize("value", [None, 1.0])
def test_jerk_limit_is_optional(value):
    assert parse(changed("actuators.arm.joints.a.jerk", value)).actuators["arm"].joints["a"].jerk == value
