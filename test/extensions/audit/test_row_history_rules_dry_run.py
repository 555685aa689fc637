"""The speed limit in a dry run compares each command with its own reference."""

import copy

import numpy as np
import pytest
from run_files import record

import embodied_env
from embodied_env.extensions.audit.row_history_rules import SequenceRule

CONTRACT = embodied_env.load_contract("arm_reach")
TOO_FAR = 0.5  # rad, within a period of 0.05 s: 10 rad/s


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Record a reset and two transitions of a free-running world."""
    path = record(tmp_path_factory.mktemp("runs"), [[np.zeros(6)] * 2], CONTRACT, free_running=True)
    return list(embodied_env.read_run(path).rows())


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


@pytest.mark.parametrize(("number", "reference"), [(1, 0.0), (1, TOO_FAR), (2, 0.0), (2, TOO_FAR)])
def test_each_dry_run_command_must_follow_its_own_reference(rows, number, reference):
    shift(rows[number], applied=TOO_FAR, reference=reference)
    assert rules_broken(rows) == (set() if reference else {"limits.velocity"})


@pytest.mark.parametrize("count", [0, 1, 7])
def test_reference_with_other_joints_is_reported(rows, count):
    rows[2]["inner"]["external_inputs"]["reference"]["positions"] = [0.0] * count
    assert "row.shape" in rules_broken(rows)


def test_report_without_a_joint_does_not_stop_the_audit(rows):
    del rows[2]["info"]["action"]["applied_si"]["j1"]
    assert rules_broken(rows) == set()  # the rules of the row itself report it
