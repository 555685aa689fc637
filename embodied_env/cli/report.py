"""``embodied-env report``: one page of a recorded run."""

from __future__ import annotations

import argparse
import json

from embodied_env.cli import SOUND, UNSOUND, check_run_directory
from embodied_env.cli.progress import ProgressBar
from embodied_env.core.terminal import say

HELP = "write one page that tells a recorded run, for people"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run_directory", metavar="RUN", help="a run directory, runs/<id>")
    parser.add_argument("-o", "--output", default=None, help="the page to write (default: RUN/report.html)")
    parser.add_argument("--json", action="store_true", help="print machine-readable output")


def run(args: argparse.Namespace) -> int:
    """Write the report of one run and return the exit status: 1 when the audit finds the run not sound.

    Raises:
        UsageError: when there is no such directory.
    """
    from embodied_env.analysis.report.run_report import write_report

    check_run_directory(args.run_directory)
    with ProgressBar() as progress:
        report = write_report(args.run_directory, args.output, progress=progress)
    if args.json:
        found = {"path": str(report.path), "transitions": report.transitions, "sound": report.sound}
        say(json.dumps({**found, "problems": report.problems}, indent=2))
    else:
        say(f"{report.path}: {'sound' if report.sound else 'not sound'}, {report.transitions} transitions")
    return SOUND if report.sound else UNSOUND
