"""The keeper: nothing of a program outlives whoever started it. Real processes, which sleep."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from embodied_env.core.process import supervisor as keeper

pytestmark = pytest.mark.realtime

KEEPER = [sys.executable, keeper.__file__, "--grace", "0.2", "--"]
PATIENCE_S = 20.0


@pytest.fixture
def keep(tmp_path):
    """Start a shell script under a keeper; it is ready when it has made the file ``ready``."""
    started = []

    def start(script, *, before=(), ready=True):
        command = [*before, *KEEPER, "bash", "-c", script]
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True)
        started.append(process)
        if ready:
            until((tmp_path / "ready").exists)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def until(holds):
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def is_alive(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def pids(tmp_path):
    return [int(word) for word in (tmp_path / "ready").read_text().split()]


WITH_ANOTHER = "sleep 60 & echo $$ $! > told; mv told ready; wait"
DEAF = "trap '' INT TERM; echo $$ > told; mv told ready; while true; do sleep 0.05; done"


def test_its_exit_status_is_the_programs(keep):
    assert keep("exit 7", ready=False).wait(PATIENCE_S) == 7


def test_a_program_that_a_signal_has_ended_gives_128_and_more(keep):
    assert keep("kill -9 $$", ready=False).wait(PATIENCE_S) == 128 + 9


def test_a_program_that_is_not_there_is_named(capfd):
    assert subprocess.run([*KEEPER, "/no/such/program"], check=False).returncode == 127
    assert "/no/such/program cannot be started" in capfd.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_end_it_ends_the_program_and_what_that_has_started(keep, tmp_path, number):
    process = keep(WITH_ANOTHER)
    process.send_signal(number)
    process.wait(PATIENCE_S)
    assert [is_alive(pid) for pid in pids(tmp_path)] == [False, False]


def test_the_program_is_asked_by_sigint_so_that_it_can_close(keep):
    process = keep("trap 'echo closed; exit 3' INT; touch ready; while true; do sleep 0.05; done")
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 3
    assert process.stdout.read() == "closed\n"


def test_a_program_that_does_not_listen_is_killed(keep, tmp_path):
    process = keep(DEAF)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 128 + 9
    assert not is_alive(pids(tmp_path)[0])


def test_when_its_parent_is_killed_the_program_ends(keep, tmp_path):
    parent = keep(WITH_ANOTHER, before=(sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])"))
    parent.kill()
    until(lambda: not any(is_alive(pid) for pid in pids(tmp_path)))


def test_when_the_keeper_itself_is_killed_the_program_ends(keep, tmp_path):
    process = keep("echo $$ > told; mv told ready; exec sleep 60")
    process.kill()
    until(lambda: not is_alive(pids(tmp_path)[0]))


def test_what_a_program_leaves_behind_ends_with_it(keep, tmp_path):
    process = keep("sleep 60 & echo $! > told; mv told ready")
    assert process.wait(PATIENCE_S) == 0
    assert not is_alive(pids(tmp_path)[0])


def test_a_program_listens_where_a_shell_in_the_background_would_not(keep):
    """A shell without a terminal starts what stands before & with SIGINT ignored."""
    deaf = (
        sys.executable,
        "-c",
        "import os, signal, sys; signal.signal(2, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])",
    )
    process = keep("trap 'exit 3' INT; touch ready; while true; do sleep 0.05; done", before=deaf)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 3


def test_it_imports_nothing_but_the_standard_library():
    script = f"import sys; sys.argv = ['k', '--', 'true']; exec(compile(open({keeper.__file__!r}).read(), 'k', 'exec'), {{'__name__': 'k'}}); print(any(n.startswith(('embodied', 'numpy')) for n in sys.modules))"
    environment = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run(
        [sys.executable, "-S", "-c", script], capture_output=True, text=True, check=True, cwd=Path("/"), env=environment
    )
    assert done.stdout == "False\n"


def test_a_program_whose_starter_ended_before_the_keeper_ran_is_not_started(tmp_path):
    starter = subprocess.Popen(["true"])
    starter.wait()
    command = [*KEEPER[:2], "--starter", str(starter.pid), *KEEPER[2:], "touch", str(tmp_path / "ready")]
    assert subprocess.run(command, check=False).returncode == 127
    assert not (tmp_path / "ready").exists()


def test_when_a_starter_that_is_not_the_parent_is_killed_the_program_ends(tmp_path):
    starter = subprocess.Popen(["sleep", "60"])
    command = [*KEEPER[:2], "--starter", str(starter.pid), *KEEPER[2:], "bash", "-c", WITH_ANOTHER]
    process = subprocess.Popen(command, cwd=tmp_path)
    until((tmp_path / "ready").exists)
    starter.kill()
    starter.wait()
    process.wait(PATIENCE_S)
    assert [is_alive(pid) for pid in pids(tmp_path)] == [False, False]
