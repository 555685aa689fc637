"""Progress is printed as lines on a redirected stderr, and as a bar on a terminal."""

import io
import sys

import pytest

from embodied_env.core.terminal import LINE_PERIOD_S, ProgressBar, ProgressLines


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
