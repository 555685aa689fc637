"""Robot files without a model get one whose joints move and keep their limits, and whose sensors have names."""

import numpy as np
import pytest
import yaml
from sideways_base import PROFILE, sideways_base
from strategies import document

from embodied_env.contract import parse_contract
from embodied_env.errors import ContractError
from embodied_env.sim.mujoco_kinematics import MujocoKinematics
from embodied_env.sim.world import World
from embodied_env.sim.world_profile import load_profile

POSE = {"type": "geometry_msgs/msg/PoseStamped", "max_age_s": 1.0}
PLACE = {"position": {"unit": "m", "low": -9.0, "high": 9.0}}


def contract_over(robot, **world):
    whole = {key: value for key, value in document().items() if key not in ("sensors", "actuators", "safety")}
    sensors = {name: {"topic": name, "fields": PLACE, **POSE} for name in ("tcp", "target")}
    profile = {
        "sources": {"tcp": {"site": "base_link" if robot == "husky" else "tip"}, "target": {"site": "target"}},
        "draws": {"target": {"mocap": "target"}},
        **world,
    }
    whole |= {"robot": robot, "sensors": sensors, "backends": {"mujoco": profile}}
    whole["reset_options"] = {"target": {"type": "vector", "low": [0.1, 0.1, 0.1], "high": [0.2, 0.2, 0.2]}}
    return parse_contract(yaml.safe_dump(whole))


def world_of(contract):
    return World(contract, load_profile(contract, "mujoco"))


@pytest.mark.parametrize("robot", ["fr3", "xarm7"])
def test_joints_start_at_home_and_reach_their_commands(close_later, robot):
    contract = contract_over(robot)
    world = close_later(world_of(contract))
    world.reset(0, {})
    home = contract.backends["real"]["reset"]["home"]
    positions = world.read()["joints"].values["position"]
    np.testing.assert_allclose(positions, [home[joint] for joint in world.joints], atol=1e-9)
    target = positions + 0.05
    world.command(target)
    for _ in range(4):
        world.step()
    np.testing.assert_allclose(world.read()["joints"].values["position"], target, atol=1e-3)
    assert not np.allclose(world.read()["tcp"].values["position"], 0.0)


def test_joints_stop_at_the_contracts_limits(close_later):
    contract = contract_over("xarm7")
    world = close_later(world_of(contract))
    world.reset(0, {})
    world.command(np.array([0.0, 0.0, 0.0, -2.0, 0.0, 0.0, 0.0]))
    for _ in range(20):
        world.step()
    assert world.read()["joints"].values["position"][3] == pytest.approx(-0.19198, abs=1e-3)


def test_a_base_drives_as_commanded(close_later):
    world = close_later(world_of(contract_over("husky")))
    world.reset(0, {})
    world.command(np.array([0.5, 0.0]))
    for _ in range(40):
        world.step()
    assert world.read()["odom"].values["linear"][0] == pytest.approx(0.5, abs=0.01)
    world.command(np.array([0.0, 0.5]))
    for _ in range(40):
        world.step()
    assert world.read()["odom"].values["angular"][2] == pytest.approx(0.5, abs=0.01)


def test_a_keyframe_of_a_generated_model_is_rejected():
    with pytest.raises(ContractError) as caught:
        world_of(contract_over("fr3", keyframe="home"))
    assert caught.value.path == "backends.mujoco.keyframe"


def test_a_generated_model_gives_no_robot_shape():
    contract = contract_over("fr3")
    assert not MujocoKinematics(contract, load_profile(contract, "mujoco")).shapes


def twist_after(world, command, steps=10):
    world.command(np.array(command))
    for _ in range(steps):
        world.step()
    odometry = world.read()["odom"].values
    return [*odometry["linear"][:2], odometry["angular"][2]]


def test_a_base_moves_sideways_as_commanded(close_later):
    world = close_later(world_of(sideways_base()))
    world.reset(0, {})
    for command in ([0.5, 0.0, 0.0], [0.0, -0.4, 0.0], [0.0, 0.0, 1.0], [-0.3, 0.2, 0.0]):
        np.testing.assert_allclose(twist_after(world, command), command, atol=2e-3)
    before = world.read()["odom"].values["position"]
    np.testing.assert_allclose(twist_after(world, [0.0, 0.0, 0.0]), 0.0, atol=2e-3)
    np.testing.assert_allclose(world.read()["odom"].values["position"], before, atol=2e-3)


PLANAR = """<mujoco><worldbody><body name="b">
<joint name="x" type="slide" axis="1 0 0"/><joint name="y" type="slide" axis="0 1 0"/>{yaw}
<geom size="0.1" mass="40"/><site name="base_link"/></body></worldbody></mujoco>"""


def test_a_model_with_joints_in_the_plane_is_driven_at_any_timestep(tmp_path, close_later):
    (tmp_path / "base.xml").write_text(
        PLANAR.format(yaw='<joint name="yaw"/>').replace("<world", '<option timestep="0.01"/><world')
    )
    profile = PROFILE.replace("{sources", "{model: base.xml, sources", 1)
    contract = sideways_base(profile=profile, source=str(tmp_path / "c.yaml"))
    world = close_later(world_of(contract))
    world.reset(0, {})
    np.testing.assert_allclose(twist_after(world, [0.5, -0.5, 0.0]), [0.5, -0.5, 0.0], atol=1e-3)
    np.testing.assert_allclose(twist_after(world, [0.0, 0.0, 1.0]), [0.0, 0.0, 1.0], atol=1e-3)


@pytest.mark.parametrize(
    ("profile", "path"),
    [
        (PROFILE.replace("{sources", "{model: base.xml, sources", 1), "backends.mujoco.site_drives.base.site"),
        (PROFILE.replace("base: {site: base_link}", "base: {site: nowhere}").replace("{sources", "{model: base.xml, sources"), "backends.mujoco.site_drives.base.site"),
        (PROFILE.replace("base: {site", "wheels: {site"), "backends.mujoco.site_drives.wheels"),
        ("{sources: {odom: {odometry: {site: base_link}}}}", "backends.mujoco.drives"),
    ],
    ids=["cannot turn", "no such site", "no such actuator", "no drive"],
)  # fmt: skip
def test_a_wrong_drive_of_a_site_is_rejected_with_its_path(tmp_path, profile, path):
    (tmp_path / "base.xml").write_text(PLANAR.format(yaw=""))
    with pytest.raises(ContractError) as caught:
        world_of(sideways_base(profile=profile, source=str(tmp_path / "c.yaml")))
    assert caught.value.path == path
