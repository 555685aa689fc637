"""Supervise a program and end it with the process that started it.

The command line is ``python supervisor.py [--grace S] [--order N] [--starter PID] -- PROGRAM ...``.

The program runs in a session of its own. When the supervisor gets SIGINT, SIGTERM, SIGHUP or SIGQUIT, or its parent or
the starter ends in any way, the whole session gets SIGINT, after the grace period SIGTERM, then SIGKILL: ``gz sim``
with a window starts its server and the window in their own process groups. If the program has ended by itself, the rest
of its session gets SIGTERM, then SIGKILL. A process that leaves the session is not reached. If the supervisor itself is
killed, the system sends the program SIGTERM.

The signals wait, for `LONGEST_WAIT_S` at most, until every program of a lower order with the same starter has ended.
Ctrl-C under ``ros2 launch`` and the death of the starter reach all supervisors at once, but a robot brakes only while
its relay, and its driver or simulator, still run. After `STOP_AT_ONCE` they do not wait.

The exit status is the program's; 128 + n if signal n ended it; 0 if SIGINT ended it that the supervisor was asked for;
127 if it cannot be started or its starter has ended.

It runs as a file on Linux and imports nothing of this package, so that it starts at once.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

_END_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}  # of a terminal or a starter
STOP_AT_ONCE = signal.SIGUSR2
_WATCHED = {*_END_SIGNALS, STOP_AT_ONCE, signal.SIGCHLD}
_PARENT_POLL_S = 0.25
_SESSION_POLL_S = 0.02
_ORDER_VARIABLE = "EMBODIED_ENV_LAUNCH"  # of a program and its descendants: PID of the starter, colon, order
LONGEST_WAIT_S = 30.0
_CANNOT_START = 127
_INTERRUPTED = (-signal.SIGINT, 128 + signal.SIGINT)
_PR_SET_PDEATHSIG = 1


def main(argv: Sequence[str]) -> int:
    """Run and supervise the program of `argv`, and return its exit status."""
    parser = argparse.ArgumentParser(prog="supervisor")
    parser.add_argument(
        "--grace", type=float, default=5.0, help="seconds between SIGINT, SIGTERM and SIGKILL (default: 5)"
    )
    parser.add_argument(
        "--order", type=int, default=0, help="rank at the end: those of a lower order end first (default: 0)"
    )
    parser.add_argument(
        "--wait", type=float, default=LONGEST_WAIT_S, help="longest wait in seconds for a lower order (default: 30)"
    )
    parser.add_argument("--starter", type=int, help="PID of the process to outlive at most (default: the parent)")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    arguments = parser.parse_args(argv)
    program = arguments.program[1:] if arguments.program[:1] == ["--"] else arguments.program
    if not program:
        parser.error("no program given")
    parent = os.getppid()
    starter = parent if arguments.starter is None else arguments.starter
    has_ended = _watch(starter, parent)
    if has_ended():
        sys.stderr.write(f"{program[0]} not started: PID {arguments.starter}, which requested it, has ended\n")
        return _CANNOT_START
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)  # for sigtimedwait
    libc = ctypes.CDLL(None)

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored in background processes of a shell
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)

    try:
        process = subprocess.Popen(  # noqa: S603 - no shell
            program,
            start_new_session=True,
            preexec_fn=prepare,  # noqa: PLW1509 - no threads
            env={**os.environ, _ORDER_VARIABLE: f"{starter}:{arguments.order}"},
        )
    except OSError as error:
        sys.stderr.write(f"cannot start {program[0]}: {error}\n")
        return _CANNOT_START
    wait_s = arguments.wait if arguments.order else 0.0
    was_asked = _supervise(process, has_ended, lambda: _is_needed(starter, arguments.order), wait_s, arguments.grace)
    _terminate_session(process.pid, arguments.grace)
    if was_asked and process.returncode in _INTERRUPTED:
        return 0
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _watch(starter: int, parent: int) -> Callable[[], bool]:
    """Return a check whether the starter or the parent, such as gdb, has ended."""
    handle = -1
    if starter != parent:  # the end of a parent shows in getppid
        try:
            handle = os.pidfd_open(starter)
        except ProcessLookupError:
            return lambda: True

    def has_ended() -> bool:
        return os.getppid() != parent or (handle >= 0 and bool(select.select([handle], [], [], 0)[0]))

    return has_ended


def _supervise(
    process: subprocess.Popen[bytes],
    has_ended: Callable[[], bool],
    is_needed: Callable[[], bool],
    wait_s: float,
    grace_s: float,
) -> bool:
    """Wait until `process` ends, with signals delayed by up to `wait_s` while `is_needed`.

    Return whether it was asked to end.
    """
    signals = [signal.SIGINT, signal.SIGTERM, signal.SIGKILL]
    wait_until_s: float | None = None  # end of the wait for others; None: it may run
    next_s: float | None = None  # time of the next signal
    while process.poll() is None:
        received = signal.sigtimedwait(_WATCHED, _PARENT_POLL_S)
        number = 0 if received is None else received.si_signo
        if number == STOP_AT_ONCE:
            wait_s = 0.0
        must_end = number == STOP_AT_ONCE or number in _END_SIGNALS or has_ended()
        if must_end and (wait_until_s is None or not wait_s):
            wait_until_s = time.monotonic() + wait_s
        if wait_until_s is not None and next_s is None and (time.monotonic() >= wait_until_s or not is_needed()):
            next_s = time.monotonic()
        if next_s is not None and time.monotonic() >= next_s and signals:
            _signal_session(process.pid, signals.pop(0))
            next_s += grace_s
    return wait_until_s is not None


def _is_needed(starter: int, order: int) -> bool:
    """Return whether a program of a lower order with this starter still runs."""
    prefix = f"{_ORDER_VARIABLE}={starter}:".encode()
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # it has ended, or is not ours
            for setting in (process / "environ").read_bytes().split(b"\0") if process.name.isdigit() else ():
                if setting.startswith(prefix) and int(setting.removeprefix(prefix)) < order:
                    return True
    return False


def _terminate_session(session: int, grace_s: float) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if not _signal_session(session, number):
            return
        end_s = time.monotonic() + grace_s
        while time.monotonic() < end_s and _groups_of(session):
            signal.sigtimedwait(_WATCHED, _SESSION_POLL_S)


def _signal_session(session: int, number: int) -> bool:
    """Send a signal to every process group of a session, and return whether there is one."""
    groups = _groups_of(session)
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)
    return bool(groups)


def _groups_of(session: int) -> set[int]:
    """Return the process groups of a session with a process that has not ended."""
    groups = set()
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # it has ended
            stat = (process / "stat").read_text(encoding="ascii", errors="replace")
            state, _, group, member_of = stat.rpartition(")")[2].split()[:4]
            if int(member_of) == session and state not in "ZX":
                groups.add(int(group))
    return groups


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
