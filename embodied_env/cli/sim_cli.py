"""``embodied-env sim`` hosts the embedded simulator as a ROS 2 node."""

from __future__ import annotations

import argparse
import gc
from typing import Any

from embodied_env.cli import SOUND
from embodied_env.cli.verb_arguments import add_hosted_contract, add_options, stop_on_signals
from embodied_env.core.terminal import say
from embodied_env.errors import UsageError

_MAX_BYTES = 65_536  # length of --emulator-settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_hosted_contract(parser)
    option = parser.add_argument
    option("--profile", default="mujoco_ros", help="backend profile of the contract")
    option("--free-running", action="store_true", help="emulate a robot: run on wall time (default: lockstep)")
    option("--emulator-settings", metavar="JSON", help="overrides of `emulator` in the profile, with --free-running")
    add_options(parser, "delay_profile")


def run(args: argparse.Namespace) -> int:
    """Host the simulator until a signal, or with ``-`` until the end of standard input."""
    from embodied_env.contract import load_contract, parse_contract
    from embodied_env.core.contract_blocks import check_blocks
    from embodied_env.processes.child_process import read_first_line, watch_parent
    from embodied_env.ros.embedded_sim.emulated_inputs import emulated_inputs
    from embodied_env.ros.embedded_sim.lockstep_node import run_simulator
    from embodied_env.ros.embedded_sim.realtime_node import run_free_running
    from embodied_env.ros.transport.fastdds import enable_large_segments
    from embodied_env.ros.transport.setup_checks import check_namespace
    from embodied_env.sim.world import World
    from embodied_env.sim.world_profile import load_profile
    from embodied_env.timing.delay_model import load_delays

    if args.namespace is not None:
        check_namespace(args.namespace)
    if args.emulator_settings is not None and not args.free_running:
        raise UsageError("--emulator-settings requires --free-running: a lockstep simulator has no wall-clock delays")
    emulator = None if args.emulator_settings is None else _parse_object(args.emulator_settings)
    delays = None if args.delay_profile is None else load_delays(args.delay_profile)
    stop = stop_on_signals()
    if args.contract == "-":
        contract = parse_contract(read_first_line(), source=args.source)
        watch_parent(stop.set)
    else:
        contract = load_contract(args.contract)
    check_blocks(contract)
    enable_large_segments(contract)
    profile = load_profile(contract, args.profile, emulator=emulator)
    world = World(contract, profile, path=f"backends.{args.profile}", free_running=args.free_running, delays=delays)

    def print_ready(namespace: str) -> None:
        pace = " on wall time" if args.free_running else ""
        say(f"simulating {contract.name}{pace} in namespace {namespace}; press Ctrl-C to stop", flush=True)

    gc.collect()
    gc.freeze()  # a full collection of all that is loaded would stop an emulated robot for a tenth of a second
    try:
        if args.free_running:
            run_free_running(
                contract,
                world,
                namespace=args.namespace,
                stop=stop,
                inputs=emulated_inputs(contract),
                on_ready=print_ready,
            )
        else:
            run_simulator(contract, world, namespace=args.namespace, stop=stop, on_ready=print_ready)
    finally:
        world.close()
    return SOUND


def _parse_object(text: str) -> dict[str, Any]:
    from embodied_env.contract.bounded_json import parse_json

    try:
        value = parse_json(text, max_bytes=_MAX_BYTES)
    except ValueError as error:
        raise UsageError(f"invalid --emulator-settings: {text!r} (expected a JSON object): {error}") from None
    if not isinstance(value, dict):
        raise UsageError(f"invalid --emulator-settings: {text!r} (expected a JSON object)")
    return value
