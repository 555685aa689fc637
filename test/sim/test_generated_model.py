"""Generated models for robot files without one: joints move, keep their limits, and sensors have names."""

from __future__ import annotations

import numpy as np
import pytest
import yaml
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


def test_bodies_of_reset_draws_are_placed(close_later):
    world = close_later(world_of(contract_over("fr3")))
    drawn = world.reset(0, {})
    np.testing.assert_allclose(world.read()["target"].values["position"], drawn["target"])


def test_a_keyframe_of_a_generated_model_is_rejected():
    with pytest.raises(ContractError) as caught:
        world_of(contract_over("fr3", keyframe="home"))
    assert caught.value.path == "backends.mujoco.keyframe"


def test_a_generated_model_gives_no_robot_shape():
    contract = contract_over("fr3")
    assert not MujocoKinematics(contract, load_profile(contract, "mujoco")).shapes
