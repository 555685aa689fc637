import copy
import math
from typing import Any

import numpy as np
import pytest
from report_pages import HOSTILE, Html, record, rows_of

from embodied_env.contract import load_contract
from embodied_env.contract.spaces import ActionLayout
from embodied_env.extensions.report.episode_traces import MOST_TRACED, EpisodeTrace, EpisodeTraces
from embodied_env.extensions.report.figures import FIGURES, draw_episode
from embodied_env.record.row_types import TRANSITION
from embodied_env.record.step_values import Joints
from embodied_env.record.summary import EpisodeOutcome


@pytest.fixture(scope="module")
def contract():
    return load_contract("arm_reach")


@pytest.fixture
def rows(steps):
    """Return the rows as a copy that a test may change."""
    return copy.deepcopy(steps)


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    path = record(tmp_path_factory.mktemp("runs"), resets=1)
    rows = [row for row in rows_of(path) if row["schema"] == TRANSITION]
    for row in rows:
        row["info"]["sensors"]["joints"]["age_s"] = 0.02
    return rows


def test_ages_that_are_all_zero_are_not_drawn(rows, contract):
    for row in rows:
        row["info"]["sensors"]["joints"]["age_s"] = 0.0
    assert "Sensor ages" not in dict(draw_episode(trace_of(rows, contract)))


def trace_of(rows, contract):
    trace = EpisodeTrace(EpisodeOutcome(number=1, seed=None, solved=None), Joints(contract))
    for row in rows:
        trace.add(row)
    trace.end()
    return trace


def test_requested_applied_and_measured_are_in_the_unit_of_the_joint(steps, contract):
    trace, layout = trace_of(steps, contract), ActionLayout(contract)
    index, row, before = 2, steps[4], steps[3]
    start = list(before["info"]["action"]["applied_si"].values())
    requested = layout.scale.to_si(np.array(row["info"]["action"]["requested"])) + start
    name = layout.joints[index]
    assert trace.series["requested", name].values[4] == pytest.approx(requested[index], abs=1e-6)
    assert trace.series["applied", name].values[4] == row["info"]["action"]["applied_si"][name]
    assert trace.series["measured", name].values[4] == row["observation"]["joints_position"][index]
    assert trace.joints.by_name[name].unit == "rad"


def test_an_accepted_action_is_drawn_where_it_was_applied(rows, contract):
    for row in rows:
        row["info"]["action"]["requested"] = row["info"]["action"]["applied"]
    trace = trace_of(rows, contract)
    for name in ActionLayout(contract).joints:
        requested, applied = (trace.series[kind, name].values for kind in ("requested", "applied"))
        np.testing.assert_allclose(requested, applied, atol=1e-6)


def test_values_are_read_by_the_names_of_joints_in_any_order(steps, contract):
    joints, row = Joints(contract), copy.deepcopy(steps[4])
    row["info"]["action"]["applied_si"] = dict(reversed(row["info"]["action"]["applied_si"].items()))
    for read in (joints.values, joints.requested, joints.origins):
        assert list(read(row)) == list(read(steps[4]))


def test_without_a_contract_joints_are_in_units_of_the_action(steps):
    trace = trace_of(steps, None)
    assert trace.series["requested", "j1"].values.tolist() == [row["info"]["action"]["requested"][0] for row in steps]
    assert np.isnan(trace.series["measured", "j1"].values).all()


def test_reading_that_is_not_good_is_a_gap_and_an_event(rows, contract):
    rows[3]["info"]["sensors"]["joints"] |= {"quality": 1}
    rows[5]["info"]["sensors"]["joints"] |= {"lost": 4}
    trace = trace_of(rows, contract)
    assert [math.isnan(value) for value in trace.series["measured", "j1"].values].index(True) == 3
    assert trace.events["brake", "joints: STALE"].spans == [(4, 4)]
    assert trace.events["notice", "joints: messages lost"].spans == [(6, 6)]


def test_missing_actions_underruns_and_deadlines_are_events(rows, contract):
    rows[1]["action"] = {"no_action": "late"}
    rows[2]["info"]["annotations"] = {"chunk": {"id": None, "underruns": 1}}
    for row in rows[4:]:
        row["info"]["latency"]["missed_deadlines"] = 1
    events = trace_of(rows, contract).events
    assert events["brake", "no action of the policy"].spans == [(2, 2)]
    assert events["brake", "chunk underrun"].spans == [(3, 3)]
    assert events["brake", "deadline missed"].spans == [(5, 5)]


def test_gates_are_marked_at_the_joints_that_they_limited(steps, contract):
    trace = trace_of(steps, contract)
    expected = [
        number
        for number, row in enumerate(steps, start=1)
        if any("j3" in finding["joints"] and finding["severity"] == "LIMIT" for finding in row["inner"]["findings"])
    ]
    spans = trace.limited["limit", "j3"].spans
    assert [step for first, last in spans for step in range(first, last + 1)] == expected


def ended(number, reason):
    episode = EpisodeOutcome(number=number, seed=None, solved=None)
    episode.ended, episode.reason, episode.success = "terminated", reason, reason == "success"
    return episode


@pytest.mark.parametrize("order", [1, -1])
def test_every_reason_of_an_end_is_among_the_kept_episodes(order):
    reasons = ["success"] * 90 + ["failure:a"] * 60 + ["failure:b"]
    traces = EpisodeTraces(None)
    reset: Any = {"schema": "", "observation": {}}
    for number, reason in enumerate(reasons[::order], start=1):
        traces.begin(ended(number, reason), reset)
    traces.close()
    kept = [trace.outcome.reason for trace in traces.kept]
    assert len(kept) == MOST_TRACED
    assert set(kept) == set(reasons)
    assert kept.count("failure:a") >= MOST_TRACED // 3
    assert traces.by_importance()[0].outcome.kind == "failure"


def test_figures_have_accessible_names_and_limits(steps, contract):
    sections = dict(draw_episode(trace_of(steps, contract)))
    assert list(sections) == [heading for heading, _ in FIGURES]
    assert len(sections["Joints"]) == 6
    for drawing in (Html(figure) for figures in sections.values() for figure in figures):
        assert all(svg["aria-label"] for svg in drawing.of("svg"))
    assert "j1: requested" in Html(sections["Joints"][0]).of("svg")[0]["aria-label"]


def test_names_and_reasons_in_figures_are_escaped(rows):
    for row in rows:
        row["info"]["task"] = {HOSTILE: 1.0, "other": 2.0}
        row["info"]["sensors"] = {HOSTILE: row["info"]["sensors"]["joints"] | {"lost": 1}}
        row["info"]["action"]["applied_si"] = {HOSTILE: 0.0}
        row["inner"]["findings"] = [{"gate": HOSTILE, "code": HOSTILE, "severity": "STOP", "joints": [HOSTILE]}]
    figures = [figure for _, drawn in draw_episode(trace_of(rows, None)) for figure in drawn]
    assert len(figures) == 4
    for figure in figures:
        assert not {tag for tag, _ in Html(figure).elements} & {"script", "img"}


@pytest.mark.parametrize("count", [0, 1])
def test_shortest_episodes_are_drawn(steps, contract, count):
    assert len(draw_episode(trace_of(steps[:count], contract))) == (len(FIGURES) if count else 0)


def test_episode_of_lost_readings_and_values_that_are_not_finite_is_drawn(rows, contract):
    for row in rows:
        row["reward"] = None
        row["info"]["task"] = dict.fromkeys(row["info"]["task"])
        row["info"]["action"] |= {"requested": [None] * 6, "applied": [None] * 6}
        row["inner"]["observation"] = {}
        row["info"]["sensors"] = {name: {**each, "quality": 3} for name, each in row["info"]["sensors"].items()}
    sections = dict(draw_episode(trace_of(rows, contract)))
    assert len(sections["Joints"]) == 6
    assert "joints: LOST" in " ".join(Html(sections["Events"][0]).shown)


def test_step_of_an_outer_wrapper_has_a_reward_only(steps, contract):
    row = {**steps[0], "inner": None, "info": {}}
    trace = trace_of([row], contract)
    assert list(trace.series) == [("reward", "")]
