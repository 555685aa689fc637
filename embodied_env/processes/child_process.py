"""Specifications of our processes, and a child process that never outlives its parent.

A child reads its standard input, a pipe that only the parent holds open: when the parent ends in any way, the pipe ends
and the child stops. (A parent-death signal would fire when the *thread* that started the child ends.)

Killed children leave shared memory behind, which is removed here on Linux. Fast DDS keeps each segment as a file
``fastrtps_*``, a file ``fastrtps_*_el`` locked by its owner, and a semaphore ``sem.fastrtps_*_mutex``. A killed process
removes neither its own segments nor those that it read, since it still counts as their reader. (``fastdds shm clean``
removes some of them.) The next participant reuses the name of a port, ``fastrtps_port*``; a process that has the old
one open removes it by that name when it closes it. So a port is removed only when no living process has it open.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, ClassVar

from embodied_env.errors import BackendNotReadyError
from embodied_env.processes import supervisor

_log = logging.getLogger(__name__)
STOP_GRACE_S = 5.0
CLI = "embodied_env.cli"
RELAY = "relay"
_KILL_GRACE_S = 0.5


@dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """One process of a launch (`cli.launch.targets`)."""

    role: str
    module: str = ""  # Python module to run; empty: the program `arguments[0]`
    arguments: tuple[str, ...]
    namespace: str = ""  # ROS namespace of a module, below that of its surroundings unless it is absolute
    ros_arguments: tuple[str, ...] = ()  # of a module
    grace_s: float = STOP_GRACE_S  # time to end; of a relay plus its braking time
    is_work: bool = False  # its exit status is that of the launch
    may_end: bool = False  # other processes continue when it exits with 0
    folder: str = ""  # working directory; empty: the current one

    def command(self, python: str = sys.executable) -> list[str]:
        """Return the command line for `python`, an interpreter in which this package is installed."""
        if not self.module:
            return list(self.arguments)
        remap = ("-r", f"__ns:=/{self.namespace.strip('/')}") if self.namespace else ()
        ros = ("--ros-args", *self.ros_arguments, *remap) if self.ros_arguments or remap else ()
        return [python, "-m", self.module, *self.arguments, *ros]

    def supervised_command(self, python: str = sys.executable) -> list[str]:
        """Return the command line under a supervisor, which ends the process with this one."""
        order = 0 if self.is_work else 1 if self.role == RELAY else 2
        options = ["--starter", str(os.getpid()), "--order", str(order), "--grace", str(self.grace_s)]
        return [python, supervisor.__file__, *options, "--", *self.command(python)]

    @property
    def longest_end_s(self) -> float:
        """Longest time to end, s, with the wait for others, SIGINT, SIGTERM and SIGKILL."""
        return 3 * self.grace_s + (0.0 if self.is_work else supervisor.LONGEST_WAIT_S)


def simulator(
    contract: str,
    *,
    namespace: str | None = None,
    profile: str | None = None,
    source: str | None = None,
    free_running: bool = False,
    emulator_settings: str | None = None,
    delays: str | None = None,
) -> ProcessSpec:
    """Return the specification of the embedded simulator of a contract.

    `contract` is a name, a path, or ``-`` for a line on standard input, which was read from `source`.
    `emulator_settings` is JSON merged over ``emulator`` of the profile, `delays` the file of the delays to inject.
    """
    options = {"namespace": namespace, "profile": profile, "source": source or None}
    options |= {"emulator-settings": emulator_settings, "delay-profile": delays}
    pacing = ("--free-running",) if free_running else ()
    return ProcessSpec(role="simulator", module=CLI, arguments=("sim", contract, *pacing, *_as_arguments(options)))


def relay(
    contract: str,
    *,
    namespace: str | None = None,
    backend: str | None = None,
    source: str | None = None,
    confirm_chosen: bool = False,
    ignore_inputs: Sequence[str] = (),
    grace_s: float = STOP_GRACE_S,
) -> ProcessSpec:
    """Return the specification of the relay of a contract, which is given as for `simulator`.

    The e-stop inputs are those of the profile of `backend`.
    """
    options = _as_arguments({"namespace": namespace, "backend": backend, "source": source or None})
    flags = [*["--confirm-chosen"] * confirm_chosen, *(f"--ignore-input={name}" for name in ignore_inputs)]
    return ProcessSpec(role=RELAY, module=CLI, arguments=("relay", contract, *flags, *options), grace_s=grace_s)


def _as_arguments(options: Mapping[str, str | None]) -> Iterator[str]:
    """Yield ``--name value`` for each option that is given."""
    for name, value in options.items():
        if value is not None:
            yield from (f"--{name}", value)


class Child:
    """Running child process, whose output is quoted in errors when it dies."""

    _living: ClassVar[weakref.WeakSet[Child]] = weakref.WeakSet()  # forked processes close their pipes

    def __init__(
        self, spec: ProcessSpec, *, first_line: str = "", environment: Mapping[str, str] | None = None
    ) -> None:
        """Start `spec` with this interpreter, or raise BackendNotReadyError.

        `environment` is added to that of this process. The `first_line` is written to the standard input of the child,
        which then stays open.
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
            raise BackendNotReadyError(f"cannot start the {spec.role} process: {error}") from None
        _log.debug("started the %s process %d: %s", spec.role, self._process.pid, shlex.join(spec.command()))
        Child._living.add(self)
        self._segments: frozenset[str] = frozenset()
        if (pipe := self._process.stdin) is not None:
            weakref.finalize(self, pipe.close).atexit = False  # a child without references ends by itself
            if first_line:
                with contextlib.suppress(BrokenPipeError):  # it has died, and its exit code and output give the reason
                    pipe.write(first_line.encode() + b"\n")
                    pipe.flush()

    @classmethod
    def close_all_inputs(cls) -> None:
        """Close the pipes in a process forked from the parent, to which the children do not belong."""
        for child in cls._living:
            child.close_input()
        cls._living.clear()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code, or None while the process runs."""
        return self._process.poll()

    def stderr_tail(self, limit: int = 2000) -> str:
        """Return the end of its output."""
        size = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, size - limit))
        return self._output.read().decode(errors="replace").strip()

    def note_shared_memory(self) -> None:
        """Record the shared memory that it has mapped, to remove it if the child is killed."""
        self._segments |= segments_of(self.pid)

    def kill(self, grace_s: float = _KILL_GRACE_S) -> None:
        """Kill it before a call of `stop`, after `grace_s` in which a healthy child ends by itself."""
        self.close_input()
        self.wait(grace_s)
        self._process.kill()
        self.wait(STOP_GRACE_S)

    def wait(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` for it to end by itself."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)

    def stop(self, *, by_input: bool = True) -> None:
        """Stop the child with SIGTERM, then SIGKILL, after closing its standard input.

        `by_input` means that the child ends when its input does. Further calls have no effect.
        """
        if self not in Child._living:
            return
        Child._living.discard(self)
        self.close_input()
        self.wait(self._grace_s if by_input else 0.0)
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is None:
                self._process.send_signal(number)
                self.wait(self._grace_s)
        self._output.close()
        remove_orphaned_segments(self._segments if self._process.returncode != 0 else ())

    def close_input(self) -> None:
        """Close our end of its input, which makes it stop."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()


os.register_at_fork(after_in_child=Child.close_all_inputs)


_FOLDER = Path("/dev/shm")  # noqa: S108 - POSIX shared memory, not a temporary file
_PREFIX = f"{_FOLDER}/fastrtps_"
_PORT = "fastrtps_port"
_LOCK = "_el"

_still_open: set[str] = set()  # ports to remove once they are closed


def segments_of(pid: int | str) -> frozenset[str]:
    """Return the Fast DDS segments that a process has mapped, none if it cannot be inspected."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    paths = (line.rpartition(" ")[2] for line in maps.splitlines() if _PREFIX in line)
    return frozenset(Path(path).name for path in paths if path.startswith(_PREFIX))


def remove_orphaned_segments(names: Iterable[str]) -> list[str]:
    """Remove the segments in `names` that no living process uses, and return their names."""
    wanted = {*names, *_still_open}
    ports = {name for name in wanted if name.startswith(_PORT)}
    processes = Path("/proc").glob("[0-9]*") if ports else ()
    left = ports.intersection(name for process in processes for name in segments_of(process.name))
    _still_open.difference_update(ports)
    _still_open.update(left)
    return [name for name in sorted(wanted - left) if _remove_if_abandoned(name)]


def _remove_if_abandoned(name: str) -> bool:
    """Remove a segment unless a process holds its lock, and return whether it was removed."""
    try:
        lock = os.open(_FOLDER / f"{name}{_LOCK}", os.O_RDWR)
    except FileNotFoundError:
        lock = None  # no owner, only readers
    except OSError:
        return False  # no permission
    try:
        if lock is not None:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for file in (name, f"sem.{name}_mutex", f"{name}{_LOCK}"):
            with contextlib.suppress(OSError):  # already removed, or no permission
                (_FOLDER / file).unlink()
    except BlockingIOError:
        return False
    finally:
        if lock is not None:
            os.close(lock)
    return True


def read_first_line() -> str:
    """Read one line of standard input unbuffered, since `watch_parent` reads the rest."""
    line = bytearray()
    while (byte := os.read(0, 1)) not in (b"", b"\n"):
        line += byte
    return line.decode()


def watch_parent(on_end: Callable[[], None], *, grace_s: float = STOP_GRACE_S) -> None:
    """Call `on_end` when standard input ends with the parent, and exit within `grace_s`."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        on_end()
        threading.Event().wait(grace_s)
        os._exit(1)

    threading.Thread(target=watch, name="embodied_env parent watch", daemon=True).start()
