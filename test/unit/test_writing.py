"""Who writes the record, and when; and what the control loop notices of a disk that is slow, full or gone."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from embodied_env.env import EmbodiedEnv
from embodied_env.errors import UsageError
from embodied_env.record import RecordTransitions, audit_run, read_run
from embodied_env.record.writing import Aside, AtOnce, Losses

STILL = np.zeros(6)


@pytest.fixture
def gate():
    """Give an event that every waiting job is let through by, in the end at the latest."""
    event = threading.Event()
    yield event
    event.set()


# ------------------------------------------------------------------------------------------------------------- workers


@pytest.mark.parametrize("make", [AtOnce, Aside])
def test_jobs_are_done_in_order_and_the_last_is_the_last(make):
    done = []
    worker = make()
    assert all(worker.put(lambda n=n: done.append(n)) for n in range(100))
    assert worker.finish(lambda: done.append("last"))
    assert done == [*range(100), "last"]


def test_at_once_a_job_is_done_before_put_returns():
    done = []
    AtOnce().put(lambda: done.append(1))
    assert done == [1]


def test_aside_put_does_not_wait_for_a_job(gate):
    worker = Aside()
    start = time.monotonic()
    worker.put(gate.wait)
    worker.put(gate.wait)
    assert time.monotonic() - start < 1.0
    gate.set()
    assert worker.finish(lambda: None)


def test_aside_what_finds_no_room_is_refused_and_what_is_being_written_counts(gate):
    worker = Aside(most_bytes=10)
    assert worker.put(gate.wait, 8)
    assert not worker.put(gate.wait, 3)
    assert worker.put(gate.wait, 2)
    gate.set()
    assert worker.finish(lambda: None)


def test_aside_no_more_jobs_wait_than_were_allowed(gate):
    worker = Aside(most_jobs=2)
    assert [worker.put(gate.wait) for _ in range(3)] == [True, True, False]
    gate.set()
    assert worker.finish(lambda: None)


def test_aside_a_job_larger_than_all_room_is_done_when_nothing_waits():
    done = []
    worker = Aside(most_bytes=10)
    assert worker.put(lambda: done.append(1), 11)
    assert worker.finish(lambda: None)
    assert done == [1]


def test_aside_the_end_is_not_waited_for_for_ever(gate):
    worker = Aside(patience_s=0.05)
    worker.put(gate.wait)
    assert not worker.finish(lambda: None)
    gate.set()
    assert worker.finish(lambda: None)


def test_aside_after_the_end_nothing_is_taken():
    worker = Aside()
    worker.finish(lambda: None)
    assert not worker.put(lambda: None)


def test_of_losses_the_first_problem_is_kept_and_everything_is_counted():
    losses = Losses()
    assert losses.as_json() == {"complete": True, "lost_rows": 0, "lost_messages": 0}
    losses.note("first", rows=1)
    losses.note("second", messages=2)
    assert losses.problem == "first"
    assert losses.as_json() == {"complete": False, "lost_rows": 1, "lost_messages": 2}


# ----------------------------------------------------------------------------------------------------- a disk that waits


class SlowDisk:
    """A log whose writes wait until they are let through."""

    def __init__(self, log, gate):
        self._log, self._gate = log, gate

    def write(self, *args, **options):
        self._gate.wait()
        self._log.write(*args, **options)

    def __getattr__(self, name):
        return getattr(self._log, name)


def recorded(tmp_path, gate, **aside):
    env = RecordTransitions(EmbodiedEnv("arm_reach", backend="fake", free_running=True), tmp_path)
    env._log, env._worker = SlowDisk(env._log, gate), Aside(**aside)
    return env


def test_in_real_time_a_step_does_not_wait_for_the_disk_and_nothing_is_lost(tmp_path, gate):
    env = recorded(tmp_path, gate)
    env.reset(seed=1)
    for _ in range(5):
        assert env.step(STILL)[-1]["record"] == {"complete": True, "lost": 0}
    assert env.rows_flushed == 0
    gate.set()
    env.close()
    assert env.rows_flushed == 6
    assert read_run(env.path).clean


@pytest.fixture
def dropped(tmp_path, gate):
    """Give a closed run of a reset and nine steps in real time, of which some rows were dropped; and its infos."""
    env = recorded(tmp_path, gate, most_jobs=3)
    env.reset(seed=1)
    with pytest.warns(UserWarning, match="the record of this run is not complete: row 2 was dropped"):
        infos = [env.step(STILL)[-1] for _ in range(9)]
    gate.set()
    env.close()
    return env, infos


def test_in_real_time_a_row_that_finds_no_room_is_dropped_and_counted_in_every_info(dropped):
    _, infos = dropped
    assert infos[0]["record"] == {"complete": True, "lost": 0}
    assert [info["record"]["lost"] for info in infos[1:]] == list(range(1, 9))
    assert {info["end_reason"] for info in infos} == {""}


def test_a_drop_marks_the_run_incomplete_and_the_audit_fails_it(dropped):
    env, _ = dropped
    run = read_run(env.path)
    assert run.problem == "row 2 was dropped: the disk is too slow"
    assert run.manifest["record"] == {"complete": False, "lost_rows": 8, "lost_messages": 0}
    assert json.loads((env.path / "summary.json").read_text())["record"] == run.manifest["record"]
    assert "row 2 was dropped: the disk is too slow" in audit_run(env.path).problems


def test_the_summary_counts_steps_whose_rows_were_dropped(dropped):
    env, _ = dropped
    assert json.loads((env.path / "summary.json").read_text())["steps"] == 9


def test_in_real_time_close_does_not_wait_for_ever_and_says_so(tmp_path, gate):
    env = recorded(tmp_path, gate, patience_s=0.05)
    env.reset(seed=1)
    with pytest.warns(UserWarning, match="the record could not be completed: the disk does not answer"):
        env.close()
    assert not read_run(env.path).clean
    gate.set()
    assert env._worker.finish(lambda: None)


def test_in_lockstep_a_row_is_flushed_before_the_step_returns(tmp_path):
    env = RecordTransitions(EmbodiedEnv("arm_reach", backend="fake"), tmp_path)
    env.reset(seed=1)
    env.step(STILL)
    assert env.rows_flushed == len(list(read_run(env.path).rows())) == 2
    env.close()


# ----------------------------------------------------------------------------------------------------- a disk that fails

FULL = """
import json, os, resource, signal, sys, warnings
import numpy as np
import embodied_env

def case(kind, pacing):
    env = embodied_env.make("arm_reach", backend="fake", record=sys.argv[1], free_running=pacing == "realtime")
    env.reset(seed=1)
    env.step(np.zeros(6))
    while env.rows_flushed < 2:
        pass
    room = 20_000 if kind == "full" else 0  # 0: not a byte more, in no file
    limit = (env.path / "transitions.mcap").stat().st_size + room if room else 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    for _ in range(10):
        *_, info = env.step(np.zeros(6))
    env.close()
    found = [str(env.path), info["end_reason"], env.losses.rows, env.losses.problem]
    os.write(1, json.dumps([f"{kind}, {pacing}", found]).encode() + b"\\n")

warnings.simplefilter("error")  # also where warnings are errors, the loop goes on
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for kind in ("full", "nothing"):
    for pacing in ("lockstep", "realtime"):
        if os.fork() == 0:
            case(kind, pacing)
            os._exit(0)
        os.wait()
"""
CASES = ["full, lockstep", "full, realtime", "nothing, lockstep", "nothing, realtime"]


@pytest.fixture(scope="module")
def on_full_disks(tmp_path_factory):
    """Give what came of each case: the run directory, the last end reason, rows lost, the problem."""
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path_factory.mktemp("runs"))],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(json.loads(line) for line in done.stdout.splitlines())


@pytest.mark.parametrize("case", CASES)
def test_a_disk_that_takes_no_more_disturbs_no_step_and_the_run_is_never_clean(on_full_disks, case):
    path, end_reason, lost, problem = on_full_disks[case]
    assert end_reason == ""
    assert 0 < lost <= 10
    assert "cannot be written: [Errno 27] File too large" in problem
    run = read_run(path)
    assert not run.clean
    assert [row["row"] for row in run.rows()] == list(range(12 - lost))
    assert not audit_run(path).sound


@pytest.mark.parametrize("case", CASES[:2])
def test_where_the_manifest_can_still_be_written_it_says_what_was_lost(on_full_disks, case):
    path, _, lost, problem = on_full_disks[case]
    manifest = read_run(path).manifest
    assert manifest["record"] == {"complete": False, "lost_rows": lost, "lost_messages": 0}
    assert (manifest["clean"], manifest["problem"]) == (False, problem)


@pytest.mark.parametrize("case", CASES[2:])
def test_where_it_cannot_no_half_of_a_file_is_left(on_full_disks, case):
    path = Path(on_full_disks[case][0])
    names = {file.name for file in path.iterdir()}
    assert {"manifest.json", "transitions.mcap"} <= names
    assert names <= {"first_transition.json", "manifest.json", "transitions.mcap"}


def test_messages_are_refused_where_there_are_none(tmp_path):
    with pytest.raises(UsageError, match=r"messages=True is not available with fake: it has no ROS 2 messages"):
        RecordTransitions(EmbodiedEnv("arm_reach", backend="fake"), tmp_path, messages=True)
    assert list(tmp_path.iterdir()) == []


ENDED = """
import os, signal, sys
import numpy as np
import embodied_env

env = embodied_env.make("arm_reach", backend="fake", free_running=True, record=sys.argv[1])
env.reset(seed=1)
for _ in range(3):
    env.step(np.zeros(6))
os.kill(os.getpid(), signal.SIGTERM)
"""


def test_in_real_time_a_program_that_ends_by_sigterm_completes_its_record(tmp_path):
    done = subprocess.run([sys.executable, "-c", ENDED, str(tmp_path)], check=False, timeout=60)
    assert done.returncode == 143
    (path,) = tmp_path.iterdir()
    run = read_run(path)
    assert run.clean
    assert len(list(run.transitions())) == 3
