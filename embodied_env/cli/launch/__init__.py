"""``embodied-env launch``: the processes of one use, all of which end with the first that does."""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

from embodied_env.core.terminal import say

if TYPE_CHECKING:
    from embodied_env.cli.launch.targets import LaunchTarget
    from embodied_env.core.process.child import ProcessSpec

HELP = "start the processes of one use: a simulator, Gazebo or a robot, and what runs on it"

_GLANCE_S = 0.05


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    from embodied_env.cli.launch.targets import TARGETS

    parser.add_argument("use", choices=TARGETS, metavar="USE", help=f"what for: {', '.join(TARGETS)}")
    parser.add_argument("said", nargs="*", metavar="NAME:=VALUE", help="its arguments, as of ros2 launch")
    parser.add_argument("-s", "--show-args", action="store_true", help="show the arguments of the use, and end")


def run(args: argparse.Namespace) -> int:
    """Start the processes; return the exit status of the work, or what ended it.

    Raises:
        UsageError: for an argument that the use does not have, or a value that is not allowed.
        ContractError: for a contract that there is not, or a wrong one.
        MissingDependencyError: for a program of others that is not installed.
    """
    from embodied_env.cli.launch.targets import TARGETS

    use = TARGETS[args.use]
    if args.show_args:
        _show(use)
        return 0
    said = _said(args.said)
    specs = use.processes(said)
    python = said.get("python", sys.executable)
    with _Running() as running:
        for spec in specs:
            running.start(spec, python, is_alone=len(specs) == 1)
        return running.wait()


def _said(words: Sequence[str]) -> dict[str, str]:
    """Read ``name:=value`` words; raises UsageError for anything else."""
    from embodied_env.errors import UsageError

    said = {}
    for word in words:
        name, sign, value = word.partition(":=")
        if not sign or not name:
            raise UsageError(f"{word!r} is not allowed; allowed: name:=value")
        said[name] = value
    return said


def _show(use: LaunchTarget) -> None:
    say(f"{use.name}: {use.help}\n\nArguments (pass them as name:=value):")
    for argument in use.arguments:
        allowed = f" ({', '.join(argument.allowed)})" if argument.allowed else ""
        say(f"\n  {argument.name}:\n      {argument.description}{allowed}\n      default: {argument.default!r}")


class _Running:
    """The processes that were started, each under a keeper, so that they end even if this process is killed."""

    def __init__(self) -> None:
        self._processes: list[tuple[ProcessSpec, subprocess.Popen[bytes]]] = []
        self._readers: list[threading.Thread] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def start(self, spec: ProcessSpec, python: str, *, is_alone: bool) -> None:
        """Start one. The work has the terminal, so that it can show and ask; the others' lines begin with their role.

        Raises:
            UsageError: when the interpreter cannot be started.
        """
        from embodied_env.errors import UsageError

        shares = spec.is_work or is_alone
        pipes: dict[str, Any] = {} if shares else {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        try:
            process = subprocess.Popen(  # noqa: S603 - of the table, no shell
                spec.supervised_command(python),
                stdin=None if shares else subprocess.DEVNULL,
                cwd=spec.folder or None,
                start_new_session=True,  # Ctrl-C is ours to hand on
                **pipes,
            )
        except OSError as error:
            raise UsageError(f"python:={python} cannot be started: {error}") from None
        self._processes.append((spec, process))
        if not shares:
            self._readers.append(threading.Thread(target=_hand_on, args=(spec.role, process), daemon=True))
            self._readers[-1].start()

    def wait(self) -> int:
        """Wait for the first to end, and return the exit status: the work's, or 1 when another one left it alone."""
        has_work = any(spec.is_work for spec, _ in self._processes)
        while True:
            for spec, process in self._processes:
                status = process.poll()
                if status is None or (spec.may_end and status == 0):
                    continue
                if spec.is_work or not has_work:
                    return status
                say(f"{spec.role} has ended with exit status {status}", file=sys.stderr)
                return 1
            time.sleep(_GLANCE_S)

    def _stop(self) -> None:
        """End them all, the work first: what it works on must be there while it brakes."""
        for is_work in (True, False):
            running = [(s, p) for s, p in self._processes if s.is_work is is_work and p.poll() is None]
            for _, process in running:
                process.terminate()
            for spec, process in running:
                _await(process, spec.longest_end_s)
        for reader in self._readers:
            reader.join(_GLANCE_S)


def _await(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """Wait for a keeper that was asked to end; kill one that does not. A second Ctrl-C hurries nobody."""
    end_s = time.monotonic() + timeout_s + 1.0
    while process.poll() is None:
        with contextlib.suppress(KeyboardInterrupt, SystemExit, subprocess.TimeoutExpired):
            process.wait(max(0.0, end_s - time.monotonic()))
        if time.monotonic() >= end_s:
            process.kill()


def _hand_on(role: str, process: subprocess.Popen[bytes]) -> None:
    """Print what a process says, line by line."""
    for line in _lines(process):
        print(f"[{role}] {line}", flush=True)


def _lines(process: subprocess.Popen[bytes]) -> Iterator[str]:
    if process.stdout is not None:
        for line in process.stdout:
            yield line.decode(errors="replace").rstrip()
