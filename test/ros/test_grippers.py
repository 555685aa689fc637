"""Grippers with action servers over DDS: servers that reach, stall, reject, never answer, or disappear."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs rclpy")

from gripper_servers import Arm, Gripper
from grippers import ACTION, PARALLEL, TOPIC, gripper_contract, gripper_text

import embodied_env
from embodied_env.errors import BackendNotReadyError
from embodied_env.record import audit_run

pytestmark = [pytest.mark.ros, pytest.mark.realtime]

NAMESPACE = "/cell"
SILENT_S = 0.4
PATIENCE_S = 10.0  # where silence is not the subject, since a busy machine is silent too
LONG = pytest.mark.long
REAL = {"discovery_s": 0.0, "reset_timeout_s": 5.0}
OPEN, CLOSE = 1.0, -1.0


def contract_in(folder, kind=ACTION, more="", *, silent_s=PATIENCE_S):
    text = gripper_text(kind, more=", ".join(filter(None, [f"max_silent_s: {silent_s}", more])))
    contract = gripper_contract(folder, text)
    return replace(contract, backends={**contract.backends, "real": REAL})


class Cell:
    """A robot, its gripper and an environment."""

    def __init__(self, folder, domain_id, *, kind=ACTION, more="", record=None, mode="reach", silent_s=PATIENCE_S):
        self.arm = Arm(NAMESPACE, domain_id)
        self.gripper = Gripper(kind, self.arm, NAMESPACE, domain_id)
        self.gripper.mode = mode
        self.kind, self.domain_id, self.info = kind, domain_id, {}
        contract = contract_in(folder, kind, more, silent_s=silent_s)
        self.env = embodied_env.make(
            contract, backend="real", namespace=NAMESPACE, domain_id=domain_id, confirm_chosen=True, record=record
        )

    def step(self, gripper=CLOSE, times=1):
        for _ in range(times):
            action = {"arm": np.zeros(1), "gripper": np.array([gripper])}
            *_, self.info = self.env.step(action)
        return self.info["annotations"]["grippers"]["gripper"]

    def step_until(self, gripper, state, patience=60):
        self.step(gripper)  # an account is of the time before the step
        for _ in range(patience):
            found = self.step(gripper)
            assert not self.info["end_reason"] or state in found["state"], embodied_env.explain(self.info)
            if found["state"] == state:
                return found
        raise AssertionError(found)

    def restart(self):
        self.gripper = Gripper(self.kind, self.arm, NAMESPACE, self.domain_id)

    def close(self):
        self.env.close()
        self.gripper.close()
        self.arm.close()


@pytest.fixture
def cell(domain_id, tmp_path, message_package):
    message_package("control_msgs")
    made = []

    def make(**options):
        made.append(Cell(tmp_path, domain_id, **options))
        made[-1].env.reset(seed=0)
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize("kind", [ACTION, pytest.param(PARALLEL, marks=LONG)])
def test_goals_are_sent_on_change_and_the_record_has_them(kind, cell, tmp_path):
    robot = cell(kind=kind, more="max_effort: 5.0", record=tmp_path / "runs")
    for action, goal in ((CLOSE, 0.0), (OPEN, 0.8)):
        account = robot.step_until(action, "reached")
        assert account["goal"] == goal
        robot.step(action, times=3)
        assert robot.arm.positions["j2"] == goal
    assert account["goals_sent"] == len(robot.gripper.goals) == 2
    command = robot.gripper.goals[0]
    assert (command.max_effort if kind == ACTION else command.effort[0]) == 5.0
    robot.env.close()
    (run,) = (tmp_path / "runs").iterdir()
    assert audit_run(run).sound


@pytest.mark.long
def test_an_object_stalls_the_gripper_and_the_episode_goes_on(cell):
    robot = cell(mode="stall")
    assert robot.step_until(CLOSE, "stalled") == {"goal": 0.0, "state": "stalled", "goals_sent": 1}
    assert robot.step(CLOSE, times=15)["goals_sent"] == 1
    assert robot.info["end_reason"] == ""


@pytest.mark.parametrize(
    "fault", ["dead", *(pytest.param(fault, marks=LONG) for fault in ("reject", "accept", "mute"))]
)
def test_a_server_without_an_answer_never_delays_a_step_and_ends_the_episode_by_name(fault, cell):
    robot = cell(mode=fault, silent_s=SILENT_S)
    if fault == "mute":
        robot.gripper.pause.set()
        time.sleep(0.1)
    if fault == "dead":
        robot.gripper.close()
    slowest_s, started_s = 0.0, time.monotonic()
    while not robot.info.get("end_reason"):
        assert time.monotonic() - started_s < 10.0
        robot.step(CLOSE)
        slowest_s = max(slowest_s, robot.info["latency"]["publish_s"])
    assert robot.info["end_reason"] == "safety_stop:gripper.silent"
    assert time.monotonic() - started_s > SILENT_S
    assert slowest_s < 0.02
    state = {"reject": "rejected", "accept": "accepted", "mute": "sent", "dead": "unsent"}[fault]
    assert robot.info["annotations"]["grippers"]["gripper"]["state"] == state


def test_a_goal_is_sent_again_to_a_restarted_server(cell):
    robot = cell(mode="accept", more="hysteresis: 0.0")
    robot.step_until(CLOSE, "accepted")
    robot.gripper.close()
    robot.restart()
    assert robot.step_until(CLOSE, "reached")["goals_sent"] == 2


@pytest.mark.parametrize(("declared", "goals"), [pytest.param("hold", [0.0], marks=LONG), ("open", [0.0, 0.8])])
def test_a_stop_sends_the_declared_goal(declared, goals, cell):
    robot = cell(more=f"on_stop: {declared}")
    robot.step_until(CLOSE, "reached")
    while not robot.info["end_reason"]:
        *_, robot.info = robot.env.step("nonsense")
    robot.env.close()
    assert robot.info["end_reason"] == "safety_stop:form.repeated"
    assert [command.position for command in robot.gripper.goals] == goals


@pytest.mark.long
def test_a_missing_server_is_refused_before_any_motion(domain_id, tmp_path, message_package):
    message_package("control_msgs")
    arm = Arm(NAMESPACE, domain_id)
    contract = contract_in(tmp_path)
    contract = replace(contract, backends={"real": {**REAL, "reset_timeout_s": 1.0}})
    env = embodied_env.make(contract, backend="real", namespace=NAMESPACE, domain_id=domain_id)
    with pytest.raises(BackendNotReadyError, match=r"service\.none.*gripper/command/_action/send_goal: no service"):
        env.reset()
    env.close()
    arm.close()


@pytest.mark.parametrize("kind", [ACTION, pytest.param(TOPIC, marks=LONG)])
def test_simulators_drive_the_gripper_alike(kind, tmp_path, domain_id):
    contract = gripper_contract(tmp_path, gripper_text(kind))
    found = []
    for backend in ("mujoco", "mujoco_ros"):
        env = embodied_env.make(contract, backend=backend)
        try:
            observation, _ = env.reset(seed=1)
            rows = [observation["joints_position"].copy()]
            for step in range(20):
                action = {"arm": np.array([0.3]), "gripper": np.array([OPEN if step < 12 else CLOSE])}
                rows.append(env.step(action)[0]["joints_position"].copy())
        finally:
            env.close()
        found.append(np.array(rows))
    np.testing.assert_array_equal(*found)
    assert found[0][12, 1] == pytest.approx(0.8, abs=0.05)
    assert found[0][:, 1].max() > found[0][-1, 1]


@pytest.mark.long
def test_the_robot_emulator_serves_the_action(tmp_path, domain_id, message_package, monkeypatch):
    message_package("control_msgs")
    import control_msgs

    monkeypatch.setenv("PYTHONPATH", str(control_msgs.__path__[0]).removesuffix("/control_msgs"))
    contract = gripper_contract(tmp_path, gripper_text())
    env = embodied_env.make(contract, backend="mujoco_ros", pacing="realtime", domain_id=domain_id)
    try:
        env.reset(seed=1)
        states = []
        for _ in range(60):
            observation, *_, info = env.step({"arm": np.zeros(1), "gripper": np.array([OPEN])})
            states.append(info["annotations"]["grippers"]["gripper"]["state"])
            if states[-1] == "reached":
                break
        assert states[-1] == "reached"
        assert "accepted" in states
        assert observation["joints_position"][1] == pytest.approx(0.8, abs=0.05)
    finally:
        env.close()
