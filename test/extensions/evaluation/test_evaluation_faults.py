"""Every result of a run names sensors that die and joints that do not follow."""

import json
from functools import partial

import numpy as np
import pytest
from shipped_contracts import changed_contract

import embodied_env
from embodied_env.core.code_table import UNMOVED
from embodied_env.extensions.evaluation.evaluation_display import print_losses_and_stops, print_table
from embodied_env.record import read_run
from embodied_env.testing import ScriptedFault

STEPS, ALIVE = 200, 5  # of arm_reach
TRACKING = {"tolerance": 0.001, "delay_steps": 0, "debounce_steps": 1, "stop_steps": 2}


@pytest.fixture(scope="module")
def evaluate(tmp_path_factory):
    """Return a function that evaluates a policy on faulty sensors."""
    options = {"backend": "fake", "clock": "virtual", "record": tmp_path_factory.mktemp("runs")}
    return partial(embodied_env.evaluate, **options)


@pytest.fixture(scope="module")
def results(evaluate):
    """Evaluate ``hold``, with all sensors and with one that dies."""
    steps = range(ALIVE + 1, STEPS + 1)
    dead = [ScriptedFault(kind="stale" if step % 2 else "drop", step=step, sensor="tcp") for step in steps]
    return [evaluate("arm_reach", "hold", episodes=1, faults=faults) for faults in (dead, [])]


@pytest.fixture(scope="module")
def stopped(evaluate):
    """Push j2 of an arm whose readings stay those of the reset."""
    contract = changed_contract("arm_reach", {"safety.tracking": TRACKING})
    frozen = [ScriptedFault(kind="drop", step=step, sensor="joints") for step in range(1, 9)]
    return evaluate(contract, lambda _: np.array([0.0, 1, 0, 0, 0, 0]), episodes=2, faults=frozen)


def test_age_of_a_dead_sensor_is_measured_to_the_end(results):
    (dead,), period_s = results[0].results, results[0].contract.control_period_s
    for stage in ("obs_age_max_s", "capture_age_s[tcp]", "hold_s[tcp]"):
        found = dead.summary["latency"][stage]
        assert (found["count"], found["max_s"]) == (STEPS, pytest.approx((STEPS - ALIVE) * period_s))


def test_held_readings_are_counted_by_sensor_and_kind(results):
    for evaluation, expected in zip(results, ({"tcp": {"MISSING": 98, "STALE": 97}}, {}), strict=True):
        (result,) = evaluation.results
        assert result.summary["held_readings"] == expected
        assert json.loads((result.path / "summary.json").read_text())["held_readings"] == expected


@pytest.mark.needs("audit", "report")
def test_table_report_and_audit_name_the_dead_sensor(results, capsys):
    from embodied_env.extensions.audit import audit_run
    from embodied_env.extensions.report.run_report import write_report

    (dead,) = results[0].results
    print_table(results[0])
    assert "tcp 98 missing, tcp 97 stale" in " ".join(capsys.readouterr().out.split())
    assert "Steps with a held reading of tcp" in write_report(dead.path).path.read_text()
    report = audit_run(dead.path)
    assert (report.sound, [warning.rule for warning in report.warnings]) == (True, ["sensor.held"])


@pytest.mark.needs("audit", "explain", "report")
def test_explanation_table_summary_and_report_name_the_joint_that_has_not_moved(stopped, capsys):
    from embodied_env.extensions.report.run_report import write_report

    (result,) = stopped.results
    *_, last = read_run(result.path).transitions()
    text = embodied_env.explain(last["info"])
    assert "(track.error: j2)" in text
    assert f"j2 {UNMOVED}" in text
    assert result.summary["stopped_joints"] == {"safety_stop:track.error": {"j2": 2}}
    assert json.loads((result.path / "summary.json").read_text())["unmoved_joints"] == {"j2": 2}
    print_table(stopped)
    print_losses_and_stops(stopped.contract, result)
    output = capsys.readouterr()
    assert "safety_stop:track.error 2 (j2 2)" in " ".join(output.out.split())
    assert f"j2 {UNMOVED}" in output.err
    page = write_report(result.path).path.read_text()
    assert f"j2 {UNMOVED}" in page
    assert "truncated, safety_stop:track.error (j2)" in page
