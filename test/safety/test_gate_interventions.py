"""The share of steps in which the gate changed the request is counted and reported, and a STOP if configured."""

from __future__ import annotations

import numpy as np
import pytest
import scripted_tasks
from scripted_tasks import PERIOD_S

from embodied_env.contract.safety_schema import Intervention
from embodied_env.core.code_types import Severity
from embodied_env.core.types import CommandState
from embodied_env.safety.gate import InterventionRate, SafetyGate

REST = CommandState(positions=np.zeros(2), velocities=np.zeros(2), seq=0, epoch=0)
CLIPPED, KEPT = [5.0, 5.0], [0.0, 0.0]


def rate(*seen, **spec):
    counted = InterventionRate(Intervention(**{"window_steps": 4, "warn_share": 0.5, **spec}))
    for intervened in seen:
        counted.count(intervened=bool(intervened))
    return counted


def gate_with(changes=None, **intervention):
    safety = {**scripted_tasks.document()["safety"], **(changes or {})}
    return SafetyGate(scripted_tasks.contract(safety={**safety, "intervention": {"window_steps": 4, **intervention}}))


def run(gate, *actions):
    return [gate.judge(action, REST, PERIOD_S).report for action in actions]


@pytest.mark.parametrize(("seen", "share"), [((), 0.0), ((1,), 1.0), ((1, 0, 0), 1 / 3), ((1, 1, 0, 0, 0, 0), 0.0)])
def test_intervention_share_is_of_the_last_steps(seen, share):
    assert rate(*seen).share == share


def test_partial_window_has_no_finding():
    assert rate(1, 1, 1).findings == []


def test_warning_starts_above_the_warn_share():
    assert rate(1, 1, 0, 0).findings == []
    (finding,) = rate(1, 1, 1, 0).findings
    assert (finding.gate, finding.code, finding.severity) == ("intervention", "rate.intervention", Severity.PASS)
    assert "75%" in finding.detail


def test_stop_starts_above_the_stop_share():
    assert rate(1, 1, 1, 0, stop_share=0.75).findings[0].severity is Severity.PASS
    assert rate(1, 1, 1, 1, stop_share=0.75).findings[0].severity is Severity.STOP


def test_stop_share_below_the_warn_share_stops():
    assert rate(1, 1, 0, 0, warn_share=0.9, stop_share=0.25).findings[0].severity is Severity.STOP


def test_no_stop_without_a_stop_share():
    assert rate(1, 1, 1, 1).findings[0].severity is Severity.PASS


def test_reset_clears_the_window():
    counted = rate(1, 1, 1, 1)
    counted.reset()
    assert (counted.share, counted.findings) == (0.0, [])


def test_only_changed_actions_count_as_interventions():
    gate = gate_with()
    run(gate, CLIPPED, KEPT, KEPT, CLIPPED)
    assert gate.interventions.share == 0.5


def test_braking_for_a_malformed_action_counts():
    gate = gate_with()
    run(gate, None, KEPT)
    assert gate.interventions.share == 0.5


def test_warning_does_not_change_the_next_action():
    last = run(gate_with(), CLIPPED, CLIPPED, CLIPPED, CLIPPED, KEPT)[-1]
    assert (last.disposition, last.intervened) == (Severity.PASS, False)
    assert [finding.code for finding in last.findings] == ["rate.intervention"]


def test_too_many_interventions_stop_the_episode_if_configured():
    gate = gate_with(stop_share=0.75)
    reports = run(gate, CLIPPED, CLIPPED, CLIPPED, CLIPPED, KEPT, KEPT)
    assert [report.disposition for report in reports] == [Severity.LIMIT] * 4 + [Severity.STOP] * 2
    assert gate.latched.code == "rate.intervention"


def test_monitoring_reports_interventions_without_stopping():
    gate = gate_with({"mode": "monitor", "nonfinite": {"stop_after": 99}}, stop_share=0.75)
    last = run(gate, None, None, None, None, KEPT)[-1]
    assert [finding.code for finding in last.findings] == ["rate.intervention"]
    assert last.disposition is Severity.LIMIT
    assert gate.latched is None


def test_gate_reset_clears_the_intervention_window():
    gate = gate_with(stop_share=0.75)
    run(gate, CLIPPED, CLIPPED, CLIPPED, CLIPPED, KEPT)
    gate.reset()
    assert gate.interventions.share == 0.0
    assert run(gate, KEPT)[0].disposition is Severity.PASS
