import contextlib
import dataclasses
import functools
import math
import os
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
import scripted_tasks
from scripted_tasks import PERIOD_NS, PERIOD_S, VELOCITY, FailingResets, Scene
from waiting import wait_for

import embodied_env
import embodied_env.backends
from embodied_env import load_contract
from embodied_env.backends.fake_backend import FakeBackend, ScriptedFault
from embodied_env.core.code_table import CODES
from embodied_env.core.code_types import Quality, Severity, end_kind, order_end_reasons
from embodied_env.core.types import Finding
from embodied_env.envs.action_stages import ActionStages
from embodied_env.envs.stepper_state import State
from embodied_env.errors import (
    BackendLostError,
    BackendNotReadyError,
    ClosedError,
    ContractError,
    InternalFaultError,
    ResetNeededError,
    TaskError,
    UsageError,
)
from embodied_env.timing.clock import NS_PER_S, SteadyClock


@pytest.fixture
def make_scene():
    with contextlib.ExitStack() as scenes:
        yield lambda *arguments, **options: scenes.enter_context(contextlib.closing(Scene(*arguments, **options)))


@pytest.fixture
def scene_of(make_scene):
    """Return a function that starts an episode of a changed contract."""

    def start(task=None, *, options=None, **changes):
        made = make_scene(scripted_tasks.contract(task=task, **changes), **(options or {}))
        made.reset()
        return made

    return start


@pytest.fixture
def scene(scene_of):
    return scene_of()


def raising(error):
    """Return a function that raises."""

    def fail(*_arguments, **_keywords):
        raise error

    return fail


# ---------------------------------------------------------------------------------------------------------- any action


class RaisesOnConversion:
    def __array__(self, *args, **kwargs):
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("action", "code"),
    [
        (np.array([math.nan, 0.0]), "form.nan"),
        (np.array([math.inf, 0.0]), "form.nan"),
        (np.zeros(3), "form.shape"),
        ([[0.0, 0.0]], "form.shape"),
        ("left", "form.type"),
        (None, "form.type"),
        (RaisesOnConversion(), "form.type"),
        (np.array([True, False]), "form.type"),
    ],
)
def test_a_malformed_action_brakes_and_is_reported(scene, action, code):
    done = scene.step(action)
    assert done.report.findings[0].code == code
    assert done.info["safety"]["disposition"] == Severity.HOLD
    assert done.info["action_clipped"] is True
    assert (done.terminated, done.truncated) == (False, False)
    assert scene.sent[-1].values.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    "action", [[0.1, 0.1], (0.1, 0.1), np.full(2, 0.1, np.float16), np.array([1, 0]), np.array([1e308, -1e308])]
)
def test_a_well_formed_action_of_another_type_or_size_moves_the_robot_within_its_limits(scene, action):
    done = scene.step(action)
    assert done.report.disposition <= Severity.LIMIT
    assert done.info["action_clipped"] == (abs(action[0]) > 0.2)
    assert 0.0 < scene.sent[-1].values[0] <= PERIOD_S


def test_three_malformed_actions_in_a_row_truncate_the_episode(scene):
    dones = [scene.step(None) for _ in range(3)]
    assert [done.truncated for done in dones] == [False, False, True]
    assert dones[-1].info["end_reason"] == "safety_stop:form.repeated"


@pytest.mark.parametrize("make", [np.array, list], ids=["array", "list"])
def test_the_transition_keeps_the_action_if_the_agent_changes_it_later(scene, make):
    action = make([0.1, 0.2])
    done = scene.step(action)
    action[0] = 9.0
    assert list(done.action) == [0.1, 0.2]


def test_modifying_the_transition_does_not_change_the_reference_of_the_gate(scene):
    done = scene.step((0.1, 0.1))
    for array in (done.report.applied_si, done.observation["beacon_valid"], done.observation["joints_position"]):
        with pytest.raises(ValueError, match="read-only"):
            array[:] = 1
    assert np.abs(scene.step((0.0, 0.0)).report.applied_si).max() < 0.1


# ------------------------------------------------------------------------------------------------- outside an episode


@pytest.mark.parametrize(
    ("prepare", "error"),
    [
        pytest.param(lambda _: None, ResetNeededError, id="before the reset"),
        pytest.param(lambda scene: (scene.reset(), scene.step()), ResetNeededError, id="after the end"),
        pytest.param(lambda scene: (scene.reset(), scene.close()), ClosedError, id="after close"),
    ],
)
def test_a_step_outside_an_episode_raises_and_publishes_nothing(make_scene, prepare, error):
    scene = make_scene(scripted_tasks.contract(task={"success_at": 1}))
    prepare(scene)
    published = len(scene.sent)
    with pytest.raises(error):
        scene.step()
    assert len(scene.sent) == published


def test_a_second_begin_before_finish_raises_and_publishes_nothing(scene):
    with pytest.raises(ResetNeededError):
        scene.stepper.finish()
    scene.stepper.begin([0.0, 0.0])
    with pytest.raises(ResetNeededError):
        scene.stepper.begin([0.0, 0.0])
    assert len(scene.sent) == 1


# ----------------------------------------------------------------------------------------------------------------- close


def test_close_during_an_episode_brakes(scene):
    scene.step((0.1, 0.1))
    scene.close()
    assert scene.sent[-1].report.velocity_si.tolist() == [0.0, 0.0]
    assert scene.sent[-1].report.disposition is Severity.HOLD


@pytest.mark.parametrize(("task", "faults"), [({"success_at": 1}, []), (None, [ScriptedFault(kind="refuse", step=2)])])
def test_close_after_the_end_or_a_lost_world_publishes_nothing_more(scene_of, task, faults):
    scene = scene_of(task, options={"faults": faults})
    while not scene.step().end_reasons:
        pass
    scene.close()
    assert len(scene.sent) == 1


# ------------------------------------------------------------------------------------------------------------ end reasons


@pytest.fixture
def ending(scene_of):
    """Return a function that returns the last of some steps."""

    def run(task=None, *, steps=1, options=None, action=(0.0, 0.0), **changes):
        return scene_of(task, options=options, **changes).run(steps, action)

    return run


DROP = {"faults": [ScriptedFault(kind="drop", step=3, sensor="goal")]}
LOSE = {"faults": [ScriptedFault(kind="refuse", step=3)]}
LIMIT = {"horizon_steps": 3, "kind": "time_limit"}
HORIZON = {"horizon_steps": 3, "kind": "finite_horizon"}


@pytest.mark.parametrize(
    ("task", "action", "options", "changes", "reasons"),
    [
        ({}, (0.0, 0.0), {}, {}, ()),
        ({"success_at": 3}, (0.0, 0.0), {}, {}, ("success",)),
        ({"failure_at": 3}, (0.0, 0.0), {}, {}, ("failure:dropped",)),
        ({"out_of_bounds_at": 3}, (0.0, 0.0), {}, {}, ("out_of_bounds:fence",)),
        ({}, (0.0, 0.0), {}, {"episode": LIMIT}, ("time_limit",)),
        ({}, (0.0, 0.0), {}, {"episode": HORIZON}, ("horizon",)),
        ({"success_at": 3, "failure_at": 3}, (0.0, 0.0), {}, {}, ("success", "failure:dropped")),
        ({"success_at": 3}, (0.0, 0.0), {}, {"episode": HORIZON}, ("success", "horizon")),
        ({"success_at": 3}, None, {}, {}, ("success", "safety_stop:form.repeated")),
        ({"failure_at": 3}, (0.0, 0.0), {}, {"episode": LIMIT}, ("failure:dropped", "time_limit")),
        ({}, None, {}, {"episode": HORIZON}, ("horizon", "safety_stop:form.repeated")),
        ({}, None, LOSE, {}, ("safety_stop:form.repeated", "backend_lost:refused")),
        ({}, (0.0, 0.0), LOSE, {"episode": LIMIT}, ("backend_lost:refused", "time_limit")),
        (
            {"out_of_bounds_at": 3},
            (0.0, 0.0),
            DROP,
            {"episode": LIMIT, "sensors__goal__on_gap": "stop"},
            ("sensor_gap:goal", "out_of_bounds:fence", "time_limit"),
        ),
        ({"out_of_bounds_at": 3}, None, {}, {}, ("safety_stop:form.repeated", "out_of_bounds:fence")),
    ],
)
def test_an_episode_ends_with_its_flag_and_the_first_of_its_reasons(ending, task, action, options, changes, reasons):
    done = ending(task, steps=3, options=options, action=action, **changes)
    first = reasons[0] if reasons else ""
    assert (done.end_reasons, done.info["end_reason"]) == (reasons, first)
    assert done.terminated == (end_kind(first) in ("success", "failure", "horizon"))
    assert done.truncated == (bool(reasons) and not done.terminated)
    assert done.info["is_success"] is (first == "success")
    if changes == {"episode": HORIZON}:
        assert done.observation["time_remaining"].tolist() == [0.0]
    else:
        assert "time_remaining" not in done.observation


def test_faults_precede_the_end_of_time():
    found = ["time_limit", "out_of_bounds:a", "policy_lost:b", "sensor_gap:c", "task_error:d", "backend_lost:e"]
    assert order_end_reasons(found) == tuple(reversed(found))


# ----------------------------------------------------------------------------------------------------------- sensor faults


@pytest.mark.parametrize(
    ("kind", "quality"),
    [("drop", Quality.MISSING), ("nan", Quality.INVALID), ("stale", Quality.STALE), ("future", Quality.FUTURE)],
)
def test_a_sensor_fault_holds_the_last_reading_in_the_space_with_mask_and_quality(scene_of, kind, quality):
    scene = scene_of(options={"faults": [ScriptedFault(kind=kind, step=2, sensor="beacon")]})
    before = scene.step().observation
    done = scene.step()
    assert scene.contract.observation_space.contains(dict(done.observation))
    assert done.observation["beacon_position"].tolist() == before["beacon_position"].tolist()
    assert (before["beacon_valid"].tolist(), done.observation["beacon_valid"].tolist()) == ([1], [0])
    assert done.info["sensors"]["beacon"]["quality"] == quality
    assert done.info["sensors"]["beacon"]["age_s"] == pytest.approx(PERIOD_S)
    assert (done.terminated, done.truncated) == (False, False)
    assert scene.step().observation["beacon_valid"].tolist() == [1]


def test_a_refused_command_loses_the_world_until_the_reset(scene_of):
    scene = scene_of(options={"faults": [ScriptedFault(kind="refuse", step=2)]})
    before = scene.step((0.1, 0.1))
    done = scene.step((0.1, 0.1))
    assert (done.terminated, done.truncated, done.info["end_reason"]) == (False, True, "backend_lost:refused")
    assert scene.contract.observation_space.contains(dict(done.observation))
    assert done.observation["joints_position"].tolist() == before.observation["joints_position"].tolist()
    assert done.info["sensors"]["joints"]["quality"] == Quality.LOST
    assert len(scene.sent) == 1
    scene.reset()
    assert scene.step((0.1, 0.0)).info["end_reason"] == ""


def test_a_world_past_its_deadline_is_lost_and_halted(scene_of):
    scene = scene_of(options={"faults": [ScriptedFault(kind="delay", step=2, delay_s=1.5)], "step_timeout_s": 1.0})
    scene.step()
    began_ns = scene.clock.now_ns()
    done = scene.step()
    assert done.info["end_reason"] == "backend_lost:timeout"
    assert scene.clock.now_ns() - began_ns == NS_PER_S
    assert len(scene.backend.halted) == 1


def test_the_task_does_not_evaluate_a_lost_world(make_scene):
    contract = scripted_tasks.contract(task={"type": "scripted_tasks:Spy"})
    scene = make_scene(contract, faults=[ScriptedFault(kind="refuse", step=2)])
    scene.reset()
    scene.step()
    done = scene.step()
    assert done.reward == 0.0
    assert math.isnan(done.info["task"]["step"])
    assert len(scene.stepper.task.asked) == 1


def test_a_reading_outside_its_declared_range_is_returned_unclipped(scene_of):
    narrow = {"joints": ["shoulder", "elbow"], "unit": "rad", "low": -0.02, "high": 0.02}
    scene = scene_of(sensors__joints__fields={"position": narrow})
    done = scene.run(5, (1.0, 0.0))
    assert done.observation["joints_position"][0] == scene.sent[-1].values[0] > 0.02
    assert done.info["sensors"]["joints"]["quality"] == Quality.OUT_OF_RANGE


# ----------------------------------------------------------------------------------------------------------------- reset


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gaol": [0.2, 0.2, 0.2]}, "gaol"),
        ({"goal": [0.2, 0.2]}, "shape"),
        ({"goal": 0.2}, "shape"),
        ({"goal": [0.2, 0.2, 0.9]}, "expected shape"),
        ({"goal": [0.2, 0.2, math.nan]}, "expected shape"),
        ({"goal": "there"}, "goal"),
        ({"goal": None}, "goal"),
        ({"load": [1.0]}, "shape"),
        ({"load": -0.1}, "expected shape"),
        *(
            ({"goal": value}, "goal=.*expected shape")
            for value in (10**400, True, [True] * 3, np.ma.masked, [[0.0] * 3])
        ),
    ],
)
def test_a_reset_option_outside_its_bounds_is_rejected(scene, options, message):
    with pytest.raises(UsageError, match=message):
        scene.reset(**options)


def test_a_rejected_reset_keeps_the_running_episode_and_another_discards_its_step(scene):
    scene.step()
    with pytest.raises(UsageError):
        scene.reset(goal=[9.0, 9.0, 9.0])
    assert scene.step().info["step_index"] == 2
    scene.stepper.begin([0.1, 0.1])
    observation, info = scene.reset(goal=[0.2, 0.3, 0.4])
    assert observation["goal_position"].tolist() == [0.2, 0.3, 0.4]
    assert info["reset"]["sampled"]["goal"].tolist() == [0.2, 0.3, 0.4]
    assert scene.step().info["step_index"] == 1


@pytest.mark.parametrize("error", [BackendNotReadyError("not awake"), BackendLostError("listener", "receiving failed")])
def test_a_world_that_is_not_ready_or_lost_at_its_reset_raises_and_the_next_reset_retries(scene, monkeypatch, error):
    with monkeypatch.context() as patch:
        patch.setattr(scene.backend, "reset", raising(error))
        with pytest.raises(BackendNotReadyError, match=r"not awake|listener: receiving failed") as caught:
            scene.reset()
    assert caught.value is error or caught.value.__cause__ is error
    with pytest.raises(ResetNeededError):
        scene.step()
    scene.reset()
    assert scene.step().info["end_reason"] == ""


def test_a_reset_clears_a_latched_stop(scene):
    scene.run(3, None)
    scene.reset()
    assert scene.step((0.1, 0.1)).report.disposition is Severity.PASS


# --------------------------------------------------------------------------------------------- observers and reports


class Listener:
    def __init__(self, name, received):
        self.name, self.received = name, received

    def observe(self, transition):
        self.received.append((self.name, transition.info["step_index"], transition))


def test_observers_receive_each_transition_in_order_also_of_a_lost_world(make_scene):
    received = []
    observers = [Listener("first", received), Listener("second", received)]
    scene = make_scene(observers=observers, faults=[ScriptedFault(kind="refuse", step=2)])
    scene.reset()
    first = scene.stepper.last_transition
    assert first is None
    done = [scene.step() for _ in range(2)]
    assert [(name, step) for name, step, _ in received] == [("first", 1), ("second", 1), ("first", 2), ("second", 2)]
    assert [transition for _, _, transition in received] == [done[0], done[0], done[1], done[1]]
    assert scene.stepper.last_transition is done[1]
    assert done[1].info["end_reason"] == "backend_lost:refused"


def test_the_task_evaluates_both_snapshots_and_the_applied_action(make_scene):
    scene = make_scene(scripted_tasks.contract(task={"type": "scripted_tasks:Spy"}))
    scene.reset()
    done = scene.step((3.0, 0.1))
    ((previous, current, applied),) = scene.stepper.task.asked
    assert current.now_ns - previous.now_ns == PERIOD_NS
    assert current == done.snapshot
    assert applied.tolist() == done.report.applied.tolist() != [3.0, 0.1]


def test_readings_and_values_drawn_for_the_evaluator_are_in_info_only_with_evaluator_info(make_scene):
    agent, evaluator = make_scene(), make_scene(evaluator_info=True)
    for scene, sees in ((agent, False), (evaluator, True)):
        observation, info = scene.reset()
        done = scene.step()
        for found in (info, done.info):
            assert ("evaluator" in found) == sees
            assert ("truth" in found["sensors"]) == sees
        assert not {"truth_range"} & (observation.keys() | done.observation.keys())
        assert ("truth" in done.info["latency"]["capture_age_s"]) == sees
        assert info["reset"]["sampled"].keys() == ({"goal", "load"} if sees else {"goal"})


# ------------------------------------------------------------------------------------------------------ time and threads


def test_a_pause_of_two_seconds_between_lockstep_steps_changes_nothing(scene_of):
    def run(pause_ns):
        scene = scene_of()
        dones = []
        for action in ((0.3, -0.3), (1.0, 1.0), (-1.0, 0.2), (0.0, 0.0)):
            scene.clock.advance_ns(pause_ns)
            dones.append(scene.step(action))
        return [
            (
                {key: value.tolist() for key, value in done.observation.items()},
                done.reward,
                done.end_reasons,
                done.report.applied_si.tolist(),
                [finding.code for finding in done.report.findings],
                done.info["safety"]["watchdog"]["trips"],
            )
            for done in dones
        ]

    assert run(2 * NS_PER_S) == run(0)


def watchdogs():
    return [thread for thread in threading.enumerate() if thread.name == "embodied_env watchdog"]


def quick_contract(**changes):
    """Return a contract with a period of 10 ms, whose episodes no stall of the machine ends."""
    contract = scripted_tasks.contract(control_period_s=0.01, **changes)
    watchdog = dataclasses.replace(contract.safety.watchdog, stop_steps=10_000)
    return dataclasses.replace(contract, safety=dataclasses.replace(contract.safety, watchdog=watchdog))


def test_a_free_running_world_has_a_watchdog_thread_until_it_is_closed(make_scene):
    make_scene().reset()
    assert watchdogs() == []  # of a lockstep world
    scene = make_scene(quick_contract(), clock=SteadyClock(), free_running=True)
    assert watchdogs() == []
    for _ in range(2):
        scene.reset()
        assert len(watchdogs()) == 1
    scene.close()
    assert watchdogs() == []


def wait_for_rest(scene):
    wait_for(lambda: not scene.sent[-1].report.velocity_si.any())


def test_a_free_running_robot_brakes_when_the_agent_stops_stepping(make_scene):
    scene = make_scene(quick_contract(), clock=SteadyClock(), free_running=True)
    scene.reset()
    while not (scene.sent and scene.sent[-1].report.velocity_si.any()):
        scene.step((0.5, 0.0))
    wait_for_rest(scene)
    assert scene.sent[-1].report.findings[0].gate == "watchdog"
    done = scene.step((0.5, 0.0))
    assert done.info["safety"]["watchdog"]["trips"] >= 1


class ClosingBackend(FailingResets):
    """Stores whether it was closed."""

    failing = ()
    closed = False

    def close(self):
        super().close()
        self.closed = True


def driving():
    scene = Scene(quick_contract(), backend=ClosingBackend, clock=SteadyClock(), free_running=True)
    scene.reset()
    scene.run(6, (1.0, 0.0))
    return scene


def test_a_requested_close_brakes_to_rest_first():
    scene = driving()
    scene.stepper.lifecycle.request_close()
    wait_for(lambda: not watchdogs())
    assert scene.sent[-1].report.velocity_si.tolist() == [0.0, 0.0]
    with pytest.raises(ClosedError):
        scene.step((1.0, 0.0))


def test_a_requested_close_follows_a_failed_reset(make_scene):
    scene = make_scene(quick_contract(), backend=ClosingBackend, clock=SteadyClock(), free_running=True)
    scene.backend.failing = (1,)
    with pytest.raises(BackendNotReadyError):
        scene.reset()
    scene.stepper.lifecycle.request_close()
    wait_for(lambda: not watchdogs())
    assert scene.backend.closed


def test_close_in_another_thread_brakes_to_rest_during_steps():
    scene = driving()
    closing = threading.Thread(target=scene.close)
    closing.start()
    with pytest.raises((ClosedError, ResetNeededError)):
        scene.run(1000, (1.0, 0.0))
    closing.join()
    assert scene.sent[-1].report.velocity_si.tolist() == [0.0, 0.0]


class ClosedInReset(FakeBackend):
    """Another thread closes during its second reset."""

    close_stepper: Callable[[], None]

    def reset(self, request, deadline_ns):
        snapshot = super().reset(request, deadline_ns)
        if request.epoch:
            thread = threading.Thread(target=self.close_stepper)
            thread.start()
            thread.join()
        return snapshot


def test_close_during_the_reset_of_a_lost_world_brakes(make_scene):
    scene = make_scene(quick_contract(), backend=ClosedInReset, clock=SteadyClock(), free_running=True, **LOSE)
    scene.backend.close_stepper = scene.stepper.close
    scene.reset()
    assert scene.run(3).info["end_reason"] == "backend_lost:refused"
    published = len(scene.sent)
    with pytest.raises(ClosedError):
        scene.reset()
    assert [command.report.disposition for command in scene.sent[published:]] == [Severity.HOLD]


def test_a_second_close_waits_until_the_robot_is_at_rest():
    scene = driving()
    first = threading.Thread(target=scene.close)
    first.start()
    while not scene.sent[-1].report.disposition >= Severity.HOLD:
        time.sleep(0.001)
    scene.close()
    assert scene.sent[-1].report.velocity_si.tolist() == [0.0, 0.0]
    assert scene.backend.closed
    first.join()


class ResettingStage:
    """Another thread resets while it acts."""

    def __init__(self, reset):
        self._reset = reset

    def reset(self):
        """Begin an episode."""

    def apply(self, action, snapshot, commanded):
        thread = threading.Thread(target=self._reset)
        thread.start()
        thread.join()

    def close(self):
        """Free nothing."""


def test_an_action_from_before_a_reset_in_another_thread_is_not_sent():
    scene = driving()
    scene.stepper.stages = ActionStages({"slow": ResettingStage(scene.reset)})
    count = len(scene.sent)
    with pytest.raises(ResetNeededError, match="reset during a step"):
        scene.step((1.0, 0.0))
    assert all(command.report.disposition >= Severity.HOLD for command in scene.sent[count:])
    scene.close()


@pytest.mark.parametrize("call", ["close", "step", "reset"])
def test_a_forked_child_leaves_the_robot_to_the_parent(call):
    """Its messages would have the numbers of the parent's next ones, which the middleware then drops as repeated."""
    scene = driving()
    count = len(scene.sent)
    if (pid := os.fork()) == 0:
        with contextlib.suppress(ClosedError):
            getattr(scene, call)()
        os._exit(0 if len(scene.sent) == count and not scene.backend.closed else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    scene.close()


@pytest.mark.parametrize(
    "reason", ["out_of_bounds:fence", "time_limit", "safety_stop:form.repeated", "task_error:RuntimeError"]
)
def test_a_free_running_robot_brakes_to_rest_at_the_end_of_an_episode(make_scene, reason):
    """STOP brakes to rest, since the agent takes no more steps."""
    contract = quick_contract(
        task={"out": {"out_of_bounds_at": 7}, "task": {"raise_at": 7}}.get(reason.partition("_")[0], {}),
        episode={"horizon_steps": 7 if reason == "time_limit" else 100, "kind": "time_limit"},
        safety__nonfinite={"stop_after": 1},
    )
    scene = make_scene(contract, clock=SteadyClock(), free_running=True)
    scene.reset()
    scene.run(6, (1.0, 1.0))
    with contextlib.suppress(TaskError):
        scene.step(None if reason.startswith("safety") else (1.0, 1.0))
    assert scene.stepper.last_transition.info["end_reason"] == reason
    wait_for_rest(scene)
    assert scene.sent[-1].report.velocity_si.tolist() == [0.0, 0.0]


# -------------------------------------------------------------------------------------------------------- internal errors


def test_an_error_in_the_task_ends_the_episode_with_an_account_of_the_step(scene_of):
    scene = scene_of(task={"raise_at": 2})
    scene.step()
    with pytest.raises(
        TaskError, match=r"task .*scripted_tasks\.py:\d+: RuntimeError: the task has an error"
    ) as caught:
        scene.step()
    assert isinstance(caught.value.__cause__, RuntimeError)
    done = scene.stepper.last_transition
    assert (done.reward, done.terminated, done.truncated) == (0.0, False, True)
    assert done.end_reasons == ("task_error:RuntimeError",)
    assert np.isnan(done.info["task"]["step"])
    assert scene.backend.halted == []
    with pytest.raises(ResetNeededError):
        scene.step()
    scene.reset()
    assert scene.step().info["step_index"] == 1


class InterruptedWhileRunning(FakeBackend):
    """Ctrl-C while the sixth step waits for a free-running world."""

    def read(self, after_ns, deadline_ns):
        if self._step == 6:
            raise KeyboardInterrupt
        return super().read(after_ns, deadline_ns)


def test_an_interrupt_brakes_a_free_running_robot_before_cutting_the_transport(make_scene):
    """Without a step the newest command brakes (A4.3), however stepping ended."""
    scene = make_scene(quick_contract(), backend=InterruptedWhileRunning, clock=SteadyClock(), free_running=True)
    scene.reset()
    with pytest.raises(KeyboardInterrupt):
        scene.run(6, (1.0, 1.0))
    wait_for_rest(scene)
    assert scene.sent[-1].report.velocity_si.tolist() == [0.0, 0.0]


class RaisesOnCopy(dict):
    def items(self):
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("part", "method", "action", "error", "sent"),
    [
        ("gate", "", RaisesOnCopy(), RuntimeError("no"), 0),
        ("gate", "judge", (0.0, 0.0), InternalFaultError("even braking breaks a limit"), 0),
        ("backend", "advance", (0.0, 0.0), KeyboardInterrupt(), 1),
    ],
    ids=["action that cannot be copied", "internal error", "interrupt"],
)
def test_an_error_in_a_step_ends_the_episode_and_halts_the_world(scene, monkeypatch, part, method, action, error, sent):
    if method:
        monkeypatch.setattr(getattr(scene.stepper, part), method, raising(error))
    with pytest.raises(type(error)):
        scene.step(action)
    assert (len(scene.sent), len(scene.backend.halted)) == (sent, 1)
    with pytest.raises(ResetNeededError):
        scene.step()


# ------------------------------------------------------------------------------------------------------ reset options


@pytest.mark.parametrize("options", [[], "target", 5])
def test_reset_options_must_be_a_mapping(options):
    env = embodied_env.make("arm_reach", backend="fake")
    with pytest.raises(UsageError, match="expected a mapping of reset options"):
        env.reset(options=options)
    env.close()


def test_a_joint_measured_only_for_the_evaluator_cannot_be_commanded_by_position():
    contract = load_contract("arm_reach")
    hidden = dataclasses.replace(contract.sensors["joints"], visibility="evaluator", mask=False)
    with pytest.raises(ContractError, match=r"no sensor reports the position of joint 'j1'"):
        dataclasses.replace(contract, sensors={**contract.sensors, "joints": hidden})


# ------------------------------------------------------------------------------------------------------ safety context


ENDLESS = {"type": "scripted_tasks:Running"}  # no joint sensor
STRICT_TRACKING = {"tolerance": 0.01, "delay_steps": 0, "debounce_steps": 1, "stop_steps": 3}


def gates_of(done):
    return [(finding.gate, finding.code) for finding in done.report.findings if finding.gate != "joint_limits"]


def silent(sensor, *, since=1, steps=20):
    return [ScriptedFault(kind="drop", step=step, sensor=sensor) for step in range(since, since + steps)]


def test_an_emergency_stop_brakes_and_truncates(scene):
    scene.step((0.5, 0.0))
    scene.backend.estop_states = {"door": "active"}
    done = scene.step((1.0, 1.0))
    assert (done.terminated, done.truncated) == (False, True)
    assert done.info["end_reason"] == "safety_stop:estop.active"
    assert done.info["safety"]["estop"] is True
    assert done.info["safety"]["latched"] is True
    assert abs(done.report.velocity_si[0]) < 0.2


@pytest.mark.parametrize(
    ("state", "reason"), [("protective_stop", "robot.protective_stop"), ("inactive", "robot.inactive")]
)
def test_the_end_of_the_episode_names_the_safety_input(scene, state, reason):
    scene.backend.estop_states = {"door": state}
    assert scene.step().info["end_reason"] == f"safety_stop:{reason}"


def test_an_episode_begins_after_an_emergency_stop_once_an_operator_cleared_it(scene):
    scene.backend.estop_states = {"door": "active"}
    scene.step()
    scene.backend.estop_states = {}
    with pytest.raises(BackendNotReadyError, match=r"an ESTOP is latched \(estop\.active: door is active\)"):
        scene.reset()
    for _ in range(2):
        with pytest.raises(ResetNeededError):
            scene.step((1.0, 1.0))
        scene.stepper.gate.clear_estop()  # which leaves a stop
    scene.reset()
    assert scene.step((0.1, 0.1)).report.disposition is Severity.PASS


def test_clearing_during_an_episode_leaves_a_stop(scene_of):
    scene = scene_of(options={"free_running": True})
    scene.stepper.gate.latch(scripted_estop())
    scene.stepper.gate.clear_estop()
    assert scene.step().info["end_reason"] == "safety_stop:estop.active"


def scripted_estop():
    return Finding(gate="estop", severity=Severity.ESTOP, code="estop.active")


def test_an_input_that_is_still_asserted_after_the_reset_ends_the_next_episode_too(scene):
    scene.backend.estop_states = {"door": "active"}
    scene.step()
    scene.stepper.gate.clear_estop()
    scene.reset()
    assert scene.step().info["end_reason"] == "safety_stop:estop.active"


class UnreadableInputs(FakeBackend):
    """Its safety inputs cannot be read."""

    def estops(self):
        raise BackendLostError("gone", "no such node")


def test_unreadable_safety_inputs_are_unknown(make_scene):
    scene = make_scene(backend=UnreadableInputs)
    scene.reset()
    done = scene.step((1.0, 1.0))
    assert done.info["end_reason"] == "safety_stop:estop.unknown"
    assert done.report.velocity_si.tolist() == [0.0, 0.0]


def test_a_silent_required_sensor_holds_and_then_stops(scene_of):
    """Its reading may be 0.15 s old, three steps, before an action is refused."""
    scene = scene_of(ENDLESS, options={"faults": silent("joints")}, safety__observation={"stop_steps": 3})
    found = [scene.step((0.1, 0.1)) for _ in range(7)]
    assert [done.report.disposition for done in found] == [
        Severity.PASS,
        Severity.PASS,
        Severity.PASS,
        Severity.PASS,
        Severity.HOLD,
        Severity.HOLD,
        Severity.STOP,
    ]
    assert found[-1].info["end_reason"] == "safety_stop:obs.stale"
    assert gates_of(found[4]) == [("observation", "obs.stale")]


@pytest.mark.parametrize(("kind", "code"), [("nan", "obs.invalid"), ("future", "obs.future")])
def test_an_invalid_required_sensor_holds_the_next_action(scene_of, kind, code):
    scene = scene_of(ENDLESS, options={"faults": [ScriptedFault(kind=kind, step=1, sensor="joints")]})
    found = [scene.step() for _ in range(3)]
    assert [gates_of(done) for done in found] == [[], [("observation", code)], []]


def test_a_sensor_that_is_not_required_may_be_silent_for_the_whole_episode(scene_of):
    scene = scene_of(options={"faults": silent("goal")})
    assert [scene.step((0.1, 0.1)).report.disposition for _ in range(8)] == [Severity.PASS] * 8


@pytest.mark.parametrize("kind", ["drop", "nan"])
def test_a_base_without_odometry_brakes_and_stops(make_scene, kind):
    plain = load_contract("cart_goal")
    sensors = {name: dataclasses.replace(sensor, on_gap="hold") for name, sensor in plain.sensors.items()}
    held = dataclasses.replace(plain, sensors=sensors, task=scripted_tasks.contract(task=ENDLESS).task)
    faults = [ScriptedFault(kind=kind, step=step, sensor="odom") for step in range(5, 99)]
    scene = make_scene(held, faults=faults)
    scene.reset()
    found = [scene.step((1.0, 0.5))]
    while not found[-1].info["end_reason"]:
        found.append(scene.step((1.0, 0.5)))
    assert found[-1].info["end_reason"].startswith("safety_stop:obs.")
    assert np.abs(found[-1].report.velocity_si).max() < 0.5 * np.abs(found[3].report.velocity_si).max()
    assert len(found) < 30


def test_a_policy_may_require_more_sensors_until_the_next_reset(scene_of):
    scene = scene_of(ENDLESS, options={"faults": silent("goal")}, safety__observation={"stop_steps": 3})
    scene.stepper.inputs_for("require").require(["goal"])
    found = scene.run(7, (0.1, 0.1))
    assert found.info["end_reason"] == "safety_stop:obs.stale"
    scene.reset()
    assert scene.run(7, (0.1, 0.1)).info["end_reason"] == ""
    with pytest.raises(UsageError, match=r"unknown sensor to require: 'truth' \(expected .*goal"):
        scene.stepper.inputs_for("require").require(["truth"])


class TurningRobot(FakeBackend):
    """A robot whose driver reports angles modulo a turn while its controller counts turns.

    A reset moves nothing.
    """

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.capabilities = dataclasses.replace(self.capabilities, simulated=False)

    def reset(self, request, deadline_ns):
        before = self._positions.copy()
        report = super().reset(request, deadline_ns).reset
        self._positions = before
        return dataclasses.replace(self._read_after_pause(), reset=report)

    def _snapshot(self):
        found = super()._snapshot()
        joints = found.samples["joints"]
        angles = [math.remainder(angle, 2 * math.pi) for angle in joints.values["position"].tolist()]
        joints = dataclasses.replace(joints, values={"position": np.array(angles)})
        return dataclasses.replace(found, samples={**found.samples, "joints": joints})


@pytest.mark.parametrize("way", [1.0, -1.0])
def test_a_joint_without_limits_may_turn_past_half_a_turn_and_through_resets(make_scene, way):
    turning = {"position": None, "velocity": 1.0, "acceleration": 4.0}
    joints = {"shoulder": turning, "elbow": turning}
    endless = {"horizon_steps": 1000, "kind": "time_limit"}
    field = {"joints": [*joints], "unit": "rad", "low": -3.2, "high": 3.2}
    contract = scripted_tasks.contract(
        task=ENDLESS, actuators__arm__joints=joints, episode=endless, sensors__joints__fields__position=field
    )
    scene = make_scene(contract, backend=TurningRobot)
    for _ in range(3):
        scene.reset()
        found = [scene.step((way, 0.0)) for _ in range(80)]
        assert {done.info["end_reason"] for done in found} == {""}
        assert {finding.code for done in found for finding in done.report.findings} <= {"acc.limit", "vel.limit"}
        scene.run(10)
    published = np.array([command.values for command in scene.sent])
    assert np.abs(np.diff(published, axis=0)).max() <= VELOCITY * PERIOD_S + 1e-9
    assert way * published[-1, 0] > 3 * math.pi


def test_a_blocked_robot_is_held_and_stopped(scene_of):
    scene = scene_of(options={"backend": Blocked}, safety__tracking=STRICT_TRACKING)
    found = [scene.step((1.0, 0.0)) for _ in range(20) if scene.stepper.lifecycle.state is State.RUNNING]
    codes = [done.info["end_reason"] for done in found]
    assert codes[-1] == "safety_stop:track.error"
    assert [done.report.disposition for done in found[-3:]] == [Severity.HOLD, Severity.HOLD, Severity.STOP]
    blocked, other = scene.contract.actuators["arm"].joints
    assert found[-1].info["safety"]["joints"] == {blocked: CODES["track.error"], other: 0}
    assert found[-1].info["safety"]["unmoved"] == blocked


def test_joint_that_moved_before_its_tracking_error_is_not_called_unmoved(scene_of):
    scene = scene_of(options={"backend": BlockedLater}, safety__tracking=STRICT_TRACKING)
    found = [scene.step((1.0, 0.0)) for _ in range(40) if scene.stepper.lifecycle.state is State.RUNNING]
    assert found[-1].info["end_reason"] == "safety_stop:track.error"
    assert found[-1].info["safety"]["unmoved"] == ""


class Blocked(FakeBackend):
    """Accepts every command and does not move."""

    def advance(self, target_ns, deadline_ns):
        start = self._positions.copy()
        super().advance(target_ns, deadline_ns)
        self._positions = start


class BlockedLater(FakeBackend):
    """Moves for two steps."""

    def advance(self, target_ns, deadline_ns):
        start = self._positions.copy()
        super().advance(target_ns, deadline_ns)
        if len(self.sent) > 2:
            self._positions = start


@pytest.fixture
def running_scene(scene_of):
    """Return a function that starts a free-running world on a manual clock, which the watchdog does not advance."""
    watchdog = {"hold_steps": 50, "stop_steps": 100}
    return functools.partial(scene_of, options={"free_running": True}, safety__watchdog=watchdog)


def test_an_action_is_valid_up_to_its_maximum_age_in_real_time(running_scene):
    scene = running_scene()
    scene.step()
    scene.clock.advance_ns(2 * PERIOD_NS)
    assert gates_of(scene.step()) == []
    scene.clock.advance_ns(2 * PERIOD_NS + 1)
    assert gates_of(scene.step()) == [("action_age", "act.late")]
    assert gates_of(scene.step()) == []


def test_the_first_action_after_a_reset_is_as_old_as_the_reset(running_scene):
    scene = running_scene()
    scene.clock.advance_ns(2 * PERIOD_NS + 1)
    assert gates_of(scene.step()) == [("action_age", "act.late")]
    scene.clock.advance_ns(50 * PERIOD_NS)
    scene.reset()
    assert gates_of(scene.step()) == []


def test_readings_age_while_the_agent_computes_in_real_time(running_scene):
    scene = running_scene(safety__action={"max_age_steps": 50})
    scene.step()
    scene.clock.advance_ns(3 * PERIOD_NS)
    assert gates_of(scene.step()) == []
    scene.clock.advance_ns(3 * PERIOD_NS + 1)
    assert gates_of(scene.step()) == [("observation", "obs.stale")]


def test_a_step_over_its_latency_budget_is_reported(running_scene):
    scene = running_scene(safety__latency={"budget_s": 0.02, "misses": 1})
    scene.clock.advance_ns(20_000_000)
    assert gates_of(scene.step()) == []
    scene.clock.advance_ns(20_000_001)
    assert gates_of(scene.step()) == [("latency", "lat.budget")]


def test_each_step_reports_the_intervention_share(scene):
    shares = [scene.step(action).info["safety"]["intervention_share"] for action in ((9.0, 9.0), (0.0, 0.0), None)]
    assert shares == [1.0, 1 / 2, 2 / 3]
    scene.reset()
    assert scene.step().info["safety"]["intervention_share"] == 0.0


class ReadlessBackend(FakeBackend):
    """A free-running world that accepts commands but no longer returns readings."""

    def read(self, after_ns, deadline_ns):
        if self._step >= 4:
            raise BackendLostError("silent", "no reading of any sensor")
        return super().read(after_ns, deadline_ns)


def test_a_silent_world_is_braked_before_it_is_halted(make_scene):
    scene = make_scene(quick_contract(), backend=ReadlessBackend, clock=SteadyClock(), free_running=True)
    scene.reset()
    last = scene.run(4, (0.5, 0.0))
    assert last.info["end_reason"] == "backend_lost:silent"
    assert any(command.report.velocity_si.any() for command in scene.sent)
    assert not scene.sent[-1].report.velocity_si.any()
    assert scene.backend.halted


# ------------------------------------------------------------------------------------------------------- saved and loaded


def test_a_loaded_state_continues_as_the_saved_one(scene_of):
    scene = scene_of()
    scene.run(2, (0.1, 0.2))
    saved, world = scene.stepper.save(), vars(scene.backend).copy()
    expected = scene.step((0.3, 0.1))
    scene.run(2, (0.5, 0.5))
    vars(scene.backend).update(world)
    scene.stepper.load(saved)
    done = scene.step((0.3, 0.1))
    assert done.info["step_index"] == expected.info["step_index"] == 3
    assert done.report.applied_si.tolist() == expected.report.applied_si.tolist()
    assert done.observation["joints_position"].tolist() == expected.observation["joints_position"].tolist()


@pytest.mark.parametrize("call", ["save", "load"])
def test_a_state_is_neither_saved_nor_loaded_during_a_step(scene, call):
    saved = scene.stepper.save()
    scene.stepper.begin([0.0, 0.0])
    with pytest.raises(ResetNeededError):
        scene.stepper.save() if call == "save" else scene.stepper.load(saved)
