"""``embodied-env audit``: check a recorded run, row by row."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from embodied_env.cli import SOUND, UNSOUND
from embodied_env.errors import UsageError

HELP = "check that a recorded run keeps its word"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run_directory", metavar="RUN", help="a run directory, runs/<id>")
    parser.add_argument("--json", action="store_true", help="print machine-readable output")


def run(args: argparse.Namespace) -> int:
    """Audit one run and return the exit status: 1 when it is not sound.

    Raises:
        UsageError: when there is no such directory.
    """
    from embodied_env.record import audit_run

    if not Path(args.run_directory).is_dir():
        raise UsageError(f"{args.run_directory} is not there; allowed: a run directory")
    report = audit_run(args.run_directory)
    if args.json:
        found = {"path": str(report.path), "transitions": report.transitions}
        print(json.dumps({**found, "sound": report.sound, "problems": report.problems}, indent=2))
    else:
        for problem in report.problems:
            print(" ".join(problem.splitlines()))
        print(f"{report.path}: {'sound' if report.sound else 'not sound'}, {report.transitions} transitions")
    return SOUND if report.sound else UNSOUND
