"""The command ``embodied-env report``, which writes an HTML report of one recorded run."""

from __future__ import annotations

import argparse
import json

from embodied_env.cli import SOUND, UNSOUND
from embodied_env.cli.verb_arguments import add_force, add_json, add_run_directory, check_new, output_file
from embodied_env.core.terminal import ProgressBar, say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_run_directory(parser)
    help_ = "HTML file to write (default: RUN/report.html)"
    parser.add_argument("-o", "--output", type=output_file, metavar="FILE", help=help_)
    add_force(parser, "the HTML file")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Write the report, and return 1 if the audit finds the run not sound."""
    from embodied_env.extensions.report.run_report import write_report

    replace = args.force or args.output is None  # the report in the run directory may be made again
    check_new(args.output, force=args.force)
    with ProgressBar() as progress:
        report = write_report(args.run_directory, args.output, replace=replace, progress=progress)
    if args.json:
        found = {"path": str(report.path), "transitions": report.transitions, "sound": report.sound}
        say(json.dumps({**found, "problems": report.problems}, indent=2))
    else:
        say(f"{report.path}: {'sound' if report.sound else 'not sound'}, {report.transitions} transitions")
    return SOUND if report.sound else UNSOUND
