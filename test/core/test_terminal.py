"""Text from a run or contract can neither control the terminal nor reorder its output."""

import io
import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

from embodied_env.cli.main import main, print_error
from embodied_env.core.terminal import make_console, printable, say
from embodied_env.errors import UsageError

HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b31m\r\u202egnp.exe\u2066\x7f\ud800"
SHOWN = r"\u001b[2J\u001b]0;owned\u0007\u009b31m\u000d\u202egnp.exe\u2066\u007f\ud800"


def test_control_characters_are_escaped_and_newlines_kept(capsys):
    say(f"a\n\t{HOSTILE}")
    assert capsys.readouterr().out == f"a\n\t{SHOWN}\n"


def test_errors_are_escaped(capsys):
    print_error(UsageError(HOSTILE.replace("\r", "")))
    assert capsys.readouterr().err == f"embodied-env: error: {SHOWN.replace(chr(92) + 'u000d', '')}\n"


def test_log_messages_of_the_command_line_are_escaped():
    assert main(["contract", "list"]) == 0
    assert logging.lastResort.format(logging.makeLogRecord({"msg": HOSTILE})) == SHOWN


@pytest.mark.parametrize("cell", [HOSTILE, Text(HOSTILE)])
def test_tables_are_escaped_except_their_style(cell):
    file = io.StringIO()
    table = Table(title="bold", title_style="bold")
    table.add_column("x", no_wrap=True)
    table.add_row(cell)
    make_console(file=file, force_terminal=True, width=200).print(table)
    printed = file.getvalue()
    assert r"\u001b]0;" in printed
    assert "\x1b]0" not in printed
    assert "\x1b[1m" in printed  # its own


@given(st.text())
def test_escaped_json_has_the_same_value(value):
    assert json.loads(printable(json.dumps(value))) == value


@given(st.text(st.characters()))
def test_escaping_is_idempotent(value):
    shown = printable(value)
    assert printable(shown) == shown
    assert all(char.isprintable() or char in "\n\t" or ord(char) >= 0xA0 for char in shown)
