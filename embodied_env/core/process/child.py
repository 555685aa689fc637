"""Our processes (`cli.launch.targets` is the table of who needs which), and a child that never outlives its parent.

A child reads its standard input to the end: a pipe whose other end only the parent holds. When the parent ends, however
it ends, the pipe ends, and the child stops. (A parent-death signal would fire when the *thread* that started it ends.)
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, ClassVar

from embodied_env.core.process.shared_memory import remove_orphaned_segments, segments_of
from embodied_env.errors import BackendNotReadyError

STOP_GRACE_S = 5.0
CLI = "embodied_env.cli"
_MOMENT_S = 0.5


@dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """One process: its role, what it runs, with which arguments, and how long it may take to end, s.

    It runs a Python module, or, where `module` is empty, the first of its arguments, a program of others.
    `is_work`: what the others are there for; its exit status is that of the whole. `may_end`: the others go on when it
    has ended soundly. `folder`: where it runs; empty: here.
    """

    role: str
    module: str
    arguments: tuple[str, ...]
    grace_s: float = STOP_GRACE_S  # a relay brakes first: `embodied_env.safety.relay.relay.stopping_time_s`
    is_work: bool = False
    may_end: bool = False
    folder: str = ""

    def command(self, python: str = sys.executable) -> list[str]:
        """Return the command line; `python` is the interpreter that has this package."""
        return [python, "-m", self.module, *self.arguments] if self.module else list(self.arguments)

    def supervised_command(self, python: str = sys.executable) -> list[str]:
        """Return the command line under a keeper (`core.process.supervisor`): it does not outlive this process."""
        keeper = [python, str(Path(__file__).with_name("supervisor.py")), "--starter", str(os.getpid())]
        return [*keeper, "--grace", str(self.grace_s), "--", *self.command(python)]

    @property
    def longest_end_s(self) -> float:
        """How long it takes to end at most, once a keeper is asked: it asks, insists, and kills."""
        return 3 * self.grace_s


def simulator(
    contract: str,
    *,
    namespace: str | None = None,
    profile: str | None = None,
    source: str | None = None,
    free_running: bool = False,
    stand_in: str | None = None,
    delays: str | None = None,
) -> ProcessSpec:
    """Return the embedded simulator of a contract: a name, a path, or ``-`` for a line on standard input.

    `source` says where a contract on standard input was read from. `free_running`: it does not wait for anybody;
    `stand_in`: JSON, put over ``stand_in`` of its profile. `delays`: a file of latencies that are put into it.
    """
    arguments = ["sim", contract]
    if namespace is not None:
        arguments += ["--namespace", namespace]
    if profile is not None:
        arguments += ["--profile", profile]
    if source:
        arguments += ["--source", source]
    if free_running:
        arguments += ["--free-running"]
    if stand_in is not None:
        arguments += ["--stand-in", stand_in]
    if delays is not None:
        arguments += ["--delay-profile", delays]
    return ProcessSpec(role="simulator", module=CLI, arguments=tuple(arguments))


def relay(
    contract: str,
    *,
    namespace: str | None = None,
    backend: str | None = None,
    source: str | None = None,
    grace_s: float = STOP_GRACE_S,
) -> ProcessSpec:
    """Return the relay of a contract, given as for `simulator`; `backend` says whose profile has the e-stop inputs."""
    arguments = ["relay", contract]
    if namespace is not None:
        arguments += ["--namespace", namespace]
    if backend is not None:
        arguments += ["--backend", backend]
    if source:
        arguments += ["--source", source]
    return ProcessSpec(role="relay", module=CLI, arguments=tuple(arguments), grace_s=grace_s)


class Child:
    """A running child process. Its output goes to an unnamed file whose end is quoted when it dies."""

    _living: ClassVar[weakref.WeakSet[Child]] = weakref.WeakSet()  # a fork must close their pipes

    def __init__(
        self, spec: ProcessSpec, *, first_line: str = "", environment: Mapping[str, str] | None = None
    ) -> None:
        """Start `spec` with this interpreter; write `first_line` to its standard input, which then stays open.

        Args:
            spec: what to run.
            first_line: handed to the child before it watches for the end of its input.
            environment: variables to set beside those of this process.

        Raises:
            BackendNotReadyError: when it cannot be started.
        """
        self.role = spec.role
        self._grace_s = spec.grace_s
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the child
        try:
            self._process = subprocess.Popen(  # noqa: S603 - no shell
                spec.command(),
                stdin=subprocess.PIPE,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                start_new_session=True,  # Ctrl-C is the parent's to handle
            )
        except OSError as error:
            self._output.close()
            raise BackendNotReadyError(f"the {spec.role} process cannot be started: {error}") from None
        Child._living.add(self)
        if self._process.stdin is not None:  # a child that nobody holds any more ends by itself
            weakref.finalize(self, self._process.stdin.close).atexit = False
        self._segments: frozenset[str] = frozenset()
        if first_line:
            self._say(first_line)

    @classmethod
    def let_go_of_all(cls) -> None:
        """In a process that was forked from the parent: the children are not its own."""
        for child in cls._living:
            child.let_go()
        cls._living.clear()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def stderr_tail(self, limit: int = 2000) -> str:
        """Return the end of what it printed."""
        size = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, size - limit))
        return self._output.read().decode(errors="replace").strip()

    def note_shared_memory(self) -> None:
        """Remember which segments it uses, now that it runs: should it be killed, they are removed in its stead."""
        self._segments |= segments_of(self.pid)

    def kill(self, grace_s: float = _MOMENT_S) -> None:
        """End it after `grace_s`, in which one that is well ends by itself and cleans up. `stop` must still follow."""
        self.let_go()
        self.wait(grace_s)
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_GRACE_S)

    def wait(self, timeout_s: float) -> None:
        """Wait until it has ended by itself, for no longer than `timeout_s`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)

    def stop(self) -> None:
        """End it: close its input, then ask, then kill. Idempotent."""
        if self not in Child._living:
            return
        Child._living.discard(self)
        self.let_go()
        for insist in (None, signal.SIGTERM, signal.SIGKILL):
            if insist is not None:
                self._process.send_signal(insist)
            try:
                self._process.wait(self._grace_s)
                break
            except subprocess.TimeoutExpired:
                continue
        self._output.close()
        remove_orphaned_segments(self._segments if self._process.returncode != 0 else ())

    def _say(self, line: str) -> None:
        pipe = self._process.stdin
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):  # it has died: its exit code and last words will say why
                pipe.write(line.encode() + b"\n")
                pipe.flush()

    def let_go(self) -> None:
        """Close our end of its input: it stops when nobody holds one."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()


os.register_at_fork(after_in_child=Child.let_go_of_all)


def first_line() -> str:
    """In a child: read one line of standard input, byte by byte: what follows belongs to `watch_parent`."""
    line = bytearray()
    while (byte := os.read(0, 1)) not in (b"", b"\n"):
        line += byte
    return line.decode()


def watch_parent(on_end: Callable[[], None], *, grace_s: float = STOP_GRACE_S) -> None:
    """In a child: call `on_end` when the parent has ended, and make sure that this process ends `grace_s` after.

    Standard input is read to its end by a daemon thread.
    """

    def watch() -> None:
        while os.read(0, 4096):
            pass
        on_end()
        threading.Event().wait(grace_s)
        os._exit(1)  # it did not stop by itself

    threading.Thread(target=watch, name="embodied_env parent watch", daemon=True).start()
