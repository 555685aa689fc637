from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
import scripted_tasks
from scripted_tasks import JOINTS, PERIOD_NS, Scene

from embodied_env import load_contract
from embodied_env.contract import parse_contract
from embodied_env.contract.required_sensors import required_sensors, sort_by_stop
from embodied_env.core.code_types import Quality
from embodied_env.core.measured_joints import MeasuredJoints, MeasuredVelocities
from embodied_env.core.safety_input_state import INPUT_UNKNOWN
from embodied_env.core.types import Sample, Snapshot
from embodied_env.envs.external_inputs import SafetyContextBuilder
from embodied_env.errors import ContractError

NOW_NS = 1_000_000_000


def contract_with(**safety):
    return scripted_tasks.contract(safety={**scripted_tasks.document()["safety"], **safety})


def snapshot(**ages_ns) -> Snapshot:
    """Return a snapshot of all sensors with these ages, with the joints at 0.5 and -0.5."""
    values = {
        "joints": {"position": np.array([0.5, -0.5])},
        "beacon": {"position": np.array([3.0, 4.0, 0.0])},
        "goal": {"position": np.zeros(3)},
        "truth": {"range": np.array(1.0)},
    }
    samples = {
        name: Sample(sensor=name, values=value, stamp_ns=NOW_NS - ages_ns.get(name, 0), arrival_ns=0)
        for name, value in values.items()
    }
    return Snapshot(now_ns=NOW_NS, samples=samples)


def read(contract, of=None, *, joints=JOINTS, since_frozen_ns=0, since_returned_ns=0, estops=None):
    reader = SafetyContextBuilder(contract, MeasuredJoints(contract, joints))
    return reader.build(
        of or snapshot(), since_frozen_ns=since_frozen_ns, since_returned_ns=since_returned_ns, estops=estops or {}
    )


# --------------------------------------------------------------------------------------------------- required sensors


def test_sensors_of_commanded_joints_are_required_by_default():
    assert required_sensors(scripted_tasks.contract()) == ("joints",)
    assert required_sensors(load_contract("arm_reach")) == ("joints",)


def test_only_sensors_named_by_the_contract_are_required():
    assert required_sensors(contract_with(observation={"required": ["beacon", "goal"]})) == ("beacon", "goal")


def test_required_sensors_may_be_empty():
    assert required_sensors(contract_with(observation={"required": []})) == ()


def test_sensor_of_other_joints_is_not_required():
    spare = {**scripted_tasks.document()["sensors"]["joints"], "topic": "spare"}
    spare["fields"] = {"position": {"joints": ["finger"], "unit": "rad", "low": -1.0, "high": 1.0}}
    assert required_sensors(scripted_tasks.contract(sensors__spare=spare)) == ("joints",)


ODOM = {"odom": {"type": "nav_msgs/msg/Odometry", "fields": {"linear": {"unit": "m/s", "low": -9, "high": 9}}}}
POSE = {"fix": {"type": "geometry_msgs/msg/PoseStamped", "fields": {"position": {"unit": "m", "low": -9, "high": 9}}}}
RANGE = {"ahead": {"type": "sensor_msgs/msg/Range", "fields": {"range": {"unit": "m", "low": 0, "high": 9}}}}


def base_contract(*sensors, **safety):
    plain = scripted_tasks.document()
    known = {name: {"topic": name, "max_age_s": 0.5, **spec} for each in sensors for name, spec in each.items()}
    limits = {"linear.x": {"velocity": 1.0, "acceleration": 1.0, "unit": "m"}}
    base = {"topic": "cmd_vel", "type": "geometry_msgs/msg/Twist", "command": "twist", "joints": limits}
    changes = {"sensors": known, "actuators": {"base": base}, "reset_options": {}, "safety": safety}
    return parse_contract(json.dumps(plain | changes))


def with_keys(sensor, **keys):
    return {name: spec | keys for name, spec in sensor.items()}


@pytest.mark.parametrize(
    ("sensors", "expected"),
    [
        ((ODOM, RANGE), {"odom"}),
        ((ODOM, POSE, RANGE), {"odom", "fix"}),
        ((RANGE,), {"ahead"}),
        ((with_keys(ODOM, mask=True), POSE, RANGE), {"fix"}),
        ((with_keys(ODOM, mask=True), RANGE), {"ahead"}),
        ((with_keys(ODOM, visibility="evaluator"), RANGE), {"ahead"}),
        ((with_keys(ODOM, max_age_s=1000.0), RANGE), {"odom", "ahead"}),
    ],
)
def test_a_base_requires_the_sensors_of_its_motion_or_else_all(sensors, expected):
    assert set(required_sensors(base_contract(*sensors))) == expected


def test_a_base_that_no_lost_sensor_stops_must_be_declared():
    blind = with_keys(ODOM, mask=True)
    with pytest.raises(ContractError, match=r"safety\.observation\.required: no sensor that stops the robot"):
        base_contract(blind)
    assert required_sensors(base_contract(blind, observation={"required": []})) == ()


@pytest.mark.parametrize(
    ("sensors", "required", "stops", "goes_on"),
    [
        ((ODOM, RANGE), None, ["odom"], {"ahead"}),
        ((ODOM, with_keys(RANGE, on_gap="stop")), None, ["odom", "ahead"], set()),
        ((with_keys(ODOM, max_age_s=1000.0, on_gap="stop"), RANGE), ["odom"], [], {"odom", "ahead"}),
        ((ODOM,), [], [], {"odom"}),
    ],
)
def test_sensors_are_listed_by_whether_their_loss_stops_the_robot(sensors, required, stops, goes_on):
    found = sort_by_stop(base_contract(*sensors, observation={"required": required}))
    assert (found[0], set(found[1])) == (stops, goes_on)


def test_evaluator_sensor_is_required_only_with_a_limit():
    truth = {**scripted_tasks.document()["sensors"]["joints"], "topic": "true_joints", "visibility": "evaluator"}
    contract = scripted_tasks.contract(sensors__true_joints=truth)
    assert (required_sensors(contract), sort_by_stop(contract)[0]) == (("joints",), ["joints"])
    loads = {"arm": {"sensor": "true_joints", "field": "position", "stop": 9.0}}
    limited = scripted_tasks.contract(sensors__true_joints=truth, safety__loads=loads)
    assert sort_by_stop(limited)[0] == ["joints", "true_joints"]


@pytest.mark.parametrize("required", [None, ["goal"], ["beacon"]])
def test_force_limited_sensor_is_required_exactly_once(required):
    contract = contract_with(observation={"required": required}, forces={"beacon": {"field": "position", "limit": 1.0}})
    found = required_sensors(contract)
    assert found.count("beacon") == 1
    assert set(found) == {"beacon", *(required or ["joints"])}


# ------------------------------------------------------------------------------------------------------------ context


def test_readings_do_not_age_after_the_snapshot_in_lockstep():
    safety_context = read(scripted_tasks.contract(), snapshot(joints=PERIOD_NS))
    assert safety_context.sensors["joints"].age_s == pytest.approx(0.05)
    assert (safety_context.action_age_s, safety_context.latency_s) == (0.0, 0.0)


def test_readings_age_after_the_snapshot_in_real_time():
    safety_context = read(
        scripted_tasks.contract(), snapshot(joints=PERIOD_NS), since_frozen_ns=20_000_000, since_returned_ns=15_000_000
    )
    assert safety_context.sensors["joints"].age_s == pytest.approx(0.07)
    assert safety_context.latency_s == pytest.approx(0.02)
    assert safety_context.action_age_s == pytest.approx(0.015)


def test_context_has_only_required_sensors():
    assert set(read(scripted_tasks.contract()).sensors) == {"joints"}


@pytest.mark.parametrize("quality", list(Quality))
def test_context_has_the_quality_of_the_newest_reading(quality):
    world = snapshot()
    spoilt = dataclasses.replace(world.samples["joints"], quality=quality)
    world = dataclasses.replace(world, samples={**world.samples, "joints": spoilt})
    assert read(scripted_tasks.contract(), world).sensors["joints"].quality is quality


def test_future_reading_has_a_negative_age():
    assert read(scripted_tasks.contract(), snapshot(joints=-1_000_000)).sensors["joints"].age_s == pytest.approx(-0.001)


def test_joints_are_found_by_name():
    assert read(scripted_tasks.contract(), joints=JOINTS[::-1]).measured.tolist() == [-0.5, 0.5]


def test_position_of_an_unmeasured_joint_is_nan():
    measured = read(scripted_tasks.contract(), joints=("shoulder", "wheel")).measured
    assert measured[0] == 0.5
    assert math.isnan(measured[1])


def test_force_is_the_norm_of_its_field():
    safety_context = read(contract_with(forces={"beacon": {"field": "position", "limit": 9.0}}))
    assert safety_context.forces == {"beacon": 5.0}


def test_scalar_field_is_a_force():
    assert read(contract_with(forces={"truth": {"field": "range", "limit": 9.0}})).forces == {"truth": 1.0}


def test_non_finite_field_gives_a_non_finite_force():
    world = snapshot()
    spoilt = dataclasses.replace(world.samples["beacon"], values={"position": np.array([np.nan, 0.0, 0.0])})
    world = dataclasses.replace(world, samples={**world.samples, "beacon": spoilt})
    contract = contract_with(forces={"beacon": {"field": "position", "limit": 9.0}})
    assert math.isnan(read(contract, world).forces["beacon"])


def test_safety_inputs_are_copied_unchanged():
    assert read(scripted_tasks.contract(), estops={"door": INPUT_UNKNOWN}).estops == {"door": INPUT_UNKNOWN}


def test_stepper_uses_the_snapshot_of_the_agent():
    """The joint state after the reset is the commanded one, so that the first step has no tracking error."""
    scene = Scene(contract_with(tracking={"tolerance": 1e-6, "debounce_steps": 1, "delay_steps": 1, "stop_steps": 2}))
    scene.reset()
    assert [scene.step((0.1, -0.1)).report.disposition for _ in range(5)] == [0] * 5
    scene.close()


@pytest.mark.parametrize("speed", [np.inf, -np.inf, np.nan])
def test_a_velocity_that_is_not_finite_is_not_measured_where_the_range_is_infinite(speed):
    twist = {"linear": np.array([speed, 0.0, 0.0]), "angular": np.array([0.0, 0.0, 0.5])}
    _, ages_s = MeasuredVelocities(load_contract("cart_goal")).read(lambda _: (twist, 0.0))
    assert ages_s.tolist() == [np.inf, 0.0]
