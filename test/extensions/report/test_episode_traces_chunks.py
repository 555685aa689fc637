"""Curves of action chunks are in the unit of the joint, begin where they take effect, and are bounded in number."""

import math

import numpy as np
import pytest
from report_pages import Html
from shipped_contracts import changed_contract

import embodied_env
from embodied_env.contract.spaces import ActionLayout
from embodied_env.errors import RecordError
from embodied_env.extensions.report.episode_traces import MOST_CHUNKS, EpisodeTrace
from embodied_env.extensions.report.figures import draw_episode
from embodied_env.record import read_run
from embodied_env.record.step_values import Joints
from embodied_env.record.summary import EpisodeOutcome

LENGTH = 5
CHUNK = 0.001 * np.arange(1.0, LENGTH + 1)[:, None] * np.ones(6)


def recorded(folder, contract, *, steps=8, late=0):
    """Record an episode in which each chunk but the first takes effect `late` steps after it was asked for."""
    with embodied_env.make(contract, backend="fake", clock="virtual", record=folder) as env:
        env.reset(seed=1)
        number, born = 0, 0
        for step in range(steps):
            if step == born + LENGTH or not step:
                born = step - late if step else 0
                env.unwrapped.annotate("chunk", {"id": number, "born": born, "actions": CHUNK})
                number += 1
            env.step(CHUNK[step - born])
        return read_run(env.path)


def trace_of(run, contract):
    trace = EpisodeTrace(EpisodeOutcome(number=1, seed=None, solved=None), Joints(contract))
    for row in run.transitions():
        trace.add(row)
    trace.end()
    return trace


def curves_of(trace, joint=2):
    """Return steps and values of each chunk."""
    found, chunks = [[]], trace.chunks
    for step, value in zip(chunks.steps.tolist(), chunks.values[:, joint].tolist(), strict=True):
        if math.isnan(value):
            found.append([])
        else:
            found[-1].append((step, value))
    return found[:-1]


@pytest.mark.parametrize("late", [0, 2])
def test_a_chunk_whose_displacements_are_accepted_is_drawn_where_it_was_applied(tmp_path, late):
    contract = changed_contract("arm_reach", {})
    run = recorded(tmp_path, contract, late=late)
    trace = trace_of(run, contract)
    trace.chunks.read(run.array, trace.steps)
    first, second, *_ = curves_of(trace)
    assert [[step for step, _ in curve] for curve in (first, second)] == [[1, 2, 3, 4, 5], [6, 7, 8]]
    applied = trace.series["applied", "j3"].values
    np.testing.assert_allclose([value for _, value in [*first, *second]], applied, rtol=1e-9)


def test_a_chunk_of_positions_is_in_the_unit_of_the_joint(tmp_path):
    contract = changed_contract("arm_reach", {"actuators.arm.command": "position"})
    run = recorded(tmp_path, contract, steps=LENGTH)
    trace = trace_of(run, contract)
    trace.chunks.read(run.array, trace.steps)
    ((*_, (_, last)),) = curves_of(trace)
    assert last == ActionLayout(contract).scale.to_si(CHUNK[-1])[2]


def test_without_a_contract_a_chunk_is_in_units_of_the_action(tmp_path):
    run = recorded(tmp_path, changed_contract("arm_reach", {}), steps=LENGTH)
    trace = trace_of(run, None)
    trace.chunks.read(run.array, trace.steps)
    assert [value for _, value in curves_of(trace)[0]] == CHUNK[:, 2].tolist()


def test_chunks_are_drawn_below_the_other_lines_and_not_in_the_readout(tmp_path):
    contract = changed_contract("arm_reach", {})
    run = recorded(tmp_path, contract)
    trace = trace_of(run, contract)
    assert "chunk" not in "".join(dict(draw_episode(trace))["Joints"])
    trace.chunks.read(run.array, trace.steps)
    page = Html(dict(draw_episode(trace))["Joints"][0])
    styles = [path["class"] for path in page.of("path") if "d" in path]
    assert styles.index("chunk") < styles.index("curve requested")
    assert "chunks" in page.shown
    assert ": chunks" in page.of("svg")[0]["aria-label"].replace(";", ":")


def test_some_of_many_chunks_are_drawn(tmp_path):
    contract = changed_contract("arm_reach", {})
    run = recorded(tmp_path, contract, steps=150)
    trace = trace_of(run, contract)
    trace.chunks.read(run.array, trace.steps)
    assert (trace.chunks.count, len(curves_of(trace))) == (30, trace.chunks.drawn)
    assert MOST_CHUNKS / 2 <= trace.chunks.drawn <= MOST_CHUNKS
    assert f"chunks, {trace.chunks.drawn} of 30" in Html(dict(draw_episode(trace))["Joints"][0]).shown


def refuse(_):
    raise RecordError("no such array")


@pytest.mark.parametrize(
    "read_array", [refuse, lambda _: np.zeros((3, 5)), lambda _: np.zeros(6), lambda _: np.zeros((2, 6), int)]
)
def test_a_chunk_that_cannot_be_read_is_left_out(tmp_path, read_array):
    contract = changed_contract("arm_reach", {})
    trace = trace_of(recorded(tmp_path, contract), contract)
    trace.chunks.read(read_array, trace.steps)
    assert len(trace.chunks.steps) == 0
    assert len(dict(draw_episode(trace))["Joints"]) == 6
