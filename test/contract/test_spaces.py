from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from strategies import changed, document, parse

from embodied_env.contract.contract_loader import dump_contract, parse_contract
from embodied_env.contract.spaces import ActionLayout
from embodied_env.errors import ContractError

FIELD = "sensors.joints.fields.position"

INEXACT = [(0.1, 0.7), (-0.3, 0.1), (-2.9, 0.3), (1 / 3, 2 / 3), (-2.8, -1.9), (1.0, 1.3)]
"""Limits whose middle plus or minus half their width is, in floating point, not the limit."""


def two_actuators():
    """Return a contract in which joint b has a separate actuator."""
    joints = document()["actuators"]["arm"]["joints"]
    arm = {**document()["actuators"]["arm"], "joints": {"a": joints["a"]}}
    hand = {**arm, "topic": "hand", "scale": "physical", "joints": {"b": joints["b"]}}
    return parse(changed("actuators", {"arm": arm, "hand": hand}))


def with_position(low, high):
    """Return a contract in which joint a has these limits, without a margin."""
    source = changed("actuators.arm.joints.a.position", [low, high], changed("safety.margins.position", 0))
    return parse(source)


def test_the_observation_is_a_flat_dict_of_boxes_named_sensor_field():
    assert parse(document()).observation_space == spaces.Dict(
        {
            "joints_position": spaces.Box(-4.0, 4.0, (2,), np.float64),
            "tcp_position": spaces.Box(-2.0, 2.0, (3,), np.float64),
            "target_position": spaces.Box(-2.0, 2.0, (3,), np.float64),
        }
    )


@pytest.mark.parametrize(("low", "bounds"), [(-3, [-3.0, -3.0]), ([-3, -2], [-3.0, -2.0])])
def test_one_number_bounds_every_component_and_a_list_each(low, bounds):
    box: Any = parse(changed(f"{FIELD}.low", low)).observation_space["joints_position"]
    assert box.low.tolist() == bounds


def test_an_infinite_bound_is_that_of_the_box_and_survives_json():
    contract = parse(changed(f"{FIELD}.low", [-np.inf, -2]))
    again = parse_contract(dump_contract(contract))
    box: Any = again.observation_space["joints_position"]
    assert box.low.tolist() == [-np.inf, -2.0]
    assert again == contract
    assert again.fingerprint == contract.fingerprint == parse(changed(f"{FIELD}.low", ["-.inf", -2])).fingerprint


def test_optional_keys_are_in_the_observation_only_where_declared():
    source = changed("sensors.tcp.mask", True, changed("episode.kind", "finite_horizon"))
    space = parse(changed("applied_actions", 3, changed("actuators.arm.scale", "physical", source))).observation_space
    assert space["tcp_valid"] == spaces.Box(0, 1, (1,), np.int8)
    assert space["time_remaining"] == spaces.Box(0.0, 1.0, (1,), np.float64)
    assert space["applied_actions"] == spaces.Box(-np.inf, np.inf, (6,), np.float64)
    hidden = parse(changed("sensors.tcp.visibility", "evaluator")).observation_space
    assert sorted(hidden) == ["joints_position", "target_position"]


def test_a_field_has_the_precision_of_its_message():
    field = {"range": {"unit": "m", "low": 0.0, "high": 4.0}}
    sensor = {"topic": "gap", "type": "sensor_msgs/msg/Range", "fields": field, "max_age_s": 0.1}
    assert parse(changed("sensors.gap", sensor)).observation_space["gap_range"].dtype == np.float32


def box_of(type_, name, field, **keys):
    sensor = {"topic": "extra", "type": type_, "fields": {name: field}, "max_age_s": 0.1, **keys}
    return parse(changed("sensors.extra", sensor)).observation_space[f"extra_{name}"]


@pytest.mark.parametrize(
    ("encoding", "channels", "unit", "high", "dtype"),
    [
        *(("rgb8", 3, "1", 255, np.uint8), ("bgra8", 4, "1", 255, np.uint8), ("mono8", 1, "1", 255, np.uint8)),
        *(("32FC1", 1, "m", 20, np.float32), ("16UC1", 1, "m", 20, np.float32)),
    ],
)
def test_an_image_has_rows_columns_and_channels_or_metres(encoding, channels, unit, high, dtype):
    field = {"unit": unit, "low": 0, "high": high, "shape": [4, 6, channels]}
    assert box_of("sensor_msgs/msg/Image", "image", field, encoding=encoding) == spaces.Box(
        0, high, (4, 6, channels), dtype
    )


def test_a_list_bounds_each_component_of_a_shaped_field_by_rows():
    low = [-1, -2, -3, -4, -5, -6]
    field = {"unit": "m", "low": low, "high": 10, "shape": [2, 3]}
    box = box_of("sensor_msgs/msg/PointCloud2", "points", field)
    assert box.low.tolist() == [[-1, -2, -3], [-4, -5, -6]]
    assert (box.high == 10).all()


def test_a_field_with_a_path_has_the_declared_shape_and_precision():
    field = {"unit": "1", "low": -5, "high": [4, 5], "path": "points[0].counts", "shape": [2], "dtype": "int32"}
    box = box_of("my_msgs/msg/Thing", "counts", field)
    assert (box.dtype, box.low.tolist(), box.high.tolist()) == (np.int32, [-5, -5], [4, 5])
    field = {"unit": "1", "low": 0, "high": 1, "path": "level"}
    assert box_of("my_msgs/msg/Thing", "level", field) == spaces.Box(0.0, 1.0, (1,), np.float64)


def driven(scale):
    """Return a contract of a base only, with two axes."""
    limits = {"position": None, "acceleration": 1.0}
    axes = {"linear.x": {**limits, "velocity": 0.8, "unit": "m"}, "angular.z": {**limits, "velocity": 1.5}}
    base = {"topic": "cmd_vel", "type": "geometry_msgs/msg/Twist", "command": "twist", "scale": scale, "joints": axes}
    return parse(changed("actuators", {"base": base}))


def test_a_twist_of_one_is_the_velocity_limit_after_margins_and_a_physical_one_has_it():
    contract = driven("normalized")
    assert contract.action_space == spaces.Box(-1.0, 1.0, (2,), np.float64)
    scale = ActionLayout(contract).scale
    assert scale.to_si(np.array([1.0, -1.0])).tolist() == [0.8 * 0.95, -1.5 * 0.95]
    assert scale.to_si(np.zeros(2)).tolist() == [0.0, 0.0]
    space = driven("physical").action_space
    assert space.high.tolist() == (-space.low).tolist() == [0.8 * 0.95, 1.5 * 0.95]


@pytest.mark.parametrize(
    ("command", "is_velocity", "is_delta"),
    [("position", False, False), ("position_delta", False, True), ("velocity", True, False)],
)
def test_velocities_and_deltas_are_marked_per_joint(command, is_velocity, is_delta):
    layout = ActionLayout(parse(changed("actuators.arm.command", command)))
    assert (layout.is_velocity.tolist(), layout.is_delta.tolist()) == ([is_velocity] * 2, [is_delta] * 2)


def test_a_velocity_joint_is_scaled_by_its_velocity_and_keeps_its_position_limits():
    layout = ActionLayout(parse(changed("actuators.arm.command", "velocity")))
    assert layout.scale.to_si(np.ones(2)).tolist() == [3.0 * 0.95] * 2
    assert layout.limits.position_high.tolist() == [2.0 - 0.02] * 2


def test_one_actuator_has_one_box_and_two_have_a_dict_by_name_with_the_limits_after_margins():
    assert parse(document()).action_space == spaces.Box(-1.0, 1.0, (2,), np.float64)
    assert two_actuators().action_space == spaces.Dict(
        {"arm": spaces.Box(-1.0, 1.0, (1,), np.float64), "hand": spaces.Box(-1.0 + 0.02, 2.0 - 0.02, (1,), np.float64)}
    )


def test_a_delta_is_bounded_by_one_period_at_full_velocity():
    source = changed("actuators.arm.command", "position_delta")
    highest = parse(changed("actuators.arm.scale", "physical", source)).action_space.high[0]
    assert highest == pytest.approx(3.0 * 0.95 * 0.05, rel=1e-15)
    scale = ActionLayout(parse(source)).scale
    assert scale.to_si(np.ones(2))[0] == highest
    assert scale.to_si(np.zeros(2))[0] == 0.0


def by_direction(command, velocity, scale="normalized"):
    source = changed("actuators.arm.command", command, changed("actuators.arm.joints.a.velocity", velocity))
    contract = parse(changed("actuators.arm.scale", scale, changed("safety.margins.velocity", 1.0, source)))
    return ActionLayout(contract).scale, contract.action_space


@pytest.mark.parametrize(("command", "time_s"), [("position_delta", 0.05), ("velocity", 1.0)])
def test_a_normalised_velocity_is_linear_on_both_sides_of_rest(command, time_s):
    scale, space = by_direction(command, [-0.2, 3.0])
    assert (space.low[0], space.high[0]) == (-1.0, 1.0)
    for action, velocity in ((-1.0, -0.2), (-0.5, -0.1), (0.0, 0.0), (0.5, 1.5), (1.0, 3.0)):
        si = scale.to_si(np.full(2, action))
        assert si[0] == pytest.approx(velocity * time_s, rel=1e-15)
        assert scale.from_si(si)[0] == action
    assert by_direction(command, [-0.2, 3.0], "physical")[1].low[0] == -0.2 * time_s


@pytest.mark.parametrize(("velocity", "low", "high"), [([0, 3.0], 0.0, 1.0), ([-3.0, 0], -1.0, 0.0)])
def test_the_space_of_a_joint_that_moves_in_one_direction_ends_at_rest(velocity, low, high):
    scale, space = by_direction("velocity", velocity)
    assert (space.low[0], space.high[0]) == (low, high)
    for action in (low, (low + high) / 2, high):
        assert scale.to_si(np.full(2, action))[0] == 3.0 * action
        assert scale.from_si(scale.to_si(np.full(2, action)))[0] == action
    assert scale.to_si(np.full(2, -1.0))[0] == -3.0  # beyond the space: linear, as in mode `monitor`
    assert scale.from_si(np.full(2, -3.0))[0] == -1.0


@pytest.mark.parametrize(("low", "high"), INEXACT)
def test_normalised_action_bound_is_exactly_the_limit_and_actions_inside_stay_inside(low, high):
    scale = ActionLayout(with_position(low, high)).scale
    assert (scale.to_si(-np.ones(2))[0], scale.to_si(np.ones(2))[0]) == (low, high)
    assert (scale.from_si(scale.si_low)[0], scale.from_si(scale.si_high)[0]) == (-1.0, 1.0)
    edge = np.full(2, np.nextafter(1.0, 0.0))
    assert low <= scale.to_si(-edge)[0]
    assert scale.to_si(edge)[0] <= high


def test_action_beyond_its_bounds_is_mapped_linearly_into_a_new_array():
    scale, action = ActionLayout(with_position(-1.0, 2.0)).scale, np.full(2, 2.0)
    assert scale.to_si(action)[0] == 3.5
    assert scale.from_si(np.full(2, 3.5))[0] == action[0] == 2.0


def test_the_layout_joins_the_actuators_in_the_order_of_the_contract():
    layout = ActionLayout(two_actuators())
    assert layout.joints == ("a", "b")
    assert layout.slices == {"arm": slice(0, 1), "hand": slice(1, 2)}
    assert layout.scale.low.tolist() == [-1.0, -1.0 + 0.02]


def test_as_action_returns_a_copy_with_the_structure_of_the_space():
    vector = np.array([0.1, 0.2])
    one, two = ActionLayout(parse(document())), ActionLayout(two_actuators())
    action = one.as_action(vector)
    action[0] = 9.0
    two.as_action(vector)["arm"][0] = 9.0
    assert vector.tolist() == [0.1, 0.2]
    assert {name: part.tolist() for name, part in two.as_action(vector).items()} == {"arm": [0.1], "hand": [0.2]}


@pytest.mark.parametrize("scale", ["normalized", "physical"])
@pytest.mark.parametrize("velocity", [0.1, 1.0, 3.1])
def test_bounds_of_a_float32_action_space_are_within_the_limits(scale, velocity):
    source = changed("actuators.arm.scale", scale)
    for limits in source["actuators"]["arm"]["joints"].values():
        limits["velocity"] = velocity
    layout = ActionLayout(parse({**source, "action": {"dtype": "float32"}}))
    space = parse({**source, "action": {"dtype": "float32"}}).action_space
    assert space.dtype == np.float32
    assert (space.low.astype(np.float64) >= layout.scale.low).all()
    assert (space.high.astype(np.float64) <= layout.scale.high).all()
    np.testing.assert_allclose(space.high, layout.scale.high, rtol=1e-6)


@pytest.mark.parametrize("position", [[16777216.1, 16777216.9], [1.0, 1.00000001]])
def test_limits_without_two_float32_values_are_rejected(position):
    source = changed("action", {"dtype": "float32"}, changed("safety.margins.position", 0.0))
    source["actuators"]["arm"]["scale"] = "physical"
    source["sensors"]["joints"]["fields"]["position"] |= {"unit": "m", "low": -4e8, "high": 4e8}
    for limits in source["actuators"]["arm"]["joints"].values():
        limits |= {"unit": "m", "position": position}
    with pytest.raises(ContractError) as caught:
        parse(source)
    assert caught.value.path == "action.dtype"


def test_a_vector_becomes_the_nearest_element_of_the_space():
    contract = parse({**changed("actuators.arm.scale", "physical"), "action": {"dtype": "float32"}})
    layout = ActionLayout(contract)
    for vector in (layout.scale.low, layout.scale.high, 2 * layout.scale.high, 0.3 * layout.scale.high):
        assert layout.to_space(vector) in contract.action_space
