from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_env.contract import bounded_json
from embodied_env.contract.bounded_json import MOST_VALUES, parse_json

SIZE = 4096

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**38), 10**38)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(json_values)
def test_json_round_trips(value):
    text = json.dumps(value)
    assert parse_json(text, max_bytes=10**6) == value
    assert parse_json(text.encode(), max_bytes=10**6) == value


@given(
    st.text(alphabet='{}[]"\\:,0123456789eE+-.NaInfinitytruefalsnul \n\ud800\u00e9', max_size=60)
    | st.binary(max_size=60)
)
def test_arbitrary_text_gives_json_value_or_one_line_error(text):
    reason = ""
    try:
        value = parse_json(text, max_bytes=SIZE, max_depth=4)
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except UnicodeError:
        raise
    except ValueError as error:
        reason = str(error)
    assert "\n" not in reason
    assert reason.isascii()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 100_000, "nested deeper than 32"),
        ('{"a":' * 100_000, "nested deeper than 32"),
        ('["[[[[", [' * 40, "nested deeper than 32"),
        ('"' + "x" * 1_000_000 + '"', "bytes or more"),
        ("\u00e9" * 1_000_000, "bytes or more"),
        ("NaN", "finite"),
        ("[-Infinity]", "finite"),
        ("1e999", "finite"),
        ("-" + "9" * 50, "digits"),
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "'c' twice"),
        ('{"\\u001b[2J": 1, "\\u001b[2J": 2}', r"'\\x1b\[2J' twice"),
        ("", "Expecting value"),
        ("{'a': 1}", "double quotes"),
        ("1 2", "Extra data"),
        ('"\\ud800"', "Unicode"),
        ("\ud800", "Unicode"),
        (b"\xff", "Unicode"),
        ("{}".encode("utf-16"), "Unicode"),
    ],
)
def test_text_out_of_bounds_is_rejected_with_its_reason(text, reason):
    with pytest.raises(ValueError, match=reason) as caught:
        parse_json(text, max_bytes=900_000)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(("depth", "is_read"), [(3, True), (4, False)])
def test_depth_ignores_brackets_in_strings(depth, is_read):
    text = '{"]}[[[[[": [' + "[" * (depth - 2) + '"\\"[[[["' + "]" * (depth - 2) + "]}"
    if is_read:
        parse_json(text, max_bytes=SIZE, max_depth=3)
    else:
        with pytest.raises(ValueError, match="deeper than 3"):
            parse_json(text, max_bytes=SIZE, max_depth=3)


def test_escaped_surrogate_pairs_are_characters():
    assert parse_json('"\\ud83d\\ude00"', max_bytes=SIZE) == "\U0001f600"


def test_module_imports_nothing_of_the_package():
    tree = ast.parse(Path(bounded_json.__file__).read_text())
    names = [n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    names += [alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names]
    assert not [name for name in names if name and name.startswith("embodied_env")]


def test_a_text_of_too_many_values_is_refused_before_it_is_parsed():
    text = b"[" + b"{}," * MOST_VALUES + b"{}]"
    with pytest.raises(ValueError, match=f"at most {MOST_VALUES}"):
        parse_json(text, max_bytes=2 * len(text))
