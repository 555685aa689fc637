"""The command ``embodied-env calibrate``, which measures latencies with small motions."""

from __future__ import annotations

import argparse
import json

from embodied_env.cli import SOUND, UNSOUND
from embodied_env.cli import verb_arguments as verbs
from embodied_env.contract import load_contract
from embodied_env.core.terminal import ProgressBar, say
from embodied_env.extensions.calibration.planned_moves import GENTLE_AMPLITUDE
from embodied_env.extensions.calibration.profile_cli import print_profile
from embodied_env.ros.transport.fastdds import enable_large_segments
from embodied_env.timing.latency_profile import as_mapping, write_profile

_OPTIONS = ("namespace", "pacing", *verbs.ROBOT_OPTIONS, "connect_timeout_s")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    verbs.add_contract(parser)
    option = parser.add_argument
    verbs.add_options(parser, "backend", *_OPTIONS, backend="real")
    verbs.add_seed(parser, "seed of the motions and of the reset")
    option(
        "--out",
        type=verbs.output_file,
        metavar="FILE",
        default="latency_profile.json",
        help="path of the profile to write",
    )
    verbs.add_force(parser, "the profile")
    moved = "joints to move (default: all)"
    option("--joints", nargs="+", default=[], metavar="JOINT", help=moved)
    option(
        "--amplitude",
        type=float,
        default=GENTLE_AMPLITUDE,
        help="amplitude of a motion as a fraction of the joint range",
    )
    option("--repeats", type=int, metavar="N", default=3, help="number of motions per joint")
    verbs.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Calibrate, write and print the profile, and return 1 without actuation latency or a move."""
    from embodied_env.extensions.calibration.calibration import calibrate

    verbs.check_new(args.out, force=args.force)
    contract = load_contract(args.contract)
    enable_large_segments(contract)
    with ProgressBar(f"{contract.name} on {args.backend} · moves") as progress:
        profile = calibrate(
            contract,
            backend=args.backend,
            seed=args.seed,
            amplitude=args.amplitude,
            joints=args.joints,
            repeats=args.repeats,
            progress=progress.update,
            resetting=progress.pause,
            **verbs.given_options(args, *_OPTIONS),
        )
    write_profile(profile, args.out, replace=args.force)
    if args.json:
        say(json.dumps(as_mapping(profile), indent=1))
    else:
        print_profile(profile, args.out)
    is_complete = not any(name.startswith("moves.") for name in profile.unknown)
    return SOUND if profile.actuation_s is not None and is_complete else UNSOUND
