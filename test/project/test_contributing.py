"""The recipes of CONTRIBUTING name the files to edit, as many as its table states."""

import re
from pathlib import Path

import pytest
from extension_marks import was_removed

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
COUNTS = {title: int(count) for title, count in re.findall(r"^\| \[(.+)\]\(#-.*\) \| (\d+) \|$", PAGE, re.MULTILINE)}
MOST = {
    "a sensor type": 4,
    "a command type": 4,
    "an interlock": 5,
    "a contract key": 3,
    "an info key": 3,
    "a policy format": 3,
    "a policy server protocol": 4,
    "an audit rule": 3,
}


def recipe(title):
    """Return the steps of a recipe, each with the files that it names before its colon."""
    section = PAGE.partition(f"### ... {title}\n")[2].partition("\n### ")[0]
    return [
        re.findall(r"`([\w./]+)`", step.partition(": ")[0])
        for step in re.split(r"^\d+\. ", section, flags=re.MULTILINE)[1:]
    ]


def test_changes_cost_no_more_files_than_the_design_allows():
    assert {title: COUNTS[title] for title, most in MOST.items() if COUNTS[title] > most} == {}


@pytest.mark.parametrize("title", COUNTS)
def test_each_step_of_a_recipe_is_one_file(title):
    steps = recipe(title)
    assert len(steps) == COUNTS[title]
    assert [
        paths for paths in steps if not paths or not all((ROOT / path).exists() or was_removed(path) for path in paths)
    ] == []


def test_every_recipe_is_in_the_table():
    assert set(re.findall(r"^### \.\.\. (.+)$", PAGE, re.MULTILINE)) == {*COUNTS, "an extension"}
