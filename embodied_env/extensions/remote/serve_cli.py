"""The command ``embodied-env serve``, which serves a policy over openpi's protocol."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING

from embodied_env.cli import SOUND
from embodied_env.cli.verb_arguments import add_model_options, integer_from
from embodied_env.contract import load_contract
from embodied_env.core.policy import refuse_playback
from embodied_env.core.terminal import say
from embodied_env.errors import UsageError
from embodied_env.policies.policy_model import PolicyModel

if TYPE_CHECKING:
    from embodied_env.extensions.remote.policy_server import PolicyServer

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    option = parser.add_argument
    option("address", metavar="ADDRESS", help="address of the policy to serve, such as onnx:FILE")
    help_ = "name or path of the contract whose observations it takes and whose actions it returns (default: none, "
    option("--contract", help=f"{help_}the model's own inputs and outputs)")
    option("--host", default="127.0.0.1", help="address of the network interface to listen on")
    option("--port", type=integer_from(0), required=True, help="TCP port to listen on; 0: a free one")
    add_model_options(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM."""
    from embodied_env.extensions.remote.policy_server import PolicyServer, ServedPolicy
    from embodied_env.policies.policy_loader import find_policy_file, load_model, load_policy

    contract = None if args.contract is None else load_contract(args.contract)
    if contract is None and args.policy_file is not None:
        raise UsageError("--policy-file requires --contract: it connects a model with a contract")
    model: PolicyModel
    if contract is None:
        model, unused = load_model(args.address, trust=args.trust_policy), find_policy_file(args.address)
    else:
        policy = load_policy(args.address, contract, policy_file=args.policy_file, trust=args.trust_policy)
        refuse_playback(policy, args.address, user="a client")
        model, unused = ServedPolicy(policy, contract), None
    refuse_playback(model, args.address, user="a client")
    if args.host not in _LOOPBACK:
        text = f"warning: {args.host} is reachable from other machines, and the protocol has no password"
        say(text, file=sys.stderr)
    if unused is not None:
        say(f"note: clients apply {unused.name} (--policy-file); with --contract, this server does", file=sys.stderr)
    with contextlib.closing(model):
        server = PolicyServer(model, contract=contract, policy_file=None if unused is None else unused.name)
        asyncio.run(_serve(server, args))
    return SOUND


async def _serve(server: PolicyServer, args: argparse.Namespace) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def request_stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - of a signal handler
        signal.signal(number, signal.default_int_handler)  # a second one interrupts an inference
        loop.call_soon_threadsafe(stop.set)

    def print_ready(port: int) -> None:
        say(f"serving {args.address} on ws://{args.host}:{port}; press Ctrl-C to stop", flush=True)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, request_stop)
    await server.run(args.host, args.port, stop=stop, on_ready=print_ready)
