"""Repair of runs that ended uncleanly."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from evidence import assert_finds, assert_sound
from mcap.data_stream import RecordBuilder
from mcap.reader import make_reader
from mcap.records import Channel, Chunk, DataEnd, Schema
from mcap.stream_reader import StreamReader
from mcap.writer import MCAP0_MAGIC
from run_files import with_a_chunk_per_row

import embodied_env
from embodied_env.cli.main import main
from embodied_env.errors import RecordError
from embodied_env.record import read_run, repair_run
from embodied_env.record import run_repair as repair
from embodied_env.record.mcap_file import McapRecords
from embodied_env.record.mcap_writer import McapFile
from embodied_env.record.row_log import LogReader


def found_in(path):
    """Return the topics of what an indexed reader finds."""
    with path.open("rb") as file:
        reader = make_reader(file)
        statistics = reader.get_summary().statistics
        found = [channel.topic for _, channel, _ in reader.iter_messages(log_time_order=False)]
    assert statistics.message_count == len(found)
    assert statistics.chunk_count >= 1
    return Counter(found)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Return a closed run with cameras, and a copy from before it was closed."""
    folder = tmp_path_factory.mktemp("runs")
    env = embodied_env.make("door_open", backend="fake", record=folder)
    for _ in range(3):  # each episode of this backend ends at its first step
        env.reset(seed=1)
        env.step(env.action_space.sample())
    env.flush()
    cut = shutil.copytree(env.path, folder / "cut")
    env.close()
    return SimpleNamespace(closed=env.path, cut=cut)


@pytest.fixture
def run(recorded, tmp_path):
    return SimpleNamespace(**{name: shutil.copytree(path, tmp_path / name) for name, path in vars(recorded).items()})


# ------------------------------------------------------------------------------------------------------- unclean runs


def test_repaired_run_is_whole_and_stays_unsound(run):
    before, rows = read_run(run.cut).problem, list(read_run(run.cut).rows())
    log = run.cut / "transitions.mcap"
    with log.open("ab") as file:
        file.write(b"\5" + (1000).to_bytes(8, "little") + b"half a message")
    report = repair_run(run.cut)
    assert (report.files[0].count, report.files[0].cut_bytes) == (8, 23)
    assert (run.cut / report.files[0].kept).read_bytes().endswith(b"half a message")
    repaired = read_run(run.cut)
    assert before.split(" (")[0] in repaired.problem
    assert_finds(run.cut, "run.unclean")
    (mark,) = repaired.manifest["repaired"]
    assert f"repaired on {mark['utc']}" in repaired.problem
    assert mark["files"][0]["cut_bytes"] == 23
    assert list(repaired.rows()) == rows
    assert found_in(log) == {"array": 2, "reset": 3, "transition": 3}


def test_repair_is_idempotent(run):
    assert repair_run(run.cut).files
    once = {path.name: path.read_bytes() for path in run.cut.iterdir()}
    assert not repair_run(run.cut).files
    assert {path.name: path.read_bytes() for path in run.cut.iterdir()} == once


def test_closed_run_is_not_changed_by_repair(run):
    before = {path.name: path.read_bytes() for path in run.closed.iterdir()}
    report = repair_run(run.closed)
    assert (report.files, report.problem) == ((), "")
    assert {path.name: path.read_bytes() for path in run.closed.iterdir()} == before


def test_run_that_is_being_recorded_is_not_repaired(tmp_path):
    env = embodied_env.make("arm_reach", backend="fake", record=tmp_path)
    env.reset(seed=1)
    env.step(np.zeros(6))
    before = (env.path / "transitions.mcap").read_bytes()
    for _ in range(2):
        with pytest.raises(RecordError, match=r"transitions\.mcap cannot be repaired: it is in use"):
            repair_run(env.path)
    assert (env.path / "transitions.mcap").read_bytes() == before
    env.step(np.zeros(6))
    env.close()
    assert_sound(env.path)


def test_damaged_file_keeps_every_whole_record_before_the_damage_and_the_original(run):
    log = with_a_chunk_per_row(run.cut)
    data = bytearray(log.read_bytes())
    start = [place.chunk for kind, _, place in McapRecords(log) if kind == "Message"][-2]
    data[start + 100] ^= 255
    log.write_bytes(data)
    (file,) = repair_run(run.cut).files
    assert (file.count, file.kept) == (6, "transitions.damaged.mcap")
    assert file.cut_bytes == len(data) - start
    assert (run.cut / file.kept).read_bytes() == data
    assert [row["row"] for row in read_run(run.cut).rows()] == [0, 1, 2, 3]
    assert_finds(run.cut, "run.unclean")


def test_repair_does_not_write_through_links(run, tmp_path):
    foreign = tmp_path / "foreign"
    foreign.write_text("foreign")
    for name in (".transitions.mcap.new", ".manifest.json.new"):
        (run.cut / name).symlink_to(foreign)
    assert repair_run(run.cut).files
    assert foreign.read_text() == "foreign"


def test_run_that_is_closed_during_its_repair_stays_sound(run, monkeypatch):
    closed = (run.closed / "manifest.json").read_bytes()

    def repair_and_close(path):
        (path.parent / "manifest.json").write_bytes(closed)
        return original(path)

    original = repair._repair_file
    monkeypatch.setattr(repair, "_repair_file", repair_and_close)
    with pytest.raises(RecordError, match="the manifest changed during the repair"):
        repair_run(run.cut)
    assert (run.cut / "manifest.json").read_bytes() == closed


def test_channels_that_are_repeated_are_copied_once(run):
    log = run.closed / "transitions.mcap"
    with log.open("rb") as file:
        data = itertools.takewhile(
            lambda record: not isinstance(record, DataEnd), StreamReader(file, emit_chunks=True).records
        )
        records = list(data)
    definitions = [record for record in records if isinstance(record, (Schema, Channel))]
    builder = RecordBuilder()
    for record in records:
        for each in (*definitions, record) if isinstance(record, Chunk) else (record,):
            each.write(builder)
    log.write_bytes(MCAP0_MAGIC + builder.end())
    repair_run(run.closed)
    with log.open("rb") as file:
        summary = make_reader(file).get_summary()
    assert len(summary.channels) + len(summary.schemas) == len(definitions)


def test_reader_finds_arrays_after_a_repair(run):
    reader = LogReader(run.cut / "transitions.mcap")
    references = [row["observation"]["camera_image"] for row in reader]
    first = reader.array(references[0]).tobytes()
    repair_run(run.cut)
    assert reader.array(references[-1]).tobytes() == first


def test_repair_leaves_the_disk_to_the_runs_that_are_recorded(run, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(RecordError, match=r"cannot be repaired: 1000 bytes are free on its disk \(expected at least"):
        repair_run(run.cut)


def failing(error):
    def fail(*_, **__):
        raise error

    return fail


@pytest.mark.parametrize("error", [ZeroDivisionError(), KeyboardInterrupt()])
def test_failed_or_interrupted_repair_leaves_the_file(run, monkeypatch, error):
    before = (run.cut / "transitions.mcap").read_bytes()
    monkeypatch.setattr(McapFile, "add_message", failing(error))
    with pytest.raises(type(error) if isinstance(error, KeyboardInterrupt) else RecordError):
        repair_run(run.cut)
    assert (run.cut / "transitions.mcap").read_bytes() == before
    assert not list(run.cut.glob(".*"))


def test_repair_that_changes_a_message_leaves_the_file(run, monkeypatch):
    before, write = (run.cut / "transitions.mcap").read_bytes(), McapFile.add_message
    monkeypatch.setattr(McapFile, "add_message", lambda file, n, _, **how: write(file, n, [b"{}"], **how))
    with pytest.raises(RecordError, match="it was not written as it was read"):
        repair_run(run.cut)
    assert (run.cut / "transitions.mcap").read_bytes() == before


KILLED = """
import os, signal, sys
from embodied_env.record import repair_run
from embodied_env.record.mcap_writer import McapFile
McapFile.close = lambda self: os.kill(os.getpid(), signal.SIGKILL)
repair_run(sys.argv[1])
"""


def test_kill_during_the_repair_leaves_the_file(run):
    before = (run.cut / "transitions.mcap").read_bytes()
    done = subprocess.run([sys.executable, "-c", KILLED, str(run.cut)], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert [path.name for path in run.cut.glob(".*")] == [".transitions.mcap.new"]
    assert (run.cut / "transitions.mcap").read_bytes() == before
    assert repair_run(run.cut).files
    assert not list(run.cut.glob(".*"))


def test_repair_verb_reports_each_run(run, capsys):
    assert main(["repair", str(run.cut), str(run.closed), "--json"]) == 0
    cut, closed = json.loads(capsys.readouterr().out)
    assert (len(cut["files"]), closed["files"]) == (1, [])
    assert main(["repair", str(run.cut)]) == 0
    printed = capsys.readouterr().out
    assert f"{run.cut}: nothing to repair\n{run.cut}: still not sound: " in printed
    (run.cut / "transitions.mcap").unlink()
    assert main(["repair", str(run.cut), str(run.closed)]) == 1
    assert "transitions.mcap cannot be repaired: FileNotFoundError: " in capsys.readouterr().err
    with contextlib.suppress(SystemExit):
        assert main(["repair", str(run.cut / "nothing")]) == 2
