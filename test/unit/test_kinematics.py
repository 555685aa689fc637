"""The arm's kinematics against the Denavit-Hartenberg table that it was built from."""

from __future__ import annotations

from dataclasses import replace

import mujoco
import numpy as np
import pytest

from embodied_env.contract import KinematicModel, load_contract
from embodied_env.errors import UsageError
from embodied_env.sim.kinematics import MujocoKinematics
from embodied_env.sim.model import SHIPPED
from embodied_env.sim.profile import Source, load_profile

CONTRACT = load_contract("arm_reach")
PROFILE = load_profile(CONTRACT, "mujoco")
HOME = np.array([0.0, -1.5707963, 1.6755161, -1.6755161, -1.5707963, 0.0])

# Universal Robots, "DH parameters for calculations of kinematics and dynamics", UR5e: a (m), d (m), alpha (rad).
DH = (
    (0.0, 0.1625, np.pi / 2),
    (-0.425, 0.0, 0.0),
    (-0.3922, 0.0, 0.0),
    (0.0, 0.1333, np.pi / 2),
    (0.0, 0.0997, -np.pi / 2),
    (0.0, 0.0996, 0.0),
)
MASSES_KG = (3.761, 8.058, 2.846, 1.37, 1.3, 0.365)
CENTRES_M = (
    (0.0, -0.02561, 0.00193),
    (0.2125, 0.0, 0.11336),
    (0.15, 0.0, 0.0265),
    (0.0, -0.0018, 0.01634),
    (0.0, 0.0018, 0.01634),
    (0.0, 0.0, -0.001159),
)


def dh_transform(theta: float, a: float, d: float, alpha: float) -> np.ndarray:
    """Return Rot_z(theta) Trans_z(d) Trans_x(a) Rot_x(alpha), shape (4, 4)."""
    ct, st, ca, sa = np.cos(theta), np.sin(theta), np.cos(alpha), np.sin(alpha)
    return np.array(
        [[ct, -st * ca, st * sa, a * ct], [st, ct * ca, -ct * sa, a * st], [0.0, sa, ca, d], [0.0, 0.0, 0.0, 1.0]]
    )


def dh_tcp_m(joints_rad: np.ndarray) -> np.ndarray:
    """Return the flange's position in DH frame 0, which is the world frame: the base rotation is the identity."""
    pose = np.eye(4)
    for theta, (a, d, alpha) in zip(joints_rad, DH, strict=True):
        pose = pose @ dh_transform(theta, a, d, alpha)
    return pose[:3, 3]


def random_joints(n: int) -> np.ndarray:
    return np.random.default_rng(11).uniform(-np.pi, np.pi, (n, 6))


def arm() -> KinematicModel:
    return MujocoKinematics(CONTRACT, PROFILE)


def test_the_tcp_is_where_the_dh_table_says() -> None:
    model = arm()
    for joints_rad in random_joints(200):
        np.testing.assert_allclose(model.position_m("tcp", joints_rad), dh_tcp_m(joints_rad), atol=1e-9)


def test_the_home_pose_is_in_front_with_the_elbow_up() -> None:
    np.testing.assert_allclose(arm().position_m("tcp", HOME), [-0.490, -0.133, 0.447], atol=1e-3)


def test_the_jacobian_is_the_derivative_of_the_position() -> None:
    model = arm()
    step_rad = 1e-6
    for joints_rad in random_joints(20):
        numeric = np.stack(
            [
                (model.position_m("tcp", joints_rad + d) - model.position_m("tcp", joints_rad - d)) / (2 * step_rad)
                for d in step_rad * np.eye(6)
            ],
            axis=1,
        )
        np.testing.assert_allclose(model.jacobian("tcp", joints_rad), numeric, atol=1e-8)


def test_masses_and_centres_of_mass_are_the_published_ones() -> None:
    model = mujoco.MjModel.from_xml_path(str(SHIPPED / "arm6.xml"))
    links = [model.body(f"link{i}") for i in range(1, 7)]
    np.testing.assert_allclose([link.mass[0] for link in links], MASSES_KG)
    np.testing.assert_allclose([link.ipos for link in links], CENTRES_M)


def test_the_total_mass_is_that_of_the_links() -> None:
    model = mujoco.MjModel.from_xml_path(str(SHIPPED / "arm6.xml"))
    assert model.body_mass.sum() == pytest.approx(17.7)


def test_torque_limits_are_the_published_ones() -> None:
    model = mujoco.MjModel.from_xml_path(str(SHIPPED / "arm6.xml"))
    limits = np.array([150.0, 150.0, 150.0, 28.0, 28.0, 28.0])
    np.testing.assert_array_equal(model.actuator_forcerange, np.stack([-limits, limits], axis=1))


def test_columns_follow_the_order_of_the_actions_joints() -> None:
    actuator = CONTRACT.actuators["arm"]
    backwards = replace(actuator, joints=dict(reversed(list(actuator.joints.items()))))
    model = MujocoKinematics(replace(CONTRACT, actuators={"arm": backwards}), PROFILE)
    assert model.joints == ("j6", "j5", "j4", "j3", "j2", "j1")
    np.testing.assert_array_equal(model.jacobian("tcp", HOME[::-1]), arm().jacobian("tcp", HOME)[:, ::-1])


def test_joints_that_are_not_actuated_stand_as_in_the_keyframe() -> None:
    actuator = CONTRACT.actuators["arm"]
    three = replace(actuator, joints={name: actuator.joints[name] for name in ("j1", "j2", "j3")})
    model = MujocoKinematics(replace(CONTRACT, actuators={"arm": three}), PROFILE)
    np.testing.assert_array_equal(model.position_m("tcp", HOME[:3]), arm().position_m("tcp", HOME))


def test_a_place_is_also_known_by_the_sensor_that_reports_it() -> None:
    sensors = {**CONTRACT.sensors, "hand": replace(CONTRACT.sensors["tcp"], topic="hand")}
    profile = replace(PROFILE, sources={**PROFILE.sources, "hand": Source(site="tcp")})
    model = MujocoKinematics(replace(CONTRACT, sensors=sensors), profile)
    np.testing.assert_array_equal(model.position_m("hand", HOME), model.position_m("tcp", HOME))


def test_positions_are_fresh_arrays() -> None:
    model = arm()
    at_home = model.position_m("tcp", HOME)
    kept = at_home.copy()
    model.position_m("tcp", HOME + 1.0)
    np.testing.assert_array_equal(at_home, kept)


def test_refuses_an_unknown_site() -> None:
    with pytest.raises(UsageError, match=r"'tpc' is not known \(did you mean 'tcp'\?\)"):
        arm().position_m("tpc", HOME)


def test_refuses_joint_positions_of_another_shape() -> None:
    with pytest.raises(UsageError, match=r"shape \(5,\) are not allowed; allowed: \(6,\)"):
        arm().jacobian("tcp", HOME[:5])
