"""``embodied-env relay`` forwards commands to the robot, and brakes when they stop."""

from __future__ import annotations

import argparse

from embodied_env.cli import SOUND
from embodied_env.cli.verb_arguments import add_hosted_contract, add_options, stop_on_signals
from embodied_env.core.terminal import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_hosted_contract(parser)
    parser.add_argument("--backend", help="backend whose profile lists the e-stop inputs (default: real)")
    add_options(parser, "confirm_chosen", "ignore_inputs")


def run(args: argparse.Namespace) -> int:
    """Relay until a signal or the end of the input ``-``, then brake the robot to rest."""
    from embodied_env.contract import load_contract, parse_contract
    from embodied_env.core.contract_blocks import check_blocks
    from embodied_env.errors import UsageError, did_you_mean
    from embodied_env.processes.child_process import STOP_GRACE_S, read_first_line, watch_parent
    from embodied_env.ros.transport.fastdds import enable_large_segments
    from embodied_env.ros.transport.setup_checks import check_namespace
    from embodied_env.safety.command_filters import make_command_filters
    from embodied_env.safety.relay.relay_protocol import check_relayed, stopping_time_s

    if args.namespace is not None:
        check_namespace(args.namespace)
    stop = stop_on_signals()
    from_parent = args.contract == "-"
    contract = parse_contract(read_first_line(), source=args.source) if from_parent else load_contract(args.contract)
    check_relayed(contract)
    check_blocks(contract)
    enable_large_segments(contract)
    if args.backend is not None and args.backend not in contract.backends:  # its e-stops would be missing
        known = ", ".join(contract.backends) or "none"
        problem = f"no profile of --backend {args.backend!r} in {contract.name} (expected one of: {known})"
        raise UsageError(problem + did_you_mean(args.backend, contract.backends))
    if from_parent:
        watch_parent(stop.set, grace_s=stopping_time_s(contract) + STOP_GRACE_S)

    from embodied_env.ros.relay.relay_node import run_relay

    def print_ready(namespace: str) -> None:
        say(f"relaying {contract.name} in namespace {namespace}; press Ctrl-C to brake and stop", flush=True)

    run_relay(
        contract,
        namespace=args.namespace,
        profile=contract.backends.get(args.backend or "real", {}),
        stop=stop,
        confirm_chosen=args.confirm_chosen,
        ignore_inputs=args.ignore_inputs or (),
        filters=make_command_filters(contract, latency_s=contract.control_period_s),
        on_ready=print_ready,
    )
    return SOUND
