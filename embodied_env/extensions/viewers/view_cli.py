"""The command ``embodied-env view``, which shows a recorded run in Rerun or Foxglove."""

from __future__ import annotations

import argparse
import signal
import sys

from embodied_env.cli import SOUND
from embodied_env.cli.verb_arguments import add_run_directory
from embodied_env.core.terminal import ProgressBar, say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_run_directory(parser)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--save", metavar="FILE", help="write a new file: .rrd for Rerun, .mcap for Foxglove")
    where.add_argument("--web", metavar="PORT", nargs="?", const="9090", help="serve Rerun's web viewer, until Ctrl-C")
    help_ = "play the run at its own speed to Foxglove, from its connection to this port (default: 8765)"
    where.add_argument("--foxglove", metavar="PORT", nargs="?", const="8765", help=help_)
    help_ = "name or path of the contract of the run, whose model of the robot may be opened (default: that of the run)"
    parser.add_argument("--contract", help=help_)
    parser.add_argument("--urdf", metavar="FILE", help="URDF of the robot (default: the model of the contract)")


def run(args: argparse.Namespace) -> int:
    """Show one run until it is written or passed to the viewer, or Ctrl-C ends the server."""
    from embodied_env.errors import UsageError
    from embodied_env.extensions.viewers.live_view import FILES, checked_view, open_viewer, scene_of_run, view_run
    from embodied_env.record import read_run

    if args.save is not None and not args.save.endswith(FILES):
        raise UsageError(f"invalid --save {args.save!r} (expected a path that ends with {' or '.join(FILES)})")
    served = {"web": args.web, "foxglove": args.foxglove}
    where = checked_view(args.save or next((f"{kind}:{port}" for kind, port in served.items() if port), True))
    opened = read_run(args.run_directory)
    scene = scene_of_run(opened, contract=args.contract, urdf=args.urdf)
    if isinstance(scene.geometry, str):
        say(f"view: the robot is not drawn: {scene.geometry}", file=sys.stderr)
    viewer = open_viewer(where, scene, plays=True)
    with ProgressBar("steps") as progress:
        count = view_run(opened, scene, viewer, progress.update)
    say(f"{count} steps shown" if args.save is None else f"{args.save}: {count} steps", file=sys.stderr)
    if where.startswith(("web:", "foxglove:")):
        say("view: press Ctrl-C to end", file=sys.stderr)
        signal.pause()
    return SOUND
