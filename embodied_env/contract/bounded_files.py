"""Read files named by a user, contract or team if they are regular files of bounded size."""

from __future__ import annotations

import os
import stat
from pathlib import Path

MOST_BYTES = 4 * 2**20
"""Maximum size of a hand-written text: contract, team, URDF, task."""

MOST_DATA_BYTES = 256 * 2**20
"""Maximum size of a generated file: MuJoCo model, latency profile."""


def read_file(path: str | Path, *, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file, or of one behind a symbolic link.

    Devices and FIFOs are refused before they are opened. A growing file is read up to the limit. Raises OSError, also
    for an invalid path.
    """
    check_file(path, most_bytes=most_bytes)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    with os.fdopen(descriptor, "rb") as file:
        _check(os.fstat(descriptor), path, most_bytes)  # it may have been replaced in between
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(_too_large(path, most_bytes))
    return content


def read_text_file(path: str | Path, *, most_bytes: int = MOST_BYTES) -> str:
    """Return the content of a regular file, or raise OSError or UnicodeDecodeError."""
    return read_file(path, most_bytes=most_bytes).decode("utf-8")


def check_file(path: str | Path, *, most_bytes: int = MOST_BYTES) -> None:
    """Raise OSError unless `path` is a regular file of at most `most_bytes`, without opening it."""
    try:
        status = os.stat(path)  # noqa: PTH116 - `Path` would hide a NUL byte in some of its methods
    except ValueError as error:  # a NUL byte
        raise OSError(f"not a path: {str(path)!r} ({error})") from None
    _check(status, path, most_bytes)


def _check(status: os.stat_result, path: str | Path, most_bytes: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(f"not a regular file: {str(path)!r}")
    if status.st_size > most_bytes:
        raise OSError(_too_large(path, most_bytes))


def _too_large(path: str | Path, most_bytes: int) -> str:
    return f"file too large: {str(path)!r} (expected at most {most_bytes / 2**20:g} MiB)"
