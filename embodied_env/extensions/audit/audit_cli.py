"""The command ``embodied-env audit``, which validates a run or transitions in JSON lines."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from embodied_env.cli import SOUND, UNSOUND
from embodied_env.cli.verb_arguments import add_json
from embodied_env.core.excluded_episodes import describe_exclusions
from embodied_env.core.terminal import ProgressBar, say
from embodied_env.errors import RecordError, UsageError

if TYPE_CHECKING:
    from embodied_env.extensions.audit import AuditReport

_STDIN = "-"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "run_directory",
        metavar="RUN",
        help="run directory, such as runs/<id>, or file of transitions as JSON lines (-: standard input)",
    )
    parser.add_argument("--contract", help="name or path of the contract of the JSON lines (default: none)")
    help_ = "head of the run, as printed when it was recorded (default: any)"
    parser.add_argument("--expect", metavar="HEAD", type=_head, help=help_)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Audit one run or one file of rows, and return 1 if it is not sound."""
    path = Path(args.run_directory)
    if args.run_directory != _STDIN and not (
        args.run_directory and os.path.exists(path)  # noqa: PTH110 - Path.exists raises for a name that is too long
    ):
        raise UsageError(f"no such run: {args.run_directory!r} (expected a run directory, a file of JSON lines, or -)")
    if path.is_dir() and args.contract is not None:
        raise UsageError(f"--contract does not apply to run {path}, which has its own contract; omit --contract")
    if args.expect is not None and not path.is_dir():
        raise UsageError(f"--expect does not apply to {path} (expected a run directory); omit --expect")
    with ProgressBar() as progress:
        progress.start("rows", None)
        if path.is_dir():
            from embodied_env.extensions.audit import audit_run

            report = audit_run(path, expected_head=args.expect, watcher=progress.advance)
        else:
            report = _audit_lines(args, progress)
    if args.json:
        data = {**asdict(report), "path": str(report.path), "counts": dict(report.counts)}
        data |= {"sound": report.sound, "problems": report.problems}
        say(json.dumps(data, indent=2))
    else:
        print_report(report)
    return SOUND if report.sound else UNSOUND


def _head(text: str) -> str:
    if not re.fullmatch("[0-9a-f]{64}", text):
        raise argparse.ArgumentTypeError(f"invalid head of a run: {text[:80]!r} (expected a SHA-256, 64 hex digits)")
    return text


def _audit_lines(args: argparse.Namespace, progress: ProgressBar) -> AuditReport:
    from embodied_env.contract import load_contract
    from embodied_env.extensions.audit import audit_lines
    from embodied_env.record.row_log import LARGEST_ROW

    contract = None if args.contract is None else load_contract(args.contract)
    name = args.run_directory
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if name == _STDIN else Path(name).open("rb") as lines:
            bounded = iter(lambda: lines.readline(LARGEST_ROW + 1), b"")
            return audit_lines(bounded, path=name, contract=contract, watcher=progress.advance)
    except OSError as error:
        raise RecordError(f"cannot read {name}: {error}") from None


def print_report(report: AuditReport) -> None:
    """Print one line per finding, with its rule, and the verdict."""
    for warning in report.warnings:
        say(f"warning: {' '.join(str(warning).splitlines())} [{warning.rule}]")
    for violation in report.violations:
        say(f"{' '.join(str(violation).splitlines())} [{violation.rule}]")
    if len(report.problems) > len(report.violations):
        say(report.problems[-1])
        say("total: " + ", ".join(f"{rule} {count}" for rule, count in sorted(report.counts.items())))
    for sentence in describe_exclusions(asdict(report)):
        say(sentence)
    world = f" ({report.world})" if report.world else ""
    head = f", head {report.head}" if report.head else ""
    say(f"{report.path}: {'sound' if report.sound else 'not sound'}, {report.transitions} transitions{world}{head}")
