"""``embodied-env sim``: host the embedded simulator as a ROS 2 node."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading

HELP = "run the embedded simulator in a process of its own"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("contract", help="a contract's name or file; -: one line of standard input")
    parser.add_argument("--namespace", default=None, help="absolute ROS 2 namespace (default: the root)")
    parser.add_argument("--source", default="standard input", help="where the contract of - was read from")
    parser.add_argument("--profile", default="mujoco_ros", help="which of its backends (default: mujoco_ros)")


def run(args: argparse.Namespace) -> int:
    """Host the simulator until SIGINT, SIGTERM, or, with ``-``, the end of standard input."""
    from embodied_env.contract import load_contract, parse_contract
    from embodied_env.processes import watch_parent
    from embodied_env.ros_environment import check_namespace
    from embodied_env.sim.node import run_simulator
    from embodied_env.sim.world import World, load_profile

    if args.namespace is not None:
        check_namespace(args.namespace)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    if args.contract == "-":
        contract = parse_contract(_first_line(), source=args.source)
        watch_parent(stop.set)
    else:
        contract = load_contract(args.contract)
    world = World(contract, load_profile(contract, args.profile), path=f"backends.{args.profile}")

    def greet(namespace: str) -> None:
        print(f"simulating {contract.name} in namespace {namespace}; Ctrl-C ends", flush=True)

    run_simulator(contract, world, namespace=args.namespace, stop=stop, on_ready=greet)
    return 0


def _first_line() -> str:
    """Read one line from file descriptor 0, byte by byte: what follows belongs to the parent watch."""
    line = bytearray()
    while (byte := os.read(sys.stdin.fileno(), 1)) not in (b"", b"\n"):
        line += byte
    return line.decode()
