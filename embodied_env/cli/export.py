"""``embodied-env export``: a run in a format that others read."""

from __future__ import annotations

import argparse
import json

from embodied_env.cli import SOUND, check_run_directory
from embodied_env.core.terminal import make_console, say

HELP = "export a run as JSON lines, Parquet, Minari or LeRobot"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run_directory", metavar="RUN", help="a run directory, runs/<id>")
    parser.add_argument("--format", required=True, help="jsonl, parquet, minari or lerobot")
    parser.add_argument("-o", "--out", required=True, help="a folder that is not there yet")
    parser.add_argument("--evaluator", action="store_true", help="with what only the evaluator saw")
    parser.add_argument(
        "--allow-unclean", action="store_true", help="also a run that was cut; its metadata will say so"
    )
    parser.add_argument("--json", action="store_true", help="print machine-readable output")


def run(args: argparse.Namespace) -> int:
    """Export one run.

    Raises:
        UsageError: when there is no such directory.
    """
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    from embodied_env.record.export import export_run

    check_run_directory(args.run_directory)
    columns = (TextColumn("{task.description}"), TextColumn("{task.completed:.0f} steps"), TimeElapsedColumn())
    with Progress(*columns, console=make_console(stderr=True), transient=True) as bar:
        line = bar.add_task(f"exporting to {args.format}", total=None)
        account = export_run(
            args.run_directory,
            args.out,
            format=args.format,
            evaluator=args.evaluator,
            allow_unclean=args.allow_unclean,
            progress=lambda steps: bar.update(line, completed=steps),
        )
    if args.json:
        say(json.dumps({"path": args.out, **account}, indent=2))
    else:
        said = "" if account["clean"] else f"; the run is not clean: {account['problem']}"
        say(f"{args.out}: {account['steps']} steps in {account['episodes']} episodes{said}")
    return SOUND
