"""Which goals a contract allows, and what completes one."""

import math
from dataclasses import replace

import pytest

import embodied_env
from embodied_env.errors import UsageError
from embodied_env.extensions.runner.policy_goal import GoalResult, PolicyGoal, check_goal

ARM = embodied_env.load_contract("arm_reach")
J1: dict = {"limit_joints": ("j1",)}


def test_a_goal_may_have_another_instruction_and_tighter_limits():
    goal = PolicyGoal(instruction="touch the target", **J1, limit_velocities=(1.0,), limit_accelerations=(4.0,))
    assert (check_goal(goal, ARM)["j1"].velocity, check_goal(goal, ARM)["j1"].acceleration) == (1.0, 4.0)
    assert check_goal(goal, ARM)["j1"].deceleration == 4.0


def test_limits_keep_a_lower_speed_of_one_direction():
    actuator = ARM.actuators["arm"]
    one_sided = replace(actuator.joints["j1"], velocity=(-0.2, 3.0))
    contract = replace(ARM, actuators={"arm": replace(actuator, joints={**actuator.joints, "j1": one_sided})})
    changed = check_goal(PolicyGoal(**J1, limit_velocities=(1.0,)), contract)
    assert changed["j1"].velocity == (-0.2, 1.0)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"instruction": "x" * 1001}, "invalid instruction: 'xxx"),
        ({"episodes": -1}, "invalid episodes: -1"),
        ({"seconds": math.nan}, "invalid seconds: nan"),
        ({"seconds": math.inf}, "invalid seconds: inf"),
        ({"limit_joints": ("elbow",), "limit_velocities": (1.0,)}, "unknown joint in limit_joints: 'elbow'"),
        ({"limit_joints": ("j1", "j1")}, "repeated joint"),
        (J1, "no limit of limit_joints: j1"),
        ({**J1, "limit_velocities": (1.0, 1.0)}, "2 limit_velocities .expected none or 1"),
        ({"limit_velocities": (1.0,)}, "1 limit_velocities .expected none or 0"),
        ({**J1, "limit_velocities": (9.0,)}, "limit not tighter: velocity of j1"),
        ({**J1, "limit_velocities": (math.nan,)}, "invalid limit_velocities of j1: nan"),
        ({**J1, "limit_accelerations": (0.0,)}, "invalid limit_accelerations of j1: 0.0"),
        ({**J1, "limit_accelerations": (99.0,)}, "limit not tighter: acceleration of j1"),
    ],
)
def test_a_goal_that_the_contract_does_not_allow_is_refused(fields, problem):
    with pytest.raises(UsageError, match=problem):
        check_goal(PolicyGoal(**fields), ARM)


@pytest.mark.parametrize(
    ("fields", "episodes"),
    [({}, 1), ({"episodes": 3}, 3), ({"seconds": 2.0}, math.inf), ({"episodes": 3, "seconds": 2.0}, 3)],
)
def test_a_goal_without_episodes_and_time_is_one_episode(fields, episodes):
    assert PolicyGoal(**fields).last_episode == episodes


def test_only_an_episode_that_its_contract_ends_completes_a_goal():
    result = GoalResult()
    result.add_episode({"end_reason": "failure:fell", "is_success": False, "step_index": 3}, is_cut=False)
    assert (result.verdict, result.message) == ("failure", "")
    result.add_episode({"end_reason": "policy_lost:over", "is_success": False, "step_index": 2}, is_cut=True)
    assert (result.verdict, result.message) == ("none", "")
    result.add_episode({"end_reason": "safety_stop:estop.active", "is_success": False, "step_index": 1}, is_cut=False)
    assert (result.episodes, result.steps, result.message) == (3, 6, "episode 2 ended by safety_stop:estop.active")
