"""Reading a run back: whole, cut short, or no run at all."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys

import gymnasium
import numpy as np
import pytest

from embodied_env.contract import load_contract
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.errors import RecordError
from embodied_env.record import RecordTransitions, audit_transition, read_run
from embodied_env.record.arrays import references
from embodied_env.record.rows import RESET, TRANSITION
from embodied_env.record.writer_thread import MAX_JOBS_IN_LOCKSTEP

STEPS = 3


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Give a closed run, and a copy of it as it was on disk before it was closed: what a SIGKILL leaves."""
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


# ----------------------------------------------------------------------------------------------------------- whole runs


def test_a_closed_run_is_clean(closed):
    run = read_run(closed)
    assert run.clean
    assert run.problem == ""


def test_rows_come_in_their_order(closed):
    rows = list(read_run(closed).rows())
    assert [row["row"] for row in rows] == list(range(STEPS + 1))
    assert [row["schema"] for row in rows] == [RESET] + [TRANSITION] * STEPS


def test_transitions_and_resets_can_be_read_apart(closed):
    run = read_run(closed)
    assert [row["row"] for row in run.transitions()] == [1, 2, 3]
    assert [row["row"] for row in run.resets()] == [0]


def test_rows_can_be_read_more_than_once(closed):
    run = read_run(closed)
    assert list(run.rows()) == list(run.rows())


def test_the_manifest_is_what_is_on_disk(closed):
    assert read_run(closed).manifest == json.loads((closed / "manifest.json").read_text())


def test_a_path_may_be_text(closed):
    assert read_run(str(closed)).path == closed


class Camera(gymnasium.ObservationWrapper):
    """Adds an image that the environment does not have."""

    image = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)

    def observation(self, observation):
        return {**observation, "front_image": self.image}


def test_an_image_is_read_by_the_reference_in_its_row(tmp_path):
    env = RecordTransitions(Camera(EmbodiedEnv("arm_reach", backend="fake")), tmp_path)
    env.reset(seed=1)
    env.close()
    run = read_run(env.path)
    (row,) = run.resets()
    assert np.array_equal(run.array(row["observation"]["front_image"]), Camera.image)


def test_an_image_that_the_run_does_not_have_is_an_error(closed):
    with pytest.raises(RecordError, match=r"transitions\.mcap: there is no array"):
        read_run(closed).array({"sha256": "0" * 64, "dtype": "uint8", "shape": [4, 5, 3]})


def test_a_run_can_be_read_while_it_is_written(tmp_path):
    env = RecordTransitions(EmbodiedEnv("arm_reach", backend="fake"), tmp_path)
    env.reset(seed=1)
    env.step(np.zeros(6))
    env.step(np.zeros(6))
    env.flush()
    assert [row["row"] for row in read_run(env.path).rows()] == [0, 1, 2]
    env.close()


# --------------------------------------------------------------------------------------------------------- unclean runs


def test_a_run_that_was_never_closed_is_not_clean_and_has_all_its_rows(cut):
    run = read_run(cut)
    assert not run.clean
    assert run.problem == (
        "transitions.mcap: it ends before its end was written: its writer was stopped after 4 whole rows"
    )
    assert len(list(run.transitions())) == STEPS


def test_a_row_that_was_cut_is_left_out(cut):
    log = cut / "transitions.mcap"
    log.write_bytes(log.read_bytes()[:-10])
    assert [row["row"] for row in read_run(cut).rows()] == [0, 1, 2]


def test_a_log_that_is_not_there_is_said(closed):
    (closed / "transitions.mcap").unlink()
    run = read_run(closed)
    assert list(run.rows()) == []
    assert run.problem.startswith("transitions.mcap: it cannot be read (No such file or directory)")


def change_manifest(path, **values):
    file = path / "manifest.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_a_run_that_was_stopped_between_its_log_and_its_manifest_is_not_clean(closed):
    change_manifest(closed, clean=False)
    assert read_run(closed).problem == "manifest.json: the run was never closed"


def test_what_the_recorder_said_was_wrong_comes_first(closed):
    change_manifest(closed, clean=False, problem="row 3 cannot be written: disk full")
    assert read_run(closed).problem == "row 3 cannot be written: disk full"


# ------------------------------------------------------------------------------------------------------------ no runs


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(RecordError, match=r"is not a run directory: .*manifest\.json cannot be read: .*No such file"):
        read_run(tmp_path)


def test_a_manifest_that_is_no_json_is_refused(closed):
    (closed / "manifest.json").write_text("{")
    with pytest.raises(RecordError, match=r"is not a run directory: .*manifest\.json cannot be read: Expecting"):
        read_run(closed)


@pytest.mark.parametrize("schema", ["embodied_env/run/2", None])
def test_a_manifest_of_another_schema_is_refused(closed, schema):
    change_manifest(closed, schema=schema)
    with pytest.raises(RecordError, match=r"the schema .* is not known; allowed: 'embodied_env/run/1'"):
        read_run(closed)


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


def test_an_agent_that_is_killed_leaves_every_row_that_was_flushed_and_all_are_sound(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", AGENT, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    path = process.stdout.readline().strip()
    said = [process.stdout.readline() for _ in range(30)]
    os.kill(process.pid, signal.SIGKILL)
    said = [tuple(map(int, line.split())) for line in (*said, *process.stdout.readlines())]
    process.wait(30)
    process.stdout.close()
    run = read_run(path)
    transitions = list(run.transitions())
    assert not run.clean
    found = len(list(run.rows()))
    assert all(rows - MAX_JOBS_IN_LOCKSTEP <= flushed <= rows for rows, flushed, _ in said)
    assert {rows - flushed for rows, flushed, ended in said if ended} <= {0}
    assert found >= said[-1][1]
    contract = load_contract("door_open")
    assert [audit_transition(row, contract) for row in transitions] == [[]] * len(transitions)
    images = [reference for row in transitions for _, reference in references(row)]
    assert len(images) >= len(transitions)
    assert [list(run.array(reference).shape) for reference in images] == [each["shape"] for each in images]
