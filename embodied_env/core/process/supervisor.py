"""``python keeper.py [--grace S] [--starter PID] -- PROGRAM ...``: no process of a program outlives the starter.

The program runs in a session of its own. It is asked to end by SIGINT when the keeper gets SIGINT or SIGTERM, or when
the keeper's parent or the starter has ended, however it ended: then all of its process group is asked, so that a
program that starts others (``gz sim``) ends whole. What has not ended after the grace gets SIGTERM, and after another
one SIGKILL. What is left of the group when the program has ended by itself goes the same way, from SIGTERM on. Only a
process that leaves the group is not reached. Should the keeper itself be killed, the system sends its program SIGTERM.

The exit status is the program's; 128 + n where signal n has ended it, 127 where it cannot be started, or is not since
its starter has ended before.

It is run as a file, by any interpreter on Linux, and imports nothing of ours: it must start at once.
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

_ASKING = {signal.SIGINT, signal.SIGTERM}
_WATCHED = {*_ASKING, signal.SIGCHLD}
_GLANCE_S = 0.25  # between two looks at who our parent is
_GROUP_GLANCE_S = 0.02
_CANNOT_START = 127
_PR_SET_PDEATHSIG = 1


def main(argv: Sequence[str]) -> int:
    """Keep what `argv` names, and return its exit status."""
    parser = argparse.ArgumentParser(prog="keeper")
    parser.add_argument("--grace", type=float, default=5.0, help="seconds between asking, insisting and killing")
    parser.add_argument("--starter", type=int, help="PID of the process that started this one (default: the parent)")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    arguments = parser.parse_args(argv)
    program = arguments.program[1:] if arguments.program[:1] == ["--"] else arguments.program
    if not program:
        parser.error("no program is named")
    parent = os.getppid()
    has_ended = _watch(parent if arguments.starter is None else arguments.starter, parent)
    if has_ended():
        sys.stderr.write(f"{program[0]} is not started: its starter has ended: PID {arguments.starter}\n")
        return _CANNOT_START
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)  # they are waited for, one by one
    libc = ctypes.CDLL(None)

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background process ignores it
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)

    try:
        process = subprocess.Popen(  # noqa: S603 - what we were asked to start, no shell
            program,
            start_new_session=True,
            preexec_fn=prepare,  # noqa: PLW1509 - we have no threads
        )
    except OSError as error:
        sys.stderr.write(f"{program[0]} cannot be started: {error}\n")
        return _CANNOT_START
    _supervise(process, has_ended, arguments.grace)
    _terminate_group(process.pid, arguments.grace)
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _watch(starter: int, parent: int) -> Callable[[], bool]:
    """Return what tells whether the starter or the parent has ended; they differ under a launch prefix such as gdb."""
    handle = -1
    if starter != parent:  # a parent that has ended is not the parent any more: that is enough to see
        try:
            handle = os.pidfd_open(starter)
        except ProcessLookupError:
            return lambda: True

    def has_ended() -> bool:
        return os.getppid() != parent or (handle >= 0 and bool(select.select([handle], [], [], 0)[0]))

    return has_ended


def _supervise(process: subprocess.Popen[bytes], has_ended: Callable[[], bool], grace_s: float) -> None:
    """Wait until `process` has ended, by itself or asked."""
    insist = [signal.SIGINT, signal.SIGTERM, signal.SIGKILL]
    next_s: float | None = None  # when to insist; None: nobody has asked
    while process.poll() is None:
        got = signal.sigtimedwait(_WATCHED, _GLANCE_S)
        is_asked = (got is not None and got.si_signo in _ASKING) or has_ended()
        if is_asked and next_s is None:
            next_s = time.monotonic()
        if next_s is not None and time.monotonic() >= next_s and insist:
            _signal_group(process.pid, insist.pop(0))
            next_s += grace_s


def _terminate_group(group: int, grace_s: float) -> None:
    """End what is left of the group."""
    for insist in (signal.SIGTERM, signal.SIGKILL):
        if not _signal_group(group, insist):
            return
        end_s = time.monotonic() + grace_s
        while time.monotonic() < end_s and _signal_group(group, 0):
            signal.sigtimedwait(_WATCHED, _GROUP_GLANCE_S)


def _signal_group(group: int, number: int) -> bool:
    """Send a signal to a process group; say whether there is one."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
        return True
    return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
