from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
from evidence import assert_transitions_sound
from run_files import change_manifest, with_a_chunk_per_row

from embodied_env.contract import load_contract
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.errors import RecordError
from embodied_env.record import RecordTransitions, read_run
from embodied_env.record.arrays import references
from embodied_env.record.mcap_file import McapRecords
from embodied_env.record.writer_thread import MAX_JOBS_IN_LOCKSTEP

STEPS = 3


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Return a closed run, and a copy of it from before it was closed, as after a SIGKILL."""
    folder = tmp_path_factory.mktemp("runs")
    env = RecordTransitions(EmbodiedEnv("arm_reach", backend="fake"), folder)
    env.reset(seed=1)
    for _ in range(STEPS):
        env.step(np.zeros(6))
    env.flush()
    cut = shutil.copytree(env.path, folder / "cut")
    env.close()
    return env.path, cut


@pytest.fixture
def closed(recorded, tmp_path):
    return shutil.copytree(recorded[0], tmp_path / "closed")


@pytest.fixture
def cut(recorded, tmp_path):
    return shutil.copytree(recorded[1], tmp_path / "cut")


# -------------------------------------------------------------------------------------------------------- complete runs


# --------------------------------------------------------------------------------------------------------- unclean runs


def test_the_repr_of_a_run_names_its_folder_alone(closed):
    assert repr(read_run(closed)) == f"Run(path={closed!r})"


def test_unclosed_run_is_not_clean_and_has_all_rows(cut):
    run = read_run(cut)
    assert not run.clean
    found = "transitions.mcap: truncated, because its writer was stopped (4 complete rows)"
    assert run.problem == f"{found}; rows of the last 0.1 s before that may be missing"
    assert run.manifest["flush_period_s"] == 0.1
    assert len(list(run.transitions())) == STEPS


def test_truncated_row_is_omitted(cut):
    log = with_a_chunk_per_row(cut)
    end = max(place.end for kind, _, place in McapRecords(log) if kind == "MessageIndex")
    log.write_bytes(log.read_bytes()[: end - 200])
    assert [row["row"] for row in read_run(cut).rows()] == [0, 1, 2]


def test_run_stopped_before_its_manifest_is_not_clean(closed):
    change_manifest(closed, clean=False)
    assert read_run(closed).problem == "manifest.json: the run was never closed"


def test_recorded_problem_has_precedence(closed):
    change_manifest(closed, clean=False, problem="row 3 cannot be written: disk full")
    assert read_run(closed).problem == "row 3 cannot be written: disk full"


# ------------------------------------------------------------------------------------------------------------- errors


def test_folder_that_is_not_a_run_is_rejected(tmp_path):
    with pytest.raises(
        RecordError,
        match=r"not a run directory: .*cannot read .*manifest\.json: .*No such file.* \(expected a folder such as runs/",
    ):
        read_run(tmp_path)


@pytest.mark.parametrize("schema", ["embodied_env/run/2", None])
def test_manifest_of_another_schema_is_rejected(closed, schema):
    change_manifest(closed, schema=schema)
    with pytest.raises(RecordError, match=r"unknown schema .* \(expected 'embodied_env/run/1'\)"):
        read_run(closed)


# ------------------------------------------------------------------------------------------------------------ SIGKILL


# ------------------------------------------------------------------------------------------------------------ SIGKILL

AGENT = """
import os, sys
import embodied_env

env = embodied_env.make("door_open", backend="fake", record=sys.argv[1], max_episode_steps=9)  # it has cameras
env.action_space.seed(1)
os.write(1, f"{env.path}\\n".encode())
rows = 0
while True:
    env.reset(seed=1)
    rows += 1
    ended = False
    while not ended:
        *_, terminated, truncated, _ = env.step(env.action_space.sample())
        ended = terminated or truncated
        rows += 1
        os.write(1, f"{rows} {env.rows_flushed} {ended:d}\\n".encode())
"""


def test_flushed_rows_of_a_killed_agent_pass_the_audit(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", AGENT, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    path = process.stdout.readline().strip()
    lines = [process.stdout.readline() for _ in range(30)]
    os.kill(process.pid, signal.SIGKILL)
    output = [tuple(map(int, line.split())) for line in (*lines, *process.stdout.readlines())]
    process.wait(30)
    process.stdout.close()
    run = read_run(path)
    transitions = list(run.transitions())
    assert not run.clean
    found = len(list(run.rows()))
    assert all(rows - MAX_JOBS_IN_LOCKSTEP <= flushed <= rows for rows, flushed, _ in output)
    assert {rows - flushed for rows, flushed, ended in output if ended} <= {0}
    assert found >= output[-1][1]
    contract = load_contract("door_open")
    assert_transitions_sound(transitions, contract)
    images = [reference for row in transitions for _, reference in references(row)]
    assert len(images) >= len(transitions)
    assert [list(run.array(reference).shape) for reference in images] == [each["shape"] for each in images]
