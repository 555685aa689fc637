"""The action servers of grippers over DDS reach, stall, reject, never answer, or disappear."""

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from evidence import assert_sound
from waiting import wait_for

pytest.importorskip("rclpy", reason="needs rclpy")

from gripper_servers import NAMESPACE, PATIENCE_S, Arm, Gripper, relaying
from grippers import ACTION, ARM, PARALLEL, TOPIC, gripper_contract, gripper_text
from shipped_contracts import unhurried

import embodied_env
from embodied_env.core.code_types import Severity
from embodied_env.errors import BackendNotReadyError
from embodied_env.ros.robot.relay_client import RelayClient
from embodied_env.ros.transport.node import RosNode
from embodied_env.ros.transport.receive_thread import ReceiveThread
from embodied_env.testing import approve
from embodied_env.timing.clock import NS_PER_S, SteadyClock

pytestmark = [pytest.mark.ros, pytest.mark.realtime]

SILENT_S = 0.7
ATTEMPTS = 10
LONG = pytest.mark.long
OPEN, HALF, CLOSE = 0.8, 0.4, 0.0


class Cell:
    """A robot, its gripper, optionally a relay, and an environment."""

    def __init__(self, folder, domain_id, *, kind=ACTION, more="on_stop: open", units="", record=None, relay=False):
        text = gripper_text(kind, scale="physical", more=f"max_silent_s: {PATIENCE_S}, {more}")
        text = text.replace("velocity: 2.0", f"velocity: 2.0{units}")
        contract = gripper_contract(folder, text)
        profile = {"discovery_s": 0.0, "connect_timeout_s": PATIENCE_S, "relay": relay}
        contract = replace(contract, backends={**contract.backends, "real": profile})
        self.contract = contract if relay else unhurried(contract)
        self.kind, self.domain_id, self.info = kind, domain_id, {}
        with contextlib.ExitStack() as cleanup:
            self.arm = Arm(NAMESPACE, domain_id)
            cleanup.callback(self.arm.close)
            self.gripper = Gripper(kind, self.arm, NAMESPACE, domain_id)
            cleanup.callback(self.close_gripper)
            if relay:
                cleanup.enter_context(relaying(self.contract))
            self.env = embodied_env.make(
                self.contract, backend="real", namespace=NAMESPACE, domain_id=domain_id, record=record
            )
            cleanup.callback(self.env.close)
            self.env.reset(seed=0)
            self.close = cleanup.pop_all().close

    def step(self, goal=CLOSE, times=1):
        """Step until a step has an account, which is missing where the relay's answer is late."""
        count = 0
        while count < times or "annotations" not in self.info:
            *_, self.info = self.env.step({"arm": np.zeros(1), "gripper": np.array([goal])})
            assert "annotations" in self.info or not self.info["end_reason"], self.info
            count += 1
        return self.info["annotations"]["grippers"]["gripper"]

    def step_until(self, goal, state, patience=600):
        for _ in range(patience):
            found = self.step(goal)
            assert not self.info["end_reason"] or state in found["state"], self.info
            if found["state"] == state:
                return found
        raise AssertionError(found)

    def step_to_the_end(self, goals=(CLOSE,)):
        """Step until the episode ends, and return the time since the change of mode and the last account."""
        started_s, publish_s = time.monotonic(), []
        while not self.info["end_reason"]:
            assert time.monotonic() - started_s < PATIENCE_S
            before = self.info["annotations"]["grippers"]["gripper"]
            self.step(goals[len(publish_s) % len(goals)])
            publish_s.append(self.info["latency"]["publish_s"])
        assert np.median(publish_s) < SILENT_S / 4
        return time.monotonic() - self.changed_s, before

    def close_gripper(self):
        self.gripper.close()

    def start_gripper(self):
        self.gripper = Gripper(self.kind, self.arm, NAMESPACE, self.domain_id)

    def begin(self, mode, *, silent_s=PATIENCE_S):
        """Start an episode at a reached goal, then set the server's `mode` and longest silence."""
        (client,) = self.env.unwrapped.stepper.backend._connection.sink._grippers.values()
        client._gripper = replace(client._gripper, max_silent_s=PATIENCE_S)
        self.gripper.pause.clear()
        self.gripper.is_paused.clear()
        self.gripper.mode, self.gripper.delay_s = "reach", 0.0
        self.arm.positions["j2"] = 0.1
        self.env.reset(seed=0)
        self.step_until(HALF, "reached")
        self.gripper.goals.clear()
        self.changed_s, self.gripper.mode = time.monotonic(), mode
        client._gripper = replace(client._gripper, max_silent_s=silent_s)
        if mode == "mute":
            self.gripper.pause.set()
            assert self.gripper.is_paused.wait(PATIENCE_S)
        elif mode == "gone":  # for good: its thread would outlive the test
            self.gripper.close()
        return self


@pytest.fixture(scope="module")
def shared_cell(lasting_domain, tmp_path_factory, message_package):
    message_package("control_msgs")
    with lasting_domain() as domain_id:
        cell = Cell(tmp_path_factory.mktemp("cell"), domain_id)
        yield cell
        cell.close()


@pytest.fixture
def make_cell(domain_id, tmp_path, message_package):
    message_package("control_msgs")
    with contextlib.ExitStack() as made:
        yield lambda **options: made.enter_context(contextlib.closing(Cell(tmp_path, domain_id, **options)))


@pytest.mark.parametrize(
    ("mode", "state"), [("reach", "reached"), ("stall", "stalled"), ("abort_stalled", "stalled"), ("nan", "reached")]
)
def test_a_goal_that_ends_by_itself_is_sent_once_and_the_episode_goes_on(mode, state, shared_cell):
    robot = shared_cell.begin(mode)
    assert robot.step_until(CLOSE, state) == {"goal": CLOSE, "state": state, "goals_sent": 2}
    robot.step(CLOSE, times=10)
    assert robot.step(CLOSE + 0.007)["goals_sent"] == 2  # within the hysteresis
    assert robot.gripper.positions() == [CLOSE]
    assert robot.info["end_reason"] == ""


@pytest.mark.parametrize("mode", ["reject", "mute"])
def test_a_policy_that_toggles_does_not_hide_a_server_without_an_answer(mode, shared_cell):
    robot = shared_cell.begin(mode, silent_s=SILENT_S)
    robot.step_to_the_end(goals=(OPEN, CLOSE))
    assert robot.info["end_reason"] == "safety_stop:gripper.silent"


def test_a_late_answer_to_an_earlier_goal_is_an_answer(shared_cell):
    robot = shared_cell.begin("reach")
    robot.gripper.delay_s = 0.07
    for _ in range(12):
        robot.step(OPEN)
        account = robot.step(CLOSE)
        assert robot.info["end_reason"] == "", robot.info
    assert account["state"] == "sent"
    assert account["goals_sent"] <= 1 + 24
    robot.gripper.delay_s = 0.0
    assert robot.step_until(CLOSE, "reached")["goal"] == CLOSE


def test_results_that_never_come_are_not_awaited_forever(shared_cell):
    robot = shared_cell.begin("accept")
    for _ in range(8):
        robot.step_until(OPEN, "accepted")
        robot.step_until(CLOSE, "accepted")
    (client,) = robot.env.unwrapped.stepper.backend._connection.sink._grippers.values()
    assert len(client._results._pending_requests) <= 10


def test_a_stop_sends_the_declared_goal(shared_cell):
    robot = shared_cell.begin("reach")
    robot.step_until(CLOSE, "reached")
    while not robot.info["end_reason"]:
        *_, robot.info = robot.env.step("nonsense")
    assert robot.info["end_reason"] == "safety_stop:form.repeated"
    wait_for(lambda: robot.gripper.positions() == [CLOSE, OPEN])


@pytest.mark.parametrize(
    ("mode", "state"),
    [("reject", "rejected"), ("abort", "failed"), ("accept", "accepted"), ("mute", "sent"), ("gone", "unsent")],
)
def test_a_server_without_an_answer_never_delays_a_step_and_ends_the_episode_by_name(mode, state, shared_cell):
    robot = shared_cell.begin(mode, silent_s=SILENT_S)
    taken_s, account = robot.step_to_the_end()
    assert taken_s > SILENT_S
    assert robot.info["end_reason"] == "safety_stop:gripper.silent"
    assert (account["goal"], account["state"]) == (CLOSE, state)


def test_a_goal_is_sent_again_to_a_restarted_server(make_cell):
    robot = make_cell().begin("accept")
    robot.step_until(CLOSE, "accepted")
    with ThreadPoolExecutor(1) as pool:
        for change, state in ((robot.close_gripper, "unsent"), (robot.start_gripper, "reached")):
            changed = pool.submit(change)
            while not changed.done():
                robot.step(CLOSE)
            account = robot.step_until(CLOSE, state)
    assert account["goals_sent"] == 3
    assert robot.gripper.positions() == [CLOSE]


@pytest.mark.parametrize("kind", [pytest.param(ACTION, marks=LONG), pytest.param(PARALLEL, marks=LONG)])
def test_goals_are_sent_on_change_and_the_record_has_them(kind, make_cell, tmp_path):
    robot = make_cell(kind=kind, more="max_effort: 5.0", record=tmp_path / "runs")
    check_a_recorded_episode(robot, tmp_path / "runs")
    command = robot.gripper.goals[0]
    assert (command.max_effort if kind == ACTION else command.effort[0]) == 5.0


def check_a_recorded_episode(robot, runs):
    for goal in (CLOSE, OPEN):
        account = robot.step_until(goal, "reached")
        assert account["goal"] == goal
        robot.step(goal, times=3)
        assert robot.arm.positions["j2"] == goal
        assert robot.info["action"]["applied"]["gripper"] == goal
    assert account["goals_sent"] == len(robot.gripper.goals) == 2
    robot.env.close()
    (run,) = runs.iterdir()
    assert_sound(run)


def test_a_relay_sends_the_goals_and_the_goal_of_a_stop(make_cell, tmp_path):
    robot = make_cell(record=tmp_path / "runs", relay=True)
    check_a_recorded_episode(robot, tmp_path / "runs")
    check_a_client_that_falls_silent(robot)


def check_a_client_that_falls_silent(robot):
    ros = RosNode("client", namespace=NAMESPACE, clock=SteadyClock(), domain_id=robot.domain_id)
    listener = ReceiveThread(ros.node, SteadyClock())
    client = RelayClient(robot.contract, listener, SteadyClock())
    listener.start()
    try:
        robot.gripper.goals.clear()
        for _ in range(ATTEMPTS):  # a relay refuses a command that a stall of the machine makes late
            client.arm(time.monotonic_ns() + round(PATIENCE_S * NS_PER_S))
            sent = client.send(approve(robot.contract, {"arm": np.zeros(1), "gripper": np.array([CLOSE])}, epoch=1))
            if sent.report is not None and sent.report.disposition < Severity.HOLD:
                break
        wait_for(lambda: robot.gripper.positions() == [CLOSE, OPEN])
        wait_for(lambda: robot.arm.positions["j2"] == OPEN)
    finally:
        listener.stop()
        ros.close()


@pytest.mark.long
def test_goals_are_in_the_units_of_the_driver_and_accounts_in_those_of_the_contract(make_cell):
    robot = make_cell(units=", driver: {unit: percent, scale: 0.8, sign: -1, offset: 0.8}")
    robot.gripper.mode = "stall"
    assert robot.step_until(HALF, "stalled")["goal"] == HALF
    assert robot.step_until(0.2, "stalled")["goal"] == 0.2
    assert robot.gripper.positions() == pytest.approx([50.0, 75.0])


def test_a_missing_server_is_refused_before_any_motion(make_cell):
    robot = make_cell()
    robot.gripper.close()
    backend = robot.env.unwrapped.stepper.backend
    (client,) = backend._connection.sink._grippers.values()
    wait_for(lambda: not client._goals.service_is_ready())
    backend.reset_timeout_s = 1.0
    with pytest.raises(BackendNotReadyError, match=r"service\.none.*gripper/command/_action/send_goal: no service"):
        robot.env.reset()


JOINTS = {"message": f"{ARM}, j2: {{position: [-0.02, 0.82], velocity: 2.0, acceleration: 20.0}}"}


@pytest.mark.parametrize("kind", [ACTION, *(pytest.param(kind, marks=LONG) for kind in ("message", TOPIC, PARALLEL))])
def test_simulators_drive_the_gripper_alike(kind, tmp_path, domain_id):
    text = "" if kind in JOINTS else gripper_text(kind, scale="physical")
    contract = gripper_contract(tmp_path, text, JOINTS.get(kind, ARM))
    found, names = [], ("arm", "gripper")
    for backend in ("mujoco", "mujoco_ros"):
        env = embodied_env.make(contract, backend=backend)
        try:
            observation, _ = env.reset(seed=1)
            rows = []
            for step in range(20):
                goal = OPEN if step < 12 else CLOSE
                action = np.array([0.3, goal])
                observation, *_, info = env.step(
                    action if kind in JOINTS else dict(zip(names, action[:, None], strict=True))
                )
                applied = info["action"]["applied"]
                applied = applied if kind in JOINTS else np.concatenate([*applied.values()])
                rows.append([*observation["joints_position"], *applied])
        finally:
            env.close()
        found.append(np.array(rows))
    np.testing.assert_array_equal(found[0], found[1])
    positions, applied = found[0][:, 1], found[0][:, 3]
    assert positions[11] == pytest.approx(0.8, abs=0.05)
    assert positions.max() > positions[-1]
    if "/action/" in kind:
        assert applied.tolist() == [OPEN] * 12 + [CLOSE] * 8  # as on a robot
