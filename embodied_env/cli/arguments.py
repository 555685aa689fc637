"""Arguments and checks that several verbs share."""

from __future__ import annotations

import argparse
import os
import signal
import threading
from pathlib import Path

from embodied_env.core.arguments import checked_path
from embodied_env.errors import UsageError


def add_contract(parser: argparse.ArgumentParser) -> None:
    """Declare the argument CONTRACT."""
    parser.add_argument("contract", metavar="CONTRACT", help="name or file of a contract")


def add_hosted_contract(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of a verb that hosts a contract, which a parent process may write to standard input."""
    parser.add_argument("contract", metavar="CONTRACT", help="contract name or file; -: one line of standard input")
    parser.add_argument("--namespace", help="absolute ROS 2 namespace (default: the root)")
    parser.add_argument("--source", default="standard input", help="origin of the contract -, for error messages")


def stop_on_signals() -> threading.Event:
    """Return an event that SIGINT and SIGTERM set instead of ending the process."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop


def add_run_directory(parser: argparse.ArgumentParser) -> None:
    """Declare the argument RUN."""
    parser.add_argument("run_directory", metavar="RUN", help="run directory, such as runs/<id>")


def add_json(parser: argparse.ArgumentParser) -> None:
    """Declare the option --json."""
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def check_run_directory(path: str) -> None:
    """Raise UsageError unless `path` is a directory."""
    if not path or not os.path.isdir(path):  # noqa: PTH112 - Path.is_dir raises for a name that is too long
        raise UsageError(f"no such run directory: {path}")


def check_seed(seed: int) -> None:
    """Raise UsageError for a negative seed."""
    if seed < 0:
        raise UsageError(f"--seed {seed} is not allowed; allowed: 0 or more")


def output_file(path: str) -> Path:
    """Return the file of --out; raises UsageError unless its folder exists."""
    out = checked_path("--out", path)
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise UsageError(f"--out {out} is not allowed; allowed: a file in a folder that exists")
    return out
