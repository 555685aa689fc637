"""A joint that does not follow its command: explanation, evaluation and report name it, and ask the right question."""

from __future__ import annotations

import json

import numpy as np
import pytest
from shipped_contracts import changed_contract

import embodied_env
from embodied_env.analysis.report.run_report import write_report
from embodied_env.cli.evaluation_run import print_losses_and_stops, print_table
from embodied_env.envs.explanation import UNMOVED
from embodied_env.record import read_run
from embodied_env.testing import Fault

TRACKING = {"tolerance": 0.001, "delay_steps": 0, "debounce_steps": 1, "stop_steps": 2}


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory):
    """Push j2 of an arm whose readings stay those of the reset."""
    contract = changed_contract(embodied_env.load_contract("arm_reach"), {"safety.tracking": TRACKING})
    frozen = [Fault(kind="drop", step=step, sensor="joints") for step in range(1, 9)]
    options = {"backend": "fake", "clock": "virtual", "episodes": 2, "record": tmp_path_factory.mktemp("runs")}
    return embodied_env.evaluate(contract, lambda _: np.array([0.0, 1, 0, 0, 0, 0]), faults=frozen, **options)


def test_explanation_names_the_joint_that_has_not_moved(evaluation):
    *_, last = read_run(evaluation.results[0].path).transitions()
    text = embodied_env.explain(last["info"])
    assert "(track.error: j2)" in text
    assert f"j2 {UNMOVED}" in text


def test_evaluation_names_the_joint_that_has_not_moved(evaluation, capsys):
    (result,) = evaluation.results
    assert result.summary["stopped_joints"] == {"safety_stop:track.error": {"j2": 2}}
    assert json.loads((result.path / "summary.json").read_text())["unmoved_joints"] == {"j2": 2}
    print_table(evaluation)
    print_losses_and_stops(evaluation.contract, result)
    output = capsys.readouterr()
    assert "safety_stop:track.error 2 (j2 2)" in " ".join(output.out.split())
    assert f"j2 {UNMOVED}" in output.err


def test_report_names_the_joint_that_has_not_moved(evaluation):
    page = write_report(evaluation.results[0].path).path.read_text()
    assert f"j2 {UNMOVED}" in page
    assert "truncated, safety_stop:track.error (j2)" in page
