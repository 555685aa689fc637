"""The fault page lists every fault once, and every test it names exists."""

import ast
import functools
import re
from pathlib import Path

import pytest
from extension_marks import was_removed

from embodied_env.core.code_table import CODES
from embodied_env.core.code_types import END_REASONS

ROOT = Path(__file__).parents[2]
COLUMNS = ("id", "fault", "happens", "hold", "rest")
NAME = re.compile(r"`([a-z_/]+\.py)::(test_\w+)`")
TIMES = re.compile(r"-|\d+\.\d( / \d+\.\d)*")


def rows():
    lines = [line for line in (ROOT / "docs/reference/faults.md").read_text().splitlines() if line.startswith("| F")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    tests = {row[0]: row[1] for row in cells if len(row) == 2}
    return [{**dict(zip(COLUMNS, row, strict=True)), "tests": tests[row[0]]} for row in cells if len(row) != 2]


ROWS = rows()


@functools.cache
def names_in(path):
    tree = ast.parse((ROOT / "test" / path).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_fault_is_listed_once_in_order():
    assert [row["id"] for row in ROWS] == [f"F{number:02}" for number in range(1, 53)]


def test_no_cell_is_empty():
    assert [row["id"] for row in ROWS if not all(row.values())] == []


def test_each_fault_names_its_tests():
    counts = {row["id"]: (len(NAME.findall(row["tests"])), row["tests"].count("::")) for row in ROWS}
    assert {fault: count for fault, count in counts.items() if count[0] == 0 or count[0] != count[1]} == {}


def test_the_named_tests_exist():
    named = {each for row in ROWS for each in NAME.findall(row["tests"])}
    assert {(path, name) for path, name in named if not was_removed(path) and name not in names_in(path)} == set()


def test_codes_and_end_reasons_are_known():
    gates = {code.partition(".")[0] for code in CODES if code}
    words = {word for row in ROWS for word in re.findall(r"`([a-z_]+[.:][a-z_.]+)`", row["happens"])}
    for kind, code in (word.rpartition(":")[::2] for word in words):
        assert kind in ("", *END_REASONS), code
        if kind in ("", "safety_stop") and code.partition(".")[0] in gates:
            assert code in CODES


def test_times_are_periods_to_hold_and_then_to_rest():
    for row in ROWS:
        assert TIMES.fullmatch(row["hold"]), row["id"]
        assert TIMES.fullmatch(row["rest"]), row["id"]
        pairs = zip(row["hold"].split(" / "), row["rest"].split(" / "), strict=True)
        assert all(hold == rest == "-" or float(hold) <= float(rest) for hold, rest in pairs), row["id"]


@pytest.mark.parametrize("path", ["envs/test_stepper_faults.py", "ros/robot/test_robot_backend_faults.py"])
def test_every_test_of_a_fault_is_in_its_row(path):
    for name in names_in(path):
        if found := re.match(r"test_(f\d\d)_", name):
            (row,) = [row for row in ROWS if row["id"] == found[1].upper()]
            assert (path, name) in NAME.findall(row["tests"])
