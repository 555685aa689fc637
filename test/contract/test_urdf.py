"""The limits of a URDF agree with the contract, and its kinematics with MuJoCo for the same arm."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from embodied_env.contract import JointLimits, load_contract
from embodied_env.contract.urdf import UrdfRobot, parse_urdf, tightened
from embodied_env.errors import ContractError, UsageError
from embodied_env.sim.mujoco_kinematics import MujocoKinematics
from embodied_env.sim.world_profile import load_profile

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


def test_tool_position_matches_mujoco():
    urdf, mujoco = arm(), mujoco_arm()
    for joints_rad in np.random.default_rng(5).uniform(-np.pi, np.pi, (100, 6)):
        expected = mujoco.position_m("tcp", joints_rad)
        np.testing.assert_allclose(urdf.position_m("tcp", joints_rad), expected, atol=1e-9)


def test_capsules_match_mujoco():
    joints_rad = np.array([0.3, -1.2, 0.8, 0.1, -0.4, 2.0])
    ours, theirs = arm().capsules(joints_rad), mujoco_arm().capsules(joints_rad)
    for link, radius in (("link2", 0.05), ("link3", 0.041)):
        (i,) = [i for i, name in enumerate(ours.links) if name == link]
        (j,) = [j for j, name in enumerate(theirs.links) if name == link and theirs.radii_m[j] == radius]
        assert ours.radii_m[i] == radius
        a, b = ours.ends_m[i], theirs.ends_m[j]
        np.testing.assert_allclose(np.sort(a, axis=0), np.sort(b, axis=0), atol=1e-9)


def test_joints_are_in_the_requested_order():
    backwards = parse_urdf((DATA / "arm6.urdf").read_bytes(), ["j6", "j5", "j4", "j3", "j2", "j1"])
    joints_rad = np.array([0.3, -1.2, 0.8, 0.1, -0.4, 2.0])
    assert backwards.joints[0] == "j6"
    np.testing.assert_allclose(backwards.position_m("tcp", joints_rad[::-1]), arm().position_m("tcp", joints_rad))


def test_mimic_and_prismatic_joints_move():
    robot = parse_urdf(CART)
    assert robot.joints == ("slide", "turn", "elbow", "left")
    at = np.array([0.4, np.pi / 2, 0.0, 0.03])
    np.testing.assert_allclose(robot.position_m("left_finger", at), [-0.03, 0.4 + 0.7, 1.2], atol=1e-12)
    np.testing.assert_allclose(robot.position_m("right_finger", at), [0.035, 0.4 + 0.7, 1.2], atol=1e-12)


def test_a_finger_that_mimics_in_the_contract_alone_moves_too():
    apart = CART.replace('<mimic joint="left" multiplier="-1" offset="-0.005"/>', "")
    assert apart != CART
    robot = parse_urdf(apart, ["left"], mimics={"right": ("left", -1.0), "elsewhere": ("left", 1.0)})
    moved = robot.position_m("right_finger", np.array([0.03])) - robot.position_m("right_finger", np.array([0.0]))
    np.testing.assert_allclose(moved, [0.0, -0.03, 0.0], atol=1e-12)
    robot = parse_urdf(CART, ["left"], mimics={"right": ("left", 7.0)})
    assert robot.specs["right"].mimics == ("left", -1.0, -0.005)


def test_joints_not_requested_are_at_zero():
    robot = parse_urdf(CART, ["elbow"])
    np.testing.assert_allclose(robot.position_m("left_finger", np.array([0.0])), [0.7, 0.0, 1.2])
    np.testing.assert_allclose(robot.position_m("right_finger", np.array([0.0])), [0.7, -0.005, 1.2])


def test_levers_bound_capsule_motion():
    robot, rng = parse_urdf(CART), np.random.default_rng(2)
    low, high = np.array([-0.8, -3.0, -1.8, 0.0]), np.array([1.2, 3.0, 2.0, 0.04])
    levers = robot.levers()
    for _ in range(200):
        a, b = rng.uniform(low, high, (2, 4))
        moved = np.linalg.norm(robot.capsules(a).ends_m - robot.capsules(b).ends_m, axis=-1).max(axis=-1)
        assert (moved <= levers.alone @ np.abs(a - b) + 1e-12).all()


def test_link_with_only_a_mesh_has_no_shape():
    robot = parse_urdf(changed('<collision><geometry><sphere radius="0.1"/></geometry></collision>', ""))
    assert robot.without_shape == ("turret",)
    with pytest.raises(ContractError, match=r"urdf.link\[turret\].collision: shape unknown: only a mesh in turret"):
        robot.capsules(np.zeros(4))


def test_wrong_arguments_are_rejected():
    with pytest.raises(UsageError, match=r"unknown link 'tpc'.*did you mean 'tcp'"):
        arm().position_m("tpc", np.zeros(6))
    with pytest.raises(UsageError, match=r"shape \(5,\) .expected \(6,\)"):
        arm().capsules(np.zeros(5))
    with pytest.raises(ContractError, match=r"urdf.joint\[right\]: mimics 'left'"):
        parse_urdf(CART, ["right"])


# --------------------------------------------------------------------------------------------------------------- limits


def test_the_tighter_limit_of_each_joint_applies():
    tight = tightened(LIMITS, arm())
    assert tight["j1"].position == (-6.28, 6.28)  # from the contract
    assert tight["j1"].velocity == 3.1
    both = tightened({"j3": limits(position=(-4.0, 2.0), velocity=9.0)}, arm())["j3"]
    assert both.position == (-3.1416, 2.0)  # one end of each
    assert both.velocity == 3.1416  # from the URDF
    assert both.acceleration == 8.0


@pytest.mark.parametrize(
    ("joint", "own", "position", "velocity"),
    [
        ("elbow", limits(velocity=(-0.5, 9.0)), (-1.0, 1.0), (-0.5, 1.5)),
        ("elbow", limits(position=(-3.0, 3.0)), (-1.8, 2.0), 1.0),  # the soft limits
        ("elbow", limits(position=None), (-1.8, 2.0), 1.0),
        ("turn", limits(position=None), None, 1.0),
        ("turn", limits(), (-1.0, 1.0), 1.0),
    ],
)
def test_soft_limits_directions_and_continuous_joints_are_tightened(joint, own, position, velocity):
    found = tightened({joint: own}, parse_urdf(CART))[joint]
    assert (found.position, found.velocity) == (position, velocity)


@pytest.mark.parametrize(
    ("joint", "own", "message"),
    [
        ("elbwo", limits(), r"urdf.joint\[elbwo\]: no such joint in the URDF: 'elbwo'.*did you mean 'elbow'"),
        ("slide", limits(), r"urdf.joint\[slide\]: 'rad' in the contract .expected 'm'"),
        ("turn", limits(unit="m"), r"urdf.joint\[turn\]: 'm' in the contract .expected 'rad'"),
        ("right", limits(unit="m"), "mimics 'left'"),
        ("elbow", limits(position=(2.1, 3.0)), r"no overlap of \[-1.8, 2.0\] rad with the contract's \[2.1, 3.0\]"),
    ],
)
def test_mismatched_joint_is_reported(joint, own, message):
    with pytest.raises(ContractError, match=message):
        tightened({joint: own}, parse_urdf(CART))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('velocity="1.5" ', "", r"urdf.joint\[elbow\].limit.velocity: missing"),
        ('velocity="1.5"', 'velocity="0"', r"urdf.joint\[elbow\].limit.velocity: 0.0 .expected > 0"),
        ('velocity="1.5"', 'velocity="-1"', r"urdf.joint\[elbow\].limit.velocity: -1.0 .expected"),
        ('velocity="1.5"', 'velocity="nan"', r"urdf.joint\[elbow\].limit.velocity: 'nan' .expected"),
        ('velocity="1.5"', 'velocity="inf"', r"urdf.joint\[elbow\].limit.velocity: 'inf' .expected"),
        ('lower="-2.0" upper="2.0" ', "", r"urdf.joint\[elbow\].limit: missing .expected lower and upper"),
        ('lower="-2.0" upper="2.0"', 'lower="2" upper="1"', r"limit: empty or inverted range from 2.0 to 1.0"),
        ('lower="-2.0"', 'lower="two"', r"urdf.joint\[elbow\].limit.lower: 'two' .expected"),
    ],
)
def test_invalid_limit_is_reported(old, new, message):
    with pytest.raises(ContractError, match=message):
        tightened({"elbow": limits()}, parse_urdf(changed(old, new)))


# ----------------------------------------------------------------------------------------------------------------- file


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('<!DOCTYPE robot [<!ENTITY a "b">]><robot name="x"><link name="&a;"/></robot>', "<!DOCTYPE robot>"),
        ('<!DOCTYPE robot SYSTEM "file:///etc/passwd"><robot/>', "<!DOCTYPE robot>"),
        ("<robot><link>", "not well-formed"),
        ('<?xml version="1.0" encoding="nonsense"?><robot/>', "not well-formed"),
        ("<sdf/>", "root element <sdf> .expected <robot>"),
        ("<robot>" + " " * 2**23 + "</robot>", "urdf: 8388623 bytes .expected at most 8388608"),
        ("<robot>" + '<link name="a"/>' * 1001 + "</robot>", "urdf.link: 1001 links .expected at most 1000"),
        ("<robot>" + '<joint name="a"/>' * 1001 + "</robot>", "urdf.joint: 1001 joints .expected at most 1000"),
        ('<robot><link name="a&#10;safety: null"/></robot>', r"urdf.link: invalid name 'a\\nsafety: null'"),
        ("<robot/>", r"root links \[\] .expected one tree"),
        ('<robot><link name="a"/><link name="a"/></robot>', "name 'a' .expected unique"),
        ('<robot><link name="a"/><link name="b"/></robot>', r"root links \['a', 'b'\] .expected one tree"),
    ],
)
def test_invalid_urdf_is_rejected(text, message):
    with pytest.raises(ContractError, match=message):
        parse_urdf(text.encode())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('type="continuous"', 'type="floating"', r"urdf.joint\[turn\].type: unsupported type 'floating'"),
        ('<child link="turret"/>', "", r"urdf.joint\[turn\].child.link: missing"),
        ('<child link="turret"/>', '<child link="turet"/>', "unknown link 'turet'.*did you mean 'turret'"),
        ('<child link="arm"/>', '<child link="mast"/>', r"links \['mast'\] with several parent joints"),
        ('<parent link="mast"/>', '<parent link="arm"/>', r"joints \['elbow', 'left', 'right', 'turn'\] not connected"),
        ('xyz="0 2 0"', 'xyz="0 0 0"', r"urdf.joint\[slide\].axis: .*expected a direction"),
        ('xyz="0 2 0"', 'xyz="0 2"', r"urdf.joint\[slide\].axis.xyz: '0 2' .expected"),
        ('mimic joint="left"', 'mimic joint="lift"', r"urdf.joint\[right\].mimic: unknown joint 'lift'"),
        ('mimic joint="left"', 'mimic joint="right"', "circular mimic"),
        ('<box size="0.1 0.1 1.0"/>', "<cone/>", r"urdf.link\[mast\].collision.cone: unsupported geometry 'cone'"),
        ('radius="0.03" ', "", r"urdf.link\[arm\].collision.cylinder: missing attribute"),
    ],
)
def test_invalid_element_is_reported(old, new, message):
    with pytest.raises(ContractError, match=message):
        parse_urdf(changed(old, new))
