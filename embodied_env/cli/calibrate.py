"""``embodied-env calibrate``: move gently through the gate, and measure latencies into a file."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from embodied_env.cli.latency_table import print_profile
from embodied_env.contract import load_contract
from embodied_env.core.arguments import checked_path
from embodied_env.core.latency.profile import as_mapping, write_profile
from embodied_env.core.terminal import make_console, say
from embodied_env.errors import UsageError
from embodied_env.ros.fastdds import enable_large_segments

HELP = "move gently, and measure latencies into a file"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    from embodied_env.analysis.calibration import AMPLITUDE

    parser.add_argument("contract", help="a contract's name or file")
    parser.add_argument("--backend", default="real", help="a world that moves by itself (default: real)")
    parser.add_argument("--namespace", default=None, help="ROS 2 namespace, for a backend over ROS 2")
    parser.add_argument("--pacing", default=None, help="realtime, where a backend may also wait for the agent")
    parser.add_argument("--seed", type=int, default=0, help="of the moves and of the reset (default: 0)")
    parser.add_argument("--out", default="latency_profile.json", help="the file (default: latency_profile.json)")
    parser.add_argument("--joints", nargs="+", default=[], metavar="JOINT", help="which joints (default: all)")
    parser.add_argument(
        "--amplitude", type=float, default=AMPLITUDE, help=f"share of a joint's range (default: {AMPLITUDE})"
    )
    parser.add_argument("--repeats", type=int, default=3, help="moves of each joint (default: 3)")
    parser.add_argument("--json", action="store_true", help="print the profile as JSON")


def run(args: argparse.Namespace) -> int:
    """Calibrate, write the profile, and print it."""
    from embodied_env.analysis.calibration import calibrate

    if args.seed < 0:
        raise UsageError(f"--seed {args.seed} is not allowed; allowed: 0 or more")
    out = checked_path("--out", args.out)
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise UsageError(f"--out {out} is not allowed; allowed: a file in a folder that exists")
    contract = load_contract(args.contract)
    enable_large_segments(contract)
    with _progress(f"{contract.name} on {args.backend}") as progress:
        profile = calibrate(
            contract,
            backend=args.backend,
            seed=args.seed,
            amplitude=args.amplitude,
            joints=args.joints,
            repeats=args.repeats,
            progress=progress,
            namespace=args.namespace,
            pacing=args.pacing,
        )
    write_profile(profile, out)
    if args.json:
        say(json.dumps(as_mapping(profile), indent=1))
    else:
        print_profile(profile, out)
    return 0 if profile.actuation_s is not None else 1


@contextmanager
def _progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on stderr, from the first move on."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=make_console(stderr=True))
    line = bar.add_task(f"{title} · moves", total=None)

    def show(done: int, of: int) -> None:
        bar.start()
        bar.update(line, completed=done, total=of)

    try:
        yield show
    finally:
        if bar.live.is_started:
            bar.stop()
