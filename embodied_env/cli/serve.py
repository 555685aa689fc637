"""``embodied-env serve``: serve a policy over openpi's WebSocket protocol."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from types import FrameType

from embodied_env.cli import SOUND
from embodied_env.cli.arguments import add_trust_policy, integer_from
from embodied_env.contract import Contract, load_contract
from embodied_env.core.terminal import say
from embodied_env.errors import UsageError
from embodied_env.policies.model import Model

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    option = parser.add_argument
    option("address", metavar="ADDRESS", help="address of the policy to serve, such as onnx:FILE")
    help_ = "name or path of the contract whose observations it takes and whose actions it returns (default: none, "
    option("--contract", help=f"{help_}the model's own inputs and outputs)")
    help_ = "policy file that maps a model to the contract (default: the one beside its model)"
    option("--policy-file", metavar="FILE", help=help_)
    option("--host", default="127.0.0.1", help="address of the network interface to listen on")
    option("--port", type=integer_from(0), required=True, help="TCP port to listen on; 0: a free one")
    add_trust_policy(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM."""
    from embodied_env.policies.loader import load_model, load_policy
    from embodied_env.policies.server import PolicyModel

    contract = None if args.contract is None else load_contract(args.contract)
    model: Model
    if contract is not None:
        policy = load_policy(args.address, contract, policy_file=args.policy_file, trust=args.trust_policy)
        model = PolicyModel(policy, contract)
    elif args.policy_file is not None:
        raise UsageError("--policy-file requires --contract: it connects a model with a contract")
    else:
        model = load_model(args.address, trust=args.trust_policy)
    try:
        asyncio.run(_serve(model, contract, args))
    finally:
        model.close()
    return SOUND


async def _serve(model: Model, contract: Contract | None, args: argparse.Namespace) -> None:
    from embodied_env.policies.server import PolicyServer

    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def request_stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - of a signal handler
        signal.signal(number, signal.default_int_handler)  # a second one interrupts an inference
        loop.call_soon_threadsafe(stop.set)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, request_stop)

    def print_ready(port: int) -> None:
        say(f"serving {args.address} on ws://{args.host}:{port}; press Ctrl-C to stop", flush=True)

    if args.host not in _LOOPBACK:
        text = f"warning: {args.host} is reachable from other machines, and the protocol has no password"
        say(text, file=sys.stderr)
    await PolicyServer(model, contract=contract).run(args.host, args.port, stop=stop, on_ready=print_ready)
