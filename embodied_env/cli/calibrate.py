"""``embodied-env calibrate``: measure latencies with small motions through the gate."""

from __future__ import annotations

import argparse
import json

from embodied_env.cli import SOUND, UNSOUND
from embodied_env.cli.arguments import add_contract, add_json, check_seed, output_file
from embodied_env.cli.profile import print_profile
from embodied_env.cli.progress import ProgressBar
from embodied_env.contract import load_contract
from embodied_env.core.latency.profile import as_mapping, write_profile
from embodied_env.core.terminal import say
from embodied_env.ros.fastdds import enable_large_segments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    from embodied_env.analysis.calibration import AMPLITUDE

    add_contract(parser)
    parser.add_argument("--backend", default="real", help="free-running backend to calibrate")
    parser.add_argument("--namespace", help="ROS 2 namespace of a backend over ROS 2 (default: the backend's)")
    parser.add_argument("--pacing", help="pacing of the backend, such as realtime (default: the backend's)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the motions and of the reset")
    parser.add_argument("--out", metavar="FILE", default="latency_profile.json", help="latency profile to write")
    parser.add_argument("--joints", nargs="+", default=[], metavar="JOINT", help="joints to move (default: all)")
    parser.add_argument("--amplitude", type=float, default=AMPLITUDE, help="motion as a share of a joint's range")
    parser.add_argument("--repeats", type=int, default=3, help="number of motions per joint")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Calibrate, write and print the profile; return 1 if the actuation latency is unknown."""
    from embodied_env.analysis.calibration import calibrate

    check_seed(args.seed)
    out = output_file(args.out)
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
            namespace=args.namespace,
            pacing=args.pacing,
        )
    write_profile(profile, out)
    if args.json:
        say(json.dumps(as_mapping(profile), indent=1))
    else:
        print_profile(profile, out)
    return SOUND if profile.actuation_s is not None else UNSOUND
