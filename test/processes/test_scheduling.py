"""Scheduling settings apply from the reset and are restored at the end."""

import json
import os
import subprocess
import sys
import threading

import pytest

import embodied_env
from embodied_env.errors import UsageError
from embodied_env.processes.scheduling import Scheduling

PRIORITY = 5


def may_be_fifo():
    """Return whether this process may use SCHED_FIFO, by a trial in a thread, whose scheduling ends with it."""
    allowed = []

    def attempt():
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
            allowed.append(True)
        except (PermissionError, AttributeError):
            pass

    in_a_thread(attempt)
    return bool(allowed)


def in_a_thread(do):
    """Return the result of `do` in a separate thread, or raise its exception."""
    done: list = []

    def run():
        try:
            done.append((do(), None))
        except Exception as error:
            done.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    result, error = done[0]
    if error is not None:
        raise error
    return result


def policy():
    return os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK


needs_fifo = pytest.mark.skipif(not may_be_fifo(), reason="needs permission for SCHED_FIFO")


@pytest.fixture
def interval_s():
    before_s = sys.getswitchinterval()
    yield before_s
    sys.setswitchinterval(before_s)


@pytest.mark.parametrize("priority", [0, 100, -1, 1.5, True])
def test_invalid_priority_is_rejected(priority):
    with pytest.raises(UsageError, match=r"invalid fifo_priority=.* .expected 1 to 99, or None"):
        Scheduling(fifo_priority=priority)


@pytest.mark.parametrize("interval", [0.0, -1.0, float("nan"), float("inf")])
def test_invalid_switch_interval_is_rejected(interval):
    with pytest.raises(UsageError, match=r"invalid switch_interval_s=.* .expected seconds > 0"):
        Scheduling(switch_interval_s=interval)


def test_switch_interval_applies_until_end(interval_s):
    scheduling = Scheduling(switch_interval_s=0.0007)
    assert sys.getswitchinterval() == interval_s
    scheduling.begin()
    assert scheduling.account()["switch_interval_s"] == {"asked": 0.0007, "in_force": pytest.approx(0.0007)}
    scheduling.begin()
    scheduling.end()
    scheduling.end()
    assert sys.getswitchinterval() == interval_s


@needs_fifo
def test_calling_thread_is_fifo_until_end():
    def life():
        scheduling = Scheduling(fifo_priority=PRIORITY)
        scheduling.begin()
        during = policy(), os.sched_getparam(0).sched_priority, scheduling.account()["fifo_priority"]
        scheduling.end()
        return during, policy(), scheduling.account()["fifo_priority"]

    fifo = os.SCHED_FIFO, PRIORITY, {"asked": PRIORITY, "in_force": PRIORITY}
    assert in_a_thread(life) == (fifo, os.SCHED_OTHER, {"asked": PRIORITY, "in_force": None})


@needs_fifo
def test_child_threads_are_not_fifo():
    def life():
        Scheduling(fifo_priority=PRIORITY).begin()
        return in_a_thread(policy)

    assert in_a_thread(life) == os.SCHED_OTHER


@needs_fifo
def test_end_may_be_called_from_any_thread():
    scheduling, begun, ended = Scheduling(fifo_priority=PRIORITY), threading.Event(), threading.Event()

    def life():
        scheduling.begin()
        begun.set()
        assert ended.wait(30.0)
        return policy()

    found = []
    thread = threading.Thread(target=lambda: found.append(life()))
    thread.start()
    assert begun.wait(30.0)
    scheduling.end()
    ended.set()
    thread.join()
    assert found == [os.SCHED_OTHER]


@needs_fifo
def test_ended_thread_is_not_restored():
    scheduling = Scheduling(fifo_priority=PRIORITY)
    in_a_thread(scheduling.begin)
    assert scheduling.account()["fifo_priority"]["in_force"] is None
    scheduling.end()


def test_missing_permission_reports_limit_and_remedy():
    script = (
        "import os, resource\n"
        "from embodied_env.errors import UsageError\n"
        "from embodied_env.processes.scheduling import Scheduling\n"
        "resource.setrlimit(resource.RLIMIT_RTPRIO, (0, 0))\n"
        "if os.geteuid() == 0:\n"
        "    os.setuid(65534)\n"
        "try:\n"
        "    Scheduling(fifo_priority=5).begin()\n"
        "except UsageError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("SCHED_FIFO not permitted: fifo_priority=5 (expected at most 0")
    assert "ulimit -r 5" in done.stdout


def test_environment_applies_at_reset_and_restores_at_close(interval_s):
    env = embodied_env.make("arm_reach", backend="fake", switch_interval_s=0.001)
    assert sys.getswitchinterval() == interval_s
    env.reset(seed=1)
    assert sys.getswitchinterval() == pytest.approx(0.001)
    env.close()
    assert sys.getswitchinterval() == interval_s


def test_environment_spec_keeps_scheduling_through_json():
    env = embodied_env.make("arm_reach", backend="fake", pacing="realtime", fifo_priority=7, switch_interval_s=0.001)
    kwargs = json.loads(env.spec.to_json())["kwargs"]
    assert (kwargs["pacing"], kwargs["fifo_priority"], kwargs["switch_interval_s"]) == ("realtime", 7, 0.001)
    env.close()
