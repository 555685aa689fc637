"""Remove the shared memory that killed processes leave behind, on Linux.

Fast DDS keeps each segment as a file ``fastrtps_*``, a file ``fastrtps_*_el`` locked by its owner, and a semaphore
``sem.fastrtps_*_mutex``. A killed process removes neither its own segments nor those that it read, since it
still counts as their reader. (``fastdds shm clean`` removes some of them.)

The next participant reuses the name of a port, ``fastrtps_port*``, and a process that has the old one open removes it
by that name when it closes it. So a port is removed only when no living process has it open.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable
from pathlib import Path

_FOLDER = Path("/dev/shm")  # noqa: S108 - POSIX shared memory, not a temporary file
_PREFIX = f"{_FOLDER}/fastrtps_"
_PORT = "fastrtps_port"
_LOCK = "_el"

_still_open: set[str] = set()  # ports to remove once they are closed


def segments_of(pid: int | str) -> frozenset[str]:
    """Return the names of the Fast DDS segments that a process has mapped; empty if it cannot be inspected."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    paths = (line.rpartition(" ")[2] for line in maps.splitlines() if _PREFIX in line)
    return frozenset(Path(path).name for path in paths if path.startswith(_PREFIX))


def remove_orphaned_segments(names: Iterable[str]) -> list[str]:
    """Remove the segments in `names` that no living process owns, nor has open as a port; return their names."""
    wanted = {*names, *_still_open}
    ports = {name for name in wanted if name.startswith(_PORT)}
    processes = Path("/proc").glob("[0-9]*") if ports else ()
    left = ports.intersection(name for process in processes for name in segments_of(process.name))
    _still_open.difference_update(ports)
    _still_open.update(left)
    return [name for name in sorted(wanted - left) if _remove_if_abandoned(name)]


def _remove_if_abandoned(name: str) -> bool:
    """Remove a segment unless a living process holds its lock; return whether it was removed."""
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
