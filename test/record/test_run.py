from __future__ import annotations

import shutil

import numpy as np
import pytest
from run_files import change_manifest, with_a_chunk_per_row

from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.errors import RecordError
from embodied_env.record import RecordTransitions, read_run
from embodied_env.record.mcap_file import McapRecords

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
