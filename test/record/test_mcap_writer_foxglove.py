"""Foxglove's library `@mcap/core` finds the messages of a run."""

import json
import shutil
from types import SimpleNamespace

import pytest
from mcap_core import counts_of, read_with_core

import embodied_env
from embodied_env.record import read_run, repair_run

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a closed run, its state after a SIGKILL, and that after a repair."""
    folder = tmp_path_factory.mktemp("runs")
    env = embodied_env.make("door_open", backend="fake", record=folder)
    for _ in range(3):
        env.reset(seed=1)
        env.step(env.action_space.sample())
    env.flush()
    killed = shutil.copytree(env.path, folder / "killed")
    repaired = shutil.copytree(env.path, folder / "repaired")
    env.close()
    repair_run(repaired)
    paths = {"closed": env.path, "killed": killed, "repaired": repaired}
    return SimpleNamespace(**{name: path / "transitions.mcap" for name, path in paths.items()})


@pytest.mark.parametrize("state", ["closed", "repaired"])
def test_indexed_reader_of_foxglove_finds_every_message(runs, state):
    path = getattr(runs, state)
    done = read_with_core(path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == counts_of(path)
    assert json.loads(done.stdout)["transition"] == 3


def test_indexed_reader_of_foxglove_refuses_the_file_of_a_killed_writer(runs):
    assert "Expected MCAP magic" in read_with_core(runs.killed).stderr
    assert len(list(read_run(runs.killed.parent).transitions())) == 3
