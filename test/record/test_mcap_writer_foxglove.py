"""Foxglove's library `@mcap/core` finds the messages of a run."""

import json
import shutil

import pytest
from mcap_core import counts_of, read_with_core

import embodied_env
from embodied_env.record import read_run, repair_run

pytestmark = pytest.mark.long


def test_indexed_reader_of_foxglove_finds_every_message_unless_the_writer_was_killed(tmp_path):
    env = embodied_env.make("door_open", backend="fake", record=tmp_path)
    for _ in range(3):
        env.reset(seed=1)
        env.step(env.action_space.sample())
    env.flush()
    killed, repaired = (shutil.copytree(env.path, tmp_path / name) for name in ("killed", "repaired"))
    env.close()
    repair_run(repaired)
    for path in (env.path, repaired):
        done = read_with_core(path / "transitions.mcap")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == counts_of(path / "transitions.mcap")
        assert json.loads(done.stdout)["transition"] == 3
    assert "Expected MCAP magic" in read_with_core(killed / "transitions.mcap").stderr
    assert len(list(read_run(killed).transitions())) == 3
