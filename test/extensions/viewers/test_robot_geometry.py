"""Shapes and frames of MJCF and URDF that viewers draw are compared with kinematics of their own."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from own_models import TETRAHEDRON, own_contract
from shipped_contracts import changed_contract, changed_text

import embodied_env
from embodied_env.contract import load_contract, parse_contract
from embodied_env.errors import UsageError
from embodied_env.extensions.viewers.live_view import scene_of_run
from embodied_env.extensions.viewers.robot_geometry import Pose, find_geometry
from embodied_env.record.manifest import contract_of_manifest
from embodied_env.sim.mujoco_kinematics import MujocoKinematics
from embodied_env.sim.world_profile import load_profile

URDF = """<robot name="arm">
  <link name="base_link"><visual name="a"><geometry><mesh filename="package://arm_description/meshes/link.obj"/></geometry></visual>
    <collision><geometry><box size="9 9 9"/></geometry></collision></link>
  <link name="upper"><visual name="a"><geometry><mesh filename="package://arm_description/meshes/link.dae"/></geometry></visual>
    <collision><origin xyz="0 0 0.2"/><geometry><cylinder radius="0.1" length="0.4"/></geometry></collision></link>
  <link name="finger"/><link name="tip"/>
  <joint name="j1" type="revolute"><parent link="base_link"/><child link="upper"/><origin xyz="0 0 0.1"/><axis xyz="0 1 0"/>
    <limit lower="-2" upper="2" velocity="1" effort="1"/></joint>
  <joint name="m1" type="prismatic"><parent link="upper"/><child link="finger"/><axis xyz="1 0 0"/><mimic joint="j1" multiplier="0.5" offset="0.1"/>
    <limit lower="-2" upper="2" velocity="1" effort="1"/></joint>
  <joint name="fixed" type="fixed"><parent link="finger"/><child link="tip"/><origin xyz="0 0 0.4"/></joint>
</robot>"""


def volume(part):
    """Return the volume inside of a part, positive if its triangles face outwards."""
    a, b, c = (part.vertices[part.triangles[:, corner]].astype(float) for corner in range(3))
    return float(np.einsum("ij,ij->i", a, np.cross(b, c)).sum() / 6)


@pytest.mark.parametrize("name", ["arm_reach", "so101_reach"])
def test_links_and_tool_are_where_the_kinematics_of_the_contract_has_them(name):
    contract = load_contract(name)
    geometry: Any = find_geometry(contract)
    kinematics = MujocoKinematics(contract, load_profile(contract, "mujoco"))
    for positions in np.random.default_rng(1).uniform(-0.5, 0.5, (5, len(kinematics.joints))):
        values = dict(zip(kinematics.joints, positions.tolist(), strict=True))
        links, expected = geometry.place(values), kinematics.position_m("tcp", positions)
        np.testing.assert_allclose(links["tcp"].position, expected, atol=1e-12)
        np.testing.assert_allclose(geometry.tool_path([values, {}])[0], expected, atol=1e-12)
        assert links["tcp"].frame == "world"
    assert {part.link for part in geometry.parts} < links.keys()
    assert all(volume(part) > 1e-7 for part in geometry.parts)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ('type="sphere" size="1"', 4 / 3 * np.pi),
        ('type="ellipsoid" size="1 2 3"', 8 * np.pi),
        ('type="capsule" size="1 2"', (4 / 3 + 4) * np.pi),
        ('type="cylinder" size="1 2"', 4 * np.pi),
        ('type="box" size="1 2 3"', 48),
        ('type="mesh" mesh="link"', 0.1**3 / 6),
    ],
)
def test_the_triangles_of_a_geom_enclose_its_volume(tmp_path, shape, expected):
    contract = own_contract("arm", tmp_path)
    file = tmp_path / "model" / "robot.xml"
    file.write_text(file.read_text().replace('<geom type="mesh" mesh="link"/>', f"<geom {shape}/>", 1))
    changed = parse_contract(contract.text, source=contract.source)
    assert volume(find_geometry(changed).parts[0]) == pytest.approx(expected, rel=0.05)


def test_a_free_base_follows_the_sensor_of_its_pose():
    geometry = find_geometry(load_contract("cart_goal"))
    assert geometry.base_sensor == "true_pose"
    quarter = (0.0, 0.0, np.sqrt(0.5), np.sqrt(0.5))
    links = geometry.place({}, Pose("map", (1.0, 2.0, 0.0), quarter))
    assert links["base"].frame == geometry.root == "map"
    np.testing.assert_allclose(links["base"].position, [1.0, 2.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(links["wheel_left"].position, [1.0 - 0.18, 2.0, 0.08], atol=1e-12)


def test_a_urdf_is_drawn_with_meshes_of_its_package_and_collision_shapes_for_unreadable_ones(tmp_path):
    folder = tmp_path / "arm_description"
    for name in ("urdf", "meshes"):
        (folder / name).mkdir(parents=True)
    (folder / "meshes" / "link.obj").write_text(TETRAHEDRON)
    (folder / "meshes" / "link.dae").write_text("<COLLADA/>")
    (folder / "urdf" / "arm.urdf").write_text(URDF)
    geometry = find_geometry(load_contract("arm_reach"), str(folder / "urdf" / "arm.urdf"))
    volumes = {part.link: volume(part) for part in geometry.parts}
    assert volumes == pytest.approx({"base_link": 0.1**3 / 6, "upper": 0.1**2 * np.pi * 0.4}, rel=0.05)
    links = geometry.place({"j1": 0.4})
    shift = 0.5 * 0.4 + 0.1  # of the mimicking joint
    expected = [shift * np.cos(0.4) + 0.4 * np.sin(0.4), 0.0, 0.1 - shift * np.sin(0.4) + 0.4 * np.cos(0.4)]
    np.testing.assert_allclose(links["tip"].position, expected, atol=1e-9)
    np.testing.assert_allclose(links["base_link"].position, [0, 0, 0])
    np.testing.assert_allclose(geometry.tool_path([{}])[0], expected, atol=1e-9)


def test_the_contract_of_a_run_opens_no_file(tmp_path):
    contract = own_contract("arm", tmp_path)
    with embodied_env.make(contract, backend="mujoco", record=tmp_path / "runs") as env:
        env.reset(seed=0)
    manifest = embodied_env.read_run(env.path).manifest
    assert "file not opened" in find_geometry(contract_of_manifest(manifest))
    file = tmp_path / "contracts" / "own.yaml"
    file.write_text(contract.text)
    assert scene_of_run(embodied_env.read_run(env.path), contract=str(file)).geometry.parts


def test_the_recorded_urdf_of_a_run_is_drawn_without_the_files_that_it_names(tmp_path):
    (tmp_path / "link.obj").write_text(TETRAHEDRON)
    links = "".join(f"<link name='{name}'/>" for name in ("two", "three", "four", "five", "six"))
    shape = f"<visual><geometry><mesh filename='file://{tmp_path}/link.obj'/></geometry></visual>"
    shape += "<collision><geometry><sphere radius='0.1'/></geometry></collision>"
    chain = ("base", "one", "two", "three", "four", "five", "six")
    joints = "".join(
        f"<joint name='j{i}' type='revolute'><parent link='{a}'/><child link='{b}'/><origin xyz='0 0 0.1'/>"
        "<limit lower='-3' upper='3' velocity='9' effort='1'/></joint>"
        for i, (a, b) in enumerate(pairwise(chain), start=1)
    )
    (tmp_path / "arm.urdf").write_text(
        f"<robot name='a'><link name='base'/><link name='one'>{shape}</link>{links}{joints}</robot>"
    )
    changes = {"safety.urdf": "arm.urdf", "safety.workspace": None}
    changes |= {f"backends.{name}.model": None for name in ("mujoco", "mujoco_ros")}
    contract = parse_contract(changed_text("arm_reach", changes), source=str(tmp_path / "arm.yaml"))
    untrusted = replace(contract, trusted=False)
    assert volume(find_geometry(contract).parts[0]) == pytest.approx(0.1**3 / 6)
    assert volume(find_geometry(untrusted).parts[0]) == pytest.approx(4 / 3 * np.pi * 0.1**3, rel=0.05)


def test_a_robot_without_a_model_is_not_drawn():
    contract = changed_contract("arm_reach", {f"backends.{name}.model": None for name in ("mujoco", "mujoco_ros")})
    assert find_geometry(contract) == "the contract names neither a MuJoCo model nor a URDF"


@pytest.mark.parametrize(
    "text", ["<sdf/>", "<!DOCTYPE robot><robot/>", "<robot name='r'><link name='a'/><link name='b'/></robot>", None]
)
def test_a_wrong_urdf_is_refused(tmp_path, text):
    if text is not None:
        (tmp_path / "a.urdf").write_text(text)
    with pytest.raises(UsageError, match="cannot read the URDF"):
        find_geometry(load_contract("arm_reach"), str(tmp_path / "a.urdf"))
