"""``embodied-env evaluate``: record episodes of policies and print the results."""

from __future__ import annotations

import argparse
import os
import sys

from embodied_env.backends.backend_registry import backend_accepts
from embodied_env.cli.verb_arguments import (
    add_chunks,
    add_connect_timeout,
    add_contract,
    add_policies,
    add_robot_options,
    add_view,
    named_policies,
    robot_options,
)
from embodied_env.core.terminal import say
from embodied_env.errors import UsageError
from embodied_env.extensions.evaluation.episode_runner import PolicySource
from embodied_env.extensions.evaluation.evaluation_display import add_common_arguments, run_policies
from embodied_env.extensions.evaluation.evaluation_engine import Engine, make_cluster

_OPTIONS = ("clock", "pacing", "fifo_priority", "delay_profile", "namespace", "record_messages", "chunks", "view")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_contract(parser)
    add_policies(parser)
    add_common_arguments(parser, backend="mujoco", episodes=10)
    option = parser.add_argument
    option("--clock", default="steady", help="clock of the time stamps: steady or virtual")
    option("--pacing", help="pacing of the backend: lockstep or realtime (default: set by the backend)")
    option(
        "--fifo-priority",
        type=int,
        metavar="N",
        help="SCHED_FIFO priority of the stepping thread, 1 to 99 (default: none)",
    )
    option(
        "--switch-interval",
        type=float,
        metavar="S",
        help="thread switch interval of Python in seconds (default: 0.005)",
    )
    option(
        "--delay-profile",
        metavar="FILE",
        help="latency profile that mujoco or mujoco_ros injects in lockstep (default: none)",
    )
    option("--namespace", help="ROS 2 namespace of the robot or simulator (default: set by the backend)")
    add_chunks(parser)
    option("--report", action="store_true", help="write report.html into each run directory")
    option("--attach", action="store_true", help="attach to a running simulator instead of starting one")
    option("--dry-run", action="store_true", help="run all checks on the robot without sending commands")
    option("--relay", action="store_true", help="send commands through the relay of the robot, overriding its profile")
    add_robot_options(parser)
    add_connect_timeout(parser)
    option("--engine", choices=("local", "ray"), help="engine of worker processes (default: none, this process)")
    option("--workers", type=int, metavar="N", help="number of workers of the engine (default: number of CPUs)")
    option(
        "--episode-timeout",
        type=float,
        metavar="S",
        help="time in seconds until a hung worker is replaced (default: derived from the contract)",
    )
    option("--address", help="address of a Ray cluster (default: $RAY_ADDRESS, or a new cluster on this machine)")
    add_view(parser)
    option("--record-messages", action="store_true", help="record the raw ROS 2 messages too")


def run(args: argparse.Namespace) -> int:
    """Evaluate one or more policies and return the exit status."""
    for option, value in (("--workers", args.workers), ("--episode-timeout", args.episode_timeout)):
        if args.engine is None and value is not None:
            raise UsageError(f"{option} {value} requires --engine local or ray")
    if args.engine != "ray" and args.address is not None:
        raise UsageError(f"--address {args.address!r} requires --engine ray")
    engine = None
    if args.engine is not None:
        workers = (os.cpu_count() or 1) if args.workers is None else args.workers
        cluster = make_cluster(workers, args.address) if args.engine == "ray" else None
        engine = Engine(workers, cluster, episode_timeout_s=args.episode_timeout)
    options = {name: getattr(args, name) for name in _OPTIONS}
    options["trust_policy"] = args.trust_policy
    options |= {"switch_interval_s": args.switch_interval, "spawn": not args.attach}
    if args.dry_run and not backend_accepts(args.backend, "armed", pacing=args.pacing):
        raise UsageError(
            f"--dry-run with the backend {args.backend!r} (expected one that drives a robot, such as 'real')"
        )
    if args.dry_run:  # only if requested: other backends refuse these options
        say("dry run: all checks run, no command is sent to the robot", file=sys.stderr)
        options["armed"] = False
    if args.relay:
        options["relay"] = True
    options |= robot_options(args)
    policies = [PolicySource(address=address, policy_file=file) for address, file in named_policies(args)]
    return run_policies(args.contract, policies, args, engine=engine, **options)
