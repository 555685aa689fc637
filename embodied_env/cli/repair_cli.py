"""``embodied-env repair`` completes the files of runs after an unclean end."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from embodied_env.cli import SOUND, UNSOUND
from embodied_env.cli.main import print_error
from embodied_env.cli.verb_arguments import add_json, run_directory
from embodied_env.core.terminal import ProgressBar, say
from embodied_env.errors import RecordError

if TYPE_CHECKING:
    from embodied_env.record import RepairReport


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    help_ = "run directories, such as runs/<id>"
    parser.add_argument("run_directories", metavar="RUN", nargs="+", type=run_directory, help=help_)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Repair each run and return exit status 1 if one could not be repaired."""
    from embodied_env.record import repair_run

    reports: list[RepairReport] = []
    status = SOUND
    with ProgressBar("runs") as progress:
        for number, path in enumerate(args.run_directories, start=1):
            try:
                reports.append(repair_run(path))
            except RecordError as error:
                print_error(RecordError(f"{path}: {error}"))
                status = UNSOUND
            progress.update(number, len(args.run_directories))
    if args.json:
        data = [{**asdict(report), "path": str(report.path)} for report in reports]
        say(json.dumps(data, indent=2))
    else:
        for report in reports:
            for file in report.files:
                cut = f", {file.cut_bytes} bytes cut off, the whole file kept as {file.kept}" if file.cut_bytes else ""
                say(f"{report.path}: {file.name} repaired, {file.count} messages{cut}")
            if not report.files:
                say(f"{report.path}: nothing to repair")
            if report.problem:
                say(f"{report.path}: still not sound: {report.problem}")
    return status
