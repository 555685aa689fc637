"""Relative poses, distances and contacts are computed, and invalid profiles are rejected."""

import dataclasses

import numpy as np
import pytest

from embodied_env.contract import load_contract
from embodied_env.errors import ContractError
from embodied_env.extensions.gazebo.control.simulator_api import EntityState
from embodied_env.extensions.gazebo.derived_sensors import DerivedSensors
from embodied_env.extensions.gazebo.external_sim_profile import SimulatorSource, load_simulator_profile
from embodied_env.timing.clock import VirtualClock

CART, DOOR = load_contract("cart_goal"), load_contract("door_open")
QUARTER = (0.0, 0.0, np.sqrt(0.5), np.sqrt(0.5))  # a left turn


def state(position, orientation=(0.0, 0.0, 0.0, 1.0)) -> EntityState:
    return EntityState(position=np.array(position, dtype=float), orientation=np.array(orientation))


def reading(contract, sensor, source, states, *, contacts=()):
    made = DerivedSensors(contract, {sensor: SimulatorSource(**source)}, VirtualClock())
    return made.complete({}, states, 100_000_000, contacts)[sensor].values


def profile_with(contract, **changes):
    profile = {**contract.backends["gazebo"], **changes}
    return load_simulator_profile(dataclasses.replace(contract, backends={"gazebo": profile}), "gazebo")


def test_a_pose_can_be_relative_to_another_entity():
    """The cart faces north, so a goal in the north is ahead of it and one in the west on its left."""
    states = {"cart": state([1.0, 1.0, 0.0], QUARTER), "goal": state([0.0, 3.0, 0.0])}
    found = reading(CART, "goal", {"entity": "goal", "relative_to": "cart"}, states)
    np.testing.assert_allclose(found["position"], [2.0, 1.0, 0.0], atol=1e-12)


def test_an_orientation_can_be_relative_to_another_entity():
    states = {"a": state([0, 0, 0], QUARTER), "b": state([0, 0, 0], (0.0, 0.0, 1.0, 0.0))}
    found = reading(DOOR, "handle", {"entity": "b", "relative_to": "a"}, states)
    np.testing.assert_allclose(found["orientation"], QUARTER, atol=1e-12)


def test_the_distance_between_two_entities_is_that_of_their_positions():
    states = {"tcp": state([0, 0, 0]), "lever_end": state([3, 4, 0])}
    found = reading(DOOR, "handle_distance", {"distance": ("tcp", "lever_end")}, states)
    np.testing.assert_allclose(found["range"], [5.0])


def test_only_required_entities_are_requested():
    sources = {
        "goal": SimulatorSource(entity="goal", relative_to="cart"),
        "collision": SimulatorSource(force="bumper", above_n=0.5),
    }
    assert DerivedSensors(CART, sources, VirtualClock()).entities(0) == {"goal", "cart"}


def test_a_contact_counts_for_one_reading():
    made = DerivedSensors(CART, {"collision": SimulatorSource(force="bumper", above_n=0.5)}, VirtualClock())
    values = [
        made.complete({}, {}, now_ns, contacts)["collision"].values["data"].item()
        for now_ns, contacts in ((1, ()), (2, ("collision",)), (3, ()))
    ]
    assert values == [0, 1, 0]


@pytest.mark.parametrize("backend", ["gazebo", "simulation_interfaces"])
@pytest.mark.parametrize("name", ["arm_reach", "cart_goal", "door_open"])
def test_shipped_profiles_are_valid(name, backend):
    profile, control = load_simulator_profile(load_contract(name), backend)
    assert profile.world == name
    assert control == ("ros_gz" if backend == "gazebo" else backend)


@pytest.mark.parametrize(
    ("changes", "path", "problem"),
    [
        (
            {"sources": {"scan": {"force": "bumper", "above_n": 1.0}}},
            "sources.scan.force",
            "expected std_msgs/msg/Bool",
        ),
        ({"sources": {"collision": {"force": "bumper"}}}, "sources.collision.above_n", "newtons > 0"),
        ({"sources": {"goal": {"entity": "cart", "above_n": 1.0}}}, "sources.goal.above_n", "expected with force only"),
        (
            {"sources": {"imu": {"entity": "cart"}}},
            "sources.imu.entity",
            "expected fields: position, orientation, covariance",
        ),
        (
            {"sources": {"collision": {"force": "bumper", "above_n": 1.0, "relative_to": "cart"}}},
            "sources.collision.relative_to",
            "expected with entity only",
        ),
        (
            {"states": {"cart": {"topic": "a", "type": "std_msgs/msg/Bool"}}},
            "states.cart.type",
            "nav_msgs/msg/Odometry",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_invalid_source_is_reported_with_the_allowed_values(changes, path, problem):
    with pytest.raises(ContractError) as caught:
        profile_with(CART, **changes)
    assert caught.value.path == f"backends.gazebo.{path}"
    assert problem in caught.value.problem


def test_a_distance_to_an_unknown_entity_is_reported():
    with pytest.raises(ContractError, match=r"sources\.handle_distance\.distance.*missing"):
        profile_with(DOOR, sources={"handle_distance": {"distance": ["tcp", "missing"]}})
