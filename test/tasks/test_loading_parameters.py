"""Parameters of the shipped tasks fit their declaration and the sensors, and a scripted policy needs its sensors."""

from dataclasses import replace
from typing import Any

import pytest
from shipped_contracts import changed_contract
from strategies import ABSENT

from embodied_env.contract import load_contract
from embodied_env.errors import ContractError, UsageError
from embodied_env.sim.mujoco_kinematics import MujocoKinematics
from embodied_env.sim.world_profile import load_profile
from embodied_env.tasks import ScriptedTask, load_task

WRONG: dict[str, list[tuple[str, Any, str]]] = {
    "arm_reach": [
        ("tip", "tpc", "'tpc' .expected one of: target, tcp"),
        ("target", "true_distance", "no sensor with position"),
        ("tip", "joints", "no sensor with position"),
        ("success_radius_m", 0.0, "0.0 .*at least 1e-09"),
        ("effort_weight", -0.1, "-0.1 .*at least 0"),
        ("sucess_bonus", 1.0, "did you mean 'success_bonus'"),
        ("success_radius_m", ABSENT, "missing"),
        ("success_bonus", "ten", "ten"),
    ],
    "cart_goal": [
        ("pose", "true_pos", "'true_pos' .expected.*'true_pose'"),
        ("goal", "scan", "no sensor with position"),
        ("collision", "true_pose", "no sensor with data"),
        ("collision", None, "null .expected"),
        ("progress_weight", -1.0, "-1.0 .*at least 0"),
        ("collision_penalty", -1.0, "-1.0 .*at least 0"),
        *((key, ABSENT, "missing") for key in ("pose", "goal", "collision", "success_radius_m")),
        ("pilot.radius", 0.2, "did you mean 'radius_m'"),
        ("pilot.odometry", "true_pose", "no sensor with linear and angular"),
        ("pilot.laser", "imu", "no sensor with ranges.*expected one of: scan"),
        ("pilot.detection", "imu", "no sensor with position"),
        ("pilot.laser_angles_rad", [2.36, -2.36], r"\(2.36, -2.36\) .expected"),
        ("pilot.detection_age_s", -0.1, "-0.1 .*at least 0"),
        ("pilot.radius_m", 0.0, "0.0 .*at least 1e-09"),
    ],
    "door_open": [
        ("door", "door", "no sensor with position of joints.*'door' .expected"),
        ("door", "handle", "no sensor with position of joints"),
        ("hinge", "bolt", "a joint of door_state: 'bolt'"),
        ("hinge", ABSENT, "missing"),
        ("bolt", ABSENT, "None .expected.*or neither"),
        ("handle", "joints", "no sensor with position and orientation"),
        ("distance", "handle", "no sensor with range"),
        ("wrench", "handle_distance", "no sensor with force"),
        ("max_force_n", ABSENT, "None .expected.*or neither"),
        ("max_force_n", 0.0, "0.0 .*at least 1e-09"),
        ("opened_at_rad", 0.0, "0.0 .*at least 1e-09"),
        ("approach_weight", -1.0, "-1.0 .*at least 0"),
    ],
}


@pytest.mark.parametrize(
    ("name", "key", "value", "problem"), [(name, *case) for name, cases in WRONG.items() for case in cases]
)
def test_an_invalid_parameter_is_rejected_with_its_path(name: str, key: str, value: object, problem: str) -> None:
    contract = changed_contract(name, {f"task.{key}": value})
    with pytest.raises(ContractError, match=problem) as caught:
        load_task(contract)
    assert (caught.value.path, caught.value.source) == (f"task.{key}", contract.source)


def test_parameters_that_contradict_each_other_are_rejected() -> None:
    empty = {"task.workspace_low_m": [0.0, 0.0, 1.0], "task.workspace_high_m": [1.0, 1.0, 1.0]}
    with pytest.raises(ContractError, match=r"task\.workspace_low_m: .*expected values below workspace_high_m"):
        load_task(changed_contract("arm_reach", empty))
    with pytest.raises(ContractError, match=r"task\.max_force_n: 120.0 .expected.*or neither"):
        load_task(changed_contract("door_open", {"task.wrench": ABSENT}))


@pytest.mark.parametrize(
    ("name", "sensor"),
    [
        ("arm_reach", "tcp"),
        ("cart_goal", "odom"),
        ("cart_goal", "scan"),
        ("cart_goal", "goal"),
        ("door_open", "handle"),
    ],
)
def test_a_scripted_policy_needs_its_sensors_in_the_observation(name: str, sensor: str) -> None:
    contract = load_contract(name)
    hidden = replace(contract.sensors[sensor], visibility="evaluator", mask=False)
    contract = replace(contract, sensors={**contract.sensors, sensor: hidden})
    task = load_task(contract)
    assert isinstance(task, ScriptedTask)
    with pytest.raises(UsageError, match=f"in the observation: '{sensor}'"):
        task.scripted(MujocoKinematics(contract, load_profile(contract, "mujoco")))
