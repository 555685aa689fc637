"""``embodied-env evaluate``: record some episodes of a policy, and print what they came to."""

from __future__ import annotations

import argparse
import os
import sys

from embodied_env.cli.evaluation_run import add_common_arguments, run_policies
from embodied_env.core.terminal import say
from embodied_env.errors import UsageError
from embodied_env.evaluation.engine import make_engine

HELP = "run a policy for some episodes and record them"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("contract", help="a contract's name or file")
    parser.add_argument(
        "--policy",
        default="scripted",
        help="hold, random, scripted, or module:callable (default: scripted)",
    )
    add_common_arguments(parser, backend="mujoco", episodes=10)
    parser.add_argument("--clock", default="steady", help="steady or virtual (default: steady)")
    parser.add_argument("--pacing", default=None, help="lockstep or realtime (default: the backend's)")
    parser.add_argument("--fifo-priority", type=int, default=None, help="SCHED_FIFO for the stepping thread, 1 to 99")
    parser.add_argument(
        "--switch-interval", type=float, default=None, help="of the interpreter, s: for policies in threads of Python"
    )
    parser.add_argument(
        "--delay-profile", metavar="FILE", default=None, help="put these latencies into a world that waits"
    )
    parser.add_argument("--namespace", default=None, help="ROS 2 namespace, for a backend over ROS 2")
    parser.add_argument("--report", action="store_true", help="write report.html into the run directory, too")
    parser.add_argument("--attach", action="store_true", help="use a simulator that runs instead of starting one")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="of a robot: everything but motion; no command is published, nobody asked",
    )
    parser.add_argument("--relay", action="store_true", help="of a robot: through its relay, whatever the profile says")
    parser.add_argument("--engine", default=None, help="local, or ray: worker processes (default: this process)")
    parser.add_argument(
        "--workers", type=int, default=None, help="of the engine (default: one per CPU of this machine)"
    )
    parser.add_argument(
        "--episode-timeout",
        type=float,
        metavar="S",
        default=None,
        help="of an engine: seconds after which a hung worker is replaced (default: generous, from the contract)",
    )
    parser.add_argument(
        "--address", default=None, help="of a Ray cluster (default: RAY_ADDRESS, else one is started and ended here)"
    )
    parser.add_argument(
        "--record-messages", action="store_true", help="record the raw ROS 2 messages too, for a backend over ROS 2"
    )


def run(args: argparse.Namespace) -> int:
    """Evaluate one policy.

    Raises:
        UsageError: for workers of no engine.
    """
    if args.engine is None and args.workers is not None:
        raise UsageError(f"--workers {args.workers} is of an engine; allowed: with --engine local or ray")
    if args.engine is None and args.address is not None:
        raise UsageError(f"--address {args.address!r} is of an engine; allowed: with --engine ray")
    if args.engine is None and args.episode_timeout is not None:
        raise UsageError(
            f"--episode-timeout {args.episode_timeout} is of an engine; allowed: with --engine local or ray"
        )
    workers = (os.cpu_count() or 1) if args.workers is None else args.workers
    return run_policies(
        args.contract,
        [args.policy],
        args,
        engine=None
        if args.engine is None
        else make_engine(args.engine, workers, args.address, episode_timeout_s=args.episode_timeout),
        clock=args.clock,
        pacing=args.pacing,
        fifo_priority=args.fifo_priority,
        switch_interval_s=args.switch_interval,
        delay_profile=args.delay_profile,
        namespace=args.namespace,
        spawn=not args.attach,
        record_messages=args.record_messages,
        **_of_robot(args),
    )


def _of_robot(args: argparse.Namespace) -> dict[str, bool]:
    """Return the options of a robot that were asked for; another backend refuses them."""
    if args.dry_run:
        say("dry run: everything is checked and judged, nothing is published to the robot", file=sys.stderr)
    return {**({"armed": False} if args.dry_run else {}), **({"relay": True} if args.relay else {})}
