"""``embodied-env profile``: the latencies of a recorded run, as a file that can be put into a simulator."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from embodied_env.cli import SOUND, UNSOUND, check_run_directory
from embodied_env.cli.latency_table import print_profile
from embodied_env.cli.progress import ProgressBar
from embodied_env.core.terminal import say
from embodied_env.errors import UsageError

HELP = "write the latencies of a recorded run into a file"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run_directory", metavar="RUN", help="a run directory, runs/<id>")
    parser.add_argument(
        "-o",
        "--out",
        default="latency_profile.json",
        help="the file (default: latency_profile.json), for delay_profile",
    )
    parser.add_argument("--json", action="store_true", help="print machine-readable output")


def run(args: argparse.Namespace) -> int:
    """Write the profile; the status is 1 when the run does not say when commands act, or is not sound.

    Raises:
        UsageError: when there is no such directory, or the file cannot be one.
        LatencyProfileError: when the run has too few steps whose latencies are known.
    """
    from embodied_env.analysis.profile_from_run import profile_of_run
    from embodied_env.core.latency.profile import as_mapping, write_profile
    from embodied_env.record import read_run

    out = Path(args.out)
    check_run_directory(args.run_directory)
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise UsageError(f"--out {out} is not allowed; allowed: a file in a folder that exists")
    recorded = read_run(args.run_directory)
    with ProgressBar() as progress:
        profile = profile_of_run(recorded, progress=progress)
    write_profile(profile, out)
    if args.json:
        data = as_mapping(profile)
        data["steps"] = {"sensors": data["steps"]["sensors"], "count": profile.steps.count if profile.steps else 0}
        say(json.dumps({**data, "path": str(out)}, indent=1))
    else:
        print_profile(profile, out)
    if recorded.problem:
        say(f"not sound: {recorded.path}: {recorded.problem}", file=sys.stderr)
    return SOUND if profile.actuation_s is not None and not recorded.problem else UNSOUND
