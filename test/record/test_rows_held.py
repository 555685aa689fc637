"""A sensor that dies in mid-episode: its growing age and its held readings are in every result."""

from __future__ import annotations

import json

import pytest

import embodied_env
from embodied_env.analysis.comparison.compare import compare_runs
from embodied_env.analysis.comparison.findings import label
from embodied_env.analysis.report.run_report import write_report
from embodied_env.cli.evaluation_run import print_table
from embodied_env.record import audit_run
from embodied_env.testing import Fault

STEPS, ALIVE = 200, 5  # of arm_reach


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Evaluate ``hold``, with all sensors and with one that dies."""
    dead = [
        Fault(kind="stale" if step % 2 else "drop", step=step, sensor="tcp") for step in range(ALIVE + 1, STEPS + 1)
    ]
    options = {"backend": "fake", "clock": "virtual", "episodes": 1, "record": tmp_path_factory.mktemp("runs")}
    return [embodied_env.evaluate("arm_reach", "hold", faults=faults, **options) for faults in (dead, [])]


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


def test_table_report_and_audit_name_the_dead_sensor(results, capsys):
    (dead,) = results[0].results
    print_table(results[0])
    assert "tcp 98 missing, tcp 97 stale" in " ".join(capsys.readouterr().out.split())
    assert "Steps with a held reading of tcp" in write_report(dead.path).path.read_text()
    report = audit_run(dead.path)
    assert (report.sound, [warning.rule for warning in report.warnings]) == (True, ["sensor.held"])


def test_comparison_names_the_dead_sensor(results):
    dead, alive = (evaluation.results[0].path for evaluation in results)
    names = {label(found.name) for found in compare_runs(alive, dead).differences if found.may_matter}
    assert names >= {"readings of tcp · MISSING", "readings of tcp · STALE", "capture age · tcp"}
