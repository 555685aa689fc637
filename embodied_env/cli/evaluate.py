"""``embodied-env evaluate``: record episodes of a policy and print the results."""

from __future__ import annotations

import argparse
import os
import sys

from embodied_env.cli.arguments import add_contract
from embodied_env.cli.evaluation_run import add_common_arguments, run_policies
from embodied_env.core.terminal import say
from embodied_env.errors import UsageError
from embodied_env.evaluation.engine import Engine
from embodied_env.evaluation.ray_cluster import RayCluster

_OPTIONS = ("clock", "pacing", "fifo_priority", "delay_profile", "namespace", "record_messages")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_contract(parser)
    parser.add_argument("--policy", default="scripted", help="policy: hold, random, scripted, or module:callable")
    add_common_arguments(parser, backend="mujoco", episodes=10)
    option = parser.add_argument
    option("--clock", default="steady", help="clock of the time stamps: steady or virtual")
    option("--pacing", help="pacing of the backend: lockstep or realtime (default: the backend's)")
    option("--fifo-priority", type=int, help="SCHED_FIFO priority of the stepping thread, 1 to 99 (default: none)")
    option("--switch-interval", type=float, metavar="S", help="thread switch interval of Python, s (default: Python's)")
    option("--delay-profile", metavar="FILE", help="latency profile to inject in lockstep (default: none)")
    option("--namespace", help="ROS 2 namespace of a backend over ROS 2 (default: the backend's)")
    option("--report", action="store_true", help="write report.html into each run directory")
    option("--attach", action="store_true", help="attach to a running simulator instead of starting one")
    option("--dry-run", action="store_true", help="run all checks on the robot without sending commands")
    option("--relay", action="store_true", help="command the robot through its relay, whatever its profile says")
    option("--engine", help="engine of worker processes: local or ray (default: this process, without workers)")
    option("--workers", type=int, help="number of workers of the engine (default: one per CPU of this machine)")
    option(
        "--episode-timeout",
        type=float,
        metavar="S",
        help="time after which a hung worker is replaced, s (default: derived from the contract)",
    )
    option("--address", help="address of a Ray cluster (default: RAY_ADDRESS, else a cluster of this process)")
    option("--record-messages", action="store_true", help="record the raw messages of a backend over ROS 2")


def run(args: argparse.Namespace) -> int:
    """Evaluate one policy and return the exit status."""
    if args.engine not in (None, "local", "ray"):
        raise UsageError(f"--engine {args.engine!r} is not known; allowed: local, ray")
    for option, value in (("--workers", args.workers), ("--episode-timeout", args.episode_timeout)):
        if args.engine is None and value is not None:
            raise UsageError(f"{option} {value} is of an engine; allowed: with --engine local or ray")
    if args.engine != "ray" and args.address is not None:
        raise UsageError(f"--address {args.address!r} is of a Ray cluster; allowed: with --engine ray")
    engine = None
    if args.engine is not None:
        workers = (os.cpu_count() or 1) if args.workers is None else args.workers
        cluster = RayCluster(workers, args.address) if args.engine == "ray" else None
        engine = Engine(workers, cluster, episode_timeout_s=args.episode_timeout)
    options = {name: getattr(args, name) for name in _OPTIONS}
    options |= {"switch_interval_s": args.switch_interval, "spawn": not args.attach}
    if args.dry_run:  # only if requested: other backends refuse these options
        say("dry run: everything is checked and judged, nothing is published to the robot", file=sys.stderr)
        options["armed"] = False
    if args.relay:
        options["relay"] = True
    return run_policies(args.contract, [args.policy], args, engine=engine, **options)
