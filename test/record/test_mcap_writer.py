from __future__ import annotations

import errno
import os

import numpy as np
import pytest
from mcap.reader import make_reader

from embodied_env.errors import RecordError, UsageError
from embodied_env.record.mcap_file import McapRecords
from embodied_env.record.mcap_writer import COMPRESSIONS, LARGEST_MESSAGE, MOST_SHRINKING, McapFile, check_log_libraries


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file.mcap"


def opened(path, **options):
    file = McapFile(path, **options)
    channels = [file.register_channel(topic, "", 0, {"of": topic}) for topic in ("a", "b")]
    file.begin()
    return file, channels


def add(file, channel, data, ns=0):
    file.add_message(channel, data if isinstance(data, list) else [data], number=ns, log_ns=ns, publish_ns=ns)


def indexed(path, **selection):
    """Return topic, time and data of what the library's indexed reader finds, and the index of the chunks."""
    with path.open("rb") as file:
        reader = make_reader(file)
        chunks = reader.get_summary().chunk_indexes
        found = [(c.topic, m.log_time, m.data) for _, c, m in reader.iter_messages(**selection)]
    return found, chunks


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_messages_are_found_by_time_and_topic(path, compression):
    file, channels = opened(path, compression=compression)
    expected = []
    for ns in range(1, 300):
        data = f"message {ns} ".encode() * 20
        add(file, channels[ns % 2], [data[:7], memoryview(data)[7:]], ns)
        expected.append((("a", "b")[ns % 2], ns, data))
        if ns % 50 == 0:
            file.flush()
    file.close()
    found, chunks = indexed(path)
    assert found == expected
    assert {chunk.compression for chunk in chunks} == {"" if compression == "none" else compression}
    assert len(chunks) == 6
    assert indexed(path, topics=["b"], starting_at=60, ending_before=70)[0] == expected[60:69:2]
    records = McapRecords(path)
    assert [each.record.data for each in records.messages()] == [data for *_, data in expected]
    assert records.problem == ""
    with path.open("rb") as opened_again:
        reader = make_reader(opened_again, validate_crcs=True)
        assert reader.get_summary().statistics.channel_message_counts == {channels[0]: 149, channels[1]: 150}
        assert [metadata.name for metadata in reader.iter_metadata()] == ["embodied_env"]
        assert reader.get_header().library == "embodied_env"


def test_a_file_without_messages_is_complete(path):
    file, _ = opened(path)
    file.close()
    assert indexed(path) == ([], [])
    assert list(McapRecords(path))
    records = McapRecords(path)
    assert (list(records.messages()), records.problem) == ([], "")


def test_unknown_compression_is_refused():
    with pytest.raises(UsageError, match=r"unknown compression 'gzip' \(expected one of: zstd, lz4, none\)"):
        check_log_libraries("gzip")


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_chunk_that_would_shrink_too_much_is_stored_as_it_is(path, compression):
    file, (channel, _) = opened(path, compression=compression)
    add(file, channel, bytes(10**6))
    file.flush()
    add(file, channel, np.random.default_rng(0).integers(0, 8, 10**5, dtype=np.uint8).tobytes())
    file.close()
    found, chunks = indexed(path)
    assert [len(data) for *_, data in found] == [10**6, 10**5]
    assert [chunk.compression for chunk in chunks] == ["", compression]
    assert all(chunk.uncompressed_size <= MOST_SHRINKING * chunk.compressed_size for chunk in chunks)


def test_message_that_no_reader_accepts_is_refused_by_name_and_others_are_written(path):
    file, (channel, _) = opened(path)
    with pytest.raises(RecordError, match=rf"a message of a has {LARGEST_MESSAGE + 1} bytes \(expected at most"):
        add(file, channel, bytes(LARGEST_MESSAGE + 1))
    assert file.problem == ""
    add(file, channel, b"small")
    add(file, channel, bytes(LARGEST_MESSAGE))  # in a chunk of its own
    add(file, channel, b"small")
    file.close()
    records = McapRecords(path)
    assert [len(each.record.data) for each in records.messages()] == [5, LARGEST_MESSAGE, 5]
    assert records.problem == ""
    assert len(indexed(path)[1]) == 3


def test_file_of_flat_content_is_read_to_its_end(path):
    file, (channel, _) = opened(path)
    for _ in range(80):
        add(file, channel, bytes(2**20))
        if file.is_full:
            file.flush()
    file.close()
    records = McapRecords(path)
    assert (sum(1 for _ in records.messages()), records.problem) == (80, "")


class Disk:
    """A file that accepts `room` bytes, at most `at_once` in one write."""

    closed = False

    def __init__(self, raw, room, at_once=2**30):
        self.raw, self.room, self.at_once = raw, room, at_once

    def write(self, data):
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = self.raw.write(data[: min(self.room, self.at_once)])
        self.room -= count
        return count

    def __getattr__(self, name):
        return getattr(self.raw, name)


def test_partial_writes_are_continued(path):
    file, (channel, _) = opened(path)
    file._raw = Disk(file._raw, 2**30, at_once=7)
    add(file, channel, b"x" * 1000)
    file.close()
    assert [data for *_, data in indexed(path)[0]] == [b"x" * 1000]


def test_failed_write_leaves_the_chunks_before_it_and_refuses_later_messages(path):
    file, (channel, _) = opened(path, compression="none")
    add(file, channel, b"first")
    file.flush()
    kept = file.flushed
    file._raw = Disk(file._raw, 100)
    add(file, channel, b"x" * 1000)
    with pytest.raises(RecordError, match=r"cannot write a row: .*No space left"), file.guarded("a row"):
        file.flush()
    assert file.flushed == kept + 100
    with pytest.raises(RecordError, match=r"No space left.*; another was not written either"), file.guarded("another"):
        add(file, channel, b"second")
    file.close()
    records = McapRecords(path)
    assert [each.record.data for each in records.messages()] == [b"first"]
    assert records.is_cut


def test_library_that_fails_is_a_problem_of_the_file(path):
    file, (channel, _) = opened(path)
    file._compress = lambda _: 1 // 0
    add(file, channel, b"lost")
    with pytest.raises(RecordError, match="cannot write a row: integer division"), file.guarded("a row"):
        file.flush()
    file.close()
    assert "integer division" in file.problem
