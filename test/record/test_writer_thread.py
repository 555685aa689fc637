"""The writer thread of the recorder, and the control loop with a disk that is slow, full or removed."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from evidence import assert_finds
from gymnasium.wrappers import TimeLimit

from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.errors import UsageError
from embodied_env.record import RecordTransitions, read_run
from embodied_env.record.writer_thread import WriterThread

pytestmark = pytest.mark.realtime

STILL = np.zeros(6)
PATIENCE_S = 30.0


@pytest.fixture
def gate():
    """Yield an event that releases waiting jobs, at the end of the test at the latest."""
    event = threading.Event()
    yield event
    event.set()


# ------------------------------------------------------------------------------------------------------------- threads


def test_jobs_run_in_order_up_to_the_last():
    done = []
    worker = WriterThread()
    assert all(worker.submit(partial(done.append, n)) for n in range(100))
    assert worker.close(lambda: done.append("last"))
    assert done == [*range(100), "last"]


def test_full_queue_rejects_jobs_and_counts_the_running_one(gate):
    by_bytes, by_number = WriterThread(max_bytes=10), WriterThread(max_jobs=2)
    assert [by_bytes.submit(gate.wait, size) for size in (8, 3, 2)] == [True, False, True]
    assert [by_number.submit(gate.wait) for _ in range(3)] == [True, True, False]
    gate.set()
    for worker in (by_bytes, by_number):
        assert worker.close(lambda: None)
        assert not worker.submit(lambda: None)


def test_oversized_job_runs_when_the_queue_is_empty():
    done = []
    worker = WriterThread(max_bytes=10)
    assert worker.submit(lambda: done.append(1), 11)
    assert worker.close(lambda: None)
    assert done == [1]


def test_close_has_a_timeout(gate):
    worker = WriterThread(stall_timeout_s=0.05)
    worker.submit(gate.wait)
    assert not worker.close(lambda: None)
    gate.set()
    worker._stall_timeout_s = PATIENCE_S
    assert worker.close(lambda: None)


def test_wait_idle_waits_until_jobs_are_settled(gate):
    has_run = threading.Event()
    worker = WriterThread(gate.wait, max_jobs=2, stall_timeout_s=0.05)
    worker.submit(has_run.set)
    assert has_run.wait(PATIENCE_S)
    assert not worker.wait_idle()
    gate.set()
    worker._stall_timeout_s = PATIENCE_S
    while not worker.wait_idle():
        time.sleep(0.001)
    assert worker.submit(lambda: None)
    assert worker.close(lambda: None)


def test_jobs_are_settled_after_the_period_or_for_a_waiter():
    done, settled = [], threading.Event()

    def settle():
        done.append("settled")
        settled.set()

    worker = WriterThread(settle, settle_every_s=0.2)
    start = time.monotonic()
    for _ in range(5):
        worker.submit(lambda: done.append("job"))
    assert settled.wait(PATIENCE_S)
    assert time.monotonic() - start >= 0.2
    assert done == ["job"] * 5 + ["settled"]
    assert worker.close(lambda: None)
    del done[:]
    worker = WriterThread(settle, settle_every_s=1000.0)
    worker.submit(lambda: done.append("last"))
    while "last" not in done:
        time.sleep(0.001)
    assert worker.wait_idle()
    assert done[:2] == ["last", "settled"]
    assert worker.close(lambda: None)


def test_blocked_submit_continues_once_the_queue_has_space(gate):
    done = []
    worker = WriterThread(blocks=True, max_jobs=2)
    worker.submit(gate.wait)
    worker.submit(lambda: done.append(1))
    threading.Timer(0.05, gate.set).start()
    assert worker.submit(lambda: done.append(2))
    assert worker.close(lambda: done.append(3))
    assert done == [1, 2, 3]


def test_stalled_thread_is_waited_for_once(gate):
    worker = WriterThread(blocks=True, max_jobs=1, stall_timeout_s=0.3)
    worker.submit(gate.wait)
    before = time.monotonic()
    assert not worker.submit(lambda: None)
    assert time.monotonic() - before >= 0.3
    worker._stall_timeout_s = PATIENCE_S
    before = time.monotonic()
    assert [worker.submit(lambda: None) for _ in range(5)] == [False] * 5
    assert time.monotonic() - before < PATIENCE_S  # not once more
    gate.set()
    while not worker.wait_idle():
        time.sleep(0.001)
    assert worker.submit(lambda: None)
    assert worker.close(lambda: None)


def test_slow_thread_with_progress_does_not_count_as_stalled():
    worker, waited_s = WriterThread(stall_timeout_s=0.05), []

    class Slow:
        """The thread, which has run one job in each timeout."""

        def is_alive(self):
            return len(waited_s) < 8

        def join(self, timeout_s):
            waited_s.append(timeout_s)
            worker._progress += 1

    worker._thread, worker._is_closing = Slow(), True
    assert worker.close(lambda: None)
    assert waited_s == [0.05] * 8


def test_close_when_idle_runs_the_queued_jobs():
    done = []
    worker = WriterThread()
    worker.submit(lambda: done.append(1))
    worker.close_when_idle()
    assert worker.close(lambda: done.append(2))
    assert done == [1]


def test_jobs_of_many_threads_run_once():
    done = []
    worker = WriterThread(lambda: None, blocks=True, gather_s=0.001, max_jobs=5)

    def submit(first):
        for n in range(first, first + 200):
            assert worker.submit(partial(done.append, n))

    threads = [threading.Thread(target=submit, args=(1000 * k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert worker.close(lambda: done.append("last"))
    assert done[-1] == "last"
    assert sorted(done[:-1]) == [1000 * k + n for k in range(4) for n in range(200)]


def test_fork_runs_all_jobs_and_both_processes_continue():
    done = []
    worker = WriterThread()
    worker.submit(lambda: time.sleep(0.02))
    worker.submit(lambda: done.append("before"))
    pid = os.fork()
    if pid == 0:
        before = list(done)
        is_well = worker.submit(lambda: done.append("child")) and worker.close(lambda: None)
        os._exit(0 if is_well and (before, done) == (["before"], ["before", "child"]) else 1)
    assert os.waitpid(pid, 0)[1] == 0
    worker.submit(lambda: done.append("parent"))
    assert worker.close(lambda: None)
    assert done == ["before", "parent"]


# ------------------------------------------------------------------------------------------------------------- slow disk


class SlowDisk:
    """A log whose writes wait until they are released."""

    def __init__(self, log, gate):
        self._log, self._gate = log, gate

    def append(self, *args, **options):
        self._gate.wait()
        self._log.append(*args, **options)

    def __getattr__(self, name):
        return getattr(self._log, name)


def recorded(tmp_path, gate, *, pacing="realtime", **options):
    env = RecordTransitions(EmbodiedEnv("arm_reach", backend="fake", free_running=pacing == "realtime"), tmp_path)
    env._run.log = SlowDisk(env._run.log, gate)
    env._writer = WriterThread(env._run.settle, blocks=pacing == "lockstep", **options)
    return env


def test_real_time_step_does_not_wait_for_the_disk(tmp_path, gate):
    env = recorded(tmp_path, gate)
    env.reset(seed=1)
    for _ in range(5):
        assert env.step(STILL)[-1]["record"] == {"complete": True, "lost": 0}
    assert env.rows_flushed == 0
    gate.set()
    env.close()
    assert env.rows_flushed == 6
    assert read_run(env.path).clean


def test_rows_that_are_dropped_in_real_time_are_counted_and_make_the_run_incomplete(tmp_path, gate):
    env, problem = recorded(tmp_path, gate, max_jobs=3), "row 2 was dropped: the disk is too slow"
    env.reset(seed=1)
    with pytest.warns(UserWarning, match="incomplete record of the run .*: row 2 was dropped"):
        infos = [env.step(STILL)[-1] for _ in range(9)]
    gate.set()
    env.close()
    assert infos[0]["record"] == {"complete": True, "lost": 0}
    assert [info["record"]["lost"] for info in infos[1:]] == list(range(1, 9))
    assert {info["end_reason"] for info in infos} == {""}
    run, summary = read_run(env.path), json.loads((env.path / "summary.json").read_text())
    assert run.problem == problem
    assert summary["record"] == run.manifest["record"] == {"complete": False, "lost_rows": 8, "lost_messages": 0}
    assert summary["steps"] == 9
    assert_finds(env.path, problem)


def test_real_time_close_has_a_timeout_and_warns(tmp_path, gate):
    env = recorded(tmp_path, gate, stall_timeout_s=0.05)
    env.reset(seed=1)
    with pytest.warns(UserWarning, match="the run was not closed: the disk does not respond"):
        env.close()
    assert not read_run(env.path).clean
    gate.set()
    assert any(env._writer.close(lambda: None) for _ in range(100))  # each waits for 0.05 s


def test_lockstep_step_waits_only_for_a_full_queue(tmp_path, gate):
    gate.set()
    env = recorded(tmp_path, gate, pacing="lockstep", max_jobs=4)
    env.reset(seed=1)
    env.step(STILL)
    gate.clear()
    for _ in range(4):
        env.step(STILL)
    assert env.rows_flushed == 2
    threading.Timer(0.05, gate.set).start()
    assert env.step(STILL)[-1]["record"] == {"complete": True, "lost": 0}
    assert env.flush()
    assert env.rows_flushed == 7
    env.close()
    assert read_run(env.path).clean


def rows_of(env):
    """Return the number of rows that a reader finds now."""
    return len(list(read_run(env.path).rows()))


def test_lockstep_reset_first_and_last_step_flush_their_rows(close_later, tmp_path):
    env = close_later(RecordTransitions(TimeLimit(EmbodiedEnv("arm_reach", backend="fake"), 20), tmp_path))
    env.reset(seed=1)
    assert (env.rows_flushed, rows_of(env)) == (1, 1)
    env.step(STILL)
    assert (env.rows_flushed, rows_of(env)) == (2, 2)
    while not env.step(STILL)[3]:
        pass
    assert (env.rows_flushed, rows_of(env)) == (21, 21)
    env.reset()
    assert (env.rows_flushed, rows_of(env)) == (22, 22)


def test_lockstep_waits_once_for_a_hanging_disk_and_warns(tmp_path, gate):
    gate.set()
    env = recorded(tmp_path, gate, pacing="lockstep", max_jobs=2, stall_timeout_s=0.05)
    env.reset(seed=1)
    env.step(STILL)
    gate.clear()
    with pytest.warns(UserWarning, match="incomplete record of the run .*: row 4 was dropped: the disk is too slow"):
        infos = [env.step(STILL)[-1] for _ in range(8)]
    assert [info["record"]["lost"] for info in infos] == [0, 0, 1, 2, 3, 4, 5, 6]
    assert not env.flush()
    gate.set()
    env.close()
    assert read_run(env.path).problem == "row 4 was dropped: the disk is too slow"
    assert rows_of(env) == 4


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # nor is its log closed
def test_garbage_collected_environment_leaves_all_rows_and_no_thread(tmp_path):
    before = threading.active_count()
    env = RecordTransitions(EmbodiedEnv("arm_reach", backend="fake"), tmp_path)
    env.reset(seed=1)
    for _ in range(5):
        env.step(STILL)
    path = env.path
    del env
    gc.collect()
    end = time.monotonic() + PATIENCE_S
    while threading.active_count() > before and time.monotonic() < end:
        time.sleep(0.001)
    assert threading.active_count() == before
    assert len(list(read_run(path).rows())) == 6


# ------------------------------------------------------------------------------------------------------------- full disk

FULL = """
import json, os, resource, signal, sys, time, warnings
import numpy as np
import embodied_env
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.record import RecordTransitions

def case(kind, pacing):
    world = EmbodiedEnv("arm_reach", backend="fake", free_running=pacing == "realtime")
    env = RecordTransitions(world, sys.argv[1], compression="none")
    env.reset(seed=1)
    env.step(np.zeros(6))
    while env.rows_flushed < 2:
        time.sleep(0.001)
    room = 20_000 if kind == "full" else 0  # 0: not a byte more, in no file
    limit = (env.path / "transitions.mcap").stat().st_size + room if room else 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    for _ in range(10):
        *_, info = env.step(np.zeros(6))
    env.close()
    found = [str(env.path), info["end_reason"], env.losses.rows, env.losses.problem]
    os.write(1, json.dumps([f"{kind}, {pacing}", found]).encode() + b"\\n")

embodied_env.make("arm_reach", backend="fake", record=sys.argv[1] + "/first").close()  # imports what all need
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
    """Return the run directory, last end reason, lost rows and problem of each case."""
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path_factory.mktemp("runs"))],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(json.loads(line) for line in done.stdout.splitlines())


@pytest.mark.parametrize("case", CASES)
def test_full_disk_does_not_disturb_steps_and_the_run_is_not_clean(on_full_disks, case):
    path, end_reason, lost, problem = on_full_disks[case]
    assert end_reason == ""
    assert 0 < lost <= 10
    assert "[Errno 27] File too large" in problem
    run = read_run(path)
    assert not run.clean
    assert [row["row"] for row in run.rows()] == list(range(12 - lost))
    assert_finds(path, "run.unclean")
    files = {file.name for file in Path(path).iterdir()}
    if case.startswith("nothing"):  # no file may be partial
        assert {"manifest.json", "transitions.mcap"} <= files
        assert files <= {"first_transition.json", "manifest.json", "transitions.mcap"}
    else:
        assert run.manifest["record"] == {"complete": False, "lost_rows": lost, "lost_messages": 0}
        assert (run.manifest["clean"], run.manifest["problem"]) == (False, problem)


def test_messages_are_rejected_without_ros(tmp_path):
    with pytest.raises(UsageError, match=r"raw messages are not available with backend 'fake'"):
        RecordTransitions(EmbodiedEnv("arm_reach", backend="fake"), tmp_path, messages=True)
    assert list(tmp_path.iterdir()) == []


ENDED = """
import os, signal, sys
import numpy as np
import embodied_env

def go_on(env):
    for _ in range(3):
        env.step(np.zeros(6))

def end(how, env):
    if how == "terminated":
        os.kill(os.getpid(), signal.SIGTERM)
    if how == "next to a fork":  # whose end is not that of the run
        if os.fork() == 0:
            sys.exit(0)
        os.wait()
        go_on(env)

embodied_env.make("arm_reach", backend="fake", record=sys.argv[1] + "/first").close()  # imports what all need
children = {}
for case in sys.argv[2:]:
    if (pid := os.fork()) == 0:
        pacing, how = case.split(", ")
        folder = os.path.join(sys.argv[1], case)
        env = embodied_env.make("arm_reach", backend="fake", free_running=pacing == "realtime", record=folder)
        env.reset(seed=1)
        go_on(env)
        end(how, env)
        sys.exit(0)
    children[pid] = case
while children:
    pid, status = os.wait()
    os.write(1, f"{children.pop(pid)}, {os.waitstatus_to_exitcode(status)}\\n".encode())
"""
ENDS = {
    "lockstep, forgotten": 0,
    "lockstep, terminated": 143,
    "lockstep, next to a fork": 0,
    "realtime, terminated": 143,
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Return the folder of programs that never closed their recorders, and how they ended."""
    folder = tmp_path_factory.mktemp("ended")
    done = subprocess.run(
        [sys.executable, "-c", ENDED, str(folder), *ENDS], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return folder, done.stdout.splitlines()


@pytest.mark.parametrize("case", ENDS)
def test_record_is_completed_however_the_program_ends(ended, case):
    folder, output = ended
    assert f"{case}, {ENDS[case]}" in output
    (path,) = (folder / case).iterdir()
    run = read_run(path)
    assert run.problem == ""
    assert len(list(run.transitions())) == (6 if "fork" in case else 3)


# ----------------------------------------------------------------------------------------------- foreign changes of a log


def remove_folder(path):
    shutil.rmtree(path)


def unlink_log(path):
    (path / "transitions.mcap").unlink()


def replace_log(path):
    unlink_log(path)
    (path / "transitions.mcap").write_bytes(b"")


def truncate_log(path):
    os.truncate(path / "transitions.mcap", 100)


def append_to_log(path):
    with (path / "transitions.mcap").open("ab") as file:
        file.write(b"x")


def move_folder(path):
    path.rename(path.with_name("moved"))


INTERFERENCE = [remove_folder, unlink_log, replace_log, truncate_log, append_to_log, move_folder]


@pytest.mark.parametrize("pacing", ["lockstep", "realtime"])
@pytest.mark.parametrize("interfere", INTERFERENCE)
def test_foreign_change_of_the_log_is_reported_during_the_run(tmp_path, interfere, pacing):
    env = RecordTransitions(EmbodiedEnv("arm_reach", backend="fake", free_running=pacing == "realtime"), tmp_path)
    env.reset(seed=1)
    env.step(STILL)
    assert env.flush()
    interfere(env.path)
    with pytest.warns(UserWarning, match="incomplete record of the run"):  # noqa: PT031 - it may come early
        env.step(STILL)
        assert env.flush()
        record = env.step(STILL)[-1]["record"]
    assert record["complete"] is False
    assert record["lost"] > 0
    env.close()
    assert not env.losses.complete
    assert env.rows_flushed + env.losses.rows == 4


@pytest.mark.parametrize("is_flushed", [True, False])
@pytest.mark.parametrize("interfere", INTERFERENCE)
def test_foreign_change_before_close_is_reported_by_close(tmp_path, interfere, is_flushed):
    env = RecordTransitions(EmbodiedEnv("arm_reach", backend="fake"), tmp_path)
    env.reset(seed=1)
    env.step(STILL)
    assert not is_flushed or env.flush()
    interfere(env.path)
    with pytest.warns(UserWarning, match="incomplete record of the run"):
        env.close()
    assert not env.losses.complete
    assert env.losses.rows > 0 or interfere is append_to_log
    if env.path.exists():
        assert read_run(env.path).manifest["record"]["complete"] is False
        assert json.loads((env.path / "summary.json").read_text())["record"]["complete"] is False
        assert_finds(env.path, "run.unclean")


def test_changed_working_directory_keeps_the_record_complete(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = RecordTransitions(EmbodiedEnv("arm_reach", backend="fake"), "runs")
    env.reset(seed=1)
    monkeypatch.chdir("/")
    assert env.step(STILL)[-1]["record"] == {"complete": True, "lost": 0}
    env.close()
    assert read_run(tmp_path / env.path).clean
