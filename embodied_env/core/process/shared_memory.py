"""What a killed process leaves in shared memory, and how it is removed. Linux; elsewhere there is nothing to do.

Fast DDS keeps each segment as a file ``fastrtps_*``, with a file ``fastrtps_*_el`` that its owner keeps locked, and a
semaphore ``sem.fastrtps_*_mutex``. A process that is killed cannot remove what it owned, and what it only read is not
removed by its owner either, since the dead still count as readers. (``fastdds shm clean`` removes some of it by hand.)

The name of a port, ``fastrtps_port*``, is taken again by the next participant; who still has the old one open, to write
to it, removes it by that name as he lets go of it. So a port is removed only when no living process has it open.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterable
from pathlib import Path

_FOLDER = Path("/dev/shm")  # noqa: S108 - not a temporary file of ours: where POSIX shared memory is
_PREFIX = f"{_FOLDER}/fastrtps_"
_PORT = "fastrtps_port"
_LOCK = "_el"

_still_open: set[str] = set()  # ports that were to be removed: tried again with the next


def segments_of(pid: int | str) -> frozenset[str]:
    """Return the names of the Fast DDS segments that a living process has mapped; empty when it cannot be looked at."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    paths = (line.rpartition(" ")[2] for line in maps.splitlines() if _PREFIX in line)
    return frozenset(Path(path).name for path in paths if path.startswith(_PREFIX))


def remove_orphaned_segments(names: Iterable[str]) -> list[str]:
    """Remove those of the segments called `names` that no living process owns, nor has open as a port; return them."""
    wanted = {*names, *_still_open}
    ports = {name for name in wanted if name.startswith(_PORT)}
    left = ports & _open_anywhere() if ports else set()
    _still_open.difference_update(ports)
    _still_open.update(left)
    return [name for name in sorted(wanted - left) if _remove_if_abandoned(name)]


def _open_anywhere() -> set[str]:
    """Return the segments that living processes have mapped, as far as they can be looked at."""
    return {name for process in Path("/proc").glob("[0-9]*") for name in segments_of(process.name)}


def is_in_use(name: str) -> bool:
    """Tell whether a living process holds the lock of the segment called `name`."""
    return not _with_lock(name, lambda: None)


def _remove_if_abandoned(name: str) -> bool:
    def remove() -> None:
        for file in (name, f"sem.{name}_mutex", f"{name}{_LOCK}"):
            with contextlib.suppress(OSError):  # gone already, or not ours to remove
                (_FOLDER / file).unlink()

    return _with_lock(name, remove)


def _with_lock(name: str, action: Callable[[], None]) -> bool:
    """Do `action` while holding the segment's lock; False, and nothing done, when somebody else holds it."""
    try:
        lock = os.open(_FOLDER / f"{name}{_LOCK}", os.O_RDWR)
    except FileNotFoundError:
        action()  # no owner: only its readers are left
        return True
    except OSError:
        return False  # not ours to judge
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        action()
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True
