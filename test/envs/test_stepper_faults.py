"""docs/reference/faults.md lists the tests of each fault."""

import itertools
import sys
import threading

import numpy as np
import psutil
import pytest
import scripted_tasks
from evidence import assert_finds
from scripted_tasks import ACCELERATION, DECELERATION, PERIOD_NS, PERIOD_S, VELOCITY, Scene

import embodied_env
from embodied_env.backends import fake_backend as fake
from embodied_env.backends.fake_backend import FakeBackend, ScriptedFault
from embodied_env.core.code_types import Severity
from embodied_env.errors import RecordError, ResetNeededError
from embodied_env.timing.clock import NS_PER_S, ManualClock, SteadyClock

PATIENCE_S = 30.0
ROUNDING = 1e-9
ENDLESS = {"horizon_steps": 1000, "kind": "time_limit"}


def contract(**changes):
    return scripted_tasks.contract(episode=ENDLESS, **changes)


def check_published(scene):
    """Assert that published commands keep all limits and their sequence numbers increase by one."""
    assert [command.seq for command in scene.sent] == list(
        range(scene.sent[0].seq, scene.sent[0].seq + len(scene.sent))
    )
    for before, after in itertools.pairwise(scene.sent):
        assert np.abs(after.values).max() <= 2.0
        if before.epoch != after.epoch:
            continue
        dt_s = after.report.dt_s
        assert np.abs(after.values - before.values).max() <= VELOCITY * dt_s + ROUNDING
        faster = np.abs(after.report.velocity_si) - np.abs(before.report.velocity_si)
        assert faster.max() <= ACCELERATION * dt_s + ROUNDING
        assert (-faster).max() <= DECELERATION * dt_s + ROUNDING


class SteppedClock(ManualClock):
    """A clock whose system time is changed."""

    offset_ns = 0

    def system_ns(self):
        return self.now_ns() + self.offset_ns


@pytest.mark.parametrize("offset_s", [10, -10])
def test_f17_a_step_of_the_system_clock_changes_no_duration(offset_s):
    def run(offset_ns):
        clock = SteppedClock()
        scene = Scene(contract(), clock=clock, free_running=True)
        scene.reset()
        scene.run(3, (0.3, 0.1))
        clock.offset_ns = offset_ns
        found = [scene.step((0.3, 0.1)) for _ in range(5)]
        check_published(scene)
        scene.close()
        stages = [
            {k: v for k, v in done.info["latency"].items() if k not in ("transport_s", "queue_s", "quality")}
            for done in found
        ]
        return stages, [done.report.disposition for done in found]

    stages, dispositions = run(offset_s * NS_PER_S)
    assert (stages, dispositions) == run(0)
    assert set(dispositions) == {Severity.PASS}


def test_f24_a_slow_lockstep_world_is_late_in_wall_time_and_punctual_in_world_time(close_later):
    """Each step takes four periods of wall time for one of the world."""
    slow = [ScriptedFault(kind="delay", step=step, delay_s=4 * PERIOD_S) for step in range(1, 31)]
    scene = close_later(Scene(contract(), faults=slow))
    scene.reset()
    for _ in range(30):
        done = scene.step((0.2, 0.1))
        assert done.report.disposition is Severity.PASS
        assert done.info["sensors"]["joints"]["age_s"] == 0.0
        assert not done.truncated
    assert scene.clock.now_ns() >= 30 * 4 * PERIOD_NS
    check_published(scene)


class Blocked(FakeBackend):
    """Accepts every command, and moves only while `is_free`."""

    is_free = True

    def advance(self, target_ns, deadline_ns):
        start = self._positions.copy()
        super().advance(target_ns, deadline_ns)
        if not self.is_free:
            self._positions = start


def test_f39_a_blocked_robot_has_no_windup_and_does_not_jump_when_released(close_later):
    scene = close_later(Scene(contract(safety__tracking={"tolerance": 0.02, "stop_steps": 100}), backend=Blocked))
    scene.reset()
    scene.run(3, (1.0, 0.0))
    scene.backend.is_free = False
    blocked_at = scene.backend._positions[0]
    found = [scene.step((1.0, 0.0)) for _ in range(30)]
    held = [done for done in found if done.report.disposition is Severity.HOLD]
    assert {finding.code for done in held for finding in done.report.findings} == {"track.error"}
    assert len(held) > 20
    leads = [done.report.applied_si[0] - blocked_at for done in found]
    assert max(leads) == leads[-1] == leads[-20]  # it came to rest, and nothing accumulated while it was blocked
    tolerance, delay, debounce = 0.02 * 4.0, 2, 3
    assert leads[-1] <= tolerance + (delay + debounce) * VELOCITY * PERIOD_S + VELOCITY**2 / (2 * DECELERATION)
    scene.backend.is_free = True
    after = [scene.step((0.0, 0.0)) for _ in range(5)]
    assert [done.report.applied_si[0] - blocked_at for done in after] == [leads[-1]] * 5
    assert after[-1].report.disposition is Severity.PASS
    check_published(scene)


def test_f41_two_threads_stepping_one_environment_get_steps_or_documented_errors():
    """The second thread gets an error, and commands stay unique, in order and within the limits."""
    scene = Scene(contract(), clock=SteadyClock())
    scene.reset()
    unexpected, refused, steps = [], [], []
    barrier, often = threading.Barrier(2), sys.getswitchinterval()

    def step(sign):
        barrier.wait()
        for _ in range(100):
            try:
                steps.append(scene.step((0.3 * sign, 0.1)))
            except ResetNeededError as error:
                refused.append(error)
            except BaseException as error:
                unexpected.append(error)

    threads = [threading.Thread(target=step, args=(sign,)) for sign in (1, -1)]
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    finally:
        sys.setswitchinterval(often)
    assert not any(thread.is_alive() for thread in threads)
    assert unexpected == []
    assert len(steps) + len(refused) == 200
    assert len(scene.sent) >= len(steps) > 0
    check_published(scene)
    scene.reset()
    assert scene.step((0.1, 0.0)).report.disposition is Severity.PASS
    scene.close()


class FullDisk:
    """A log that can no longer be written."""

    def __init__(self, log):
        self._log = log

    def __getattr__(self, name):
        return getattr(self._log, name)

    def append(self, *_args, **_keywords):
        raise RecordError("No space left on device")


def step_on_a_full_disk(env):
    """Take four steps whose rows are written and four whose rows are lost, and return the infos of the latter."""
    env.reset(seed=1)
    for _ in range(4):
        env.step(np.full(6, 0.3))
    assert env.flush()
    env._run.log, log = FullDisk(env._run.log), env._run.log
    infos = []
    for _ in range(4):
        infos.append(env.step(np.full(6, 0.3))[-1])
        env.flush()
    env._run.log = log
    env.close()
    return infos


@pytest.mark.parametrize("free_running", [False, True], ids=["lockstep", "realtime"])
def test_f42_full_disk_does_not_stop_the_robot_and_is_reported(tmp_path, free_running):
    env = embodied_env.make("arm_reach", backend="fake", free_running=free_running, record=tmp_path)
    with pytest.warns(UserWarning, match="incomplete record of the run .*: No space left on device"):
        infos = step_on_a_full_disk(env)
    assert {info["end_reason"] for info in infos} == {""}
    assert infos[-1]["record"]["complete"] is False
    assert env.losses.rows == 4
    run = embodied_env.read_run(env.path)
    assert run.problem == "No space left on device"
    assert run.manifest["record"] == {"complete": False, "lost_rows": 4, "lost_messages": 0}
    assert len(list(run.transitions())) == 4
    assert_finds(env.path, "No space left on device")


def test_the_fake_backend_bounds_its_list_of_commands(close_later, monkeypatch):
    monkeypatch.setattr(fake, "KEPT", 10)
    scene = close_later(Scene(contract()))
    scene.reset()
    scene.run(1)
    first = scene.sent[0].seq
    for step in range(2, 46):
        scene.run(1)
        numbers = [command.seq for command in scene.sent]
        assert min(step, 10) <= len(numbers) < 20
        assert numbers == list(range(first + step - len(numbers), first + step))


@pytest.mark.parametrize("count", [150, pytest.param(1000, marks=pytest.mark.long)])
def test_f47_resets_leak_no_thread_or_file(count):
    process = psutil.Process()
    scene = Scene(contract(), clock=SteadyClock(), free_running=True)
    scene.reset()
    before = process.num_threads(), process.num_fds()
    for _ in range(count):
        scene.reset()
    assert scene.stepper.epoch == count
    assert (process.num_threads(), process.num_fds()) <= before
    scene.close()
