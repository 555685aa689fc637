"""The processes of a target run without ROS launch, and are cleaned up."""

import os
import random
import signal
import subprocess
import sys
import time

import psutil
import pytest

from embodied_env.cli.launch.targets import TARGETS
from embodied_env.cli.main import main

pytestmark = pytest.mark.realtime

PATIENCE_S = 60.0
COMMAND = [sys.executable, "-m", "embodied_env.cli", "launch"]
GAZEBO = """#!/bin/bash
echo $$ > {folder}/pid
mv {folder}/pid {folder}/gazebo_runs
{then}
"""
SLEEPS = "sleep 60 & wait"


@pytest.fixture
def gazebo(tmp_path, monkeypatch):
    """A gz and a bridge that sleep, their world, and a training script given by `script`."""

    def install(*, gz=SLEEPS, script="import time; time.sleep(60)"):
        for path, then in (("bin/gz", gz), ("lib/ros_gz_bridge/parameter_bridge", "exec sleep 60")):
            file = tmp_path / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(GAZEBO.format(folder=tmp_path, then=then) if path == "bin/gz" else f"#!/bin/bash\n{then}\n")
            file.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("AMENT_PREFIX_PATH", str(tmp_path))
        for name in ("w.sdf", "w.bridge.yaml"):
            (tmp_path / name).write_text("")
        (tmp_path / "learn.py").write_text(script)
        given = [f"world:={tmp_path / 'w.sdf'}", f"script:={tmp_path / 'learn.py'}"]
        return [*COMMAND, "gazebo", *given]

    return install


def run(command):
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def left_in(folder):
    """Return the processes that were started from this folder, or run in it."""
    found = []
    for process in psutil.process_iter():
        try:
            if any(str(folder) in word for word in process.cmdline()) or process.cwd() == str(folder):
                found.append(process)
        except psutil.Error:
            continue
    return [p for p in found if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def test_exit_status_is_that_of_the_work_and_all_processes_end(gazebo, tmp_path):
    runs = tmp_path / "gazebo_runs"
    done = run(
        gazebo(
            script=f"import pathlib, sys, time\nwhile not pathlib.Path({str(runs)!r}).exists(): time.sleep(.01)\nprint(sys.argv[1:])\nsys.exit(5)"
        )
    )
    assert done.returncode == 5
    assert "['arm_reach', '--backend', 'gazebo', '--seed', '0', '--out', 'runs']" in done.stdout
    assert left_in(tmp_path) == []


@pytest.mark.long
def test_simulator_exit_fails_the_work(gazebo, tmp_path):
    done = run(gazebo(gz="echo no display; exit 0"))
    assert done.returncode == 1
    assert "[gazebo] no display" in done.stdout
    assert "gazebo exited with status 0" in done.stderr
    assert left_in(tmp_path) == []


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long),
        pytest.param(signal.SIGKILL, -9, marks=pytest.mark.long),
    ],
)
def test_signal_leaves_no_child_process(gazebo, tmp_path, number, status):
    process = subprocess.Popen(gazebo(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + PATIENCE_S
    while not (tmp_path / "gazebo_runs").exists() and time.monotonic() < end:
        time.sleep(0.01)
    assert len(left_in(tmp_path)) >= 4
    process.send_signal(number)
    assert process.wait(PATIENCE_S) == status
    while left_in(tmp_path) and time.monotonic() < end:
        time.sleep(0.01)
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("kills", [1, pytest.param(100, marks=pytest.mark.long)])
def test_killed_launcher_leaves_no_child_process(gazebo, tmp_path, kills):
    """The launcher may be killed while it is starting its children."""
    command, moments = gazebo(), random.Random(13)
    for _ in range(kills):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(moments.uniform(0.0, 2.0))
        process.kill()
        process.wait(PATIENCE_S)
        end = time.monotonic() + PATIENCE_S
        while left := left_in(tmp_path):
            assert time.monotonic() < end, [child.cmdline() for child in left]
            time.sleep(0.05)


@pytest.mark.parametrize("name", TARGETS)
def test_show_args_lists_defaults_and_allowed_values(name, capsys):
    assert main(["launch", name, "--show-args"]) == 0
    output = capsys.readouterr().out
    for argument in TARGETS[name].arguments:
        assert f"  {argument.name}:\n      {argument.description}" in output
        assert repr(argument.default) in output


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["fly"], "unknown target 'fly'"),
        (["sim", "policy=hold"], "'policy=hold' (expected name:=value)"),
        (["sim", "armed:=true"], "unknown argument of sim: 'armed'"),
        (["sim", "python:=/no/such/python"], "cannot start python:=/no/such/python"),
    ],
)
def test_usage_error_prints_one_line(words, problem, capsys):
    assert main(["launch", *words]) == 2
    assert problem in capsys.readouterr().err
