"""The command ``embodied-env profile``, which writes the latency profile of a run."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from embodied_env.cli import SOUND, UNSOUND
from embodied_env.cli.verb_arguments import add_force, add_json, add_run_directory, check_new, output_file
from embodied_env.core.terminal import ProgressBar, make_console, say

if TYPE_CHECKING:
    from embodied_env.timing.latency_profile import LatencyProfile


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_run_directory(parser)
    parser.add_argument(
        "-o",
        "--out",
        type=output_file,
        metavar="FILE",
        default="latency_profile.json",
        help="path of the latency profile to write",
    )
    add_force(parser, "the latency profile")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Write the profile, and return 1 if the run is not sound or has no actuation latency."""
    from embodied_env.extensions.calibration.profile_from_run import profile_of_run
    from embodied_env.record import read_run
    from embodied_env.timing.latency_profile import as_mapping, write_profile

    check_new(args.out, force=args.force)
    recorded = read_run(args.run_directory)
    with ProgressBar() as progress:
        profile = profile_of_run(recorded, progress=progress)
    write_profile(profile, args.out, replace=args.force)
    if args.json:
        data = as_mapping(profile)
        data["steps"] = {"sensors": data["steps"]["sensors"], "count": profile.steps.count if profile.steps else 0}
        say(json.dumps({**data, "path": str(args.out)}, indent=1))
    else:
        print_profile(profile, args.out)
    if recorded.problem:
        say(f"not sound: {recorded.path}: {recorded.problem}", file=sys.stderr)
    if profile.actuation_s is None:
        reason = profile.unknown["actuation_s"]
        say(f"profile without actuation latency: {reason}; embodied-env calibrate measures it", file=sys.stderr)
    return SOUND if profile.actuation_s is not None and not recorded.problem else UNSOUND


def print_profile(profile: LatencyProfile, out: Path) -> None:
    """Print a table of the estimates with their intervals and methods, and notes on each."""
    from rich.table import Column, Table

    console = make_console()
    value, interval, n = (Column(heading, justify="right") for heading in ("value", "95 %", "n"))
    title = f"{profile.contract} on {profile.backend}: latency, ms"
    table = Table("", value, interval, "method", n, title=title, title_justify="left")
    notes = Table.grid("", Column(overflow="fold"), padding=(0, 2))
    best = profile.actuation_s
    estimates = profile.evidence.values() or ([] if best is None else [best])  # a run has one estimate
    rows = [(f"actuation{' *' if best and each.method == best.method else ''}", each) for each in estimates]
    rows += [] if profile.lag_s is None else [("lag", profile.lag_s)]
    rows += [] if profile.obs_to_command_s is None else [("observation to command", profile.obs_to_command_s)]
    for stage, found in (("age", profile.age_s), ("capture", profile.capture_s), ("transport", profile.transport_s)):
        rows += [(f"{stage} {sensor}", each) for sensor, each in found.items()]
    for name, each in rows:
        bounds = f"{1e3 * each.low_s:.2f} .. {1e3 * each.high_s:.2f}"
        table.add_row(name, f"{1e3 * each.value_s:.2f}", bounds, each.method, str(each.n))
        notes.add_row(name, each.detail)
    for name, why in profile.unknown.items():
        table.add_row(name, "partial" if name.startswith("moves.") else "unknown")
        notes.add_row(name, why)
    console.print(table)
    if best is not None:
        console.print("* actuation_s: from publishing a command to the start of the joint's response")
    console.print(notes)
    console.print(f"profile  {out}", soft_wrap=True)
