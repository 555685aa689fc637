"""Each violation in ``safety`` names its path, the value and the expected values."""

from __future__ import annotations

import pytest
from strategies import changed, parse

from embodied_env.contract.safety_schema import Safety
from embodied_env.errors import ContractError


def refused(path, value):
    with pytest.raises(ContractError) as caught:
        parse(changed(f"safety.{path}", value))
    return caught.value


def accepted(path, value):
    return parse(changed(f"safety.{path}", value)).safety


@pytest.mark.parametrize(("hold", "stop"), [(5, 5), (6, 5)])
def test_watchdog_steps_are_ordered(hold, stop):
    error = refused("watchdog", {"hold_steps": hold, "stop_steps": stop})
    assert error.path == "safety.watchdog"
    assert "expected hold_steps < stop_steps" in str(error)


@pytest.mark.parametrize(("debounce", "stop"), [(5, 5), (6, 5)])
def test_tracking_steps_are_ordered(debounce, stop):
    error = refused("tracking", {"debounce_steps": debounce, "stop_steps": stop})
    assert error.path == "safety.tracking"
    assert "expected debounce_steps < stop_steps" in str(error)


def test_required_sensor_must_be_agent_visible():
    error = refused("observation.required", ["joints", "lidar"])
    assert error.path == "safety.observation.required"
    assert "'lidar'" in str(error)
    hidden = changed("sensors.tcp.visibility", "evaluator", changed("safety.observation.required", ["tcp"]))
    with pytest.raises(ContractError, match="no agent-visible sensor 'tcp'"):
        parse(hidden)


@pytest.mark.parametrize(("misses", "window"), [(11, 10)])
def test_latency_misses_are_within_the_window(misses, window):
    error = refused("latency", {"misses": misses, "window_steps": window})
    assert error.path == "safety.latency"
    assert "expected misses <= window_steps" in str(error)


FORCE = {"field": "position", "limit": 5.0}


def test_force_limit_is_keyed_by_sensor():
    assert accepted("forces", {"tcp": FORCE}).forces["tcp"].limit == 5.0


@pytest.mark.parametrize(
    ("forces", "path"),
    [
        ({"wrench": FORCE}, "safety.forces.wrench"),
        ({"tcp": {**FORCE, "field": "force"}}, "safety.forces.tcp.field"),
    ],
)
def test_force_limit_is_checked(forces, path):
    assert refused("forces", forces).path == path


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
