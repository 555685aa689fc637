"""Charts of the deviations of a playback."""

import json

import pytest

from embodied_env.extensions.report.figures import draw_deviations

COLUMN = {"worst": 0.2, "diverged_s": 0.1, "difference": [0.0, 0.1, None, 0.2]}
EQUAL = {"worst": 0.0, "diverged_s": None, "difference": [0.0, 0.0]}
CONTENT = {
    "control_period_s": 0.05,
    "episodes": [
        {"columns": {"joints_position <b>": {**COLUMN, "diverged_s": 0.15}, "command j1": COLUMN, "x": EQUAL}}
    ],
}


def written(folder, content):
    (folder / "playback.json").write_text(json.dumps(content))
    return folder


def test_the_differences_are_drawn_in_the_order_in_which_they_diverged(tmp_path):
    first, second = draw_deviations(written(tmp_path, CONTENT))
    assert "episode 1: command j1" in first
    assert "episode 1: joints_position &lt;b&gt;" in second


@pytest.mark.parametrize(
    "content",
    [
        [],
        {"episodes": [{}]},
        {**CONTENT, "control_period_s": "x"},
        {**CONTENT, "episodes": 3},
        {**CONTENT, "episodes": [None, {"columns": []}, {"columns": {"x": 1, "y": {**COLUMN, "difference": "abc"}}}]},
        {**CONTENT, "episodes": [{"columns": {"x": {**COLUMN, "worst": True}}}]},
    ],
)
def test_a_file_of_another_form_draws_nothing(content, tmp_path):
    assert draw_deviations(written(tmp_path, content)) == []


def test_values_of_any_size_are_drawn(tmp_path):
    huge = {**CONTENT, "episodes": [{"columns": {"x": {**COLUMN, "difference": [1e308, -1e308, "x", []]}}}]}
    assert len(draw_deviations(written(tmp_path, huge))) == 1


def test_without_a_file_nothing_is_drawn(tmp_path):
    assert draw_deviations(tmp_path) == []
