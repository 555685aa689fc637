"""In contracts with a URDF and a workspace, the tighter limits apply and no link leaves the workspace."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embodied_env
from embodied_env.contract import load_contract, parse_contract
from embodied_env.contract.contract_loader import dump_contract, find_contract
from embodied_env.contract.safety_schema import BoxSpec, KeepOutSpec, SphereSpec, WorkspaceSpec
from embodied_env.contract.spaces import ActionLayout
from embodied_env.contract.urdf import parse_urdf
from embodied_env.core.code_table import CODES
from embodied_env.errors import ContractError
from embodied_env.safety.command_filters import make_command_filters

DATA = Path(__file__).parents[1] / "support" / "data"
OWN = load_contract("arm_reach")
CELL = WorkspaceSpec(
    keep_in={"cell": BoxSpec(low_m=(-0.7, -0.7, -0.05), high_m=(0.7, 0.7, 0.9))}, ignore_links=("base",)
)


def with_urdf(file="arm6.urdf", **changes):
    """Return the text of arm_reach with the path of a URDF."""
    safety = replace(OWN.safety, urdf=file, **changes)
    return dump_contract(replace(OWN, safety=safety))


@pytest.fixture
def folder(tmp_path):
    """Return a folder with the arm's URDF."""
    (tmp_path / "arm6.urdf").write_text((DATA / "arm6.urdf").read_text())
    return tmp_path


def test_the_tighter_limit_of_contract_and_urdf_applies(folder):
    robot = parse_urdf((folder / "arm6.urdf").read_bytes())
    contract = parse_contract(with_urdf(), source=str(folder / "arm.yaml"))
    for joint, limits in contract.actuators["arm"].joints.items():
        own, given = OWN.actuators["arm"].joints[joint], robot.specs[joint]
        assert limits.velocity == min(own.velocity, given.velocity or own.velocity)
        assert limits.position[0] == max(own.position[0], given.position[0])
        assert limits.position[1] == min(own.position[1], given.position[1])


def test_a_slower_urdf_makes_a_smaller_step_of_the_same_action(folder):
    text = (folder / "arm6.urdf").read_text()
    slow = re.sub('velocity="[^"]*"', 'velocity="0.5"', text)
    (folder / "arm6.urdf").write_text(slow)
    contract = parse_contract(with_urdf(), source=str(folder / "arm.yaml"))
    np.testing.assert_allclose(ActionLayout(contract).limits.fastest, 0.5 * OWN.safety.margins.velocity)
    assert contract.fingerprint != replace(OWN, safety=contract.safety, files=contract.files).fingerprint


def test_a_missing_or_invalid_urdf_is_named(folder):
    with pytest.raises(ContractError, match=r"safety.urdf: cannot read the file: .*other.urdf"):
        parse_contract(with_urdf("other.urdf"), source=str(folder / "arm.yaml"))
    (folder / "arm6.urdf").write_text("<robot name='arm'><link name='a'/><link name='a'/></robot>")
    with pytest.raises(ContractError, match=r"safety.urdf: urdf"):
        parse_contract(with_urdf(), source=str(folder / "arm.yaml"))


def test_a_workspace_needs_the_shape_of_the_robot_from_a_model_or_the_urdf(folder):
    contract = replace(OWN, safety=replace(OWN.safety, workspace=CELL), backends={"fake": {}})
    with pytest.raises(ContractError, match="shape of the robot"):
        make_command_filters(contract)
    contract = parse_contract(with_urdf(workspace=CELL), source=str(folder / "arm.yaml"))
    assert list(make_command_filters(replace(contract, backends={"fake": {}}))) == ["workspace"]


def beside_a_wall(wall_x_m):
    wall = BoxSpec(low_m=(-2.0, -2.0, -0.5), high_m=(wall_x_m, 2.0, 2.0))
    spec = WorkspaceSpec(keep_in={"wall": wall}, ignore_links=("base",))
    return replace(OWN, safety=replace(OWN.safety, workspace=spec), source=str(find_contract("arm_reach")))


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))])
def test_no_action_moves_a_link_through_a_wall(close_later, seed):
    pytest.importorskip("mujoco")
    contract = beside_a_wall(0.45)
    env = close_later(embodied_env.make(contract, backend="mujoco"))
    made: Any = make_command_filters(contract)["workspace"]
    workspace = made._workspace
    rng = np.random.default_rng(seed)
    env.reset(seed=seed)
    codes = set()
    action = np.zeros(6)
    for step in range(150):
        if step % 20 == 0:
            action = rng.choice([-1.0, 1.0], 6)
        *_, terminated, truncated, info = env.step(action)
        sent = np.array(list(info["action"]["applied_si"].values()))
        assert workspace.nearest(sent)[0] > -0.005
        assert info["safety"]["guaranteed"]["workspace"]
        codes.update(np.array(info["safety"]["code"]).tolist())
        if terminated or truncated:
            env.reset()
    assert CODES["ws.keepout"] in codes


def test_a_region_around_the_fixed_base_is_rejected_before_anything_starts():
    ball = KeepOutSpec(sphere=SphereSpec(center_m=(0.0, 0.0, 0.05), radius_m=0.2))
    contract = replace(OWN, safety=replace(OWN.safety, workspace=WorkspaceSpec(keep_out={"ball": ball})))
    with pytest.raises(ContractError, match="ball"):
        embodied_env.make(contract, backend="mujoco")


def test_the_workspace_filter_allows_for_a_late_command_in_a_free_running_world():
    """A varying dt varies the braking path, which one period of latency covers."""
    pytest.importorskip("mujoco")
    latencies_s = []
    for free_running in (False, True):
        env = embodied_env.make(beside_a_wall(0.45), backend="fake", free_running=free_running)
        made: Any = env.unwrapped.stepper.gate._filters["workspace"]
        latencies_s.append(made._latency_s)
        env.close()
    assert latencies_s == [0.0, OWN.control_period_s]
