"""The URDF generated from a model has its kinematics and limits."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("mujoco", reason="needs mujoco")

import embodied_env
from embodied_env.contract.urdf import parse_urdf
from embodied_env.errors import ContractError
from embodied_env.sim.mujoco_kinematics import generate_urdf, robot_description
from embodied_env.sim.world_model import WorldModel
from embodied_env.sim.world_profile import load_profile


def model_of(name, **emulator):
    contract = embodied_env.load_contract(name)
    return WorldModel(contract, load_profile(contract, "mujoco_ros", emulator=emulator), "backends.mujoco_ros")


@pytest.mark.parametrize("name", ["arm_reach", "door_open", "so101_reach", "ur5e_reach"])
def test_every_site_has_the_position_of_the_model(name):
    model = model_of(name)
    robot, data, mj = parse_urdf(generate_urdf(model)), model.new_data(), model.mj
    model.mujoco.mj_resetData(mj, data)
    sites = [index for index in range(mj.nsite) if mj.site(index).name in robot._places]
    assert "tcp" in [mj.site(index).name for index in sites]
    for angles in np.random.default_rng(0).uniform(-1.0, 1.0, (20, len(robot.joints))):
        for joint, angle in zip(robot.joints, angles, strict=True):
            data.qpos[mj.joint(joint).qposadr[0]] = angle
        model.mujoco.mj_kinematics(mj, data)
        for index in sites:
            found = robot.position_m(mj.site(index).name, angles)
            np.testing.assert_allclose(found, data.site_xpos[index], atol=1e-9)


def test_limits_are_from_the_model_and_velocities_from_the_contract():
    robot = parse_urdf(generate_urdf(model_of("ur5e_reach")))
    elbow = robot.specs["elbow_joint"]
    assert (elbow.kind, elbow.velocity) == ("revolute", 3.14)
    np.testing.assert_allclose(elbow.position, (-np.pi, np.pi), atol=1e-6)


def test_the_root_of_a_mobile_base_is_its_body():
    robot = parse_urdf(generate_urdf(model_of("turtlebot4_goal")))
    assert robot.specs["left_wheel_joint"].kind == "continuous"
    np.testing.assert_allclose(robot.position_m("rplidar_link", np.zeros(2)), (-0.04, 0.0, 0.19), atol=1e-9)


def test_a_urdf_file_is_published_unchanged(tmp_path):
    (tmp_path / "arm.urdf").write_text("<robot name='arm'/>")
    model = model_of("arm_reach", robot_description="arm.urdf")
    model.contract = replace(model.contract, source=str(tmp_path / "contract.yaml"))
    assert robot_description(model) == "<robot name='arm'/>"
    (tmp_path / "arm.urdf").unlink()
    with pytest.raises(ContractError, match=r"emulator.robot_description: cannot read 'arm.urdf': .*or generated"):
        robot_description(model)
    assert robot_description(model_of("arm_reach")) is None


def test_a_joint_order_contains_each_joint_once():
    contract = embodied_env.load_contract("ur5e_reach")
    with pytest.raises(ContractError, match=r"emulator.joint_order: \['elbow_joint'\] \(expected each of these once: "):
        load_profile(contract, "mujoco_ros", emulator={"joint_order": ["elbow_joint"]})
