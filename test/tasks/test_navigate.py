import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ideal_readings import sense
from task_snapshots import end_of_episode, snapshot_of

from embodied_env.contract import Contract, FloatArray, TaskSpec, load_contract
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.code_types import Quality
from embodied_env.core.policy import PolicyFunction
from embodied_env.core.types import Snapshot, TaskResult, Verdict
from embodied_env.errors import UsageError
from embodied_env.sim.mujoco_kinematics import MujocoKinematics
from embodied_env.sim.world import World
from embodied_env.sim.world_profile import load_profile
from embodied_env.tasks import ScriptedTask, load_task
from embodied_env.tasks.navigate import Navigate, NavigateParameters

CONTRACT = load_contract("cart_goal")
PROFILE = load_profile(CONTRACT, "mujoco")
SCALE = ActionLayout(CONTRACT).scale
ANGLES_RAD = np.linspace(-2.36, 2.36, 90)
NOTHING_M = 10.0
ZERO = np.zeros(2)
PLAIN = {"pose": "true_pose", "goal": "true_goal", "collision": "collision", "success_radius_m": 0.5}


def contract_with(**parameters: Any) -> Contract:
    return replace(CONTRACT, task=TaskSpec(type=CONTRACT.task.type, parameters=parameters))


def navigate(**changes: Any) -> Navigate:
    return Navigate(CONTRACT, NavigateParameters(**{**PLAIN, **changes}))


def snapshot(
    distance_m: float = 3.0, *, height_m: float = 0.0, touched: bool = False, stale: str = "", quality: int = 1
) -> Snapshot:
    """Return a world with the goal at (1, 1), the robot at this distance from it, and the sensor `stale` not fresh."""
    values = {
        "true_pose": {"position": np.array([1.0 - distance_m, 1.0, 0.0])},
        "true_goal": {"position": np.array([1.0, 1.0, height_m])},
        "collision": {"data": np.array([touched], dtype=np.int8)},
    }
    return snapshot_of(values, **{stale: Quality(quality)})


def verdict_of(task: Navigate, current: Snapshot, applied: FloatArray = ZERO) -> TaskResult:
    return task.judge(snapshot(3.0), current, applied)


def test_progress_is_the_decrease_of_the_distance_and_effort_the_square_of_the_applied_action() -> None:
    result = verdict_of(navigate(progress_weight=2.0, effort_weight=0.1), snapshot(2.5), np.array([1.0, -0.5]))
    assert result.terms["progress"] == pytest.approx(1.0)
    assert result.terms["effort"] == pytest.approx(-0.125)


def test_back_and_forth_motion_has_no_reward() -> None:
    task = navigate()
    there, back = (task.judge(*pair, ZERO) for pair in ((snapshot(3), snapshot(2)), (snapshot(2), snapshot(3))))
    assert there.reward + back.reward == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("state", "verdict", "terms"),
    [
        ({"distance_m": 0.5}, Verdict.succeeded(), {"success": 7.0}),
        ({"distance_m": 0.501}, Verdict.running(), {"success": 0.0}),
        ({"distance_m": 0.4, "height_m": 3.0}, Verdict.succeeded(), {"success": 7.0}),  # distances are horizontal
        ({"touched": True}, Verdict.failed("collision"), {"collision": -5.0}),
        ({"distance_m": 0.1, "touched": True}, Verdict.failed("collision"), {"success": 0.0}),
    ],
)
def test_the_edge_of_the_radius_is_a_success_and_a_collision_a_failure(
    state: dict[str, Any], verdict: Verdict, terms: dict[str, float]
) -> None:
    result = verdict_of(navigate(success_bonus=7.0, collision_penalty=5.0), snapshot(**state))
    assert result.verdict == verdict
    assert terms.items() <= result.terms.items()


@pytest.mark.parametrize("sensor", ["true_pose", "true_goal", "collision"])
def test_only_measured_readings_are_a_success_also_outside_their_declared_ranges(sensor: str) -> None:
    for quality in (Quality.STALE, Quality.INVALID, Quality.LOST, Quality.FUTURE):
        assert verdict_of(navigate(), snapshot(0.1, stale=sensor, quality=quality)).verdict == Verdict.running()
    far_out = snapshot(0.1, stale=sensor, quality=Quality.OUT_OF_RANGE)
    assert verdict_of(navigate(), far_out).verdict == Verdict.succeeded()


def scripted(contract: Contract = CONTRACT) -> PolicyFunction:
    task = load_task(contract)
    assert isinstance(task, ScriptedTask)
    return task.scripted(MujocoKinematics(CONTRACT, PROFILE))


POLICY = scripted()


def observation(
    goal: tuple[float, float] = (3.0, 0.0),
    wall: Callable[[FloatArray], FloatArray] | None = None,
    *,
    speed_m_per_s: float = 0.0,
    turning_rad_per_s: float = 0.0,
    valid: bool = True,
) -> dict[str, np.ndarray]:
    """Return all observations of the policy, where `wall` maps angles of rays to distances in m."""
    ranges = np.full(len(ANGLES_RAD), NOTHING_M) if wall is None else np.minimum(wall(ANGLES_RAD), NOTHING_M)
    return {
        "odom_linear": np.array([speed_m_per_s, 0.0, 0.0]),
        "odom_angular": np.array([0.0, 0.0, turning_rad_per_s]),
        "scan_ranges": ranges.astype(np.float32),
        "goal_position": np.array([*goal, 0.0]),
        "goal_valid": np.array([valid], dtype=np.int8),
    }


def commanded(seen: Mapping[str, np.ndarray], policy: PolicyFunction = POLICY) -> tuple[float, float]:
    """Return forward and yaw speed, m/s and rad/s."""
    forward, turn = SCALE.to_si(policy(seen)).tolist()
    return forward, turn


def disc(x: float, y: float, radius_m: float) -> Callable[[FloatArray], FloatArray]:
    """Return the distances to a round obstacle."""

    def distances(angles: FloatArray) -> FloatArray:
        along = x * np.cos(angles) + y * np.sin(angles)
        across = y * np.cos(angles) - x * np.sin(angles)
        hit = (along > 0) & (np.abs(across) < radius_m)
        return np.where(hit, along - np.sqrt(np.maximum(radius_m**2 - across**2, 0.0)), NOTHING_M)

    return distances


@pytest.mark.parametrize(
    ("goal", "obstacle", "forward", "turn"),
    [
        pytest.param((3.0, 0.0), None, (SCALE.si_high[0] - 1e-6, 9.0), (-0.1, 0.1), id="straight to a goal ahead"),
        pytest.param((0.0, 3.0), None, (-0.1, 0.1), (0.1, 9.0), id="turns to a goal at its side"),
        pytest.param((3.0, 0.0), (1.0, -0.15, 0.3), (0.0, 9.0), (1e-6, 9.0), id="avoids on the freer side"),
        pytest.param((3.0, 0.0), (0.7, 0.0, 0.3), (0.0, 0.0), (-9.0, 9.0), id="stops before an obstacle"),
        pytest.param((3.0, 0.0), (0.0, 0.6, 0.25), (0.5, 9.0), (-9.0, 9.0), id="passes obstacles at its sides"),
        pytest.param((0.6, 0.0), (1.6, 0.0, 0.3), (0.0, 9.0), (-0.1, 0.1), id="ignores one behind the goal"),
    ],
)
@pytest.mark.parametrize("side", [1.0, -1.0], ids=["left", "right"])
def test_the_policy_drives_to_the_goal_around_obstacles(
    goal: tuple[float, float],
    obstacle: tuple[float, float, float] | None,
    forward: tuple[float, float],
    turn: tuple[float, float],
    side: float,
) -> None:
    """A mirrored scene is driven by the mirrored motion."""
    wall = None if obstacle is None else disc(obstacle[0], side * obstacle[1], obstacle[2])
    found = commanded(observation((goal[0], side * goal[1]), wall))
    assert forward[0] <= found[0] <= forward[1]
    assert turn[0] <= side * found[1] <= turn[1]


def test_the_policy_slows_down_near_the_goal() -> None:
    near, far = (commanded(observation((distance, 0.0)))[0] for distance in (0.2, 3.0))
    assert 0.0 < near < far


def test_the_policy_corrects_the_detection_for_the_motion_since_it() -> None:
    seen, driven = observation((1.0, 1.0)), observation((1.0 + 0.3 * 0.5, 1.0), speed_m_per_s=0.5)
    np.testing.assert_allclose(POLICY(driven), POLICY(seen))
    turned = observation((3 * math.cos(0.3), 3 * math.sin(0.3)), turning_rad_per_s=1.0)
    np.testing.assert_allclose(POLICY(turned), POLICY(observation((3.0, 0.0))))


def test_the_policy_stops_without_a_valid_detection() -> None:
    np.testing.assert_array_equal(POLICY(observation(valid=False)), ZERO)


def test_the_policy_needs_no_undeclared_mask() -> None:
    unmasked = observation()
    del unmasked["goal_valid"]
    np.testing.assert_array_equal(POLICY(unmasked), POLICY(observation()))


def test_the_policy_is_stateless() -> None:
    first = POLICY(observation())
    POLICY(observation((-1.0, 2.0), disc(0.6, 0.1, 0.3)))
    np.testing.assert_array_equal(POLICY(observation()), first)


def test_the_policy_stays_in_the_action_space() -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        distances = rng.uniform(0.05, 10.0, len(ANGLES_RAD))
        seen = observation((rng.uniform(-9, 9), rng.uniform(-9, 9)))
        assert POLICY({**seen, "scan_ranges": distances.astype(np.float32)}) in CONTRACT.action_space
    assert POLICY(observation((0.0, 0.0))) in CONTRACT.action_space  # at the goal itself


def test_there_is_no_scripted_policy_without_a_pilot() -> None:
    with pytest.raises(UsageError, match=r"needs task\.pilot"):
        scripted(contract_with(**PLAIN))


def test_the_scripted_policy_needs_an_action_with_yaw() -> None:
    base = CONTRACT.actuators["base"]
    sledge = replace(base, joints={"linear.x": base.joints["linear.x"]})
    with pytest.raises(UsageError, match=r"without angular\.z"):
        scripted(replace(CONTRACT, actuators={"base": sledge}))


@pytest.mark.parametrize("seed", [1, 2, pytest.param(3, marks=pytest.mark.long)])
def test_the_scripted_policy_reaches_the_drawn_goals(seed: int) -> None:
    assert end_of_episode(CONTRACT, POLICY, seed) == "success"


def test_holding_still_ends_with_the_time_limit_and_driving_straight_in_a_collision() -> None:
    short = replace(CONTRACT, episode=replace(CONTRACT.episode, horizon_steps=40))
    assert end_of_episode(short, lambda _: ZERO, 1) == "time_limit"
    assert end_of_episode(CONTRACT, lambda _: np.array([1.0, 0.0]), 1, start=[-3.5, 0.0, 0.0]) == "failure:collision"


def test_no_goal_can_be_drawn_near_a_start() -> None:
    goal, start = CONTRACT.reset_options["goal"], CONTRACT.reset_options["start"]
    nearest_m = float(goal.low_array[0] - start.high_array[0])
    assert nearest_m > CONTRACT.task.parameters["success_radius_m"]


def test_the_cart_starts_without_contact() -> None:
    world = World(CONTRACT, PROFILE)
    start = CONTRACT.reset_options["start"]
    for seed in range(20):
        corner = np.where(np.array([seed & 1, seed & 2, seed & 4]), start.low_array, start.high_array)
        world.reset(seed, {"start": corner} if seed < 8 else {})
        world.command(ZERO)
        for _ in range(3):
            world.step()
            assert not world.read()["collision"].values["data"][0]


@pytest.mark.parametrize(("forward", "turn"), [(0.5, 0.0), (0.0, 1.2), (0.3, -0.8), (-0.3, 0.0)])
def test_the_cart_follows_its_commands(forward: float, turn: float) -> None:
    world = World(CONTRACT, PROFILE)
    world.reset(0, {"start": np.array([-3.5, 0.0, math.pi / 2])})
    world.command(np.array([forward, turn]))
    for _ in range(10):
        world.step()
    moving = sense(world, "odom")
    assert moving["linear"][0] == pytest.approx(forward, abs=0.01)
    assert moving["angular"][2] == pytest.approx(turn, abs=0.02)
    assert abs(moving["linear"][1]) < 0.01
