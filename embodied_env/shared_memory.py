"""What a killed process leaves in shared memory, and how it is removed. Linux; elsewhere there is nothing to do.

Fast DDS keeps each segment as a file ``fastrtps_*``, with a lock ``fastrtps_*_el`` that its owner holds open, and a
semaphore ``sem.fastrtps_*_mutex``. A process that is killed cannot remove what it owned, and what it only read is not
removed by its owner either, since the dead still count as readers. (``fastdds shm clean`` removes some of it by hand.)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

_FOLDER = Path("/dev/shm")  # noqa: S108 - not a temporary file of ours: where POSIX shared memory is
_PREFIX = f"{_FOLDER}/fastrtps_"
_LOCK = "_el"


def segments_of(pid: int | str) -> frozenset[str]:
    """Return the names of the Fast DDS segments that a living process has mapped; empty when it cannot be looked at."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    paths = (line.rpartition(" ")[2] for line in maps.splitlines() if _PREFIX in line)
    return frozenset(Path(path).name for path in paths if path.startswith(_PREFIX))


def owned_by(pid: int | str) -> frozenset[str]:
    """Return the names of the segments whose lock a living process holds open."""
    owned = set()
    with contextlib.suppress(OSError):  # it has ended, or is somebody else's
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed in the meantime
                target = descriptor.readlink()
                if str(target).startswith(_PREFIX) and target.name.endswith(_LOCK):
                    owned.add(target.name.removesuffix(_LOCK))
    return frozenset(owned)


def remove_abandoned(names: Iterable[str]) -> list[str]:
    """Remove those of the segments called `names` that no living process owns; return them."""
    wanted = set(names)
    for process in Path("/proc").glob("[0-9]*") if wanted else ():
        wanted -= owned_by(process.name)
    for name in wanted:
        for file in (name, f"{name}{_LOCK}", f"sem.{name}_mutex"):
            with contextlib.suppress(OSError):  # gone already, or not ours to remove
                (_FOLDER / file).unlink()
    return sorted(wanted)
