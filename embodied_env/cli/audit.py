"""``embodied-env audit``: check a recorded run, or anybody's transitions, row by row."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from embodied_env.cli import SOUND, UNSOUND
from embodied_env.cli.progress import ProgressBar
from embodied_env.core.outcome_counts import describe_exclusions
from embodied_env.core.terminal import say
from embodied_env.errors import RecordError, UsageError

if TYPE_CHECKING:
    from embodied_env.record import AuditReport

HELP = "check that a recorded run keeps its word"

_STDIN = "-"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "run_directory", metavar="RUN", help="a run directory, runs/<id>; or a file of transitions as JSON lines, or -"
    )
    parser.add_argument("--contract", help="hold the rows of a file to this contract: a name or a file")
    parser.add_argument("--json", action="store_true", help="print machine-readable output")


def run(args: argparse.Namespace) -> int:
    """Audit one run, or one file of rows, and return the exit status: 1 when it is not sound.

    Raises:
        UsageError: when there is no such directory or file, or a run is to be held to another contract.
        RecordError: when the file cannot be read.
    """
    path = Path(args.run_directory)
    if args.run_directory != _STDIN and not (
        args.run_directory and os.path.exists(path)  # noqa: PTH110 - Path.exists raises for a name that is too long
    ):
        raise UsageError(f"{path} is not there; allowed: a run directory, a file of JSON lines, or -")
    if path.is_dir() and args.contract is not None:
        raise UsageError(f"--contract is of a file of rows; the run {path} has a contract of its own")
    with ProgressBar() as progress:
        progress.start("rows", None)
        report = _audit_run(path, progress) if path.is_dir() else _audit_lines(args, progress)
    if args.json:
        say(json.dumps(as_json(report), indent=2))
    else:
        print_report(report)
    return SOUND if report.sound else UNSOUND


def _audit_run(path: Path, progress: ProgressBar) -> AuditReport:
    from embodied_env.record import audit_run

    return audit_run(path, watcher=progress.advance)


def _audit_lines(args: argparse.Namespace, progress: ProgressBar) -> AuditReport:
    from embodied_env.contract import load_contract
    from embodied_env.record import audit_lines
    from embodied_env.record.mcap_log import LARGEST_ROW

    contract = None if args.contract is None else load_contract(args.contract)
    name = args.run_directory
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if name == _STDIN else Path(name).open("rb") as lines:
            bounded = iter(lambda: lines.readline(LARGEST_ROW + 1), b"")
            return audit_lines(bounded, path=name, contract=contract, watcher=progress.advance)
    except OSError as error:
        raise RecordError(f"{name}: the file cannot be read: {error}") from None


def as_json(report: AuditReport) -> dict[str, object]:
    """Return a report in types of JSON."""
    return {
        "path": str(report.path),
        "transitions": report.transitions,
        "sound": report.sound,
        "problems": list(report.problems),
        "counts": dict(report.counts),
        "violations": [asdict(violation) for violation in report.violations],
        "warnings": [asdict(warning) for warning in report.warnings],
        "solved_at_reset": report.solved_at_reset,
        "solved_at_first_step": report.solved_at_first_step,
        **({"dry_run": True} if report.dry_run else {}),
    }


def print_report(report: AuditReport) -> None:
    """Print a line for each finding, with its rule, and the verdict."""
    for warning in report.warnings:
        say(f"warning: {' '.join(str(warning).splitlines())} [{warning.rule}]")
    for violation in report.violations:
        say(f"{' '.join(str(violation).splitlines())} [{violation.rule}]")
    if len(report.problems) > len(report.violations):
        say(report.problems[-1])
        say("in all: " + ", ".join(f"{rule} {count}" for rule, count in sorted(report.counts.items())))
    for sentence in describe_exclusions(asdict(report)):
        say(sentence)
    dry = ", dry run: nothing reached a robot" if report.dry_run else ""
    say(f"{report.path}: {'sound' if report.sound else 'not sound'}, {report.transitions} transitions{dry}")
