"""No process outlives the one that started it, tested with real processes that sleep."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from waiting import wait_for

from embodied_env.processes import supervisor as keeper

pytestmark = pytest.mark.realtime

KEEPER = [sys.executable, keeper.__file__, "--grace", "0.2", "--"]
PATIENCE_S = 20.0


@pytest.fixture
def keep(tmp_path):
    """Start a shell script under a supervisor, which is ready once it has created the file ``ready``."""
    started = []

    def start(script, *, before=(), ready=True, grace_s=0.2):
        command = [*before, *KEEPER[:2], "--grace", str(grace_s), "--", "bash", "-c", script]
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True)
        started.append(process)
        if ready:
            wait_for((tmp_path / "ready").exists)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def is_alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def pids(tmp_path):
    return [int(word) for word in (tmp_path / "ready").read_text().split()]


WITH_ANOTHER = "sleep 60 & echo $$ $! > pids; mv pids ready; wait"
DEAF = "trap '' INT TERM; echo $$ > pids; mv pids ready; while true; do sleep 0.05; done"


@pytest.mark.parametrize(
    ("script", "status"), [("exit 7", 7), ("kill -9 $$", 128 + 9), ("kill -INT $$", 128 + signal.SIGINT)]
)
def test_exit_status_is_that_of_the_program_or_128_plus_its_signal(keep, script, status):
    assert keep(script, ready=False).wait(PATIENCE_S) == status


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("touch ready; exec sleep 60", 0),
        ("trap 'exit 130' INT; touch ready; while true; do sleep 0.05; done", 0),
        ("trap 'exit 1' INT; touch ready; while true; do sleep 0.05; done", 1),
    ],
)
def test_a_requested_interruption_is_exit_status_0(keep, script, status):
    process = keep(script, grace_s=PATIENCE_S)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == status


def test_missing_program_is_reported(capfd):
    assert subprocess.run([*KEEPER, "/no/such/program"], check=False).returncode == 127
    assert "cannot start /no/such/program" in capfd.readouterr().err


def test_program_ignoring_signals_is_killed(keep, tmp_path):
    process = keep(DEAF)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 128 + 9
    assert not is_alive(pids(tmp_path)[0])


def test_program_ends_when_the_parent_is_killed(keep, tmp_path):
    parent = keep(WITH_ANOTHER, before=(sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])"))
    parent.kill()
    wait_for(lambda: not any(is_alive(pid) for pid in pids(tmp_path)))


def test_program_ends_when_the_supervisor_is_killed(keep, tmp_path):
    process = keep("echo $$ > pids; mv pids ready; exec sleep 60")
    process.kill()
    wait_for(lambda: not is_alive(pids(tmp_path)[0]))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_programs_that_end_together_end_in_their_order(tmp_path, number):
    """Ctrl-C under ``ros2 launch`` and a closed terminal signal all supervisors at once.

    SIGKILL ends their starter.
    """
    starter = subprocess.Popen(["sleep", "60"])
    script = "trap 'sleep 0.2; echo {0} >> ended; exit' INT; touch ready{0}; while true; do sleep 0.05; done"
    keepers = []
    for order in (2, 0, 1):
        options = ["--starter", str(starter.pid), "--order", str(order), "--grace", str(PATIENCE_S)]
        command = [*KEEPER[:2], *options, "--", "bash", "-c", script.format(order)]
        keepers.append(subprocess.Popen(command, cwd=tmp_path))
    wait_for(lambda: all((tmp_path / f"ready{order}").exists() for order in range(3)))
    for process in [starter] if number == signal.SIGKILL else keepers:
        process.send_signal(number)
    for process in keepers:
        process.wait(PATIENCE_S)
    starter.kill()
    starter.wait()
    assert (tmp_path / "ended").read_text().split() == ["0", "1", "2"]


def test_the_wait_for_a_lower_order_is_bounded(keep, tmp_path):
    work = keep("touch ready; exec sleep 60")
    options = ["--wait", "0.3", "--order", "1", "--grace", "0.2"]
    process = subprocess.Popen([*KEEPER[:2], *options, "--", "bash", "-c", "touch service; sleep 60"], cwd=tmp_path)
    wait_for((tmp_path / "service").exists)
    process.send_signal(signal.SIGINT)
    process.wait(PATIENCE_S)
    assert work.poll() is None


@pytest.mark.parametrize("signals", [(keeper.STOP_AT_ONCE,), (signal.SIGINT, keeper.STOP_AT_ONCE)])
def test_a_stop_at_once_waits_for_no_other(keep, tmp_path, signals):
    work = keep("touch ready; exec sleep 60")
    options = ["--order", "1", "--grace", "0.2"]
    process = subprocess.Popen([*KEEPER[:2], *options, "--", "bash", "-c", "touch service; sleep 60"], cwd=tmp_path)
    wait_for((tmp_path / "service").exists)
    for number in signals:
        process.send_signal(number)
    assert process.wait(PATIENCE_S) == 0  # of at least 30 s
    assert work.poll() is None


@pytest.mark.parametrize("ends_by_itself", [True, False])
def test_processes_in_groups_of_their_own_are_ended(keep, tmp_path, ends_by_itself):
    """``gz sim`` with a window starts its server and window so, and one may ignore SIGINT and SIGTERM."""
    deaf = "(trap '' INT TERM; while true; do sleep 0.05; done)"
    end = "exit 0" if ends_by_itself else "wait"
    process = keep(f"set -m; sleep 60 & first=$!; {deaf} & echo $first $! > pids; mv pids ready; {end}")
    if not ends_by_itself:
        assert [os.getpgid(pid) for pid in pids(tmp_path)] == pids(tmp_path)
        process.send_signal(signal.SIGTERM)
    process.wait(PATIENCE_S)
    assert [is_alive(pid) for pid in pids(tmp_path)] == [False, False]


def test_program_receives_sigint_in_a_background_shell(keep):
    """A shell without a terminal starts background commands with SIGINT ignored."""
    deaf = (
        sys.executable,
        "-c",
        "import os, signal, sys; signal.signal(2, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])",
    )
    script = "trap 'echo closed; exit 3' INT; touch ready; while true; do sleep 0.05; done"
    process = keep(script, before=deaf, grace_s=PATIENCE_S)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 3
    assert process.stdout.read() == "closed\n"


def test_supervisor_imports_only_the_standard_library():
    script = f"import sys; sys.argv = ['k', '--', 'true']; exec(compile(open({keeper.__file__!r}).read(), 'k', 'exec'), {{'__name__': 'k'}}); print(any(n.startswith(('embodied', 'numpy')) for n in sys.modules))"
    environment = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run(
        [sys.executable, "-S", "-c", script], capture_output=True, text=True, check=True, cwd=Path("/"), env=environment
    )
    assert done.stdout == "False\n"


def test_program_is_not_started_after_the_end_of_its_starter(tmp_path):
    starter = subprocess.Popen(["true"])
    starter.wait()
    command = [*KEEPER[:2], "--starter", str(starter.pid), *KEEPER[2:], "touch", str(tmp_path / "ready")]
    assert subprocess.run(command, check=False).returncode == 127
    assert not (tmp_path / "ready").exists()


def test_program_ends_when_a_starter_other_than_the_parent_is_killed(tmp_path):
    starter = subprocess.Popen(["sleep", "60"])
    command = [*KEEPER[:2], "--starter", str(starter.pid), *KEEPER[2:], "bash", "-c", WITH_ANOTHER]
    process = subprocess.Popen(command, cwd=tmp_path)
    wait_for((tmp_path / "ready").exists)
    starter.kill()
    starter.wait()
    process.wait(PATIENCE_S)
    assert [is_alive(pid) for pid in pids(tmp_path)] == [False, False]
