"""Processes of the simulator are killed, orphaned, attached and terminated."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import psutil
import pytest
import ros_domains
from evidence import assert_transitions_sound
from shipped_contracts import changed_text

import embodied_env
from embodied_env.errors import BackendNotReadyError
from embodied_env.processes.child_process import remove_orphaned_segments, segments_of
from embodied_env.timing.clock import NS_PER_S

pytestmark = [pytest.mark.ros, pytest.mark.realtime]

ZERO = np.zeros(6)


def pid_of(env):
    (process,) = env.unwrapped.processes()
    return process["pid"]


PATIENCE_S = 60.0


def wait_for_end(pid, timeout_s=PATIENCE_S):
    end = time.monotonic() + timeout_s
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end, f"process {pid} is still running"
        time.sleep(0.05)


DEADLINE_S = 1.0


@pytest.fixture(scope="module")
def killed(lasting, tmp_path_factory):
    """Return a recorded environment whose simulator was killed during an episode, and the next step."""
    options = {"step_timeout_s": PATIENCE_S, "record": tmp_path_factory.mktemp("killed")}
    env = lasting(embodied_env.make, contract="arm_reach", backend="mujoco_ros", **options)
    env.reset(seed=1)
    before = [env.step(ZERO) for _ in range(3)][-1][0]
    os.kill(pid_of(env), signal.SIGKILL)
    result, elapsed_s = timed_step(env)
    return env, before, result, elapsed_s


def timed_step(env):
    started = time.monotonic()
    result = env.step(ZERO)
    return result, time.monotonic() - started


def test_killed_simulator_truncates_the_episode(killed):
    _, _, (_, _, terminated, truncated, info), _ = killed
    assert (terminated, truncated, info["end_reason"]) == (False, True, "backend_lost:simulator_died")


def test_killed_simulator_is_detected_before_the_deadline(killed):
    *_, elapsed_s = killed
    assert elapsed_s < PATIENCE_S


def test_killed_simulator_yields_the_last_valid_observation(killed):
    env, before, (observation, *_), _ = killed
    assert observation in env.observation_space
    assert observation["joints_valid"] == 0
    for key in ("joints_position", "tcp_position", "target_position"):
        np.testing.assert_array_equal(observation[key], before[key])


def test_reset_restarts_a_killed_simulator_and_a_stopped_one_truncates_at_the_deadline(killed):
    env, *_ = killed
    env.reset(seed=2)
    *_, truncated, info = env.step(ZERO)
    assert (truncated, info["end_reason"]) == (False, "")
    os.kill(pid_of(env), signal.SIGSTOP)
    env.unwrapped.stepper._timeout_ns = round(DEADLINE_S * NS_PER_S)
    (*_, truncated, info), elapsed_s = timed_step(env)
    env.close()
    assert (truncated, info["end_reason"]) == (True, "backend_lost:timeout")
    assert DEADLINE_S <= elapsed_s < PATIENCE_S


def test_log_of_a_killed_simulator_is_complete(killed):
    run = embodied_env.read_run(killed[0].path)
    rows = list(run.transitions())
    assert run.clean
    lost = ["backend_lost:simulator_died", "", "backend_lost:timeout"]
    assert [row["info"]["end_reason"] for row in rows] == ["", "", "", *lost]
    assert_transitions_sound(rows)


@pytest.mark.long
def test_simulator_outlives_the_thread_that_started_it(domain_id):
    env = embodied_env.make("arm_reach", backend="mujoco_ros")
    thread = threading.Thread(target=lambda: env.reset(seed=1))
    thread.start()
    thread.join()
    time.sleep(1.0)
    *_, info = env.step(ZERO)
    env.close()
    assert info["end_reason"] == ""


def test_simulator_ends_with_its_garbage_collected_environment_and_with_its_killed_parent(domain_id):
    script = (
        "import embodied_env, gc, psutil, time\n"
        "def start():\n"
        "    env = embodied_env.make('arm_reach', backend='mujoco_ros')\n"
        "    env.reset(seed=1)\n"
        "    return env, psutil.Process(env.unwrapped.processes()[0]['pid'])\n"
        "env, simulator = start()\n"
        "del env\n"
        "gc.collect()\n"
        "end = time.monotonic() + 60.0\n"
        "while simulator.is_running() and simulator.status() != psutil.STATUS_ZOMBIE:\n"
        "    assert time.monotonic() < end\n"
        "    time.sleep(0.05)\n"
        "env, simulator = start()\n"
        "print(simulator.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    assert psutil.pid_exists(pid)
    segments = segments_of(parent.pid)  # a killed parent cannot remove them
    parent.kill()
    parent.communicate()
    wait_for_end(pid)
    remove_orphaned_segments(segments)


@pytest.fixture(scope="module")
def manual_simulator(lasting_domain):
    """A manually started simulator, shared by the tests up to the one that stops it."""
    with lasting_domain():
        process = subprocess.Popen(
            [sys.executable, "-m", "embodied_env.cli", "sim", "arm_reach", "--namespace", "/by_hand"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert "simulating arm_reach" in process.stdout.readline()
    yield process
    process.terminate()
    process.communicate(timeout=PATIENCE_S)


ATTACHED = {"backend": "mujoco_ros", "spawn": False, "namespace": "/by_hand", "domain_id": ros_domains.FOR_MODULES}


def test_manually_started_simulator_can_be_attached(manual_simulator):
    env = embodied_env.make("arm_reach", **ATTACHED)
    env.reset(seed=1)
    *_, info = env.step(ZERO)
    assert env.unwrapped.processes() == []
    env.close()
    assert info["end_reason"] == ""
    assert manual_simulator.poll() is None


def test_contract_other_than_the_simulators_is_rejected(manual_simulator, tmp_path):
    other = tmp_path / "other.yaml"
    other.write_text(changed_text("arm_reach", {"episode.horizon_steps": 100}))
    env = embodied_env.make(other, **ATTACHED)
    with pytest.raises(BackendNotReadyError, match="fingerprint"):
        env.reset(seed=1)
    env.close()


def test_simulator_ends_cleanly_on_sigint(manual_simulator):
    manual_simulator.send_signal(signal.SIGINT)
    assert manual_simulator.wait(timeout=PATIENCE_S) == 0


def test_an_own_simulator_that_starts_too_slowly_is_named_with_the_option(domain_id, close_later):
    env = close_later(embodied_env.make("arm_reach", backend="mujoco_ros", reset_timeout_s=0.05))
    with pytest.raises(BackendNotReadyError, match=r"process \d+, is not ready.*reset_timeout_s"):
        env.reset(seed=1)


def test_error_without_a_simulator_explains_how_to_start_one(domain_id):
    env = embodied_env.make("arm_reach", backend="mujoco_ros", spawn=False, namespace="/unused", reset_timeout_s=0.3)
    with pytest.raises(BackendNotReadyError, match=r"embodied-env sim /\S+/arm_reach\.yaml`"):  # a file, not a name
        env.reset(seed=1)
    env.close()
