"""Rewriting of journals for viewers: what they find, what our readers find, and what a failure leaves."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from evidence import assert_finds, assert_sound
from mcap.data_stream import RecordBuilder
from mcap.reader import make_reader
from mcap.records import Channel, Chunk, Header, Message, Schema
from mcap.stream_reader import StreamReader
from mcap.writer import MCAP0_MAGIC
from protobuf_messages import decode
from row_logs import RowLog

import embodied_env
from embodied_env.cli.main import main
from embodied_env.contract import load_contract
from embodied_env.core.extensions import PARTS
from embodied_env.errors import RecordError
from embodied_env.processes import signals
from embodied_env.record import read_run, repair_run, rewrite
from embodied_env.record import run_repair as repair
from embodied_env.record.mcap_file import IndexedFile
from embodied_env.record.row_log import LogReader
from embodied_env.record.run_writer import RunWriter

CAMERAS = load_contract("door_open")


def found_in(path):
    """Return what an indexed reader finds, in the order of the file: topic, schema and message."""
    with path.open("rb") as file:
        reader = make_reader(file)
        statistics = reader.get_summary().statistics
        found = [
            SimpleNamespace(topic=channel.topic, schema=schema, log_ns=message.log_time, data=message.data)
            for schema, channel, message in reader.iter_messages(log_time_order=False)
        ]
    assert statistics.message_count == len(found)
    assert statistics.chunk_count >= 1
    return found


def is_journal(path):
    with path.open("rb") as file:
        kinds = {type(record) for record in StreamReader(file, emit_chunks=True).records}
    assert (Message in kinds) != (Chunk in kinds)
    return Message in kinds


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Return a closed run with cameras, and copies from before it was closed and before it was rewritten."""
    folder = tmp_path_factory.mktemp("runs")
    env = embodied_env.make("door_open", backend="fake", record=folder)
    for _ in range(3):  # each episode of this backend ends at its first step
        env.reset(seed=1)
        env.step(env.action_space.sample())
    env.flush()
    cut = shutil.copytree(env.path, folder / "cut")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(env), "_rewrite", lambda self: shutil.copytree(self.path, folder / "journal"))
        env.close()
    env._run.rewrite(env.unwrapped.contract)
    return SimpleNamespace(closed=env.path, cut=cut, journal=folder / "journal")


@pytest.fixture
def run(recorded, tmp_path):
    return SimpleNamespace(**{name: shutil.copytree(path, tmp_path / name) for name, path in vars(recorded).items()})


# --------------------------------------------------------------------------------------------------------- a clean close


def test_closed_run_is_indexed_and_sound(recorded):
    log = recorded.closed / "transitions.mcap"
    assert not is_journal(log)
    counts = Counter(each.topic for each in found_in(log))
    assert counts["transition"] == counts["reset"] == 3
    assert counts["/joints"] == counts["/handle"] == counts["/door_state"] == 6
    assert counts["/camera"] == counts["/depth"] == 1  # of the backend fake, which always shows the same
    assert counts["array"] == 0
    assert not list(recorded.closed.glob(".*"))
    assert_sound(recorded.closed)
    assert (recorded.closed / "summary.json").read_text() == (recorded.journal / "summary.json").read_text()


def test_journal_and_rewritten_run_read_the_same(recorded):
    journal, closed = (read_run(path) for path in (recorded.journal, recorded.closed))
    assert is_journal(recorded.journal / "transitions.mcap")
    assert (journal.problem, closed.problem) == ("", "")
    assert list(journal.rows()) == list(closed.rows())
    for row in closed.transitions():
        for key in ("camera_image", "depth_image"):
            a, b = (each.array(row["inner"]["observation"][key]) for each in (journal, closed))
            assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


def test_reader_of_a_journal_finds_arrays_after_it_was_rewritten(run):
    reader = LogReader(run.journal / "transitions.mcap")
    references = [row["observation"]["camera_image"] for row in reader]
    first = reader.array(references[0]).tobytes()
    repair_run(run.journal)
    assert reader.array(references[-1]).tobytes() == first


# ----------------------------------------------------------------------------------------------------- Foxglove's schemas


class Rows(RowLog):
    """A log of hand-made rows of the contract door_open."""

    def __init__(self, folder):
        self.path = folder / "transitions.mcap"
        super().__init__(self.path)
        self.count = 0

    def add(self, observation=None, evaluator=None, *, kind="transition"):
        """Write a row; arrays of the observation are stored outside it."""
        ns = 10**18 + self.count
        stored = {
            key: self.store(value, log_time_ns=ns) if isinstance(value, np.ndarray) else value
            for key, value in (observation or {}).items()
        }
        inner = {"observation": stored, "evaluator": evaluator or {}}
        self.write(kind, {"row": self.count, "inner": inner}, log_time_ns=ns)
        self.count += 1
        return stored

    def found(self, contract=CAMERAS):
        """Close and rewrite the log; return the messages for viewers, decoded, by topic."""
        self.close()
        rewrite.rewrite_log(self.path, contract)
        found = {}
        for each in found_in(self.path):
            if each.schema.encoding == "protobuf":
                message = decode(each.schema, each.data)
                if each.topic != "array":
                    assert message.timestamp.seconds * 10**9 + message.timestamp.nanos == each.log_ns
                found.setdefault(each.topic, []).append(message)
        return found


@pytest.fixture
def rows(tmp_path):
    rows = Rows(tmp_path)
    yield rows
    rows.close()


def picture(seed):
    return np.random.default_rng(seed).integers(0, 256, (96, 96, 3), dtype=np.uint8)


def test_image_is_stored_once_in_the_form_of_foxglove(rows):
    images, depth = [picture(0), picture(1)], np.random.default_rng(2).random((64, 64, 1), dtype=np.float32)
    references = [rows.add({"camera_image": image, "depth_image": depth}) for image in images]
    found = rows.found()
    assert set(found) == {"/camera", "/depth"}
    for message, image in zip(found["/camera"], images, strict=True):
        assert (message.width, message.height, message.encoding, message.step) == (96, 96, "rgb8", 288)
        assert (message.frame_id, message.data) == ("wrist_camera_optical", image.tobytes())
    (message,) = found["/depth"]
    assert (message.encoding, message.step, message.data) == ("32FC1", 256, depth.tobytes())
    reader = LogReader(rows.path)
    for stored, image in zip(references, images, strict=True):
        assert np.array_equal(reader.array(stored["camera_image"]), image)
        assert np.array_equal(reader.array(stored["depth_image"]), depth)


def test_without_views_only_rows_and_arrays_are_rewritten(rows, monkeypatch):
    monkeypatch.setitem(PARTS, "row_views", "embodied_env.no_such_extension:RowViews")
    stored = rows.add({"camera_image": picture(0)})
    assert set(rows.found()) == {"array"}
    assert np.array_equal(LogReader(rows.path).array(stored["camera_image"]), picture(0))


def test_image_that_returns_is_shown_again(rows):
    for seed in (0, 1, 1, 0):
        rows.add({"camera_image": picture(seed)})
    assert [message.data for message in rows.found()["/camera"]] == [picture(seed).tobytes() for seed in (0, 1, 0)]


def test_newest_image_of_a_history_is_shown(rows):
    spec = CAMERAS.sensors["camera"]
    camera = replace(spec, fields={"image": replace(spec.fields["image"], history=2)})
    stack = np.stack([picture(0), picture(1)])
    stored = rows.add({"camera_image": stack})
    found = rows.found(replace(CAMERAS, sensors={**CAMERAS.sensors, "camera": camera}))
    assert [message.data for message in found["/camera"]] == [picture(1).tobytes()]
    assert len(found["array"]) == 1
    assert np.array_equal(LogReader(rows.path).array(stored["camera_image"]), stack)


@pytest.mark.parametrize(
    "array",
    [np.zeros((96, 96, 3), np.int8), np.zeros((96, 96, 4), np.uint8), np.zeros(5000, np.uint8), np.zeros((0, 96, 3), np.uint8)],
    ids=["int8", "four channels", "flat", "empty"],
)  # fmt: skip
def test_array_that_is_no_image_of_the_camera_stays_an_array(rows, array):
    stored = rows.add({"camera_image": array})
    (message,) = rows.found()["array"]
    assert (message.dtype, tuple(message.shape), message.data) == (array.dtype.name, array.shape, array.tobytes())
    assert np.array_equal(LogReader(rows.path).array(stored["camera_image"]), array)


def test_joint_states_have_the_values_that_are_numbers(rows):
    positions, velocities = [0.1, 0.2, None, 0.4, 0.5, 0.6], [1.0] * 6
    rows.add({"joints_position": positions, "joints_velocity": velocities}, {"door_state": {"position": [0.25]}})
    found = rows.found()
    joints = found["/joints"][0].joints
    assert [joint.name for joint in joints] == ["j1", "j2", "j3", "j4", "j5", "j6"]
    assert [joint.position if joint.HasField("position") else None for joint in joints] == positions
    assert [joint.velocity for joint in joints] == velocities
    assert not any(joint.HasField("effort") for joint in joints)
    assert [(joint.name, joint.position) for joint in found["/door_state"][0].joints] == [("door_hinge", 0.25)]


def test_poses_have_frame_position_and_orientation(rows):
    rows.add({"handle_position": [1.0, 2.0, 3.0], "handle_orientation": [0.0, 0.6, 0.0, 0.8]})
    rows.add({"handle_position": [1.0, None, 3.0], "handle_orientation": [0.0, 0.6, 0.0, 0.8]})
    rows.add({"handle_position": [1.0, 2.0, 3.0], "handle_orientation": None})
    (message,) = rows.found()["/handle"]
    position, orientation = message.pose.position, message.pose.orientation
    assert message.frame_id == "base"
    assert (position.x, position.y, position.z) == (1.0, 2.0, 3.0)
    assert (orientation.x, orientation.y, orientation.z, orientation.w) == (0.0, 0.6, 0.0, 0.8)


def test_pose_without_a_read_orientation_is_not_rotated(rows):
    rows.add({"tcp_position": [1.0, 2.0, 3.0]}, kind="reset")
    (message,) = rows.found(load_contract("arm_reach"))["/tcp"]
    assert (message.frame_id, message.pose.position.z, message.pose.orientation.w) == ("world", 3.0, 1.0)


@pytest.mark.parametrize("row", [[], "x", {"inner": None}, {"inner": {"observation": 1}}, {"inner": {"observation": {
    "camera_image": {"sha256": "0" * 64, "dtype": "uint8", "shape": [96, 96, 3]}, "joints_position": 3,
    "handle_position": {"x": 1}}}}])  # fmt: skip
def test_row_of_any_json_is_copied(rows, row):
    rows._add_message("transition", json.dumps(row).encode(), 0, 0)
    assert rows.found() == {}
    assert list(LogReader(rows.path)) == [row]


def test_rows_of_several_chunks_keep_their_order(rows, monkeypatch):
    for seed in range(8):
        rows.add({"camera_image": picture(seed // 2)})
    monkeypatch.setattr("embodied_env.record.mcap_file.CHUNK_SIZE", 50_000)
    rows.found()
    reader = LogReader(rows.path)
    assert [row["row"] for row in reader] == list(range(8))
    for row in reader:
        image = reader.array(row["inner"]["observation"]["camera_image"])
        assert np.array_equal(image, picture(row["row"] // 2))


def test_rows_that_expand_more_than_a_reader_accepts_are_stored_as_they_are(rows, monkeypatch):
    for name, value in (("CHUNK_SIZE", 5000), ("LARGEST_CHUNK", 20_000), ("MOST_EXPANSION", 2)):
        monkeypatch.setattr(f"embodied_env.record.mcap_file.{name}", value)
    for _ in range(8):
        rows.add({"text": "0" * 10_000})
    rows.found()
    reader = LogReader(rows.path)
    assert ([row["row"] for row in reader], reader.problem) == (list(range(8)), "")
    assert rows.path.stat().st_size > 80_000


# ----------------------------------------------------------------------------------------------------------------- failures


def failing(error):
    def finish(_):
        raise error

    return finish


def test_failed_rewrite_leaves_the_journal_and_is_reported_once(tmp_path, monkeypatch):
    monkeypatch.setattr(IndexedFile, "finish", failing(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    env = embodied_env.make("arm_reach", backend="fake", record=tmp_path)
    env.reset(seed=1)
    env.step(np.zeros(6))
    problem = r"transitions\.mcap cannot be rewritten: OSError: \[Errno 28\] No space left on device"
    with pytest.warns(UserWarning, match=f"is complete, but viewers cannot read it: {problem}"):
        env.close()
    env.close()
    assert is_journal(env.path / "transitions.mcap")
    assert not list(env.path.glob(".*"))
    assert_sound(env.path)
    monkeypatch.undo()
    assert repair_run(env.path).files
    assert_sound(env.path)
    assert "repaired" not in read_run(env.path).manifest


def test_rewrite_leaves_the_disk_to_the_runs_that_are_recorded(run, monkeypatch):
    monkeypatch.setattr(rewrite.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(RecordError, match=r"cannot be rewritten: 1000 bytes are free on its disk \(expected at least"):
        repair_run(run.journal)
    assert is_journal(run.journal / "transitions.mcap")


@pytest.mark.parametrize("name", ["copy", "add"])
def test_library_that_fails_leaves_the_journal(run, monkeypatch, name):
    monkeypatch.setattr(IndexedFile, name, lambda *_, **__: 1 / 0)
    before = (run.journal / "transitions.mcap").read_bytes()
    with pytest.raises(RecordError, match="cannot be rewritten: ZeroDivisionError"):
        repair_run(run.journal)
    assert (run.journal / "transitions.mcap").read_bytes() == before


def test_library_that_loses_or_changes_a_message_leaves_the_journal(run, monkeypatch):
    before, copy = (run.journal / "transitions.mcap").read_bytes(), IndexedFile.copy
    lossy = lambda file, stored: None if stored.channel.topic == "reset" else copy(file, stored)  # noqa: E731
    monkeypatch.setattr(IndexedFile, "copy", lossy)
    with pytest.raises(RecordError, match="it was not written as it was read"):
        repair_run(run.journal)
    assert (run.journal / "transitions.mcap").read_bytes() == before


@pytest.mark.parametrize("damaged", [b"MCAP", b'"row":2'])
def test_journal_that_cannot_be_read_to_its_end_is_not_rewritten_on_close(run, damaged):
    log = run.journal / "transitions.mcap"
    data = bytearray(log.read_bytes())
    data[data.index(damaged)] ^= 255
    log.write_bytes(data)
    with pytest.raises(RecordError, match="cannot be rewritten: damaged"):
        rewrite.rewrite_log(log, CAMERAS)
    assert log.read_bytes() == data


def test_interrupt_leaves_the_journal(run, monkeypatch):
    monkeypatch.setattr(IndexedFile, "finish", failing(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        repair_run(run.journal)
    assert is_journal(run.journal / "transitions.mcap")
    assert not list(run.journal.glob(".*"))


KILLED = """
import os, signal, sys
from embodied_env.record import repair_run
from embodied_env.record.mcap_file import IndexedFile
IndexedFile.finish = lambda self: os.kill(os.getpid(), signal.SIGKILL)
repair_run(sys.argv[1])
"""


def test_kill_during_the_rewrite_leaves_the_journal(run):
    done = subprocess.run([sys.executable, "-c", KILLED, str(run.journal)], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert [path.name for path in run.journal.glob(".*")] == [".transitions.mcap.new"]
    assert_sound(run.journal)
    assert repair_run(run.journal).files
    assert not list(run.journal.glob(".*"))
    assert_sound(run.journal)


def test_nothing_is_rewritten_before_everything_is_closed_at_exit(monkeypatch):
    happened = []
    monkeypatch.setattr(signals, "_open", {})

    class Robot:
        def close(self):
            signals.run_after_closing(lambda: happened.append("rewritten"))
            happened.append("stopped")

    signals._open.update(dict.fromkeys([Robot(), Robot(), Robot()], False))
    signals._close_all()
    assert happened == ["stopped"] * 3 + ["rewritten"] * 3
    Robot().close()
    assert happened[-2:] == ["rewritten", "stopped"]


@pytest.mark.needs("vector")
def test_every_robot_of_a_vector_stops_before_anything_is_rewritten(tmp_path, monkeypatch):
    envs = embodied_env.make_vec("arm_reach", backend="fake", num_envs=3, record=tmp_path)
    rewritten = []

    def rewrite_run(run, contract):
        rewritten.append(run.path)
        assert all(read_run(path).manifest["clean"] for path in tmp_path.glob("*/*"))

    monkeypatch.setattr(RunWriter, "rewrite", rewrite_run)
    envs.reset(seed=1)
    envs.close()
    assert sorted(rewritten) == sorted(tmp_path.glob("*/*"))


@pytest.mark.needs("evaluation")
def test_evaluate_names_runs_of_workers_with_journals(recorded, capsys):
    from embodied_env.extensions.evaluation.evaluation_display import _print_journals

    result = SimpleNamespace(parts=[recorded.journal, recorded.closed])
    _print_journals(SimpleNamespace(results=[result]))
    assert capsys.readouterr().err == f"not rewritten for viewers: {recorded.journal}; use embodied-env repair\n"


# ------------------------------------------------------------------------------------------------------------------- repair


def test_repaired_run_is_whole_and_stays_unsound(run):
    before, rows = read_run(run.cut).problem, list(read_run(run.cut).rows())
    log = run.cut / "transitions.mcap"
    with log.open("ab") as file:
        file.write(b"\5" + (1000).to_bytes(8, "little") + b"half a message")
    report = repair_run(run.cut)
    assert (report.files[0].count, report.files[0].cut_bytes) == (6, 23)
    assert (run.cut / report.files[0].kept).read_bytes().endswith(b"half a message")
    repaired = read_run(run.cut)
    assert before.split(" (")[0] in repaired.problem
    assert_finds(run.cut, "run.unclean")
    (mark,) = repaired.manifest["repaired"]
    assert f"repaired on {mark['utc']}" in repaired.problem
    assert mark["files"][0]["cut_bytes"] == 23
    assert list(repaired.rows()) == rows
    assert Counter(each.topic for each in found_in(log))["/joints"] == 6


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
        with pytest.raises(RecordError, match=r"transitions\.mcap cannot be rewritten: it is in use"):
            repair_run(env.path)
    assert (env.path / "transitions.mcap").read_bytes() == before
    env.step(np.zeros(6))
    env.close()
    assert_sound(env.path)


def test_damaged_journal_keeps_every_whole_record_and_the_original(run):
    log = run.journal / "transitions.mcap"
    data = bytearray(log.read_bytes())
    data[data.index(b'"row":2') + 6] = ord("x")
    log.write_bytes(data)
    problem = read_run(run.journal).problem
    (file,) = repair_run(run.journal).files
    assert (file.count, file.kept) == (6, "transitions.damaged.mcap")
    assert (run.journal / file.kept).read_bytes() == data
    assert problem in read_run(run.journal).problem
    assert_finds(run.journal, "run.unclean")


def test_journal_with_a_wrong_length_keeps_the_records_after_it(run):
    log = run.cut / "transitions.mcap"
    data = bytearray(log.read_bytes())
    at = data.rindex(b'{"schema"', 0, data.index(b'"row":2')) - 22 - 8  # the length of the message
    data[at + 6] = 1
    log.write_bytes(data)
    (file,) = repair_run(run.cut).files
    assert (file.count, file.cut_bytes > 10_000) == (2, True)
    assert (run.cut / file.kept).read_bytes() == data


def test_repair_does_not_write_through_links(run, tmp_path):
    foreign = tmp_path / "foreign"
    foreign.write_text("foreign")
    for name in (".transitions.mcap.new", ".manifest.json.new"):
        (run.cut / name).symlink_to(foreign)
    assert repair_run(run.cut).files
    assert foreign.read_text() == "foreign"


def test_run_that_is_closed_during_its_repair_stays_sound(run, monkeypatch):
    closed = (run.closed / "manifest.json").read_bytes()

    def rewrite_and_close(path, contract, **how):
        rewrite.rewrite_log(path, contract, **how)
        (path.parent / "manifest.json").write_bytes(closed)

    monkeypatch.setattr(repair, "rewrite_log", rewrite_and_close)
    with pytest.raises(RecordError, match="the manifest changed during the repair"):
        repair_run(run.cut)
    assert (run.cut / "manifest.json").read_bytes() == closed


def test_channels_that_are_repeated_are_copied_once(run):
    log = run.journal / "transitions.mcap"
    with log.open("rb") as file:
        records = [record for record in StreamReader(file).records if type(record) in (Schema, Channel, Message)]
    repeated = [record for record in records if not isinstance(record, Message)]
    with log.open("wb") as file:
        builder = RecordBuilder()
        Header(profile="", library="").write(builder)
        for message in (record for record in records if isinstance(record, Message)):
            for record in (*repeated, message):
                record.write(builder)
        file.write(MCAP0_MAGIC + builder.end())
    rewrite.rewrite_log(log, None, repairs=True)
    with log.open("rb") as file:
        assert len(make_reader(file).get_summary().channels) == 3


def test_repair_verb_reports_each_run(run, capsys):
    assert main(["repair", str(run.cut), str(run.closed), "--json"]) == 0
    cut, closed = json.loads(capsys.readouterr().out)
    assert (len(cut["files"]), closed["files"]) == (1, [])
    assert main(["repair", str(run.cut), str(run.journal)]) == 0
    printed = capsys.readouterr().out
    assert f"{run.cut}: nothing to repair\n{run.cut}: still not sound: " in printed
    assert f"{run.journal}: transitions.mcap rewritten, 6 rows\n" in printed
    (run.cut / "transitions.mcap").unlink()
    assert main(["repair", str(run.cut), str(run.closed)]) == 1
    assert "transitions.mcap cannot be rewritten: FileNotFoundError: " in capsys.readouterr().err
    with contextlib.suppress(SystemExit):
        assert main(["repair", str(run.cut / "nothing")]) == 2
