"""``embodied-env demo``: an arm reaches targets over real ROS 2, beside the baseline that holds still."""

from __future__ import annotations

import argparse
import os

HELP = "run a few episodes and show what each step accounts for"

POLICIES = ("scripted", "hold")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--backend", default="mujoco_ros", help="which world (default: mujoco_ros, over ROS 2)")
    parser.add_argument("--episodes", type=int, default=5, help="episodes of each policy (default: 5)")
    parser.add_argument("--seed", type=int, default=0, help="of the first episode (default: 0)")
    parser.add_argument("--out", default="runs", help="where run directories are made (default: runs)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Run the demo; nothing outside this host is talked to unless the environment says so."""
    from embodied_env.cli.evaluation import as_json, evaluate_with_progress, print_table
    from embodied_env.contract import load_contract
    from embodied_env.errors import UsageError

    if args.episodes < 1:
        raise UsageError(f"--episodes {args.episodes} is not allowed; allowed: 1 or more")
    os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    contract = load_contract("arm_reach")
    evaluations = evaluate_with_progress(
        contract, POLICIES, backend=args.backend, episodes=args.episodes, seed=args.seed, out=args.out
    )
    if args.json:
        print(as_json(contract, args.backend, evaluations))
    else:
        print_table(contract, args.backend, evaluations)
    return 0
