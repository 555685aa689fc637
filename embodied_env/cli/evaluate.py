"""``embodied-env evaluate``: run a policy for some episodes, recorded."""

from __future__ import annotations

import argparse

HELP = "run a policy for some episodes and record them"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("contract", help="a contract's name or file")
    parser.add_argument("--backend", default="mujoco", help="which world (default: mujoco)")
    parser.add_argument(
        "--policy", default="scripted", help="hold, random, scripted, or module:callable (default: scripted)"
    )
    parser.add_argument("--episodes", type=int, default=10, help="how many (default: 10)")
    parser.add_argument("--seed", type=int, default=0, help="of the first episode (default: 0)")
    parser.add_argument("--out", default="runs", help="where the run directory is made (default: runs)")
    parser.add_argument("--clock", default="steady", help="steady or virtual (default: steady)")
    parser.add_argument("--namespace", default=None, help="ROS 2 namespace, for a backend over ROS 2")
    parser.add_argument("--attach", action="store_true", help="use a simulator that runs instead of starting one")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Evaluate one policy."""
    from embodied_env.cli.evaluation import as_json, evaluate_with_progress, print_table
    from embodied_env.contract import load_contract
    from embodied_env.errors import UsageError

    if args.episodes < 1:
        raise UsageError(f"--episodes {args.episodes} is not allowed; allowed: 1 or more")
    contract = load_contract(args.contract)
    evaluations = evaluate_with_progress(
        contract,
        [args.policy],
        backend=args.backend,
        episodes=args.episodes,
        seed=args.seed,
        out=args.out,
        clock=args.clock,
        namespace=args.namespace,
        spawn=not args.attach,
    )
    if args.json:
        print(as_json(contract, args.backend, evaluations))
    else:
        print_table(contract, args.backend, evaluations)
    return 0
