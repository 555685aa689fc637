"""``embodied-env view``: show a recorded run in Rerun."""

from __future__ import annotations

import argparse
import signal
import sys

from embodied_env.cli import SOUND
from embodied_env.cli.progress_bar import ProgressBar
from embodied_env.cli.verb_arguments import add_run_directory
from embodied_env.core.terminal import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_run_directory(parser)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--save", metavar="FILE.rrd", help="write a file of Rerun instead of starting its viewer")
    where.add_argument("--web", metavar="PORT", nargs="?", const="9090", help="serve the web viewer, until Ctrl-C")


def run(args: argparse.Namespace) -> int:
    """Show one run; return when it is written or passed to the viewer, or when Ctrl-C ends the web viewer."""
    from embodied_env.errors import UsageError
    from embodied_env.extensions.viewers.live_view import view_run
    from embodied_env.extensions.viewers.rerun_viewer import RerunViewer, checked_view
    from embodied_env.record import read_run
    from embodied_env.record.manifest import contract_of_manifest

    if args.save is not None and not args.save.endswith(".rrd"):
        raise UsageError(f"invalid --save {args.save!r} (expected a path that ends with .rrd)")
    view = checked_view(args.save or (f"web:{args.web}" if args.web else True))
    opened = read_run(args.run_directory)
    contract = contract_of_manifest(opened.manifest)
    with ProgressBar("steps") as progress:
        count = view_run(opened, contract, RerunViewer(view, contract), progress.update)
    say(f"{count} steps shown" if args.save is None else f"{args.save}: {count} steps", file=sys.stderr)
    if view.startswith("web:"):
        say("view: press Ctrl-C to end", file=sys.stderr)
        signal.pause()
    return SOUND
