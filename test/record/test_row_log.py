"""Flushed rows survive any end of the writer, and an incomplete log is reported."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import textwrap
import zlib
from pathlib import Path

import numpy as np
import pytest
from mcap.reader import make_reader
from protobuf_messages import decode
from row_logs import RowLog

from embodied_env.contract.bounded_json import MOST_VALUES
from embodied_env.errors import RecordError
from embodied_env.record import row_log
from embodied_env.record.row_log import LogReader


def rows(count):
    return [{"row": n, "text": "x" * (7 * n % 50), "value": 0.1 * n} for n in range(count)]


def write(path, some_rows):
    writer = RowLog(path)
    for row in some_rows:
        writer.write("reset" if row["row"] % 3 == 0 else "transition", row, log_time_ns=row["row"])
    writer.close()
    return path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log.mcap"


# ------------------------------------------------------------------------------------------------------- whole files


def test_a_row_that_readers_would_refuse_is_not_written(path):
    writer = RowLog(path)
    writer.write("reset", {"row": 0}, log_time_ns=0)
    with pytest.raises(RecordError, match=rf"row 1 has .* \(expected at most {MOST_VALUES}\)"):
        writer.write("transition", {"row": 1, "value": [0] * MOST_VALUES}, log_time_ns=1)
    writer.write("transition", {"row": 1}, log_time_ns=1)
    writer.close()
    assert list(LogReader(path)) == [{"row": 0}, {"row": 1}]


@pytest.mark.parametrize("count", [0, 20])
def test_rows_are_read_back_in_order_more_than_once_and_a_closed_log_is_clean(path, count):
    reader = LogReader(write(path, rows(count)))
    assert list(reader) == list(reader) == rows(count)
    assert reader.problem == ""


def test_the_channels_are_on_disk_before_the_first_row(close_later, path):
    writer = close_later(RowLog(path))
    size = path.stat().st_size
    writer.write("transition", {"row": 0}, log_time_ns=0)
    assert path.stat().st_size - size < 200  # a chunk and its index


def test_row_is_on_disk_before_flush_returns(close_later, path):
    writer = close_later(RowLog(path))
    for row in rows(5):
        writer.write("transition", row, log_time_ns=0)
        assert list(LogReader(path)) == rows(row["row"] + 1)


# ------------------------------------------------------------------------------------------------------------- arrays


def images(count):
    generator = np.random.default_rng(0)
    return [generator.integers(0, 256, (4, 5, 3), dtype=np.uint8) for _ in range(count)]


def write_arrays(path, arrays):
    """Write a row after each array, with a reference to it."""
    writer = RowLog(path)
    for n, array in enumerate(arrays):
        writer.write("transition", {"row": n, "image": writer.store(array, log_time_ns=n)}, log_time_ns=n)
    writer.close()
    return LogReader(path)


def messages(path):
    with path.open("rb") as file:
        return [(channel, message) for _, channel, message in make_reader(file).iter_messages(log_time_order=False)]


def test_arrays_are_protobuf_messages_that_describe_themselves(path):
    image = images(1)[0]
    write_arrays(path, [image])
    with path.open("rb") as file:
        ((schema, channel, message),) = make_reader(file).iter_messages(topics=["array"])
    array = decode(schema, message.data)
    assert (channel.message_encoding, schema.encoding) == ("protobuf", "protobuf")
    assert (array.dtype, list(array.shape), array.data) == ("uint8", [4, 5, 3], image.tobytes())


def test_array_precedes_the_row_that_refers_to_it(path):
    write_arrays(path, images(3))
    assert [channel.topic for channel, _ in messages(path)] == ["array", "transition"] * 3


def test_identical_content_is_written_once(path):
    (image,) = images(1)
    reader = write_arrays(path, [image, image.copy(), image])
    assert [channel.topic for channel, _ in messages(path)] == ["array"] + ["transition"] * 3
    assert all(np.array_equal(reader.array(row["image"]), image) for row in reader)


def test_same_bytes_with_another_shape_have_another_reference(path):
    (image,) = images(1)
    reader = write_arrays(path, [image, image.reshape(5, 4, 3)])
    assert [reader.array(row["image"]).shape for row in reader] == [(4, 5, 3), (5, 4, 3)]


@pytest.mark.parametrize(
    "array",
    [
        np.array([[[np.nan, np.inf], [-np.inf, -0.0]]], np.float32),
        np.asfortranarray(np.arange(24.0).reshape(2, 3, 4)),
        np.arange(24, dtype=">i4").reshape(2, 3, 4),
        np.arange(48, dtype=np.int16).reshape(2, 6, 4)[:, ::2],
        np.array([[[True, False]]]),
        np.zeros((0, 4, 3), np.uint8),
    ],
    ids=["not finite", "Fortran order", "big-endian", "strided", "boolean", "empty"],
)
def test_numeric_arrays_are_read_back_bit_for_bit(path, array):
    reader = write_arrays(path, [array])
    (row,) = reader
    found = reader.array(row["image"])
    assert (found.shape, found.dtype) == (array.shape, array.dtype.newbyteorder("<"))
    assert found.tobytes() == array.astype(found.dtype).tobytes()


def test_arrays_read_from_a_log_are_read_only(path):
    reader = write_arrays(path, images(1))
    (row,) = reader
    with pytest.raises(ValueError, match="read-only"):
        reader.array(row["image"])[:] = 0


@pytest.mark.parametrize("reference", [{}, {"sha256": "0" * 64, "dtype": "uint8", "shape": [1]}, {"sha256": [1]}])
def test_missing_array_raises_an_error_with_its_reference(path, reference):
    reader = write_arrays(path, images(1))
    with pytest.raises(RecordError, match=r"log\.mcap: no such array: \{"):
        reader.array(reference)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"shape": shape} for shape in ([4, 4], ["a"], [-1], [True, 4, 4, 3], [1] * 33 + [4, 4, 3])),
        *({"dtype": dtype} for dtype in ("float64", "no type")),
    ],
)
def test_reference_that_does_not_match_its_bytes_raises(path, wrong):
    reader = write_arrays(path, images(1))
    (row,) = reader
    for call in (reader.array, reader.check_array):
        with pytest.raises(RecordError, match=r"log\.mcap: cannot read the array \{"):
            call({**row["image"], **wrong})


def test_arrays_are_checked_without_reading_them_for_each_reference(path, monkeypatch):
    reader = write_arrays(path, images(2))
    found = [row["image"] for row in reader]
    reader.check_array(found[0])
    monkeypatch.setattr(row_log, "read_chunk", None)
    for _ in range(1000):
        for reference in found:
            reader.check_array(reference)


def test_damaged_array_raises_in_an_unclosed_log(path):
    writer = RowLog(path, compression="none")
    (image,) = images(1)
    reference = writer.store(image, log_time_ns=0)
    writer.write("transition", {"row": 0}, log_time_ns=0)
    data = bytearray(path.read_bytes())
    data[data.index(image.tobytes()) + 7] ^= 1
    path.write_bytes(data)
    with pytest.raises(RecordError, match="no such array"):
        LogReader(path).array(reference)
    writer.close()


def test_every_row_of_a_truncated_log_has_its_array(close_later, path):
    writer = close_later(RowLog(path))
    start = path.stat().st_size
    for n, image in enumerate(images(4)):
        writer.write("transition", {"row": n, "image": writer.store(image, log_time_ns=n)}, log_time_ns=n)
    whole = path.read_bytes()
    for end in range(start, len(whole), 11):
        path.write_bytes(whole[:end])
        reader = LogReader(path)
        for row, image in zip(reader, images(4), strict=False):
            assert np.array_equal(reader.array(row["image"]), image), end


# ------------------------------------------------------------------------------------------------------ unclean files


def test_log_truncated_in_its_last_row_keeps_earlier_rows(path):
    whole = unclosed(path, rows(6))
    start = len(unclosed(path, rows(5)))
    counts = []
    for end in range(start, len(whole)):
        path.write_bytes(whole[:end])
        reader = LogReader(path)
        counts.append(len(list(reader)))
        assert list(reader) == rows(counts[-1]), end
        assert f"({counts[-1]} complete rows" in reader.problem, end
    assert counts == sorted(counts)
    assert counts.count(5) > len(counts) / 2  # the last one is complete before the index of its chunk is
    assert {*counts} == {5, 6}


def test_log_truncated_after_its_last_row_keeps_all_rows(path):
    start = len(unclosed(path, rows(6)))
    path.unlink()
    writer = RowLog(path)
    for row in rows(6):
        writer.write("transition", row, log_time_ns=0)
    writer.close()
    whole = path.read_bytes()
    ends = sorted({*range(start, start + 60), *range(start, len(whole), 97), *range(len(whole) - 60, len(whole))})
    for end in ends:
        path.write_bytes(whole[:end])
        reader = LogReader(path)
        assert list(reader) == rows(6), end
        assert "its writer was stopped" in reader.problem, end


def unclosed(path, some_rows, **options):
    """Return the bytes of a log on disk before it is closed."""
    path.unlink(missing_ok=True)
    writer = RowLog(path, **options)
    for row in some_rows:
        writer.write("transition", row, log_time_ns=0)
    found = path.read_bytes()
    writer.close()
    return found


def test_flipped_bit_in_a_closed_log_is_detected(path):
    data = bytearray(write(path, rows(6)).read_bytes())
    data[data.index(b'"row":3') + 6] ^= 1
    path.write_bytes(data)
    assert "log.mcap: damaged (ValueError: chunk that cannot be decompressed" in LogReader(path).problem


def test_damaged_json_row_ends_the_log(path):
    data = unclosed(path, rows(6), compression="none")
    path.write_bytes(data.replace(b'{"row":3', b'["row":3'))
    reader = LogReader(path)
    assert list(reader) == rows(3)
    assert reader.problem.startswith("log.mcap: row 3 is not JSON")


def test_trailing_zeros_after_power_loss_hide_no_row(path):
    data = unclosed(path, rows(6))
    path.write_bytes(data + bytes(4096))
    reader = LogReader(path)
    assert (list(reader), reader.problem == "") == (rows(6), False)


def test_data_after_the_end_is_detected(path):
    write(path, rows(2))
    with path.open("ab") as file:
        file.write(b"more")
    assert LogReader(path).problem == "log.mcap: unexpected data after the end (2 complete rows)"


@pytest.mark.parametrize("wrong", [0, 1])
def test_a_checksum_of_the_data_that_another_writer_states_is_checked(path, wrong):
    data, head = write(path, rows(2)).read_bytes(), b"\x0f" + struct.pack("<Q", 4)  # of the end of the data
    before, rest = data[: (at := data.rindex(head))], data[at + len(head) + 4 :]
    path.write_bytes(before + head + struct.pack("<I", zlib.crc32(before) ^ wrong) + rest)
    assert ("wrong checksum of the data" in LogReader(path).problem) == bool(wrong)
    assert bool(LogReader(path).problem) == bool(wrong)


@pytest.mark.parametrize("content", [b"", b"no mcap at all", bytes(100)])
def test_file_that_is_not_a_log_is_not_clean(path, content):
    path.write_bytes(content)
    reader = LogReader(path)
    assert (list(reader), reader.problem == "") == ([], False)


# -------------------------------------------------------------------------------------------------------- write errors


def test_existing_file_is_not_overwritten(path):
    path.write_text("precious")
    with pytest.raises(RecordError, match=r"cannot create the log .*log\.mcap: .*File exists"):
        RowLog(path)
    assert path.read_text() == "precious"


SUPPORT = os.pathsep.join([str(Path(__file__).parents[1] / "support"), os.environ.get("PYTHONPATH", "")])


def run(script, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONPATH": SUPPORT},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_full_disk_raises_and_keeps_earlier_rows(path):
    printed = run(
        """
        import pathlib, resource, sys
        from embodied_env.errors import RecordError
        from row_logs import RowLog
        writer = RowLog(pathlib.Path(sys.argv[1]), compression="none")
        limit = pathlib.Path(sys.argv[1]).stat().st_size + 10_000
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        for attempt in range(12):
            try:
                writer.write("transition", {"row": attempt, "text": "x" * 3000}, log_time_ns=0)
            except RecordError as error:
                print(attempt, error)
        writer.close()
        print("closed", writer.problem)
        """,
        path,
    ).splitlines()
    assert printed[0] == f"3 {path}: cannot write row 3: [Errno 27] File too large"
    assert printed[1].endswith("; row 4 was not written either")
    assert printed[-1] == f"closed {path}: cannot write row 3: [Errno 27] File too large"
    assert [row["row"] for row in LogReader(path)] == [0, 1, 2]
