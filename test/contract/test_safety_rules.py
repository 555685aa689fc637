"""The rules of ``safety``: each value that is wrong is named with its place, its value and what is allowed."""

from __future__ import annotations

import dataclasses
import math

import pytest
from strategies import changed, document, parse

from embodied_env.contract.schema import Safety, Tracking
from embodied_env.errors import ContractError

COUNTS = (
    "nonfinite.stop_after",
    "observation.stop_steps",
    "action.max_age_steps",
    "intervention.window_steps",
)


def refused(path, value):
    with pytest.raises(ContractError) as caught:
        parse(changed(f"safety.{path}", value))
    return caught.value


def accepted(path, value):
    return parse(changed(f"safety.{path}", value)).safety


@pytest.mark.parametrize("key", COUNTS)
@pytest.mark.parametrize("value", [0, -1])
def test_a_count_below_one_is_refused(key, value):
    error = refused(key, value)
    assert error.path == f"safety.{key}"
    assert f"{value} is not allowed; allowed: 1 or more" in str(error)


@pytest.mark.parametrize("key", COUNTS)
def test_a_count_of_one_is_accepted(key):
    section, name = key.split(".")
    assert getattr(getattr(accepted(key, 1), section), name) == 1


@pytest.mark.parametrize("key", [*COUNTS, "tracking.debounce_steps", "latency.misses", "watchdog.hold_steps"])
@pytest.mark.parametrize("value", [1.5, "3", True, None])
def test_a_count_that_is_no_integer_is_refused(key, value):
    assert f"safety.{key.split('.')[0]}" in str(refused(key, value))


@pytest.mark.parametrize(("hold", "stop"), [(0, 5), (5, 5), (6, 5), (-1, 1)])
def test_a_watchdog_holds_after_one_step_or_more_and_stops_later(hold, stop):
    error = refused("watchdog", {"hold_steps": hold, "stop_steps": stop})
    assert error.path == "safety.watchdog"
    assert "allowed: 1 <= hold_steps < stop_steps" in str(error)


@pytest.mark.parametrize(("debounce", "stop"), [(0, 5), (5, 5), (6, 5), (-1, 1)])
def test_tracking_holds_after_one_step_or_more_and_stops_later(debounce, stop):
    error = refused("tracking", {"debounce_steps": debounce, "stop_steps": stop})
    assert error.path == "safety.tracking"
    assert "allowed: 1 <= debounce_steps < stop_steps" in str(error)


def test_tracking_may_have_no_delay_and_no_negative_one():
    assert accepted("tracking", {"delay_steps": 0}).tracking == Tracking(delay_steps=0)
    assert "safety.tracking.delay_steps: -1 is not allowed; allowed: 0 or more steps" in str(
        refused("tracking", {"delay_steps": -1})
    )


def test_tracking_may_be_switched_off():
    assert accepted("tracking", None).tracking is None


@pytest.mark.parametrize("value", [0.0, -0.1, math.nan, math.inf])
@pytest.mark.parametrize("key", ["tracking.tolerance", "latency.budget_s"])
def test_a_tolerance_and_a_budget_are_positive_and_finite(key, value):
    assert refused(key, value).path == f"safety.{key}"


@pytest.mark.parametrize("value", [-1e-9, math.nan, math.inf])
def test_a_tolerance_of_the_future_is_a_finite_time(value):
    assert refused("observation.future_tolerance_s", value).path == "safety.observation.future_tolerance_s"


def test_a_tolerance_of_the_future_may_be_nothing():
    assert accepted("observation.future_tolerance_s", 0.0).observation.future_tolerance_s == 0.0


def test_a_required_sensor_must_be_one_of_the_agents():
    error = refused("observation.required", ["joints", "lidar"])
    assert error.path == "safety.observation.required"
    assert "'lidar'" in str(error)
    hidden = changed("sensors.tcp.visibility", "evaluator", changed("safety.observation.required", ["tcp"]))
    with pytest.raises(ContractError, match="no such sensor of the agent"):
        parse(hidden)


@pytest.mark.parametrize(("misses", "window"), [(0, 10), (11, 10), (-1, 1)])
def test_the_misses_of_a_window_are_at_least_one_and_at_most_all(misses, window):
    error = refused("latency", {"misses": misses, "window_steps": window})
    assert error.path == "safety.latency"
    assert "allowed: 1 <= misses <= window_steps" in str(error)


def test_all_steps_of_a_window_may_have_to_miss():
    assert accepted("latency", {"misses": 4, "window_steps": 4}).latency.misses == 4


def test_an_action_of_the_budget_that_nobody_knows_is_refused():
    assert "safety.latency.action" in str(refused("latency", {"action": "stop"}))


@pytest.mark.parametrize("key", ["warn_share", "stop_share"])
@pytest.mark.parametrize("value", [0.0, -0.5, 1.0000001, math.nan, math.inf])
def test_a_share_of_interventions_is_more_than_nothing_and_at_most_everything(key, value):
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
def test_a_contract_made_in_code_keeps_the_same_rules(section, key, value):
    contract = parse(document())
    spec = dataclasses.replace(getattr(contract.safety, section), **{key: value})
    with pytest.raises(ContractError) as caught:
        dataclasses.replace(contract, safety=dataclasses.replace(contract.safety, **{section: spec}))
    assert caught.value.path == f"safety.{section}.{key}"


def test_a_share_of_interventions_may_be_everything_and_stopping_may_be_off():
    assert accepted("intervention.warn_share", 1.0).intervention.warn_share == 1.0
    assert accepted("intervention.stop_share", None).intervention.stop_share is None


FORCE = {"field": "position", "limit": 5.0}


def test_a_force_is_limited_by_the_name_of_its_sensor():
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
def test_a_limit_of_force_names_a_sensor_a_field_and_a_positive_number(forces, path):
    assert refused("forces", forces).path == path


def test_a_mode_that_nobody_knows_is_refused():
    assert "safety.mode" in str(refused("mode", "off"))


def test_the_name_of_the_workspace_gate_is_taken():
    """A plug-in of that name would promise a workspace that nobody keeps."""
    assert refused("gates", {"workspace": {}}).path == "safety.gates.workspace"


def test_the_parameters_of_a_plug_in_are_kept_as_they_are():
    assert accepted("gates", {"slow": {"share": 0.5, "joints": ["a"]}}).gates["slow"]["share"] == 0.5


def test_a_key_that_nobody_knows_is_refused():
    assert "safety" in str(refused("trackin", {}))


def test_every_default_is_allowed_and_cannot_be_written():
    safety = parse(changed("safety", {})).safety
    assert safety == Safety()
    with pytest.raises(TypeError):
        safety.gates["slow"] = {}
    with pytest.raises(TypeError):
        safety.forces["tcp"] = FORCE


# --------------------------------------------------------------------------------------------------------------- jerk


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_jerk_is_positive_and_finite(value):
    with pytest.raises(ContractError) as caught:
        parse(changed("actuators.arm.joints.a.jerk", value))
    assert caught.value.path == "actuators.arm.joints.a.jerk"


@pytest.mark.parametrize("value", [None, 1.0])
def test_a_jerk_may_be_limited_or_not(value):
    assert parse(changed("actuators.arm.joints.a.jerk", value)).actuators["arm"].joints["a"].jerk == value
