from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ideal_readings import sense
from task_snapshots import end_of_episode, snapshot_of

from embodied_env.contract import Contract, FloatArray, load_contract
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.code_types import Quality
from embodied_env.core.policy import PolicyFunction
from embodied_env.core.types import Snapshot, TaskResult, Verdict
from embodied_env.sim.mujoco_kinematics import MujocoKinematics
from embodied_env.sim.world import World
from embodied_env.sim.world_profile import load_profile
from embodied_env.tasks import ScriptedTask, load_task
from embodied_env.tasks.reach import Reach, ReachParameters

CONTRACT = load_contract("arm_reach")
PROFILE = load_profile(CONTRACT, "mujoco")
LAYOUT = ActionLayout(CONTRACT)
ZERO = np.zeros(6)


def reach(**changes: Any) -> Reach:
    return Reach(CONTRACT, replace(ReachParameters(tip="tcp", target="target", success_radius_m=0.5), **changes))


def snapshot(tip: tuple[float, float, float], target: tuple[float, float, float] = (0.0, 0.0, 0.0)) -> Snapshot:
    return snapshot_of({"tcp": {"position": np.array(tip)}, "target": {"position": np.array(target)}})


def verdict_of(task: Reach, tip: tuple[float, float, float], applied: FloatArray = ZERO) -> TaskResult:
    return task.judge(snapshot((9.0, 9.0, 9.0)), snapshot(tip), applied)


def test_distance_and_the_weighted_square_of_the_applied_action_reduce_the_reward() -> None:
    result = verdict_of(reach(effort_weight=0.1), (3.0, 4.0, 0.0), np.array([1.0, -1.0, 0.0, 0.0, 0.0, 0.5]))
    assert result.terms["distance"] == -5.0
    assert result.terms["effort"] == pytest.approx(-0.225)


@pytest.mark.parametrize(
    ("x", "verdict", "success"), [(0.5, Verdict.succeeded(), 7.0), (0.501, Verdict.running(), 0.0)]
)
def test_the_edge_of_the_radius_is_a_success_with_a_bonus(x: float, verdict: Verdict, success: float) -> None:
    result = verdict_of(reach(success_bonus=7.0), (x, 0.0, 0.0))
    assert (result.verdict, result.terms["success"]) == (verdict, success)


@pytest.mark.parametrize("tip", [(-1.1, 0.0, 0.6), (0.0, 1.1, 0.6)], ids=["below", "above"])
def test_a_tip_outside_the_workspace_is_out_of_bounds(tip: tuple[float, float, float]) -> None:
    task = reach(workspace_low_m=(-1.0, -1.0, -1.0), workspace_high_m=(1.0, 1.0, 1.0))
    assert verdict_of(task, tip).verdict == Verdict(out_of_bounds="tip")


def test_success_outside_the_workspace_is_both() -> None:
    verdict = verdict_of(reach(workspace_low_m=(0.2, -1.0, -1.0)), (0.1, 0.0, 0.0)).verdict
    assert verdict == Verdict(success=True, out_of_bounds="tip")


def scripted(contract: Contract = CONTRACT) -> PolicyFunction:
    task = load_task(contract)
    assert isinstance(task, ScriptedTask)
    return task.scripted(MujocoKinematics(contract, PROFILE))


def observation(positions: FloatArray, tip: FloatArray, target: FloatArray) -> dict[str, np.ndarray]:
    return {"joints_position": positions, "tcp_position": tip, "target_position": target}


def random_observations(n: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(2)
    return [observation(rng.uniform(-3, 3, 6), rng.uniform(-2, 2, 3), rng.uniform(-2, 2, 3)) for _ in range(n)]


def test_the_scripted_policy_stays_in_the_action_space() -> None:
    policy = scripted()
    assert all(policy(seen) in CONTRACT.action_space for seen in random_observations(200))


def test_the_scripted_policy_rests_at_the_target() -> None:
    point = np.array([-0.4, 0.1, 0.3])
    np.testing.assert_array_equal(scripted()(observation(np.ones(6), point, point)), ZERO)


def test_the_scripted_policy_moves_the_tip_towards_the_target() -> None:
    kinematics = MujocoKinematics(CONTRACT, PROFILE)
    policy = scripted()
    home = np.array([0.0, -1.57, 1.68, -1.68, -1.57, 0.0])
    tip = kinematics.position_m("tcp", home)
    target = tip + np.array([0.1, 0.1, -0.1])
    moved = kinematics.position_m("tcp", home + LAYOUT.scale.to_si(policy(observation(home, tip, target))))
    assert np.linalg.norm(target - moved) < np.linalg.norm(target - tip) - 0.01


def test_the_scripted_policy_commands_absolute_positions_for_an_absolute_action() -> None:
    absolute = replace(CONTRACT, actuators={"arm": replace(CONTRACT.actuators["arm"], command="position")})
    seen = observation(np.full(6, 0.5), np.array([-0.4, 0.0, 0.3]), np.array([-0.4, 0.1, 0.3]))
    si = ActionLayout(absolute).scale.to_si(scripted(absolute)(seen))
    np.testing.assert_allclose(si, 0.5 + LAYOUT.scale.to_si(scripted()(seen)))


def test_the_scripted_policy_reaches_the_drawn_targets() -> None:
    policy = scripted()
    assert {end_of_episode(CONTRACT, policy, seed) for seed in range(30)} == {"success"}


def test_holding_still_never_succeeds() -> None:
    short = replace(CONTRACT, episode=replace(CONTRACT.episode, horizon_steps=3))
    assert {end_of_episode(short, lambda _: ZERO, seed) for seed in range(30)} == {"time_limit"}


def test_no_target_can_be_drawn_within_reach_of_the_home_pose() -> None:
    world = World(CONTRACT, PROFILE)
    world.reset(0, {})
    tip = sense(world, "tcp")["position"]
    option = CONTRACT.reset_options["target"]
    nearest = np.clip(tip, option.low_array, option.high_array)
    assert np.linalg.norm(nearest - tip) > CONTRACT.task.parameters["success_radius_m"]


@pytest.mark.parametrize("quality", [Quality.STALE, Quality.LOST])
def test_a_stale_reading_at_the_target_is_not_a_success(quality: Quality) -> None:
    point = {"position": np.zeros(3)}
    held = snapshot_of({"tcp": point, "target": point}, target=quality)
    assert reach().judge(held, held, ZERO).verdict == Verdict.running()
