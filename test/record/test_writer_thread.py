"""Who writes the record, and when; and what the control loop notices of a disk that is slow, full or gone."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit

from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.errors import UsageError
from embodied_env.record import RecordTransitions, audit_run, read_run
from embodied_env.record.run_writer import LossCounter
from embodied_env.record.writer_thread import MAX_JOBS_IN_LOCKSTEP, WriterThread

pytestmark = pytest.mark.realtime

STILL = np.zeros(6)


@pytest.fixture
def gate():
    """Give an event that every waiting job is let through by, in the end at the latest."""
    event = threading.Event()
    yield event
    event.set()


# ------------------------------------------------------------------------------------------------------------- workers


def test_jobs_are_done_in_order_and_the_last_is_the_last():
    done = []
    worker = WriterThread()
    assert all(worker.submit(lambda n=n: done.append(n)) for n in range(100))
    assert worker.close(lambda: done.append("last"))
    assert done == [*range(100), "last"]


def test_writer_thread_put_does_not_wait_for_a_job(gate):
    worker = WriterThread()
    start = time.monotonic()
    worker.submit(gate.wait)
    worker.submit(gate.wait)
    assert time.monotonic() - start < 1.0
    gate.set()
    assert worker.close(lambda: None)


def test_writer_thread_what_finds_no_room_is_refused_and_what_is_being_written_counts(gate):
    worker = WriterThread(max_bytes=10)
    assert worker.submit(gate.wait, 8)
    assert not worker.submit(gate.wait, 3)
    assert worker.submit(gate.wait, 2)
    gate.set()
    assert worker.close(lambda: None)


def test_writer_thread_no_more_jobs_wait_than_were_allowed(gate):
    worker = WriterThread(max_jobs=2)
    assert [worker.submit(gate.wait) for _ in range(3)] == [True, True, False]
    gate.set()
    assert worker.close(lambda: None)


def test_writer_thread_a_job_larger_than_all_room_is_done_when_nothing_waits():
    done = []
    worker = WriterThread(max_bytes=10)
    assert worker.submit(lambda: done.append(1), 11)
    assert worker.close(lambda: None)
    assert done == [1]


def test_writer_thread_the_end_is_not_waited_for_for_ever(gate):
    worker = WriterThread(stall_timeout_s=0.05)
    worker.submit(gate.wait)
    assert not worker.close(lambda: None)
    gate.set()
    assert worker.close(lambda: None)


def test_writer_thread_after_the_end_nothing_is_taken():
    worker = WriterThread()
    worker.close(lambda: None)
    assert not worker.submit(lambda: None)


def test_writer_thread_a_job_waits_until_it_is_settled(gate):
    worker = WriterThread(gate.wait, max_jobs=2, stall_timeout_s=0.05)
    assert [worker.submit(lambda: None) for _ in range(3)] == [True, True, False]
    assert not worker.wait_idle()
    gate.set()
    while not worker.wait_idle():
        time.sleep(0.001)
    assert worker.submit(lambda: None)
    assert worker.close(lambda: None)


def test_writer_thread_what_was_drained_is_done_and_settled():
    done = []
    worker = WriterThread(lambda: done.append("settled"))
    worker.submit(lambda: done.append("job"))
    assert worker.wait_idle()
    assert done == ["job", "settled"]
    assert worker.close(lambda: None)


def test_writer_thread_who_waits_for_room_gets_it_when_the_thread_gets_on(gate):
    done = []
    worker = WriterThread(blocks=True, max_jobs=2)
    worker.submit(gate.wait)
    worker.submit(lambda: done.append(1))
    threading.Timer(0.05, gate.set).start()
    assert worker.submit(lambda: done.append(2))
    assert worker.close(lambda: done.append(3))
    assert done == [1, 2, 3]


def test_writer_thread_who_waits_for_a_thread_that_does_not_get_on_gives_up_once_until_it_does(gate):
    worker = WriterThread(blocks=True, max_jobs=1, stall_timeout_s=0.3)
    worker.submit(gate.wait)
    before = time.monotonic()
    assert not worker.submit(lambda: None)
    waited = time.monotonic() - before
    assert [worker.submit(lambda: None) for _ in range(5)] == [False] * 5
    assert time.monotonic() - before < 2 * waited
    gate.set()
    while not worker.wait_idle():
        time.sleep(0.001)
    assert worker.submit(lambda: None)
    assert worker.close(lambda: None)


def test_writer_thread_a_thread_that_is_slow_but_gets_on_is_waited_for_longer_than_one_patience():
    worker = WriterThread(stall_timeout_s=0.3)
    for _ in range(8):
        worker.submit(lambda: time.sleep(0.05))
    assert worker.close(lambda: None)


def test_writer_thread_a_thread_that_is_retired_does_what_waits_and_ends():
    done = []
    worker = WriterThread()
    worker.submit(lambda: done.append(1))
    worker.close_when_idle()
    assert worker.close(lambda: done.append("too late"))
    assert done == [1]


class Row:
    """A job that says who prepared it, and when it was done."""

    def __init__(self, name, done):
        self.name, self.done, self.encoded_by = name, done, None

    def encode(self):
        self.encoded_by = self.encoded_by or threading.current_thread()

    def __call__(self):
        self.encode()
        self.done.append(self.name)


def test_writer_thread_what_is_held_is_not_begun_before_there_is_time_for_it():
    done = []
    worker = WriterThread(blocks=True)
    worker.submit(lambda: done.append("put"))
    assert worker.hold(Row("held", done))
    worker.submit(lambda: done.append("overtakes it"), passes_held=True)
    while len(done) < 2:
        time.sleep(0.001)
    assert done == ["put", "overtakes it"]
    worker.encode_held()
    assert worker.wait_idle()
    assert done == ["put", "overtakes it", "held"]
    worker.close(lambda: None)


def test_writer_thread_what_is_held_is_encoded_by_who_has_time_and_done_by_the_thread():
    done = []
    worker = WriterThread(blocks=True)
    row = Row("held", done)
    worker.hold(row)
    worker.encode_held()
    worker.encode_held()  # there is nothing more
    assert worker.close(lambda: None)
    assert (row.encoded_by, done) == (threading.current_thread(), ["held"])


@pytest.mark.parametrize(
    "end",
    [WriterThread.wait_idle, WriterThread.close_when_idle, lambda worker: worker.close(lambda: None)],
    ids=["wait_idle", "close_when_idle", "close"],
)
def test_writer_thread_what_is_held_is_done_when_it_is_waited_for_or_the_end_comes(end):
    done = []
    worker = WriterThread(blocks=True)
    row = Row("held", done)
    worker.hold(row)
    end(worker)
    assert worker.close(lambda: None)
    assert done == ["held"]
    assert row.encoded_by is not threading.current_thread()


def test_writer_thread_of_what_is_held_there_is_one_and_the_next_lets_it_go():
    done = []
    worker = WriterThread(blocks=True)
    for name in "abc":
        worker.hold(Row(name, done))
    while len(done) < 2:
        time.sleep(0.001)
    assert done == ["a", "b"]
    assert worker.close(lambda: None)
    assert done == ["a", "b", "c"]


def test_writer_thread_what_is_held_is_done_before_what_comes_behind_it():
    done = []
    worker = WriterThread(blocks=True)
    worker.hold(Row("held", done))
    worker.submit(lambda: done.append("put"))
    assert worker.close(lambda: None)
    assert done == ["held", "put"]


def test_writer_thread_what_is_held_takes_room(gate):
    worker = WriterThread(max_bytes=10)
    assert worker.submit(gate.wait, 5)
    assert worker.hold(Row("held", []), 5)
    assert not worker.submit(gate.wait, 1, passes_held=True)
    assert not worker.hold(Row("another", []), 1)
    gate.set()
    assert worker.close(lambda: None)
    assert not worker.hold(Row("late", []))


def test_writer_thread_who_waits_for_room_lets_go_what_is_held():
    done = []
    worker = WriterThread(blocks=True, max_jobs=1)
    assert worker.hold(Row("held", done))
    assert worker.submit(lambda: done.append("message"), passes_held=True)
    assert worker.close(lambda: None)
    assert done == ["held", "message"]


def test_writer_thread_many_threads_submit_and_everything_is_done_once():
    done = []
    worker = WriterThread(lambda: None, blocks=True, gather_s=0.001, max_jobs=5)

    def submit(first):
        for n in range(first, first + 200):
            assert worker.submit(lambda n=n: done.append(n))

    threads = [threading.Thread(target=submit, args=(1000 * k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert worker.close(lambda: done.append("last"))
    assert done[-1] == "last"
    assert sorted(done[:-1]) == [1000 * k + n for k in range(4) for n in range(200)]


def test_writer_thread_before_a_fork_everything_is_done_and_both_sides_go_on():
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


def test_of_losses_the_first_problem_is_kept_and_everything_is_counted():
    losses = LossCounter()
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

    def append(self, *args, **options):
        self._gate.wait()
        self._log.append(*args, **options)

    def __getattr__(self, name):
        return getattr(self._log, name)


def recorded(tmp_path, gate, *, pacing="realtime", **options):
    env = RecordTransitions(EmbodiedEnv("arm_reach", backend="fake", free_running=pacing == "realtime"), tmp_path)
    env._run._log = SlowDisk(env._run._log, gate)
    env._writer = WriterThread(env._run.settle, blocks=pacing == "lockstep", **options)
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
    env = recorded(tmp_path, gate, max_jobs=3)
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
    env = recorded(tmp_path, gate, stall_timeout_s=0.05)
    env.reset(seed=1)
    with pytest.warns(UserWarning, match="the record could not be completed: the disk does not answer"):
        env.close()
    assert not read_run(env.path).clean
    gate.set()
    assert env._writer.close(lambda: None)


def test_in_lockstep_a_step_goes_on_while_there_is_room_and_waits_when_there_is_none(tmp_path, gate):
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
    assert env.rows_flushed >= 3
    env.close()
    assert env.rows_flushed == 7
    assert read_run(env.path).clean


@pytest.mark.parametrize("is_waited_for", [False, True], ids=["in process", "waited for"])
def test_in_lockstep_no_more_rows_wait_than_are_promised(tmp_path, gate, is_waited_for):
    gate.set()
    env = RecordTransitions((Elsewhere if is_waited_for else EmbodiedEnv)("arm_reach", backend="fake"), tmp_path)
    env._run._log = SlowDisk(env._run._log, gate)
    env.reset(seed=1)
    env.step(STILL)
    gate.clear()
    for _ in range(MAX_JOBS_IN_LOCKSTEP):
        env.step(STILL)
    threading.Timer(0.05, gate.set).start()
    env.step(STILL)
    assert env.rows_flushed >= 3
    env.close()


def rows_of(env):
    """Count the rows that whoever reads the run at this moment finds."""
    return len(list(read_run(env.path).rows()))


def test_in_lockstep_a_reset_the_first_step_and_the_end_of_an_episode_return_when_their_rows_are_flushed(tmp_path):
    env = RecordTransitions(TimeLimit(EmbodiedEnv("arm_reach", backend="fake"), 20), tmp_path)
    env.reset(seed=1)
    assert (env.rows_flushed, rows_of(env)) == (1, 1)
    env.step(STILL)
    assert (env.rows_flushed, rows_of(env)) == (2, 2)
    while not env.step(STILL)[3]:
        pass
    assert (env.rows_flushed, rows_of(env)) == (21, 21)
    env.reset()
    assert (env.rows_flushed, rows_of(env)) == (22, 22)
    env.close()


class Elsewhere(EmbodiedEnv):
    """An environment like one whose world is waited for."""

    @property
    def capabilities(self):
        return dataclasses.replace(super().capabilities, transport=True)


def test_where_the_world_is_waited_for_the_row_of_a_step_is_made_while_the_next_one_moves(tmp_path):
    env = RecordTransitions(Elsewhere("arm_reach", backend="fake"), tmp_path)
    env.reset(seed=1)
    env.step(STILL)  # the first waits for its row
    env.step(STILL)
    time.sleep(0.05)
    assert env.rows_flushed == 2
    env.step(STILL)
    while env.rows_flushed < 3:
        time.sleep(0.001)
    env.close()
    assert env.rows_flushed == 4
    assert audit_run(env.path).sound


def test_where_the_world_is_waited_for_rows_are_in_order_over_a_reset_in_the_middle_of_an_episode(tmp_path):
    env = RecordTransitions(Elsewhere("arm_reach", backend="fake"), tmp_path)
    for _ in range(2):
        env.reset(seed=1)
        for _ in range(3):
            env.step(STILL)
    env.close()
    assert [row["row"] for row in read_run(env.path).rows()] == list(range(8))
    assert audit_run(env.path).sound


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # its log is not closed, either
def test_an_environment_whose_world_is_waited_for_and_that_is_forgotten_leaves_all_rows(tmp_path):
    env = RecordTransitions(Elsewhere("arm_reach", backend="fake"), tmp_path)
    env.reset(seed=1)
    for _ in range(3):
        env.step(STILL)
    path, worker = env.path, env._writer
    del env
    gc.collect()
    worker.wait_idle()
    assert len(list(read_run(path).rows())) == 4


@pytest.mark.parametrize("world", [EmbodiedEnv, Elsewhere], ids=["in process", "waited for"])
def test_what_was_flushed_by_hand_is_there(tmp_path, world):
    env = RecordTransitions(world("arm_reach", backend="fake"), tmp_path)
    env.reset(seed=1)
    for count in range(2, 6):
        env.step(STILL)
        assert env.flush()
        assert (env.rows_flushed, rows_of(env)) == (count, count)
    env.close()


def test_in_lockstep_a_disk_that_does_not_answer_is_waited_for_once_and_said(tmp_path, gate):
    gate.set()
    env = recorded(tmp_path, gate, pacing="lockstep", max_jobs=2, stall_timeout_s=0.05)
    env.reset(seed=1)
    env.step(STILL)
    gate.clear()
    with pytest.warns(UserWarning, match="not complete: row 4 was dropped: the disk is too slow"):
        infos = [env.step(STILL)[-1] for _ in range(8)]
    assert [info["record"]["lost"] for info in infos] == [0, 0, 1, 2, 3, 4, 5, 6]
    assert not env.flush()
    gate.set()
    env.close()
    assert read_run(env.path).problem == "row 4 was dropped: the disk is too slow"
    assert rows_of(env) == 4


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # its log is not closed, either
def test_an_environment_that_is_forgotten_leaves_all_rows_and_no_thread(tmp_path):
    before = threading.active_count()
    env = RecordTransitions(EmbodiedEnv("arm_reach", backend="fake"), tmp_path)
    env.reset(seed=1)
    for _ in range(5):
        env.step(STILL)
    path = env.path
    del env
    gc.collect()
    end = time.monotonic() + 5.0
    while threading.active_count() > before and time.monotonic() < end:
        time.sleep(0.001)
    assert threading.active_count() == before
    assert len(list(read_run(path).rows())) == 6


# ----------------------------------------------------------------------------------------------------- a disk that fails

FULL = """
import json, os, resource, signal, sys, time, warnings
import numpy as np
import embodied_env

def case(kind, pacing):
    env = embodied_env.make("arm_reach", backend="fake", record=sys.argv[1], free_running=pacing == "realtime")
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

def go_on(env):
    for _ in range(3):
        env.step(np.zeros(6))

def end(how, env):
    if how == "terminated":
        os.kill(os.getpid(), signal.SIGTERM)
    if how == "beside a fork":  # whose end is not that of the run
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
    "lockstep, beside a fork": 0,
    "realtime, terminated": 143,
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Give the folder of programs that never closed what they recorded, and how they ended."""
    folder = tmp_path_factory.mktemp("ended")
    done = subprocess.run(
        [sys.executable, "-c", ENDED, str(folder), *ENDS], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return folder, done.stdout.splitlines()


@pytest.mark.parametrize("case", ENDS)
def test_however_a_program_ends_its_record_is_completed(ended, case):
    folder, said = ended
    assert f"{case}, {ENDS[case]}" in said
    (path,) = (folder / case).iterdir()
    run = read_run(path)
    assert run.problem == ""
    assert len(list(run.transitions())) == (6 if "fork" in case else 3)


# --------------------------------------------------------------------------------------- a log that others interfere with


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
def test_a_log_that_others_change_is_reported_within_the_run(tmp_path, interfere, pacing):
    env = RecordTransitions(EmbodiedEnv("arm_reach", backend="fake", free_running=pacing == "realtime"), tmp_path)
    env.reset(seed=1)
    env.step(STILL)
    assert env.flush()
    interfere(env.path)
    with pytest.warns(UserWarning, match="the record of this run is not complete"):  # noqa: PT031 - it may come early
        env.step(STILL)
        assert env.flush()
        record = env.step(STILL)[-1]["record"]
    assert record["complete"] is False
    assert record["lost"] > 0
    env.close()
    assert not env.losses.complete
    assert env.rows_flushed + env.losses.rows == 4


@pytest.mark.parametrize("interfere", INTERFERENCE)
def test_a_log_that_others_change_before_the_close_is_reported_by_the_close(tmp_path, interfere):
    env = RecordTransitions(EmbodiedEnv("arm_reach", backend="fake"), tmp_path)
    env.reset(seed=1)
    env.step(STILL)
    assert env.flush()
    interfere(env.path)
    with pytest.warns(UserWarning, match="the record of this run is not complete"):
        env.close()
    assert not env.losses.complete
    assert env.losses.rows > 0 or interfere is append_to_log


@pytest.mark.parametrize("interfere", [unlink_log, replace_log, truncate_log, append_to_log])
def test_manifest_summary_and_audit_say_that_others_changed_the_log(tmp_path, interfere):
    env = RecordTransitions(EmbodiedEnv("arm_reach", backend="fake"), tmp_path)
    env.reset(seed=1)
    env.step(STILL)
    interfere(env.path)
    with pytest.warns(UserWarning, match="the record of this run is not complete"):
        env.close()
    assert read_run(env.path).manifest["record"]["complete"] is False
    assert json.loads((env.path / "summary.json").read_text())["record"]["complete"] is False
    assert "run.unclean" in audit_run(env.path).counts


def test_a_program_that_changes_its_folder_has_a_whole_record(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = RecordTransitions(EmbodiedEnv("arm_reach", backend="fake"), "runs")
    env.reset(seed=1)
    monkeypatch.chdir("/")
    assert env.step(STILL)[-1]["record"] == {"complete": True, "lost": 0}
    env.close()
    assert read_run(tmp_path / env.path).clean
