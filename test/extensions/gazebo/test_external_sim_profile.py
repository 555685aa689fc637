"""Each error of a profile names its path, the value and the allowed values."""

import dataclasses

import numpy as np
import pytest

import embodied_env
from embodied_env.core.types import ResetRequest
from embodied_env.errors import ContractError
from embodied_env.extensions.gazebo.external_sim_profile import load_simulator_profile, sample_poses
from embodied_env.ros.wire.step_arrivals import DueReading

ARM = embodied_env.load_contract("arm_reach")
CART = embodied_env.load_contract("cart_goal")
HOME = {"j1": 0.0, "j2": -1.0, "j3": 1.0, "j4": 0.0, "j5": 0.0, "j6": 0.0}
GOOD = {"world": "toy", "step_s": 0.001, "home": HOME}


def loaded(contract=ARM, backend="gazebo", **profile):
    data = {**GOOD, **profile} if contract is ARM else {"world": "toy", "step_s": 0.001, **profile}
    return load_simulator_profile(dataclasses.replace(contract, backends={backend: data}), backend)


def test_omitted_keys_have_their_defaults():
    profile, control = loaded()
    assert (control, profile.reset, profile.settle_steps, profile.command_settle_s) == ("ros_gz", "soft", 5, 0.0)
    assert (profile.step_ns, profile.prefix, dict(profile.echo)) == (1_000_000, None, {})


def test_a_missing_profile_lists_the_existing_ones():
    with pytest.raises(
        ContractError, match=r"no profile .*'gazebo' .expected one of: fake, mujoco, mujoco_ros, real, simul"
    ):
        load_simulator_profile(
            dataclasses.replace(ARM, backends={k: v for k, v in ARM.backends.items() if k != "gazebo"}), "gazebo"
        )


@pytest.mark.parametrize(
    ("key", "value", "path", "problem"),
    [
        ("step", 0.001, "step", "unknown key"),
        ("step_s", 0.003, "step_s", "0.003"),
        ("step_s", 0.0, "step_s", "0.0"),
        ("command_settle_s", 20.0, "command_settle_s", "below step_timeout_s 20.0"),
        ("home", {}, "home.j1", "missing"),
        ("home", {**HOME, "j7": 0.0}, "home.j7", "no such joint"),
        ("home", {**HOME, "j1": 9.0}, "home.j1", "9.0 (expected"),
        ("joint_zeros", {"j7": 1.0}, "joint_zeros.j7", "no such joint"),
        ("echo", {"leg": "echo"}, "echo.leg", "'leg' (expected one of: arm"),
        ("echo", {"arm": "a b"}, "echo.arm", "expected a ROS 2 name"),
        ("entities", {"cart": {"position": [0, 0, 0], "orientation": [0, 0, 0, 2]}}, "entities.cart.orientation", "1"),
        ("draws", {"goal": {"entity": "goal"}}, "draws.goal", "no such reset option: 'goal'"),
        ("draws", {"target": {}}, "draws.target", "none given (expected one of: entity, pose)"),
        ("draws", {"target": {"entity": "a", "pose": "b"}}, "draws.target", "entity and pose given"),
        ("sources", {"nose": {"entity": "nose"}}, "sources.nose", "no such sensor"),
        ("sources", {"tcp": {}}, "sources.tcp", "none given (expected one of: entity, distance, force)"),
        ("sources", {"joints": {"entity": "arm"}}, "sources.joints.entity", "velocity (expected fields: position"),
        ("sources", {"tcp": {"distance": ["tcp", "target"]}}, "sources.tcp.distance", "expected range only"),
        (
            "sources",
            {"true_distance": {"distance": ["tcp", "joint"]}},
            "sources.true_distance.distance",
            "did you mean 'joints'",
        ),
    ],
)
def test_invalid_keys_are_reported_by_path(key, value, path, problem):
    with pytest.raises(ContractError) as caught:
        loaded(**{key: value})
    assert caught.value.path == f"backends.gazebo.{path}"
    assert problem in str(caught.value)


def test_a_world_reset_and_a_cart_need_no_home():
    assert not loaded(reset="world", home={})[0].home
    assert not loaded(CART)[0].home


def test_a_place_on_the_floor_needs_a_height():
    with pytest.raises(
        ContractError, match=r"'goal': \(2,\) \(expected \(3,\), or \(2,\) with a height in entities\.flag\)"
    ):
        loaded(CART, draws={"goal": {"entity": "flag"}})
    loaded(CART, draws={"goal": {"entity": "flag"}}, entities={"flag": {"position": [0.0, 0.0, 0.4]}})


def test_equal_seeds_draw_equal_places_and_an_option_changes_no_other():
    profile, _ = loaded(
        CART,
        draws={"goal": {"entity": "flag"}, "start": {"pose": "cart"}},
        entities={"flag": {"position": [0.0, 0.0, 0.4]}, "cart": {"position": [0.0, 0.0, 0.1]}},
    )
    (first, sampled), (again, _) = (sample_poses(CART, profile, ResetRequest(epoch=i, seed=5)) for i in range(2))
    set_goal, _ = sample_poses(CART, profile, ResetRequest(epoch=3, seed=5, options={"goal": np.array([3.7, 1.0])}))
    other, _ = sample_poses(CART, profile, ResetRequest(epoch=3, seed=6))
    assert first == again != other
    assert set(sampled) == {"goal", "start"}
    assert set_goal["flag"].position == (3.7, 1.0, 0.4)
    assert set_goal["cart"] == first["cart"]
    assert first["cart"].position[2] == 0.1


def test_a_heading_turns_about_the_vertical():
    profile, _ = loaded(CART, draws={"start": {"pose": "cart"}})
    options = {"start": np.array([-3.5, 1.0, np.pi / 2])}
    place = sample_poses(CART, profile, ResetRequest(epoch=0, seed=5, options=options))[0]["cart"]
    np.testing.assert_allclose(place.orientation, [0.0, 0.0, np.sqrt(0.5), np.sqrt(0.5)])
    assert place.position == (-3.5, 1.0, 0.0)


@pytest.mark.parametrize(
    ("stamp_ns", "now_ns", "satisfies"), [(100, 100, True), (99, 100, False), (120, 100, True), (-1, 100, False)]
)
def test_a_sensor_without_a_rate_is_due_at_the_end_of_the_step(stamp_ns, now_ns, satisfies):
    due = DueReading.of(ARM.sensors["joints"], 1_000_000)
    assert due.satisfies(stamp_ns, now_ns) is satisfies


def test_a_sensor_with_a_rate_is_due_one_period_and_a_physics_step_after_its_last_reading():
    due = DueReading(period_ns=100, slack_ns=5)
    assert due.satisfies(1000, 1104)
    assert not due.satisfies(1000, 1105)
    assert not due.must_have_come(0, 105)
    assert due.must_have_come(0, 106)
