"""Text from a run or contract cannot control the terminal, and progress is printed once in a period."""

import io
import json
import logging
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

from embodied_env.cli.main import main, print_error
from embodied_env.core.terminal import LINE_PERIOD_S, ProgressBar, ProgressLines, make_console, printable, say
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


# ------------------------------------------------------------------------------------------------------------- progress


class Clock:
    """Seconds that a test moves."""

    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock():
    return Clock()


def test_a_line_is_printed_once_in_a_period(clock, capsys):
    lines, texts = ProgressLines(clock), []
    for _ in range(35):
        clock.now_s += 1.0
        lines.show(lambda: texts.append(clock.now_s) or f"at {clock.now_s:.0f}")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "at 110, 10 s\nat 120, 20 s\nat 130, 30 s\n"
    assert len(texts) == 3  # what is not printed is not formatted


def test_a_bar_prints_task_and_parts_of_redirected_work(clock, capsys):
    with ProgressBar("exporting, steps", clock=clock) as progress:
        clock.now_s += LINE_PERIOD_S
        progress.update(1200, 5000)
        progress.start("drawing", None)
        clock.now_s += LINE_PERIOD_S
        progress.start("reading", 20)
        clock.now_s += LINE_PERIOD_S
        progress.advance(3)
        progress.advance(3)
        clock.now_s += LINE_PERIOD_S
        progress.start("audit", None)
        clock.now_s += LINE_PERIOD_S
        progress.advance()
    assert capsys.readouterr().err.splitlines() == [
        "exporting, steps: 1,200 of 5,000, 10 s",
        "reading: 0 of 20, 20 s",
        "reading: 3 of 20, 30 s",
        "audit, 40 s",
        "audit: 1, 50 s",
    ]


def test_a_terminal_gets_no_lines(clock, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    lines = ProgressLines(clock)
    clock.now_s += 2 * LINE_PERIOD_S
    lines.show(lambda: "line")
    assert sys.stderr.getvalue() == ""


def test_a_paused_bar_is_removed_until_the_next_report(clock, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with ProgressBar("moves", 2, clock=clock) as progress:
        progress.update(1)
        progress.pause()
        shown = sys.stderr.getvalue()
        assert "moves" in shown
        sys.stderr.write("continue? ")
        assert sys.stderr.getvalue() == shown + "continue? "
        progress.update(2)
        assert len(sys.stderr.getvalue()) > len(shown) + 20
