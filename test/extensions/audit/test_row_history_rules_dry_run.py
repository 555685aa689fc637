"""The speed limit in a dry run compares each command with its own reference."""

import copy

import numpy as np
import pytest

import embodied_env
from embodied_env.extensions.audit.row_history_rules import SequenceRule

CONTRACT = embodied_env.load_contract("arm_reach")
TOO_FAR = 0.5  # rad, within a period of 0.05 s: 10 rad/s


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Record a reset and two transitions of a free-running world."""
    env = embodied_env.make(CONTRACT, backend="fake", pacing="realtime", record=tmp_path_factory.mktemp("runs"))
    env.reset(seed=1)
    for _ in range(2):
        env.step(np.zeros(6))
    env.close()
    return list(embodied_env.read_run(env.path).rows())[:3]


@pytest.fixture
def rows(recorded):
    reset, *steps = copy.deepcopy(recorded)
    reset["inner"]["details"]["dry_run"] = "nothing is published"
    return [reset, *steps]


def rules_broken(rows):
    sequence = SequenceRule(CONTRACT)
    return {violation.rule for row in rows for violation in sequence.add(row)}


def shift(row, *, applied=0.0, reference=0.0):
    row["info"]["action"]["applied_si"]["j1"] += applied
    row["inner"]["external_inputs"]["reference"]["positions"][0] += reference


def test_dry_run_command_need_not_follow_the_previous_one(rows):
    shift(rows[2], applied=TOO_FAR, reference=TOO_FAR)
    assert rules_broken(rows) == set()


def test_dry_run_command_must_follow_its_reference(rows):
    shift(rows[2], applied=TOO_FAR)
    assert rules_broken(rows) == {"limits.velocity"}


def test_first_dry_run_command_must_follow_its_reference(rows):
    shift(rows[1], applied=TOO_FAR)
    assert rules_broken(rows) == {"limits.velocity"}


@pytest.mark.parametrize("count", [0, 1, 7])
def test_reference_with_other_joints_is_reported(rows, count):
    rows[2]["inner"]["external_inputs"]["reference"]["positions"] = [0.0] * count
    assert "row.shape" in rules_broken(rows)


def test_report_without_a_joint_does_not_stop_the_audit(rows):
    del rows[2]["info"]["action"]["applied_si"]["j1"]
    assert rules_broken(rows) == set()  # the rules of the row itself report it
