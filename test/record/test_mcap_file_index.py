"""An index that disagrees with the messages is damage, since readers that seek would show another file."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from mcap.data_stream import RecordBuilder
from mcap.reader import make_reader
from mcap.records import Channel, Chunk, ChunkIndex, DataEnd, Footer, MessageIndex, Statistics
from mcap.stream_reader import StreamReader, breakup_chunk
from mcap.writer import MCAP0_MAGIC

from embodied_env.record.mcap_file import McapRecords
from embodied_env.record.mcap_writer import McapFile


@pytest.fixture
def path(tmp_path):
    """Return a file with two topics in two chunks."""
    path = tmp_path / "file.mcap"
    file = McapFile(path, compression="none")
    channels = [file.register_channel(topic, "", 0) for topic in ("a", "b")]
    file.begin()
    for ns in range(1, 9):
        file.add_message(channels[ns % 2], [b"message %d" % ns], number=ns, log_ns=ns, publish_ns=ns)
        if ns in (4, 8):
            file.flush()
    file.close()
    return path


def change(path, edit):
    """Rewrite the file with records that were changed in place."""
    records = list(StreamReader(io.BytesIO(path.read_bytes()), emit_chunks=True).records)
    edit({kind: [each for each in records if isinstance(each, kind)] for kind in {*map(type, records)}}, records)
    builder = RecordBuilder()
    for each in records:
        each.write(builder)
    path.write_bytes(MCAP0_MAGIC + builder.end() + MCAP0_MAGIC)


def exchange_chunks(found, _):
    first, second = found[ChunkIndex]
    vars(second).update(vars(first))


def move_message(found, _):
    index = found[MessageIndex][0]
    index.records[0] = index.records[1]


def move_index(found, _):
    offsets = found[ChunkIndex][0].message_index_offsets
    offsets[1], offsets[2] = offsets[2], offsets[1]


def change_times(found, _):
    for kind in (Chunk, ChunkIndex):
        found[kind][0].message_start_time = found[kind][0].message_end_time = 9


def rename_topic(found, _):
    found[Channel][-1].topic = "c"


def add_topic(found, records):
    other = Channel(id=1, topic="c", message_encoding="", metadata={}, schema_id=0)
    records.insert(records.index(found[Chunk][1]), other)


def define_later(found, _):
    found[Channel][0].id = 99


def move_summary(found, _):
    found[Footer][0].summary_start += 1


def end_twice(found, records):
    records.insert(records.index(found[DataEnd][0]), found[DataEnd][0])


def count_more(found, _):
    found[Statistics][0].channel_message_counts[1] += 1


def add_message_outside(found, records):
    message: Any = breakup_chunk(found[Chunk][0])[0]
    records.insert(records.index(found[DataEnd][0]), message)
    found[Statistics][0].channel_message_counts[message.channel_id] += 1
    builder = RecordBuilder()
    message.write(builder)
    found[Footer][0].summary_start += len(builder.end())


CHANGES = [
    *(
        define_later,
        exchange_chunks,
        move_message,
        move_index,
        change_times,
        rename_topic,
        add_topic,
        move_summary,
        end_twice,
    ),
    *(count_more, add_message_outside, lambda found, records: records.remove(found[ChunkIndex][0])),
    lambda found, records: records.remove(found[MessageIndex][0]),
    lambda found, records: records.insert(records.index(found[DataEnd][0]), found[MessageIndex][0]),
    lambda found, records: records.insert(records.index(found[ChunkIndex][0]), found[ChunkIndex][0]),
]


@pytest.mark.parametrize("edit", CHANGES, ids=lambda edit: edit.__name__.strip("<>"))
def test_an_index_of_other_messages_is_damage(path, edit):
    change(path, edit)
    records = McapRecords(path)
    list(records.messages())
    assert records.problem.startswith("damaged (ValueError")
    assert not records.is_cut


def test_a_file_without_an_index_is_complete(path):
    def edit(found, records):
        for each in (*found[ChunkIndex], *found[Statistics]):
            records.remove(each)

    change(path, edit)
    records = McapRecords(path)
    assert len(list(records.messages())) == 8
    assert records.problem == ""


def test_a_reader_that_seeks_would_find_other_messages(path):
    change(path, exchange_chunks)
    with path.open("rb") as file:
        assert [m.log_time for *_, m in make_reader(file).iter_messages()] == [1, 1, 2, 2, 3, 3, 4, 4]
    assert [stored.record.log_time for stored in McapRecords(path).messages()] == [*range(1, 9)]


def test_a_record_that_is_longer_than_declared_is_damage(path):
    """Other readers go on after the declared length, and find other records there."""
    data = bytearray(path.read_bytes())
    at = data.index(b"\x04", 8 + data[9] + 9)  # a channel, after the header
    data[at + 1] -= 1
    path.write_bytes(data)
    records = McapRecords(path)
    list(records)
    assert re.search(r"damaged \(ValueError: Channel longer than", records.problem)


@pytest.mark.parametrize(("opcode", "problem"), [(0, "truncated"), (0x90, "damaged (ValueError: unknown record")])
def test_records_that_the_library_skips_end_the_file_at_once(path, opcode, problem):
    data = path.read_bytes()
    path.write_bytes(data[: data.index(b"\x0f")] + bytes([opcode]))  # at the end of the data
    with path.open("ab") as file:
        file.truncate(2**36)
    records = McapRecords(path)
    assert list(records)
    assert records.problem.startswith(problem)
