"""The command ``embodied-env evaluate``, which records episodes of policies."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from embodied_env.cli.verb_arguments import (
    ROBOT_OPTIONS,
    add_chunks,
    add_contract,
    add_options,
    add_policies,
    given_options,
    named_policies,
)
from embodied_env.core.terminal import say
from embodied_env.errors import UsageError
from embodied_env.extensions.evaluation.evaluation_arguments import ENGINES, add_common_arguments

_OF_WORLD = ("clock", "pacing", "fifo_priority", "switch_interval_s", "delay_profile", "namespace")
_OF_ROBOT = ("spawn", "armed", "relay", *ROBOT_OPTIONS, "connect_timeout_s")
_OF_RECORD = ("view", "record_messages", "compression")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_contract(parser)
    add_policies(parser)
    add_common_arguments(parser, backend="mujoco", episodes=10)
    add_options(parser, *_OF_WORLD)
    add_chunks(parser)
    option = parser.add_argument
    option(
        "--instructions",
        metavar="FILE",
        help="text file of prompts, one per line, which the episodes have in turn (default: that of the contract)",
    )
    option("--report", action="store_true", help="write report.html into each run directory")
    add_options(parser, *_OF_ROBOT)
    option("--engine", choices=ENGINES, help="engine of worker processes (default: none, this process)")
    option("--workers", type=int, metavar="N", help="number of workers of the engine (default: number of CPUs)")
    option(
        "--episode-timeout",
        type=float,
        metavar="S",
        help="time in seconds until a hung worker is replaced (default: derived from the contract)",
    )
    option("--address", help="address of a Ray cluster (default: $RAY_ADDRESS, or a new cluster on this machine)")
    add_options(parser, *_OF_RECORD)


def run(args: argparse.Namespace) -> int:
    """Evaluate one or more policies and return the exit status."""
    from embodied_env.backends.backend_registry import backend_accepts
    from embodied_env.extensions.evaluation.episode_runner import PolicySource
    from embodied_env.extensions.evaluation.evaluation_arguments import read_instructions
    from embodied_env.extensions.evaluation.evaluation_display import run_policies
    from embodied_env.extensions.evaluation.evaluation_engine import make_engine

    for option, value in (("--workers", args.workers), ("--episode-timeout", args.episode_timeout)):
        if args.engine is None and value is not None:
            raise UsageError(f"{option} {value} requires --engine local or ray")
    if args.engine is None and args.address is not None:
        raise UsageError(f"--address {args.address!r} requires --engine ray")
    engine = None
    if args.engine is not None:
        engine = make_engine(
            args.engine, workers=args.workers, address=args.address, episode_timeout_s=args.episode_timeout
        )
    if not args.armed and not backend_accepts(args.backend, "armed", pacing=args.pacing):
        raise UsageError(
            f"--dry-run with the backend {args.backend!r} (expected one that drives a robot, such as 'real')"
        )
    if not args.armed:
        say("dry run: all checks run, no command is sent to the robot", file=sys.stderr)
    options = given_options(args, *_OF_WORLD, *_OF_ROBOT, *_OF_RECORD)
    options |= {"trust_policy": args.trust_policy, "chunks": args.chunks}
    if args.instructions is not None:
        options["instructions"] = read_instructions(args.instructions)
    policies = [PolicySource(address=address, policy_file=file) for address, file in named_policies(args)]
    with _emulator(args) as where:
        return run_policies(args.contract, policies, args, engine=engine, **options | where)


@contextmanager
def _emulator(args: argparse.Namespace) -> Iterator[dict[str, str]]:
    """Yield the namespace of the robot emulator as an option, and start one if none is running."""
    if not args.emulator or args.backend != "real":
        yield {}
        return
    from embodied_env.contract.contract_loader import load_contract

    contract = load_contract(args.contract)
    if args.relay or contract.backends.get("real", {}).get("relay"):  # the emulator is where the relay is
        yield {}
        return
    from embodied_env.ros.embedded_sim.own_emulator import SEARCH_S, emulator_namespace
    from embodied_env.ros.transport.fastdds import enable_large_segments

    enable_large_segments(contract)
    search_s, note = args.connect_timeout_s or SEARCH_S, partial(say, file=sys.stderr)
    with emulator_namespace(contract, args.namespace, search_s=search_s, note=note) as namespace:
        yield {"namespace": namespace}
