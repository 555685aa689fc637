"""Each value of a key that is out of bounds is refused with its path, the value and the expected values."""

from __future__ import annotations

import dataclasses
import math

import pytest
from strategies import changed, document, parse

from embodied_env.errors import ContractError

BOX = {"low_m": [0, 0, 0], "high_m": [1, 1, 1]}
FORCE = {"tcp": {"field": "position", "limit": 5.0}}

JOINT = "actuators.arm.joints.a"
TARGET = "reset_options.target"
PATH = "sensors.any.fields.x"
ANY = {"topic": "any", "type": "geometry_msgs/msg/Pose", "timeline": "receive", "max_age_s": 0.1}
ANY["fields"] = {"x": {"path": "x", "unit": "1", "low": 0, "high": 1}}
NORMAL = {"type": "scalar", "distribution": "normal", "low": 0.0, "high": 1.0, "mean": 0.5, "std": 0.1}
CHOICE = {"type": "vector", "distribution": "choice", "values": [[1.0, 2.0], [3.0, 4.0]]}

HAND = {"topic": "hand", "type": "std_msgs/msg/Float64", "command": "position", "scale": "binary"}
HAND |= {"joints": {"finger": {"position": [0.0, 1.0], "velocity": 1.0, "acceleration": 1.0}}}
HAND |= {"gripper": {"open": 1.0, "closed": 0.0}}

BAD: dict = {  # path: bad values, and a part of the expectation
    "name": (["Arm", "1arm", "", 3], ""),
    "version": ([0, 1.5, True], ""),
    "control_period_s": ([0, -0.1, 1e-7, 1001.0, math.nan], ""),
    "episode.horizon_steps": ([0], "at least 1"),
    "applied_actions": ([-1, 1001, 1.0], ""),
    "policy.max_missed": ([0], "at least 1"),
    "sensors": ([{}], "at least 1 value"),
    "sensors.Tcp": ([ANY], "lower-case letters"),
    "sensors.tcp.topic": (["tcp pose", "~pose", "/", ""], "a ROS 2 name"),
    "sensors.tcp.max_age_s": ([0], "at least 1e-09"),
    "sensors.tcp.rate_hz": ([-1, 1e-300, math.inf], ""),
    "sensors.tcp.confidence_radius_m": ([0], "at least 1e-09"),
    "sensors.tcp.fields": ([{}], "at least 1 value"),
    "sensors.tcp.fields.position.history": ([0, 1001], "at "),
    "sensors.tcp.qos": (["sensordata", 5, {"history": "keep_all"}], ""),
    "sensors.tcp.qos.depth": ([0, 100_000, 1.5, True, "5"], ""),
    "sensors.tcp.qos.reliability": (["sometimes"], "'reliable' or 'best_effort'"),
    "actuators.arm.qos.durability": (["latched"], "'volatile' or 'transient_local'"),
    "sensors.joints.fields.position.joints": ([["a", "\n"], ["a", ""]], "without control characters"),
    f"{PATH}.path": (["", "Pose.x", "pose..x", ".x", "x.", "x[]", "x[-1]", "x[0][1]", "x y", "x[٣]"], "a field path"),
    f"{PATH}.shape": ([[2, 0]], "at least 1"),
    f"{PATH}.points.count": ([0], "at least 1"),
    "sensors.any.fields.X": ([ANY["fields"]["x"]], "lower-case letters"),
    "actuators": ([{}], "at least 1 value"),
    "actuators.Arm": ([document()["actuators"]["arm"]], "lower-case letters"),
    "actuators.arm.topic": (["/"], "a ROS 2 name"),
    "actuators.arm.joints": ([{}], "at least 1 value"),
    f"{JOINT}.position": ([[1, -1], [1, 1], [0, math.inf]], ""),
    f"{JOINT}.velocity": (
        [0, "fast", [0, 0], [1, -1], [0.1, 1], [-1, -0.1], [-1e300, 1], [-1e-300, 1], [-1, 0, 1], [-math.inf, 1]],
        "",
    ),
    f"{JOINT}.acceleration": ([-1, 0, math.inf], ""),
    f"{JOINT}.deceleration": ([0], "at least 1e-09"),
    f"{JOINT}.driver.scale": ([0, -1.0, math.nan, math.inf], ""),
    f"{JOINT}.driver.sign": ([0, 2], "1 or -1"),
    f"{JOINT}.driver.offset": ([math.nan, math.inf, 1e300], ""),
    f"{JOINT}.jerk": ([0.0, -1.0, math.nan, math.inf], ""),
    "actuators.arm.setpoint_rate_hz": ([0, 1001], ""),
    "actuators.arm.trajectory_steps": ([-1, 51], "at "),
    "actuators.hand.gripper.threshold": ([-1.0, 1.0], ""),
    "actuators.hand.gripper.mimic.thumb": ([0, math.nan, math.inf, "x"], ""),
    "actuators.hand.gripper.hysteresis": ([-0.1, 1.0], ""),
    "actuators.hand.gripper.max_effort": ([0.0], "at least 1e-09"),
    "actuators.hand.gripper.max_silent_s": ([0.0], "at least 1e-09"),
    f"{TARGET}.high": ([[0.5, 1e300, 0.5]], "at most 1e+12"),
    TARGET: ([{**NORMAL, "std": 0}, *({**CHOICE, "values": values} for values in ([], [[]], [[1e300]]))], ""),
    "reset_options.Target": ([NORMAL], "lower-case letters"),
    "task.type": (["own.reach", "a b", ""], "the name of a task"),
    "task.instruction": (["", "x" * 1001], "character"),
    "safety.margins.position": ([-0.1, math.nan, math.inf, "x"], ""),
    "safety.margins.velocity": ([0, 1.1, math.nan], ""),
    "safety.margins.acceleration": ([0, 1.1], "at "),
    "safety.margins.joints.a.position": ([-0.1], "at least 0"),
    "safety.nonfinite.stop_after": ([0, -1, 1.5, "3", True, None], ""),
    "safety.watchdog.hold_steps": ([0, -1, 1.5, True], ""),
    "safety.watchdog.stop_steps": ([0], "at least 1"),
    "safety.observation.stop_steps": ([0, 1.5, None], ""),
    "safety.observation.future_tolerance_s": ([-1e-9, math.nan, math.inf], ""),
    "safety.action.max_age_steps": ([0, 1.5], ""),
    "safety.tracking.tolerance": ([0.0, -0.1, math.nan, math.inf, 1e300], ""),
    "safety.tracking.actuators.arm": ([0.0], "at least 1e-09"),
    "safety.tracking.delay_steps": ([-1], "at least 0"),
    "safety.tracking.debounce_steps": ([0, "3"], ""),
    "safety.tracking.stop_steps": ([0], "at least 1"),
    "safety.latency.budget_s": ([0.0, -0.1, math.nan, math.inf], ""),
    "safety.latency.misses": ([0, 1.5], ""),
    "safety.latency.action": (["stop"], "'warn' or 'hold'"),
    "safety.intervention.window_steps": ([0], "at least 1"),
    "safety.intervention.warn_share": ([0.0, -0.5, 1.0000001, math.nan], ""),
    "safety.intervention.stop_share": ([0.0, 1.1, math.inf], ""),
    "safety.forces.tcp.limit": ([0.0, math.nan, math.inf], ""),
    "safety.mode": (["off"], "'enforce' or 'monitor'"),
    "safety.workspace.margin_m": ([-0.1], "at least 0"),
    "safety.workspace.gamma": ([0, 1.1], ""),
    "safety.workspace.keep_in.Floor": ([BOX], "lower-case letters"),
    "safety.workspace.ignore_pairs": ([[["base", "base"]]], "two different links"),
    "safety.workspace.keep_in.box.low_m": ([[0, 0, math.inf]], "a finite number"),
    "safety.workspace.keep_out.ball": ([{"sphere": {"center_m": [0, 0, math.nan], "radius_m": 1}}], "a finite number"),
    "safety.workspace.keep_out.ball.sphere.radius_m": ([0, -1], "at least 1e-09"),
}


def contract_with(path, value):
    """Return a document with every optional part, and `value` at `path`."""
    source = changed("sensors.any", ANY, changed("safety.forces", FORCE))
    workspace = {"keep_in": {"box": BOX}, "keep_out": {"ball": {"sphere": {"center_m": [5, 0, 0], "radius_m": 1}}}}
    if "hand" in path:
        source = changed("actuators.hand", HAND, source)
    return changed(path, value, changed("safety.workspace", workspace, source))


@pytest.mark.parametrize("part", dict.fromkeys(path.partition(".")[0] for path in BAD))
def test_a_value_out_of_bounds_is_refused(part):
    for path, (values, expected) in BAD.items():
        for value in values if path.partition(".")[0] == part else ():
            with pytest.raises(ContractError) as caught:
                parse(contract_with(path, value))
            assert caught.value.path.startswith(path), value
            assert expected in caught.value.problem.partition("expected ")[2], value


BOUNDARIES = {
    "safety.margins.position": 0.0,
    "safety.nonfinite.stop_after": 1,
    "safety.observation.future_tolerance_s": 0.0,
    "safety.tracking": None,
    "safety.tracking.delay_steps": 0,
    "safety.latency": {"misses": 4, "window_steps": 4},
    "safety.intervention.warn_share": 1.0,
    "safety.intervention.stop_share": None,
    "safety.workspace.gamma": 1.0,
}


def test_a_value_at_its_bound_is_accepted():
    for path, value in BOUNDARIES.items():
        parse(contract_with(path, value))


def test_values_set_in_python_are_validated_too():
    contract = parse(document())
    safety = dataclasses.replace(
        contract.safety, nonfinite=dataclasses.replace(contract.safety.nonfinite, stop_after=0)
    )
    with pytest.raises(ContractError) as caught:
        dataclasses.replace(contract, safety=safety)
    assert (caught.value.path, caught.value.source) == ("safety.nonfinite.stop_after", "<text>")
