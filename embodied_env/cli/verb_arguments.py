"""Arguments that several verbs share, and argument types that validate their value."""

from __future__ import annotations

import argparse
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from embodied_env.core.policy import CHUNK_MODES
from embodied_env.envs.env_options import OPTIONS
from embodied_env.errors import UsageError
from embodied_env.plugins.plugin_table import ADDRESSES

ROBOT_OPTIONS = ("emulator", "confirm_chosen", "ignore_inputs")
"""Options of the backend ``real`` that several verbs share."""


def add_contract(parser: argparse.ArgumentParser) -> None:
    """Declare the argument CONTRACT."""
    parser.add_argument("contract", metavar="CONTRACT", help="name or path of a contract")


def add_hosted_contract(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of a verb that hosts a contract, which a parent process may write."""
    parser.add_argument(
        "contract", metavar="CONTRACT", help="name or path of a contract; -: its text as one line of standard input"
    )
    parser.add_argument("--namespace", help="absolute ROS 2 namespace (default: /)")
    parser.add_argument("--source", default="standard input", help="name of the contract - in error messages")


def add_actions(
    parser: argparse.ArgumentParser,
) -> Callable[[Callable[[argparse.Namespace], int], str, str], argparse.ArgumentParser]:
    """Return a function that declares an action of a verb with --json."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def add(act: Callable[[argparse.Namespace], int], name: str, description: str) -> argparse.ArgumentParser:
        added = actions.add_parser(name, help=description, description=description)
        added.set_defaults(act=act)
        add_json(added)
        return added

    return add


def add_run_directory(parser: argparse.ArgumentParser) -> None:
    """Declare the argument RUN."""
    parser.add_argument("run_directory", metavar="RUN", type=run_directory, help="run directory, such as runs/<id>")


def add_options(parser: argparse.ArgumentParser, *names: str, **defaults: object) -> None:
    """Declare options of environments (`OPTIONS`) as arguments, with `defaults` of this verb."""
    for name in names:
        option = OPTIONS[name]
        flag = option.flag or f"--{name.removesuffix('_s').replace('_', '-')}"
        default = defaults.get(name, option.default)
        start, help_ = None if default == () else default, option.help(default)
        parser.add_argument(flag, dest=name, default=start, help=help_, **option.argument)


def given_options(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return those of `names` that differ from their default, since backends refuse others."""
    return {name: value for name in names if (value := getattr(args, name)) not in (None, OPTIONS[name].default)}


def add_policy(parser: argparse.ArgumentParser, *, default: str | None, what: str) -> None:
    """Declare the options --policy, --policy-file and --trust-policy."""
    help_ = f"{what}: {', '.join(ADDRESSES)}{' (default: none)' if default is None else ''}"
    parser.add_argument("--policy", metavar="ADDRESS", default=default, help=help_)
    add_model_options(parser)


def add_policies(parser: argparse.ArgumentParser) -> None:
    """Declare the repeatable options --policy and --policy-file, and --trust-policy."""
    append: dict[str, Any] = {"action": "append", "dest": "policies"}
    help_ = f"address of a policy to run, repeatable: {', '.join(ADDRESSES)} (default: scripted)"
    parser.add_argument("--policy", metavar="ADDRESS", type=lambda text: (text, None), help=help_, **append)
    help_ = "policy file of the --policy before it (default: the one next to its model)"
    parser.add_argument("--policy-file", metavar="FILE", type=lambda text: (None, text), help=help_, **append)
    _add_trust_policy(parser)


def named_policies(args: argparse.Namespace) -> list[tuple[str, str | None]]:
    """Return address and policy file of each policy of `add_policies`."""
    named: list[tuple[str, str | None]] = []
    for address, file in args.policies or [("scripted", None)]:
        if address is not None:
            named.append((address, None))
        elif named and named[-1][1] is None:
            named[-1] = named[-1][0], file
        else:
            raise UsageError(f"misplaced --policy-file: {file!r} (expected at most one after each --policy)")
    return named


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options --policy-file and --trust-policy."""
    help_ = "policy file that maps a model to the contract (default: the one next to its model)"
    parser.add_argument("--policy-file", metavar="FILE", help=help_)
    _add_trust_policy(parser)


def _add_trust_policy(parser: argparse.ArgumentParser) -> None:
    help_ = "load a policy format that executes code when it is read, such as pickle"
    parser.add_argument("--trust-policy", action="store_true", help=help_)


def add_chunks(parser: argparse.ArgumentParser) -> None:
    """Declare the option --chunks."""
    help_ = "hand-over from one action chunk to the next; wait computes it when the last one has ended"
    parser.add_argument("--chunks", choices=CHUNK_MODES, default="wait", help=help_)


def add_seed(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Declare the option --seed."""
    parser.add_argument("--seed", type=integer_from(0), metavar="N", default=0, help=meaning)


def add_json(parser: argparse.ArgumentParser) -> None:
    """Declare the option --json."""
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run_directory(path: str) -> str:
    """Return `path`, or raise ArgumentTypeError unless it is a directory."""
    if not path or not os.path.isdir(path):  # noqa: PTH112 - Path.is_dir raises for a name that is too long
        raise argparse.ArgumentTypeError(f"no such run directory: {path!r} (expected a folder such as runs/<id>)")
    return path


def integer_from(minimum: int) -> Callable[[str], int]:
    """Return the argument type of integers >= `minimum`."""

    def parse(text: str) -> int:
        if not text.lstrip("-").isdecimal() or int(text) < minimum:
            raise argparse.ArgumentTypeError(f"invalid value: {text!r} (expected an integer >= {minimum})")
        return int(text)

    return parse


def add_force(parser: argparse.ArgumentParser, what: str) -> None:
    """Declare the option --force of a verb that writes `what` (`check_new`)."""
    parser.add_argument("--force", action="store_true", help=f"overwrite {what}")


def check_new(*files: str | Path | None, force: bool) -> None:
    """Raise UsageError unless the files are distinct, regular, and new or `force` is set."""
    seen: set[str] = set()
    for file in (file for file in files if file is not None):
        if (name := os.path.realpath(file)) in seen:
            raise UsageError(f"{file} would be written twice (expected a different file for each output)")
        seen.add(name)
        if not os.path.lexists(file):
            continue
        if not os.path.isfile(file):  # noqa: PTH113 - Path.is_file raises for a name that is too long
            raise UsageError(f"{file} is not a regular file (expected a file)")
        if not force:
            raise UsageError(f"{file} exists (expected a new file); choose another one, or use --force")


def output_file(text: str) -> Path:
    """Return the path of a file to write, or raise ArgumentTypeError without its directory."""
    from embodied_env.contract.argument_checks import checked_path

    try:
        path = checked_path("path", text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"invalid path: {path} (expected a file in an existing directory)")
    return path


def stop_on_signals() -> threading.Event:
    """Return an event that SIGINT, SIGTERM and SIGHUP set instead of ending the process.

    A process that ignores SIGHUP still ignores it.
    """
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # as nohup does
            signal.signal(number, lambda *_: stop.set())
    return stop
