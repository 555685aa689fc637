"""A file whose writes wait in memory until they are handed to the operating system in one go."""

from __future__ import annotations

from io import FileIO

_MOST_HELD = 2**18  # bytes that wait for `flush`; more are handed over at once
_LARGE = 2**17  # bytes that are not copied once more to go with others


class HeldBack:
    """What `mcap` writes to. After a failed write the rest of what waited is dropped: the file has a prefix of it all.

    Attributes:
        flushed: how many bytes are with the operating system.
    """

    def __init__(self, file: FileIO) -> None:
        """Write to `file`, which is empty, appends and has no buffer of its own; it is closed with this one."""
        self._file = file
        self._waiting: list[bytes] = []
        self._end = 0
        self.flushed = 0

    @property
    def closed(self) -> bool:
        """Nothing can be written any more."""
        return self._file.closed

    def write(self, data: bytes) -> int:
        """Let `data` wait; raises OSError when too much waits and cannot be written."""
        if len(data) >= _LARGE:
            self.flush()
        self._waiting.append(data)
        self._end += len(data)
        if len(data) >= _LARGE or self._end - self.flushed > _MOST_HELD:
            self.flush()
        return len(data)

    def tell(self) -> int:
        """Return the offset behind the last byte, flushed or not."""
        return self._end

    def flush(self) -> None:
        """Hand over what waits; raises OSError when it cannot be written whole."""
        rest = memoryview(b"".join(self._waiting))
        self._waiting.clear()
        while rest:
            count = self._file.write(rest)
            self.flushed += count
            rest = rest[count:]

    def fileno(self) -> int:
        """Return the file descriptor."""
        return self._file.fileno()

    def close(self) -> None:
        """Close the file; what was not flushed is dropped."""
        self._file.close()
