"""The log of a run: what was written is there, however its writer ended; and what is not whole is said."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from mcap.reader import make_reader
from mcap.records import Chunk
from mcap.stream_reader import StreamReader
from row_logs import RowLog

from embodied_env.errors import RecordError
from embodied_env.record.row_log import CHANNELS, LogReader


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


def test_rows_come_back_as_they_were_written_in_their_order(path):
    assert list(LogReader(write(path, rows(20)))) == rows(20)


def test_rows_can_be_read_more_than_once(path):
    reader = LogReader(write(path, rows(3)))
    assert list(reader) == list(reader)


def test_a_log_that_was_closed_is_clean(path):
    reader = LogReader(write(path, rows(5)))
    assert reader.problem == ""


def test_a_log_without_rows_is_clean(path):
    reader = LogReader(write(path, []))
    assert (list(reader), reader.problem) == ([], "")


def test_closing_twice_is_closing_once(path):
    writer = RowLog(path)
    writer.close()
    size = path.stat().st_size
    writer.close()
    assert path.stat().st_size == size


def test_other_readers_of_mcap_find_the_channels_with_their_schemas(path):
    with write(path, rows(4)).open("rb") as file:
        found = [
            (schema, channel, json.loads(message.data))
            for schema, channel, message in make_reader(file).iter_messages()
        ]
    assert [data for *_, data in found] == rows(4)
    for schema, channel, _ in found:
        assert (schema.name, schema.encoding, channel.message_encoding) == (
            CHANNELS[channel.topic],
            "jsonschema",
            "json",
        )
        assert json.loads(schema.data)["title"] == schema.name


def test_there_are_no_chunks(path):
    with write(path, rows(4)).open("rb") as file:
        assert not any(isinstance(record, Chunk) for record in StreamReader(file, emit_chunks=True).records)


def test_the_channels_are_on_disk_before_the_first_row(path):
    writer = RowLog(path)
    size = path.stat().st_size
    writer.write("transition", {"row": 0}, log_time_ns=0)
    assert path.stat().st_size - size < 100
    writer.close()


def test_a_row_is_on_disk_before_write_returns(path):
    writer = RowLog(path)
    for row in rows(5):
        writer.write("transition", row, log_time_ns=0)
        assert list(LogReader(path)) == rows(row["row"] + 1)
    writer.close()


def test_a_row_that_is_not_strict_json_is_refused_and_leaves_no_trace(path):
    writer = RowLog(path)
    with pytest.raises(ValueError, match="not JSON compliant"):
        writer.write("transition", {"row": 0, "value": float("nan")}, log_time_ns=0)
    writer.write("transition", {"row": 1}, log_time_ns=0)
    writer.close()
    assert (list(LogReader(path)), LogReader(path).problem) == ([{"row": 1}], "")


# ------------------------------------------------------------------------------------------------------------- arrays


def images(count):
    generator = np.random.default_rng(0)
    return [generator.integers(0, 256, (4, 5, 3), dtype=np.uint8) for _ in range(count)]


def write_arrays(path, arrays):
    """Write a row after each array, with the reference to it."""
    writer = RowLog(path)
    for n, array in enumerate(arrays):
        writer.write("transition", {"row": n, "image": writer.store(array, log_time_ns=n)}, log_time_ns=n)
    writer.close()
    return LogReader(path)


def messages(path):
    with path.open("rb") as file:
        return [(channel, message) for _, channel, message in make_reader(file).iter_messages(log_time_order=False)]


def test_arrays_come_back_by_the_references_in_their_rows(path):
    reader = write_arrays(path, images(5))
    for row, image in zip(reader, images(5), strict=True):
        found = reader.array(row["image"])
        assert found.dtype == image.dtype
        assert np.array_equal(found, image)


def test_a_log_with_arrays_is_clean_and_has_no_row_more(path):
    reader = write_arrays(path, images(5))
    assert (len(list(reader)), reader.problem) == (5, "")


def test_a_reader_of_mcap_and_numpy_alone_finds_the_arrays(path):
    write_arrays(path, images(2))
    found = messages(path)
    arrays = {hashlib.sha256(m.data).hexdigest(): m.data for channel, m in found if channel.topic == "array"}
    rows = [json.loads(m.data) for channel, m in found if channel.topic == "transition"]
    for row, image in zip(rows, images(2), strict=True):
        reference = row["image"]
        again = np.frombuffer(arrays[reference["sha256"]], reference["dtype"]).reshape(reference["shape"])
        assert np.array_equal(again, image)


def test_the_channel_says_what_its_bytes_are(path):
    write_arrays(path, images(1))
    (channel,) = [channel for channel, _ in messages(path) if channel.topic == "array"]
    assert (channel.message_encoding, channel.schema_id) == ("raw", 0)
    assert "little-endian" in channel.metadata["data"]


def test_an_array_stands_before_the_row_that_refers_to_it(path):
    write_arrays(path, images(3))
    assert [channel.topic for channel, _ in messages(path)] == ["array", "transition"] * 3


def test_the_same_content_is_written_once(path):
    (image,) = images(1)
    reader = write_arrays(path, [image, image.copy(), image])
    assert [channel.topic for channel, _ in messages(path)] == ["array"] + ["transition"] * 3
    assert all(np.array_equal(reader.array(row["image"]), image) for row in reader)


def test_the_same_bytes_in_another_shape_are_told_apart_by_their_references(path):
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
def test_every_array_of_numbers_comes_back_bit_by_bit(path, array):
    reader = write_arrays(path, [array])
    (row,) = reader
    found = reader.array(row["image"])
    assert (found.shape, found.dtype) == (array.shape, array.dtype.newbyteorder("<"))
    assert found.tobytes() == array.astype(found.dtype).tobytes()


def test_an_array_that_was_read_cannot_be_written(path):
    reader = write_arrays(path, images(1))
    (row,) = reader
    with pytest.raises(ValueError, match="read-only"):
        reader.array(row["image"])[:] = 0


@pytest.mark.parametrize("reference", [{}, {"sha256": "0" * 64, "dtype": "uint8", "shape": [1]}, {"sha256": [1]}])
def test_an_array_that_is_not_there_is_an_error_that_names_it(path, reference):
    reader = write_arrays(path, images(1))
    with pytest.raises(RecordError, match=r"log\.mcap: there is no array \{"):
        reader.array(reference)


@pytest.mark.parametrize("wrong", [{"shape": [4, 4]}, {"dtype": "float64"}, {"dtype": "no type"}, {"shape": ["a"]}])
def test_a_reference_that_does_not_fit_its_bytes_is_an_error(path, wrong):
    reader = write_arrays(path, images(1))
    (row,) = reader
    with pytest.raises(RecordError, match=r"log\.mcap: the array \{.*\} cannot be read"):
        reader.array({**row["image"], **wrong})


def test_an_array_that_was_damaged_is_an_error_also_in_a_log_that_was_never_closed(path):
    writer = RowLog(path)
    (image,) = images(1)
    reference = writer.store(image, log_time_ns=0)
    writer.write("transition", {"row": 0}, log_time_ns=0)
    data = bytearray(path.read_bytes())
    data[data.index(image.tobytes()) + 7] ^= 1
    path.write_bytes(data)
    with pytest.raises(RecordError, match="there is no array"):
        LogReader(path).array(reference)
    writer.close()


def test_cut_anywhere_every_row_that_is_read_has_its_array(path):
    writer = RowLog(path)
    start = path.stat().st_size
    for n, image in enumerate(images(4)):
        writer.write("transition", {"row": n, "image": writer.store(image, log_time_ns=n)}, log_time_ns=n)
    whole = path.read_bytes()
    for end in range(start, len(whole), 3):
        path.write_bytes(whole[:end])
        reader = LogReader(path)
        for row, image in zip(reader, images(4), strict=False):
            assert np.array_equal(reader.array(row["image"]), image), end
    writer.close()


# ------------------------------------------------------------------------------------------------------ unclean files


def test_a_log_that_was_never_closed_is_not_clean_and_says_why(path):
    writer = RowLog(path)
    for row in rows(3):
        writer.write("transition", row, log_time_ns=0)
    reader = LogReader(path)
    assert reader.problem
    assert reader.problem == ("log.mcap: it ends before its end was written: its writer was stopped after 3 whole rows")
    writer.close()


def test_cut_anywhere_in_its_last_row_every_row_before_it_is_read(path):
    whole = unclosed(path, rows(6))
    start = len(unclosed(path, rows(5)))
    for end in range(start, len(whole)):
        path.write_bytes(whole[:end])
        reader = LogReader(path)
        assert list(reader) == rows(5), end
        assert reader.problem.endswith("after 5 whole rows"), end


def test_cut_anywhere_behind_its_last_row_every_row_is_read(path):
    start = len(unclosed(path, rows(6)))
    path.unlink()
    whole = write(path, rows(6)).read_bytes()
    ends = sorted({*range(start, start + 60), *range(start, len(whole), 97), *range(len(whole) - 60, len(whole))})
    for end in ends:
        path.write_bytes(whole[:end])
        reader = LogReader(path)
        assert list(reader) == rows(6), end
        assert "its writer was stopped" in reader.problem, end


def test_cut_anywhere_in_its_first_bytes_there_is_no_row_and_no_crash(path):
    whole = write(path, rows(1)).read_bytes()
    for end in range(60):
        path.write_bytes(whole[:end])
        reader = LogReader(path)
        assert (list(reader), reader.problem == "") == ([], False), end


def unclosed(path, some_rows):
    """Return the bytes of a log as they are on disk before it is closed."""
    path.unlink(missing_ok=True)
    writer = RowLog(path)
    for row in some_rows:
        writer.write("transition", row, log_time_ns=0)
    found = path.read_bytes()
    writer.close()
    return found


def test_a_flipped_bit_in_a_closed_log_is_found(path):
    data = bytearray(write(path, rows(6)).read_bytes())
    data[data.index(b'"row":3') + 6] ^= 1
    path.write_bytes(data)
    assert "log.mcap: it is damaged (CRCValidationError" in LogReader(path).problem


def test_a_row_that_is_no_json_any_more_ends_the_log(path):
    data = unclosed(path, rows(6))
    path.write_bytes(data.replace(b'{"row":3', b'["row":3'))
    reader = LogReader(path)
    assert list(reader) == rows(3)
    assert reader.problem.startswith("log.mcap: the row after 3 whole rows is not JSON")


def test_zeros_behind_the_last_row_as_a_power_loss_leaves_them_hide_no_row(path):
    data = unclosed(path, rows(6))
    path.write_bytes(data + bytes(4096))
    reader = LogReader(path)
    assert (list(reader), reader.problem == "") == (rows(6), False)


def test_bytes_behind_the_end_are_found(path):
    write(path, rows(2))
    with path.open("ab") as file:
        file.write(b"more")
    assert LogReader(path).problem == "log.mcap: it goes on behind its end after 2 whole rows"


@pytest.mark.parametrize("content", [b"", b"no mcap at all", bytes(100)])
def test_a_file_that_is_no_log_is_not_clean(path, content):
    path.write_bytes(content)
    reader = LogReader(path)
    assert (list(reader), reader.problem == "") == ([], False)


def test_a_log_that_is_not_there_is_not_clean(path):
    reader = LogReader(path)
    assert list(reader) == []
    assert reader.problem == "log.mcap: it cannot be read (No such file or directory) after 0 whole rows"


# ------------------------------------------------------------------------------------------- writers that cannot write


def test_a_file_that_exists_is_not_overwritten(path):
    path.write_text("precious")
    with pytest.raises(RecordError, match=r"log\.mcap: the log cannot be created: .*File exists"):
        RowLog(path)
    assert path.read_text() == "precious"


def test_a_folder_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(RecordError, match=r"nowhere/log\.mcap: the log cannot be created: .*No such file"):
        RowLog(tmp_path / "nowhere" / "log.mcap")


SUPPORT = str(Path(__file__).parents[1] / "support")


def run(script, *arguments):
    """Run a script in a process of its own; return what it prints."""
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


def test_a_full_disk_ends_the_log_with_an_error_and_keeps_the_rows_before_it(path):
    printed = run(
        """
        import pathlib, resource, sys
        from embodied_env.errors import RecordError
        from row_logs import RowLog
        writer = RowLog(pathlib.Path(sys.argv[1]))
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
    assert printed[0] == f"3 {path}: row 3 cannot be written: [Errno 27] File too large"
    assert printed[1].endswith("; row 4 is not written either")
    assert printed[-1] == f"closed {path}: row 3 cannot be written: [Errno 27] File too large"
    assert [row["row"] for row in LogReader(path)] == [0, 1, 2]


def test_a_full_disk_in_the_middle_of_an_array_ends_the_log_before_it(path):
    printed = run(
        """
        import pathlib, resource, sys
        import numpy as np
        from embodied_env.errors import RecordError
        from row_logs import RowLog
        writer = RowLog(pathlib.Path(sys.argv[1]))
        writer.write("transition", {"row": 0}, log_time_ns=0)
        limit = pathlib.Path(sys.argv[1]).stat().st_size + 10_000
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        for act in (
            lambda: writer.store(np.zeros((300, 300, 3), np.uint8), log_time_ns=0),
            lambda: writer.store(np.zeros((2, 2, 3), np.uint8), log_time_ns=0),
            lambda: writer.write("transition", {"row": 1}, log_time_ns=0),
        ):
            try:
                act()
            except RecordError as error:
                print(error)
        writer.close()
        """,
        path,
    ).splitlines()
    first = f"{path}: an array cannot be written: [Errno 27] File too large"
    assert printed == [first, f"{first}; an array is not written either", f"{first}; row 1 is not written either"]
    assert [row["row"] for row in LogReader(path)] == [0]


def test_without_mcap_the_error_says_what_to_install(path):
    printed = run(
        """
        import pathlib, sys
        sys.modules["mcap"] = None  # as if it were not installed
        from embodied_env.errors import MissingDependencyError
        from row_logs import RowLog
        try:
            RowLog(pathlib.Path(sys.argv[1]))
        except MissingDependencyError as error:
            print(error)
        """,
        path,
    )
    assert printed == 'recording needs mcap, which is not installed; pip install "embodied_env[record]"\n'
    assert not path.exists()


# ------------------------------------------------------------------------------------------------------------ SIGKILL

WRITER = """
import itertools, os, pathlib, sys
import numpy as np
from row_logs import RowLog

for line in sys.stdin:  # a path per line: a process that writes rows to it until it is killed
    child = os.fork()
    if child == 0:
        os.write(1, b"pid %d\\n" % os.getpid())
        writer = RowLog(pathlib.Path(line.strip()))
        for n in itertools.count():
            image = writer.store(np.full((40, 50, 3), n % 256, np.uint8), log_time_ns=n)
            writer.write("transition", {"row": n, "text": "x" * (7 * n % 50), "image": image}, log_time_ns=n)
            os.write(1, b"%d\\n" % n)
    os.waitpid(child, 0)
    os.write(1, b"dead\\n")
"""


@pytest.fixture(scope="module")
def writers():
    """Give a process that starts a writer for each path on its standard input, and prints each row once flushed."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": SUPPORT}
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    yield process
    process.stdin.close()
    assert process.wait(30) == 0
    process.stdout.close()


@pytest.mark.parametrize("seed", range(20))
def test_after_a_sigkill_every_acknowledged_row_is_read_back_with_its_array(writers, path, seed):
    moment = random.Random(seed)
    writers.stdin.write(f"{path}\n")
    writers.stdin.flush()
    pid = int(writers.stdout.readline().removeprefix("pid "))
    acknowledged = -1
    for _ in range(moment.randrange(60)):
        acknowledged = int(writers.stdout.readline())
    os.kill(pid, signal.SIGKILL)
    for line in iter(writers.stdout.readline, "dead\n"):
        acknowledged = int(line)
    reader = LogReader(path)
    found = list(reader)
    assert [row["row"] for row in found] == list(range(len(found)))
    assert len(found) >= acknowledged + 1
    assert all((reader.array(row["image"]) == row["row"] % 256).all() for row in found)
    assert reader.problem
