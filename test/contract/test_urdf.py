"""URDF: its limits against the contract's, and its kinematics against MuJoCo's of the same arm."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from embodied_env.contract import JointLimits, load_contract
from embodied_env.contract.urdf import UrdfRobot, parse_urdf, tightened
from embodied_env.errors import ContractError, UsageError
from embodied_env.sim.backend_profile import load_profile
from embodied_env.sim.kinematics import MujocoKinematics

DATA = Path(__file__).parents[1] / "support" / "data"
CONTRACT = load_contract("arm_reach")
LIMITS = CONTRACT.actuators["arm"].joints
CART = (DATA / "gripper_cart.urdf").read_text()


def arm() -> UrdfRobot:
    return parse_urdf((DATA / "arm6.urdf").read_bytes())


def changed(old: str, new: str) -> str:
    assert old in CART
    return CART.replace(old, new)


def limits(*, unit="rad", position=(-1.0, 1.0), velocity=1.0) -> JointLimits:
    return JointLimits(position=position, velocity=velocity, acceleration=8.0, unit=unit)


# ----------------------------------------------------------------------------------------------------------- kinematics


def mujoco_arm() -> MujocoKinematics:
    return MujocoKinematics(CONTRACT, load_profile(CONTRACT, "mujoco"))


def test_the_tool_is_where_mujoco_has_it():
    urdf, mujoco = arm(), mujoco_arm()
    for joints_rad in np.random.default_rng(5).uniform(-np.pi, np.pi, (100, 6)):
        expected = mujoco.position_m("tcp", joints_rad)
        np.testing.assert_allclose(urdf.position_m("tcp", joints_rad), expected, atol=1e-9)


def test_the_tubes_are_where_mujoco_has_them():
    joints_rad = np.array([0.3, -1.2, 0.8, 0.1, -0.4, 2.0])
    ours, theirs = arm().capsules(joints_rad), mujoco_arm().capsules(joints_rad)
    for link, radius in (("link2", 0.05), ("link3", 0.041)):
        (i,) = [i for i, name in enumerate(ours.links) if name == link]
        (j,) = [j for j, name in enumerate(theirs.links) if name == link and theirs.radii_m[j] == radius]
        assert ours.radii_m[i] == radius
        a, b = ours.ends_m[i], theirs.ends_m[j]
        np.testing.assert_allclose(np.sort(a, axis=0), np.sort(b, axis=0), atol=1e-9)


def test_joints_are_in_the_order_that_is_asked_for():
    backwards = parse_urdf((DATA / "arm6.urdf").read_bytes(), ["j6", "j5", "j4", "j3", "j2", "j1"])
    joints_rad = np.array([0.3, -1.2, 0.8, 0.1, -0.4, 2.0])
    assert backwards.joints[0] == "j6"
    np.testing.assert_allclose(backwards.position_m("tcp", joints_rad[::-1]), arm().position_m("tcp", joints_rad))


def test_a_mimicking_joint_follows_and_a_slide_slides():
    robot = parse_urdf(CART)
    assert robot.joints == ("slide", "turn", "elbow", "left")
    at = np.array([0.4, np.pi / 2, 0.0, 0.03])
    np.testing.assert_allclose(robot.position_m("left_finger", at), [-0.03, 0.4 + 0.7, 1.2], atol=1e-12)
    np.testing.assert_allclose(robot.position_m("right_finger", at), [0.035, 0.4 + 0.7, 1.2], atol=1e-12)


def test_joints_that_are_not_given_stand_at_zero():
    robot = parse_urdf(CART, ["elbow"])
    np.testing.assert_allclose(robot.position_m("left_finger", np.array([0.0])), [0.7, 0.0, 1.2])
    np.testing.assert_allclose(robot.position_m("right_finger", np.array([0.0])), [0.7, -0.005, 1.2])


def test_links_that_a_joint_joins_are_adjacent():
    pairs = parse_urdf(CART).adjacent
    assert frozenset(("mast", "turret")) in pairs
    assert frozenset(("mast", "arm")) not in pairs


def test_no_capsule_moves_further_than_its_levers_say():
    robot, rng = parse_urdf(CART), np.random.default_rng(2)
    low, high = np.array([-0.8, -3.0, -1.8, 0.0]), np.array([1.2, 3.0, 2.0, 0.04])
    levers = robot.levers()
    for _ in range(200):
        a, b = rng.uniform(low, high, (2, 4))
        moved = np.linalg.norm(robot.capsules(a).ends_m - robot.capsules(b).ends_m, axis=-1).max(axis=-1)
        assert (moved <= levers.alone @ np.abs(a - b) + 1e-12).all()


def test_a_link_with_a_mesh_alone_has_no_shape():
    robot = parse_urdf(changed('<collision><geometry><sphere radius="0.1"/></geometry></collision>', ""))
    assert robot.without_shape == ("turret",)
    with pytest.raises(ContractError, match=r"urdf.link\[turret\].collision: of turret there is a mesh only"):
        robot.capsules(np.zeros(4))


def test_an_unknown_link_is_named_with_a_guess():
    with pytest.raises(UsageError, match=r"no such link: 'tpc'.*did you mean 'tcp'"):
        arm().position_m("tpc", np.zeros(6))


def test_positions_of_another_shape_are_refused():
    with pytest.raises(UsageError, match=r"shape \(5,\) are not allowed; allowed: \(6,\)"):
        arm().capsules(np.zeros(5))


# --------------------------------------------------------------------------------------------------------------- limits


def test_the_tighter_of_two_limits_wins_joint_by_joint():
    tight = tightened(LIMITS, arm())
    assert tight["j1"].position == (-6.28, 6.28)  # the contract's
    assert tight["j1"].velocity == 3.1
    both = tightened({"j3": limits(position=(-4.0, 2.0), velocity=9.0)}, arm())["j3"]
    assert both.position == (-3.1416, 2.0)  # one end of each
    assert both.velocity == 3.1416  # the URDF's
    assert both.acceleration == 8.0


def test_soft_limits_count_where_they_are_tighter():
    tight = tightened({"elbow": limits(position=(-3.0, 3.0))}, parse_urdf(CART))
    assert tight["elbow"].position == (-1.8, 2.0)


def test_a_continuous_joint_keeps_the_range_of_the_contract():
    assert tightened({"turn": limits(position=None)}, parse_urdf(CART))["turn"].position is None
    assert tightened({"turn": limits()}, parse_urdf(CART))["turn"].position == (-1.0, 1.0)


def test_an_unlimited_joint_of_the_contract_gets_the_range_of_the_urdf():
    assert tightened({"elbow": limits(position=None)}, parse_urdf(CART))["elbow"].position == (-1.8, 2.0)


@pytest.mark.parametrize(
    ("joint", "own", "message"),
    [
        ("elbwo", limits(), r"urdf.joint\[elbwo\].*not in the URDF: 'elbwo' is not known \(did you mean 'elbow'\?\)"),
        ("slide", limits(), r"urdf.joint\[slide\]: prismatic, in m; the contract has it in 'rad'"),
        ("turn", limits(unit="m"), r"urdf.joint\[turn\]: continuous, in rad; the contract has it in 'm'"),
        ("right", limits(unit="m"), "it mimics 'left'"),
        ("elbow", limits(position=(2.1, 3.0)), r"\[-1.8, 2.0\] rad and the contract's \[2.1, 3.0\] have nothing"),
    ],
)
def test_a_joint_that_does_not_fit_is_named(joint, own, message):
    with pytest.raises(ContractError, match=message):
        tightened({joint: own}, parse_urdf(CART))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('velocity="1.5" ', "", r"urdf.joint\[elbow\].limit.velocity: missing"),
        ('velocity="1.5"', 'velocity="0"', r"urdf.joint\[elbow\].limit.velocity: 0.0; allowed: above 0"),
        ('velocity="1.5"', 'velocity="-1"', r"urdf.joint\[elbow\].limit.velocity: -1.0 is not allowed"),
        ('velocity="1.5"', 'velocity="nan"', r"urdf.joint\[elbow\].limit.velocity: 'nan' is not allowed"),
        ('velocity="1.5"', 'velocity="inf"', r"urdf.joint\[elbow\].limit.velocity: 'inf' is not allowed"),
        ('lower="-2.0" upper="2.0" ', "", r"urdf.joint\[elbow\].limit: lower and upper are missing"),
        ('lower="-2.0" upper="2.0"', 'lower="2" upper="1"', r"urdf.joint\[elbow\].limit: the range from 2.0 to 1.0"),
        ('lower="-2.0"', 'lower="two"', r"urdf.joint\[elbow\].limit.lower: 'two' is not allowed"),
    ],
)
def test_a_limit_that_is_none_is_named(old, new, message):
    with pytest.raises(ContractError, match=message):
        tightened({"elbow": limits()}, parse_urdf(changed(old, new)))


# ------------------------------------------------------------------------------------------------------------- the file


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('<!DOCTYPE robot [<!ENTITY a "b">]><robot name="x"><link name="&a;"/></robot>', "<!DOCTYPE robot>"),
        ('<!DOCTYPE robot SYSTEM "file:///etc/passwd"><robot/>', "<!DOCTYPE robot>"),
        ("<robot><link>", "not well-formed"),
        ('<?xml version="1.0" encoding="nonsense"?><robot/>', "not well-formed"),
        ("<sdf/>", "the root element is <sdf>; allowed: <robot>"),
        ("<robot/>", r"the root links \[\] are not one"),
        ('<robot><link name="a"/><link name="a"/></robot>', "the name 'a' is empty or taken"),
        ('<robot><link name="a"/><link name="b"/></robot>', r"the root links \['a', 'b'\] are not one"),
    ],
)
def test_a_file_that_is_no_robot_is_refused(text, message):
    with pytest.raises(ContractError, match=message):
        parse_urdf(text.encode())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('type="continuous"', 'type="floating"', r"urdf.joint\[turn\].type: 'floating' is not known"),
        ('<child link="turret"/>', "", r"urdf.joint\[turn\].child.link: missing"),
        ('<child link="turret"/>', '<child link="turet"/>', "no such link: 'turet'.*did you mean 'turret'"),
        ('<child link="arm"/>', '<child link="mast"/>', r"\['mast'\] are the children of several joints"),
        (
            '<parent link="mast"/>',
            '<parent link="arm"/>',
            r"the joints \['elbow', 'left', 'right', 'turn'\] hang on no",
        ),
        ('xyz="0 2 0"', 'xyz="0 0 0"', r"urdf.joint\[slide\].axis.* has no direction"),
        ('xyz="0 2 0"', 'xyz="0 2"', r"urdf.joint\[slide\].axis.xyz: '0 2' is not allowed"),
        ('mimic joint="left"', 'mimic joint="lift"', r"urdf.joint\[right\].mimic: no such joint: 'lift'"),
        ('mimic joint="left"', 'mimic joint="right"', "mimic each other in a circle"),
        ('<box size="0.1 0.1 1.0"/>', "<cone/>", r"urdf.link\[mast\].collision.cone"),
        ('radius="0.03" ', "", r"urdf.link\[arm\].collision.cylinder: radius or length is missing"),
    ],
)
def test_an_element_that_is_wrong_is_named(old, new, message):
    with pytest.raises(ContractError, match=message):
        parse_urdf(changed(old, new))


def test_a_joint_that_moves_with_another_cannot_be_asked_for():
    with pytest.raises(ContractError, match=r"urdf.joint\[right\]: it mimics 'left'"):
        parse_urdf(CART, ["right"])
