"""Buffered writing of a log: what is buffered, and what remains when the disk is full."""

from __future__ import annotations

import pytest

from embodied_env.record.mcap_file import BufferedFile

LARGE = bytes(2**17)


class Disk:
    """A file that accepts `room` bytes, at most `at_once` in one write; it stores each write."""

    closed = False

    def __init__(self, room=2**30, at_once=2**30):
        self.room, self.at_once, self.writes = room, at_once, []

    def write(self, data):
        if not self.room:
            raise OSError("no room")
        taken = bytes(data[: min(self.room, self.at_once)])
        self.room -= len(taken)
        self.writes.append(taken)
        return len(taken)


def test_small_writes_are_combined():
    disk = Disk()
    file = BufferedFile(disk)
    for part in (b"a", b"bc", b""):
        file.write(part)
    assert (disk.writes, file.tell(), file.flushed) == ([], 3, 0)
    file.flush()
    assert (disk.writes, file.tell(), file.flushed) == ([b"abc"], 3, 3)


def test_flush_of_an_empty_buffer_writes_nothing():
    disk = Disk()
    BufferedFile(disk).flush()
    assert disk.writes == []


def test_large_write_is_written_immediately_after_the_buffer():
    disk = Disk()
    file = BufferedFile(disk)
    file.write(b"a")
    file.write(LARGE)
    assert disk.writes == [b"a", LARGE]


def test_buffer_size_is_bounded():
    disk = Disk()
    file = BufferedFile(disk)
    for _ in range(100):
        file.write(bytes(2**14))
        assert file.tell() - file.flushed <= 2**18
    assert file.flushed > 0


def test_partial_write_is_continued():
    disk = Disk(at_once=2)
    file = BufferedFile(disk)
    file.write(b"abcde")
    file.flush()
    assert disk.writes == [b"ab", b"cd", b"e"]


def test_failed_write_leaves_a_prefix_of_the_data():
    disk = Disk(room=3)
    file = BufferedFile(disk)
    file.write(b"abcde")
    with pytest.raises(OSError, match="no room"):
        file.flush()
    disk.room = 10
    file.flush()
    assert (disk.writes, file.flushed) == ([b"abc"], 3)
