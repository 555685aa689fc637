"""The transitions of the runner and its action, through rclpy's own clients, on the emulated robot."""

import itertools
import json
import os
import signal
from functools import partial
from pathlib import Path

import psutil
import pytest
from evidence import assert_sound
from robot_rig import PERIOD_S, TIMEOUT_S

import embodied_env

pytest.importorskip("rclpy", reason="needs rclpy")

pytestmark = [pytest.mark.ros, pytest.mark.kills, pytest.mark.realtime]


@pytest.fixture(scope="module")
def shared(message_package, tmp_path_factory):
    """Return a robot and a runner for all tests, whose contract switches controllers."""
    message_package("embodied_env_interfaces")
    message_package("controller_manager_msgs")
    from runner_rig import BLOCK, Manager, RunnerRig

    rig = RunnerRig(tmp_path_factory.mktemp("runner"), blocks={"runner": BLOCK})
    rig.manager = Manager(rig.monitor.ros.node)
    rig.client.state()
    yield rig
    rig.close()


@pytest.fixture
def rig(shared):
    """Return it in the state active."""
    shared.select("")
    shared.activate()
    return shared


def test_a_wrong_contract_is_refused_with_the_reason_and_can_be_corrected(shared):
    from runner_rig import CONFIGURE

    client, text = shared.client, shared.contract.read_text()
    shared.contract.write_text(text.replace("control_period_s: 0.05", "control_period_s: -1"))
    assert not client.change(CONFIGURE)
    assert client.state() == "unconfigured"
    client.wait_until(lambda: "control_period_s" in client.status["reason"])
    shared.contract.write_text(text)
    assert client.change(CONFIGURE)
    assert client.state() == "inactive"


def test_a_transition_that_the_state_does_not_have_is_refused(shared):
    from runner_rig import CLEANUP

    if shared.client.state() != "active":
        shared.activate()
    assert not shared.client.change(CLEANUP)
    assert shared.client.state() == "active"
    shared.client.wait_until(lambda: "no such transition from active" in shared.client.status["reason"])


def test_goals_run_with_a_policy_that_stays_loaded(rig):
    process, held = psutil.Process(rig.process.pid), []
    for _ in range(3):
        before = len(rig.commands)
        status, result = rig.client.run(seconds=0.2, instruction="touch the target")
        assert (status, result.message, result.episodes, result.verdict) == (rig.SUCCEEDED, "", 1, "none")
        assert result.steps > 0.2 / PERIOD_S - 2
        rig.client.wait_until(lambda: len(rig.commands) - before >= result.steps)  # noqa: B023 - used at once
        assert_sound(result.run)
        first = json.loads((Path(result.run) / "first_transition.json").read_text())
        assert first["info"]["instruction"] == "touch the target"
        held.append((process.num_threads(), process.num_fds()))
    rig.client.wait_until(
        lambda: (process.num_threads(), process.num_fds()) <= held[1]
    )  # a long test looks at the memory
    assert rig.mode_file.with_suffix(".loads").read_text().count("loaded") <= 2  # one per configuration


def test_feedback_has_steps_ages_and_progress(rig):
    rig.client.run(seconds=0.8)
    last = [each for each in rig.client.feedback if each.step][-1]
    assert 0 < last.oldest_reading_s < TIMEOUT_S
    assert 0.2 < last.progress <= 1.0


def test_cancel_at_full_speed_brakes_and_answers_at_rest(rig):
    handle = rig.run_to_full_speed()
    rig.client.answer(handle.cancel_goal_async())
    status, result = rig.client.result(handle)
    rig.check_braked()
    assert (status, result.message, result.end_reason) == (rig.CANCELED, "canceled", "policy_lost:canceled")
    assert_sound(result.run)


def test_a_prompt_that_changes_during_a_goal_is_an_event_of_its_record(rig):
    from embodied_env_interfaces.srv import SetInstruction

    set_instruction = partial(rig.client.call, SetInstruction, "runner/set_instruction")
    assert "no goal is executed" in set_instruction(instruction="wave").message
    handle = rig.run_to_full_speed()
    assert set_instruction(instruction="wave").success
    assert "invalid instruction" in set_instruction(instruction="").message
    step = max((each.step for each in rig.client.feedback), default=0)
    rig.client.wait_until(lambda: any(each.step > step + 2 for each in rig.client.feedback))
    rig.client.answer(handle.cancel_goal_async())
    run = rig.client.result(handle)[1].run
    rows = [row["info"] for row in embodied_env.read_run(run).rows()]
    (change,) = [info for info in rows if "instruction" in info.get("annotations", {})]
    assert rows[0]["instruction"] == change["annotations"]["instruction"]["before"]
    assert {info["instruction"] for info in rows[rows.index(change) :]} == {"wave"}
    assert rig.mode_file.with_suffix(".prompts").read_text().split("\n")[-3:-1] == [rows[0]["instruction"], "wave"]
    assert_sound(run)


def test_a_second_goal_is_rejected_with_the_reason(rig):
    from embodied_env_interfaces.srv import CheckGoal

    handle = rig.run_to_full_speed()
    assert not rig.client.send().accepted
    rig.client.wait_until(lambda: "another goal is executed, at step" in rig.client.status["reason"])
    answer = rig.client.call(CheckGoal, "runner/check_goal")
    assert (answer.accepted, "expected one at a time" in answer.reason) == (False, True)
    rig.client.answer(handle.cancel_goal_async())
    rig.client.result(handle)
    assert rig.client.call(CheckGoal, "runner/check_goal").accepted


def test_limits_of_a_goal_hold_for_it_alone(rig):
    before = len(rig.commands)
    rig.client.run(seconds=0.5, limit_joints=["j1"], limit_velocities=[0.5])
    moves = itertools.pairwise(rig.commands[before + 1 :])
    tight = max(abs(after[0] - earlier[0]) / PERIOD_S for earlier, after in moves)
    assert 0.3 < tight <= 0.5
    rig.client.answer(rig.run_to_full_speed().cancel_goal_async())
    rig.client.wait_until(lambda: not rig.client.status["running"])


@pytest.mark.parametrize(
    ("goal", "reason"),
    [
        ({"limit_joints": ["j1"], "limit_velocities": [99.0]}, "limit not tighter: velocity of j1"),
        ({"instruction": "a\nb"}, "invalid instruction: 'a"),
    ],
    ids=["limits", "instruction"],
)
def test_looser_limits_and_invalid_instructions_are_rejected(rig, goal, reason):
    assert not rig.client.send(**goal).accepted
    rig.client.wait_until(lambda: reason in rig.client.status["reason"])


@pytest.mark.parametrize(
    ("mode", "problem"), [("raise", "ZeroDivisionError"), ("degrees", "implausible policy: action of j1 is 90")]
)
def test_a_policy_that_fails_aborts_the_goal_and_the_next_one_runs(rig, mode, problem):
    rig.select(mode)
    status, result = rig.client.run()
    assert (status, result.end_reason) == (rig.ABORTED, "policy_lost:the policy failed")
    assert problem in result.message
    rig.select("")
    assert rig.client.run(seconds=0.2)[0] == rig.SUCCEEDED


def test_a_goal_whose_record_is_incomplete_is_aborted(rig):
    process = psutil.Process(rig.process.pid)
    before = process.rlimit(psutil.RLIMIT_FSIZE)
    handle = rig.client.send(seconds=0.8)
    rig.client.wait_until(lambda: any(each.step for each in rig.client.feedback))
    try:
        process.rlimit(psutil.RLIMIT_FSIZE, (1, before[1]))  # as on a full disk
        status, result = rig.client.result(handle)
    finally:
        process.rlimit(psutil.RLIMIT_FSIZE, before)
    assert (status, result.episodes) == (rig.ABORTED, 1)
    assert result.message.startswith("incomplete record: ")
    assert rig.client.run(seconds=0.2)[0] == rig.SUCCEEDED


def test_an_error_that_is_no_fault_of_the_policy_brakes_and_unconfigures(rig):
    rig.select("exit")
    status, result = rig.client.run()
    assert (status, "KeyboardInterrupt" in result.message) == (rig.ABORTED, True)
    rig.client.wait_until(lambda: rig.client.status["state"] == "unconfigured")
    assert "KeyboardInterrupt" in rig.client.status["reason"]
    assert rig.client.state() == "unconfigured"
    assert rig.manager.states == {"forward": "inactive", "trajectory": "active"}


def test_deactivation_brakes_a_goal_and_switches_the_controllers_back(rig):
    from runner_rig import DEACTIVATE

    assert rig.manager.states == {"forward": "active", "trajectory": "inactive"}
    assert rig.manager.requests[-1] == (["forward"], ["trajectory"], 2)
    handle = rig.run_to_full_speed()
    assert rig.client.change(DEACTIVATE)
    rig.check_braked()
    assert rig.manager.states == {"forward": "inactive", "trajectory": "active"}
    status, result = rig.client.result(handle)
    assert (status, result.message) == (rig.ABORTED, "the runner is deactivated")
    assert not rig.client.send().accepted
    rig.client.wait_until(lambda: "the runner is inactive (expected active)" in rig.client.status["reason"])


@pytest.mark.long
def test_a_policy_that_hangs_keeps_neither_the_robot_nor_its_client(rig):
    from runner_rig import DEACTIVATE

    rig.select("hang")
    handle = rig.client.send(seconds=600.0)
    rig.client.wait_until(rig.mode_file.with_suffix(".hangs").exists)
    assert rig.client.change(DEACTIVATE)
    status, result = rig.client.result(handle)
    assert (status, result.message) == (rig.ABORTED, "the runner is deactivated; the policy does not return")
    assert rig.manager.states == {"forward": "inactive", "trajectory": "active"}
    rig.activate()
    assert not rig.client.send().accepted
    rig.client.wait_until(lambda: "the policy does not return from an earlier goal" in rig.client.status["reason"])
    rig.select("")
    rig.client.wait_until(lambda: rig.client.send(seconds=0.2).accepted)
    rig.client.wait_until(lambda: rig.client.status["message"] == "" and not rig.client.status["running"])


def test_a_manager_that_refuses_prevents_the_activation(shared):
    from runner_rig import ACTIVATE

    shared.deactivate()
    shared.manager.refuses = True
    assert not shared.client.change(ACTIVATE)
    shared.manager.refuses = False
    assert shared.client.state() == "inactive"
    refusal = "refused to switch controllers: activate forward"
    shared.client.wait_until(lambda: refusal in shared.client.status["reason"])


def test_an_error_of_the_policy_does_not_prevent_the_cleanup(shared):
    from runner_rig import CLEANUP

    shared.deactivate()
    shared.select("keep")
    assert shared.client.change(CLEANUP)
    assert shared.client.state() == "unconfigured"
    shared.client.wait_until(lambda: "failed in close: ZeroDivisionError" in shared.client.status["reason"])


def test_an_estop_prevents_the_activation_and_ends_a_goal(rig):
    from runner_rig import ACTIVATE, DEACTIVATE

    handle = rig.run_to_full_speed()
    rig.monitor.pressed = True
    status, result = rig.client.result(handle)
    assert (status, result.end_reason) == (rig.ABORTED, "safety_stop:estop.active")
    assert not rig.client.send().accepted
    assert rig.client.change(DEACTIVATE)
    requests = len(rig.manager.requests)
    assert not rig.client.change(ACTIVATE)
    assert rig.client.state() == "inactive"
    rig.client.wait_until(lambda: "[estop.active]" in rig.client.status["reason"])
    assert len(rig.manager.requests) == requests
    rig.monitor.pressed = False
    assert rig.client.change(ACTIVATE)
    assert rig.client.run(seconds=0.2)[0] == rig.SUCCEEDED


def test_sigterm_brakes_switches_back_and_answers_every_goal(rig):
    """It is the last test of this runner."""
    from embodied_env_interfaces.action import RunPolicy

    handle = rig.run_to_full_speed()
    future = handle.get_result_async()
    late = rig.client.action.send_goal_async(RunPolicy.Goal())
    rig.client.answer(late)  # the request for the result has arrived, too
    os.kill(rig.process.pid, signal.SIGTERM)
    late = rig.client.action.send_goal_async(RunPolicy.Goal())
    result = rig.client.answer(future)
    assert (result.status, result.result.message) == (rig.ABORTED, "the runner is shut down")
    assert not rig.client.answer(late).accepted
    rig.check_braked()
    assert_sound(result.result.run)
    rig.process.wait(TIMEOUT_S)
    assert rig.process.exit_code == 0, rig.process.stderr_tail()
    assert rig.manager.states == {"forward": "inactive", "trajectory": "active"}
