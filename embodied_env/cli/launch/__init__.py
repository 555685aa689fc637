"""``embodied-env launch`` starts processes, which all end when the first one does."""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import threading
import time
from typing import IO, TYPE_CHECKING, Any, Self

from embodied_env.core.terminal import say
from embodied_env.errors import UsageError

if TYPE_CHECKING:
    from embodied_env.processes.child_process import ProcessSpec

_POLL_INTERVAL_S = 0.05


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    from embodied_env.cli.launch.targets import TARGETS

    option = parser.add_argument
    option("target", choices=TARGETS, metavar="TARGET", help=f"launch target, one of: {', '.join(TARGETS)}")
    option("arguments", nargs="*", metavar="NAME:=VALUE", help="arguments of the target, as for ros2 launch")
    option("-s", "--show-args", action="store_true", help="list the arguments of the target with defaults and exit")


def run(args: argparse.Namespace) -> int:
    """Start the processes, and return the exit status of the one that ended the work."""
    from embodied_env.cli.launch.targets import TARGETS

    target = TARGETS[args.target]
    if args.show_args:
        say(f"{target.name}: {target.help}\n\nArguments (pass them as name:=value):")
        for argument in target.arguments:
            allowed = f" ({', '.join(argument.allowed)})" if argument.allowed else ""
            say(f"\n  {argument.name}:\n      {argument.description}{allowed}\n      default: {argument.default!r}")
        return 0
    given = {}
    for word in args.arguments:
        name, sign, value = word.partition(":=")
        if not sign or not name:
            raise UsageError(f"invalid argument: {word!r} (expected name:=value)")
        given[name] = value
    specs = target.processes(given, is_top_level=True)
    python = given.get("python", sys.executable)
    with _ProcessGroup() as processes:
        for spec in specs:
            processes.start(spec, python, is_alone=len(specs) == 1)
        return processes.wait()


class _ProcessGroup:
    """The started processes, which supervisors end even if this process is killed."""

    def __init__(self) -> None:
        self._processes: list[tuple[ProcessSpec, subprocess.Popen[bytes]]] = []
        self._readers: list[threading.Thread] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop all processes after their supervisors have ended the work."""
        running = [(spec, process) for spec, process in self._processes if process.poll() is None]
        for _spec, process in running:
            process.terminate()
        for spec, process in running:
            _wait_or_kill(process, spec.longest_end_s)
        for reader in self._readers:
            reader.join(_POLL_INTERVAL_S)

    def start(self, spec: ProcessSpec, python: str, *, is_alone: bool) -> None:
        """Start a process, with its role as a prefix of its lines unless it owns the terminal."""
        has_terminal = spec.is_work or is_alone
        pipes: dict[str, Any] = {} if has_terminal else {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        try:
            process = subprocess.Popen(  # noqa: S603 - commands of the table, no shell
                spec.supervised_command(python),
                stdin=None if has_terminal else subprocess.DEVNULL,
                cwd=spec.folder or None,
                start_new_session=True,  # Ctrl-C reaches only this process, which stops them in order
                **pipes,
            )
        except OSError as error:
            raise UsageError(f"cannot start python:={python}: {error}") from None
        self._processes.append((spec, process))
        if process.stdout is not None:
            reader = threading.Thread(target=_print_lines, args=(spec.role, process.stdout), daemon=True)
            self._readers.append(reader)
            reader.start()

    def wait(self) -> int:
        """Return the exit status of the work, or 1 if another process ended first."""
        has_work = any(spec.is_work for spec, _ in self._processes)
        while True:
            for spec, process in self._processes:
                status = process.poll()
                if status is None or (spec.may_end and status == 0):
                    continue
                if spec.is_work or not has_work:
                    return status
                say(f"{spec.role} exited with status {status}", file=sys.stderr)
                return 1
            time.sleep(_POLL_INTERVAL_S)


def _wait_or_kill(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """Wait for a supervisor, even after a second Ctrl-C, and kill it after `timeout_s`."""
    end_s = time.monotonic() + timeout_s + 1.0
    while process.poll() is None:
        with contextlib.suppress(KeyboardInterrupt, SystemExit, subprocess.TimeoutExpired):
            process.wait(max(0.0, end_s - time.monotonic()))
        if time.monotonic() >= end_s:
            process.kill()


def _print_lines(role: str, output: IO[bytes]) -> None:
    for line in output:
        print(f"[{role}] {line.decode(errors='replace').rstrip()}", flush=True)
