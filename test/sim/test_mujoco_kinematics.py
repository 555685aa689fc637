"""Kinematics of the arms against the published tables from which their models were built."""

from dataclasses import replace

import mujoco
import numpy as np
import pytest
from unit_contracts import driver_units_contract

from embodied_env.contract import load_contract
from embodied_env.errors import ContractError, UsageError
from embodied_env.sim.mujoco_kinematics import MujocoKinematics
from embodied_env.sim.world_model import SHIPPED
from embodied_env.sim.world_profile import Source, load_profile

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
# TheRobotStudio, Simulation/SO101/so101_new_calib.urdf: origin of each joint, xyz (m) and rpy (rad); all turn about z.
SO101 = {
    "shoulder_pan": ((0.0388353, -8.97657e-09, 0.0624), (3.14159, 4.18253e-17, -3.14159)),
    "shoulder_lift": ((-0.0303992, -0.0182778, -0.0542), (-1.5708, -1.5708, 0.0)),
    "elbow_flex": ((-0.11257, -0.028, 0.0), (0.0, 0.0, 1.5708)),
    "wrist_flex": ((-0.1349, 0.0052, 0.0), (0.0, 0.0, -1.5708)),
    "wrist_roll": ((0.0, -0.0611, 0.0181), (1.5708, 0.0486795, 3.14159)),
}
SO101_TIP = ((-0.0079, -0.000218121, -0.0981274), (0.0, 3.14159, 0.0))  # gripper_frame_link in gripper_link
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
    """Return the flange's position in DH frame 0, which is the world frame, as the base rotation is the identity."""
    pose = np.eye(4)
    for theta, (a, d, alpha) in zip(joints_rad, DH, strict=True):
        pose = pose @ dh_transform(theta, a, d, alpha)
    return pose[:3, 3]


def random_joints(n: int) -> np.ndarray:
    return np.random.default_rng(11).uniform(-np.pi, np.pi, (n, 6))


def kinematics(name: str) -> MujocoKinematics:
    contract = load_contract(name)
    return MujocoKinematics(contract, load_profile(contract, "mujoco"))


def arm() -> MujocoKinematics:
    return MujocoKinematics(CONTRACT, PROFILE)


@pytest.mark.parametrize("name", ["arm_reach", "ur5e_reach"])
def test_the_tcp_matches_the_dh_table(name: str) -> None:
    model = kinematics(name)
    for joints_rad in random_joints(200):
        np.testing.assert_allclose(model.position_m("tcp", joints_rad), dh_tcp_m(joints_rad), atol=1e-9)


def urdf_transform(xyz: tuple[float, float, float], rpy: tuple[float, float, float]) -> np.ndarray:
    """Return the pose of a URDF origin with rotations by rpy about the fixed axes x, y, z, shape (4, 4)."""
    pose = np.eye(4)
    for axis, angle in enumerate(rpy):
        turn = np.eye(4)
        i, j = (axis + 1) % 3, (axis + 2) % 3
        turn[[i, i, j, j], [i, j, i, j]] = np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)
        pose = turn @ pose
    pose[:3, 3] = xyz
    return pose


def test_the_tip_of_the_so101_matches_its_urdf() -> None:
    model = kinematics("so101_reach")
    assert model.joints == (*SO101, "gripper")
    for joints_rad in random_joints(200):
        pose = np.eye(4)
        for origin, angle in zip(SO101.values(), joints_rad[:5], strict=True):
            pose = pose @ urdf_transform(*origin) @ urdf_transform((0.0, 0.0, 0.0), (0.0, 0.0, angle))
        tip_m = (pose @ urdf_transform(*SO101_TIP))[:3, 3]
        np.testing.assert_allclose(model.position_m("tcp", joints_rad), tip_m, atol=1e-9)


@pytest.mark.parametrize("name", ["so101", "ur5e"])
def test_the_ranges_of_the_model_match_the_robot_file(name: str) -> None:
    model = mujoco.MjModel.from_xml_path(str(SHIPPED / f"{name}.xml"))
    for joint, limits in load_contract(f"{name}_reach").actuators["arm"].joints.items():
        np.testing.assert_allclose(model.joint(joint).range, limits.position, atol=2e-5)  # the manufacturer rounds 2 pi


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


@pytest.mark.parametrize("name", ["arm6", "ur5e"])
def test_masses_and_centres_of_mass_match_the_published_values(name: str) -> None:
    model = mujoco.MjModel.from_xml_path(str(SHIPPED / f"{name}.xml"))
    links = [model.body(f"link{i}") for i in range(1, 7)]
    np.testing.assert_allclose([link.mass[0] for link in links], MASSES_KG)
    np.testing.assert_allclose([link.ipos for link in links], CENTRES_M)


@pytest.mark.parametrize("name", ["arm6", "ur5e"])
def test_torque_limits_match_the_published_values(name: str) -> None:
    model = mujoco.MjModel.from_xml_path(str(SHIPPED / f"{name}.xml"))
    limits = np.array([150.0, 150.0, 150.0, 28.0, 28.0, 28.0])
    np.testing.assert_array_equal(model.actuator_forcerange, np.stack([-limits, limits], axis=1))


def test_columns_are_in_the_order_of_the_action() -> None:
    actuator = CONTRACT.actuators["arm"]
    backwards = replace(actuator, joints=dict(reversed(list(actuator.joints.items()))))
    model = MujocoKinematics(replace(CONTRACT, actuators={"arm": backwards}), PROFILE)
    assert model.joints == ("j6", "j5", "j4", "j3", "j2", "j1")
    np.testing.assert_array_equal(model.jacobian("tcp", HOME[::-1]), arm().jacobian("tcp", HOME)[:, ::-1])


def test_unactuated_joints_have_the_positions_of_the_keyframe() -> None:
    actuator = CONTRACT.actuators["arm"]
    three = replace(actuator, joints={name: actuator.joints[name] for name in ("j1", "j2", "j3")})
    model = MujocoKinematics(replace(CONTRACT, actuators={"arm": three}), PROFILE)
    np.testing.assert_array_equal(model.position_m("tcp", HOME[:3]), arm().position_m("tcp", HOME))


def test_a_site_can_be_named_by_its_sensor() -> None:
    sensors = {**CONTRACT.sensors, "hand": replace(CONTRACT.sensors["tcp"], topic="hand")}
    profile = replace(PROFILE, sources={**PROFILE.sources, "hand": Source(site="tcp")})
    model = MujocoKinematics(replace(CONTRACT, sensors=sensors), profile)
    np.testing.assert_array_equal(model.position_m("hand", HOME), model.position_m("tcp", HOME))


def test_an_unknown_site_is_rejected() -> None:
    with pytest.raises(UsageError, match=r"'tpc' .*did you mean 'tcp'"):
        arm().position_m("tpc", HOME)


def test_joint_positions_of_another_shape_are_rejected_by_the_kinematics() -> None:
    with pytest.raises(UsageError, match=r"shape \(5,?\) .expected \(6,\)"):
        arm().jacobian("tcp", HOME[:5])


GEOMS = """
<mujoco>
  <worldbody>
    <geom name="floor" type="plane" size="1 1 0.1"/>
    <body name="pillar" pos="1 0 0"><geom type="box" size="0.1 0.1 0.1"/></body>
    <body name="base" pos="0 0 0.1" euler="0 0 90">
      <geom type="box" size="0.1 0.2 0.1"/>
      <body name="slider" pos="0.1 0 0.2">
        <joint name="j1" type="slide" axis="1 0 0" range="-0.5 0.7" ref="0.1"/>
        <geom type="ellipsoid" size="0.05 0.1 0.2" pos="0 0 0.1"/>
        <geom type="cylinder" size="0.3 0.3" contype="0" conaffinity="0"/>
        <body name="turner" pos="0 0 0.3">
          <joint name="j2" axis="0 1 0" pos="0 0 0.05" range="-90 90"/>
          <joint name="j3" axis="1 0 0" range="-90 90"/>
          <geom type="cylinder" fromto="0 0 0 0.4 0 0" size="0.05"/>
          <body pos="0.4 0 0" euler="0 30 0">
            <joint name="passive" axis="0 0 1" pos="0.01 0 0"/>
            <geom type="sphere" size="0.06" pos="0.1 0.02 0"/>
            <geom type="mesh" mesh="wedge"/>
          </body>
        </body>
      </body>
    </body>
  </worldbody>
  <asset>
    <mesh name="wedge" vertex="0 0 0  0.3 0 0  0 0.1 0  0 0 0.05"/>
  </asset>
  <actuator>
    <position name="j1" joint="j1"/><position name="j2" joint="j2"/><position name="j3" joint="j3"/>
  </actuator>
  <keyframe><key name="home" qpos="0 0 0 0.6"/></keyframe>
</mujoco>
"""


def shape_of(tmp_path, text: str) -> MujocoKinematics:
    file = tmp_path / "robot.xml"
    file.write_text(text)
    actuator = CONTRACT.actuators["arm"]
    joints = {name: actuator.joints[name] for name in ("j1", "j2", "j3")}
    contract = replace(CONTRACT, actuators={"arm": replace(actuator, joints=joints)})
    return MujocoKinematics(contract, replace(PROFILE, model=str(file), sources={}))


def surface_points(mj: mujoco.MjModel, data: mujoco.MjData, geom: int) -> np.ndarray:
    """Return points on or in a geom in the world frame, shape (k, 3)."""
    kind, size = mujoco.mjtGeom(mj.geom_type[geom]), mj.geom_size[geom]
    ball = np.random.default_rng(1).normal(size=(300, 3))
    ball /= np.linalg.norm(ball, axis=1, keepdims=True)
    turn = np.linspace(0, 2 * np.pi, 60)
    ring = np.stack([np.cos(turn), np.sin(turn), np.ones_like(turn)], axis=1)
    if kind == mujoco.mjtGeom.mjGEOM_SPHERE:
        points = ball * size[0]
    elif kind == mujoco.mjtGeom.mjGEOM_ELLIPSOID:
        points = ball * size
    elif kind == mujoco.mjtGeom.mjGEOM_BOX:
        points = np.sign(ball) * size
    elif kind == mujoco.mjtGeom.mjGEOM_CYLINDER:
        points = np.concatenate([ring, -ring]) * [size[0], size[0], size[1]]
    elif kind == mujoco.mjtGeom.mjGEOM_CAPSULE:
        points = ball * size[0] + np.sign(ball[:, 2:]) * [0.0, 0.0, size[1]]
    else:
        mesh = mj.geom_dataid[geom]
        points = mj.mesh_vert[mj.mesh_vertadr[mesh] :][: mj.mesh_vertnum[mesh]]
    return points @ data.geom_xmat[geom].reshape(3, 3).T + data.geom_xpos[geom]


def assert_encloses(model: MujocoKinematics, joints: np.ndarray) -> None:
    """Assert that every point of a collision geom is inside the capsule with the same index."""
    shape, mj, data = model.capsules(joints), model._model.mj, model._data
    data.qpos[model._qpos] = joints
    mujoco.mj_kinematics(mj, data)
    geoms = [
        g for g in range(mj.ngeom) if mj.geom_contype[g] and mj.body_rootid[mj.geom_bodyid[g]] == mj.body("base").id
    ]
    assert len(geoms) == len(shape.links)
    for geom, ends, radius in zip(geoms, shape.ends_m, shape.radii_m, strict=True):
        points, along = surface_points(mj, data, geom), ends[1] - ends[0]
        part = np.clip((points - ends[0]) @ along / max(along @ along, 1e-12), 0.0, 1.0)
        assert (np.linalg.norm(points - ends[0] - part[:, None] * along, axis=1) <= radius + 1e-9).all()


def test_the_capsules_of_the_arm_enclose_its_geoms() -> None:
    model = MujocoKinematics(CONTRACT, PROFILE)
    for joints_rad in random_joints(10):
        assert_encloses(model, joints_rad)


def test_geoms_of_every_type_are_enclosed(tmp_path) -> None:
    model = shape_of(tmp_path, GEOMS)
    assert model.capsules(np.zeros(3)).links == ("base", "slider", "turner", "turner", "turner")
    for joints in np.random.default_rng(3).uniform(-0.5, 0.7, (10, 3)):
        assert_encloses(model, joints)


def test_capsule_motion_is_bounded_by_its_levers(tmp_path) -> None:
    rng = np.random.default_rng(4)
    for model in (shape_of(tmp_path, GEOMS), MujocoKinematics(CONTRACT, PROFILE)):
        levers = model.levers()
        for a, b in rng.uniform(-0.5, 0.7, (100, 2, len(model.joints))):
            before, after = model.capsules(a).ends_m, model.capsules(b).ends_m
            moved = np.linalg.norm(after - before, axis=-1).max(axis=-1)
            assert (moved <= levers.alone @ np.abs(a - b) + 1e-12).all()
            far_before, far_after = (np.linalg.norm(e[:, None, 0] - e[None, :, 1], axis=-1) for e in (before, after))
            assert (np.abs(far_after - far_before) <= levers.apart @ np.abs(a - b) + 1e-12).all()


def test_the_base_is_a_fixed_link() -> None:
    model = MujocoKinematics(CONTRACT, PROFILE)
    links, still = model.capsules(HOME).links, (model.levers().alone == 0.0).all(axis=1)
    assert {link for link, is_still in zip(links, still, strict=True) if is_still} == {"base", "link1"}
    assert all(still[i] for i, link in enumerate(links) if link == "base")
    assert still[links.index("link1")]  # the column turns about its own axis


def test_links_of_one_joint_and_excluded_ones_are_adjacent(tmp_path) -> None:
    assert frozenset(("link2", "link3")) in MujocoKinematics(CONTRACT, PROFILE).adjacent
    assert frozenset(("link2", "link4")) not in MujocoKinematics(CONTRACT, PROFILE).adjacent
    excluded = GEOMS.replace("<asset>", '<contact><exclude body1="base" body2="turner"/></contact><asset>')
    assert frozenset(("base", "turner")) not in shape_of(tmp_path, GEOMS).adjacent
    assert frozenset(("base", "turner")) in shape_of(tmp_path, excluded).adjacent


def test_an_unbounded_geom_of_the_robot_is_rejected(tmp_path) -> None:
    heights = GEOMS.replace("<asset>", '<asset><hfield name="hill" nrow="2" ncol="2" size="1 1 1 1"/>')
    text = heights.replace('<geom type="sphere" size="0.06" pos="0.1 0.02 0"/>', '<geom type="hfield" hfield="hill"/>')
    with pytest.raises(ContractError, match="of 'turner' is a hfield"):
        shape_of(tmp_path, text)


def test_the_fingers_of_a_gripper_move_with_its_joint():
    contract = driver_units_contract()
    kinematics = MujocoKinematics(contract, load_profile(contract, "mujoco"))
    left = kinematics.joints.index("left")
    assert [joint.ratio for joint in kinematics.tree if joint.column == left] == [1.0, -1.0]
