"""Every verb reports a finding or one clear error for a damaged or forged run, and never accepts a changed row."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import random
import re
import shutil
import traceback
import tracemalloc

import damaged_runs
import lz4.frame
import numpy as np
import pytest
import run_files
import zstandard
from damaged_runs import damage
from evidence import assert_finds
from extension_marks import is_installed, needing
from mcap.data_stream import RecordBuilder
from mcap.reader import make_reader
from mcap.records import Channel, Chunk, DataEnd, Footer, Header
from mcap.stream_reader import StreamReader
from mcap.writer import MCAP0_MAGIC, CompressionType, Writer
from row_logs import RowLog
from scripted_tasks import OneClock

from embodied_env.cli.main import main
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.record import RecordTransitions, read_run
from embodied_env.record.mcap_file import McapRecords
from embodied_env.record.row_log import LogReader
from embodied_env.record.row_types import RESET

VERBS = (
    *("replay",) * 10,
    "lines",
    "lines under a contract",
    *("export",) * 7,
    *("profile",) * 5,
    *("compare --json",) * 4,
    "compare",
    "report",
)
RAW = {*map(chr, (*range(9), *range(11, 32), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)))}
OF_LIBRARIES = re.compile(r"<script[^>]*>.*?</script>", re.DOTALL)
MANY = 10_330


def record(folder, seed, steps=3):
    """Record two episodes in a run that differs from others only in date and name, which have fixed lengths."""
    env = RecordTransitions(EmbodiedEnv("arm_reach", backend="fake", clock=OneClock(start_ns=1)), folder)
    env.action_space.seed(seed)
    for first in (seed, None):
        env.reset(seed=first)
        for _ in range(steps):
            env.step(env.action_space.sample() * np.float32(0.01))
    env.close()
    return env.path


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("originals")
    return record(folder, 1), record(folder, 2), record(folder, 1, steps=11)  # a profile needs 20 steps


def run_verb(arguments):
    """Run a verb, and return its exit status and output, or the traceback."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            status = main(arguments)
        except BaseException:
            return None, traceback.format_exc()
    return status, out.getvalue()


def arguments_of(verb, path, original, out):
    return {
        "audit": ["audit", str(path)],
        "replay": ["replay", str(path)],
        "export": ["export", str(path), "--format", "jsonl", "-o", str(out / "export")],
        "profile": ["profile", str(path), "-o", str(out / "profile.json")],
        "lines": ["audit", str(out / "rows.jsonl")],
        "lines under a contract": ["audit", str(out / "rows.jsonl"), "--contract", "arm_reach"],
        "compare --json": ["compare", str(original), str(path), "--json"],
        "compare": ["compare", str(original), str(path), "-o", str(out / "page.html")],
        "report": ["report", str(path), "-o", str(out / "page.html")],
    }[verb]


def marks_of(verb):
    return needing("audit" if "lines" in verb else verb.split()[0])


def verbs(*names):
    return [pytest.param(verb, marks=marks_of(verb)) for verb in names]


def rows_of(path):
    """Return the rows as text, or None if the log is damaged."""
    reader = LogReader(path / "transitions.mcap")
    rows = [json.dumps(row) for row in reader]
    return None if reader.problem else rows


def failure(runs, seed, folder):
    chosen = VERBS[seed % len(VERBS)]
    original, other = runs[2 if chosen == "profile" else 0], runs[1]
    if folder.exists():
        shutil.rmtree(folder)
    path = folder / "run"
    shutil.copytree(original, path)
    what = damage(path, seed, other)
    has_changed = "sealed" not in what and rows_of(path) != rows_of(original)
    (folder / "rows.jsonl").write_text("\n".join(rows_of(path) or []))
    for verb in ("profile",) if chosen == "profile" else ("audit", chosen):
        if not all(is_installed(name) for mark in marks_of(verb) for name in mark.args):
            continue
        status, output = run_verb(arguments_of(verb, path, original, folder))
        page = (folder / "page.html").read_text() if (folder / "page.html").exists() else ""
        where = f"seed {seed}, {verb} of a run with {what}: "
        if status not in (0, 1, 2):
            return f"{where}status {status}\n{output}"
        if status == 0 and has_changed and "lines" not in verb:  # the hash of a single line is unknown
            return f"{where}status 0 though a row has changed"
        if raw := RAW & set(output + OF_LIBRARIES.sub("", page)):
            return f"{where}control characters are shown raw: {raw}"
        if "<script>alert" in page:
            return f"{where}a text of the run is a script of the page"
    return ""


def check(runs, seeds, folder):
    failures = [found for seed in seeds if (found := failure(runs, seed, folder))]
    assert not failures, f"{len(failures)} of {len(seeds)}:\n" + "\n".join(failures[:5])


@pytest.mark.parametrize("verb", verbs("audit", "compare", "compare --json", "export", "replay", "report"))
def test_every_verb_exits_0_on_an_undamaged_run(runs, tmp_path, verb):
    assert run_verb(arguments_of(verb, runs[0], runs[0], tmp_path))[0] == 0


def one_of_each():
    """Return the first seed of every third pair of verb and kind of damage, so that all verbs and kinds occur."""
    verbs, kinds = sorted(set(VERBS)), sorted(set(damaged_runs.KINDS), key=str)
    seeds = {}
    for seed in range(MANY):
        verb, kind = VERBS[seed % len(VERBS)], damaged_runs.kind_of(seed)
        if (verbs.index(verb) + kinds.index(kind)) % 3 == 0:
            seeds.setdefault((verb, kind), seed)
    return list(seeds.values())


def test_damaged_run_never_passes_and_never_raises(runs, tmp_path):
    seeds = one_of_each()
    assert {VERBS[seed % len(VERBS)] for seed in seeds} == set(VERBS)
    assert {damaged_runs.kind_of(seed) for seed in seeds} == set(damaged_runs.KINDS)
    check(runs, seeds, tmp_path / "mutant")


@pytest.mark.long
def test_many_damaged_runs_never_pass_and_never_raise(runs, tmp_path):
    check(runs, range(MANY), tmp_path / "mutant")


# ------------------------------------------------------------------------------------------------ single kinds of damage


@pytest.fixture
def run(runs, tmp_path):
    return shutil.copytree(runs[0], tmp_path / "run")


def rewritten(path, change):
    """Change a row and rewrite the log with valid checksums, while the manifest keeps the hash of the old rows."""
    rows = list(LogReader(path / "transitions.mcap"))
    change(rows[2])
    (path / "transitions.mcap").unlink()
    writer = RowLog(path / "transitions.mcap")
    for row in rows:
        writer.write("reset" if row["schema"] == RESET else "transition", row, log_time_ns=row["log_time_ns"])
    writer.close()


def test_changed_digit_is_detected_by_the_hash_of_the_rows(run):
    rewritten(run, lambda row: row["inner"]["external_inputs"].update(latency_s=0.123))
    assert "does not have the hash of the row before it" in read_run(run).problem
    assert_finds(run, "run.unclean")


@pytest.mark.parametrize("verb", verbs("compare --json"))
@pytest.mark.parametrize("huge", [-1e308, 1e155])
def test_numbers_whose_squares_overflow_are_left_out_of_a_comparison(runs, run, tmp_path, verb, huge):
    rewritten(run, lambda row: row["observation"].update(target_position=[huge] * 3))
    status, output = run_verb(arguments_of(verb, run, runs[1], tmp_path))
    assert status in (0, 1), output


def test_clean_run_without_the_hash_of_its_rows_fails_the_audit(run):
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps({**manifest, "chain": None}))
    assert read_run(run).problem
    assert_finds(run, "run.unclean")


def test_head_is_the_hash_of_the_last_row_and_each_row_has_that_of_the_row_before_it(run):
    manifest = json.loads((run / "manifest.json").read_text())
    with (run / "transitions.mcap").open("rb") as file:
        found = [message for *_, message in make_reader(file).iter_messages(topics=["reset", "transition"])]
    stated = [manifest["run_id"], manifest["started_utc"], manifest["backend"], manifest["contract"]["fingerprint"]]
    head = hashlib.sha256(json.dumps(stated).encode()).hexdigest()
    for message in found:
        row = json.loads(message.data)
        assert (row["previous_sha256"], row["log_time_ns"]) == (head, message.log_time)
        head = hashlib.sha256(message.data).hexdigest()
    assert manifest["chain"] == {"head": head, "rows": 8, "resets": 2}


@pytest.mark.parametrize(
    ("verb", "value"),
    [
        *(
            pytest.param(verb, 1e308, marks=marks_of(verb))
            for verb in ("replay", "export", "profile", "compare", "report")
        ),
        *(pytest.param("audit", value, marks=marks_of("audit")) for value in (1e308, "0", None, [0.0], {})),
    ],
)
def test_row_of_wrong_type_or_size_fails_every_verb(runs, run, tmp_path, verb, value):
    rows = list(LogReader(run / "transitions.mcap"))
    rows[2]["info"]["sensors"]["tcp"]["age_s"] = value
    run_files.rewrite_log(run, rows)
    status, output = run_verb(arguments_of(verb, run, runs[0], tmp_path))
    assert status == 1, output


@pytest.mark.parametrize("verb", verbs("replay", "export", "profile", "compare", "report", "audit"))
@pytest.mark.parametrize("name", ["manifest.json", "summary.json", "first_transition.json", "transitions.mcap"])
def test_pipe_in_place_of_a_file_does_not_block(runs, run, tmp_path, verb, name):
    (run / name).unlink()
    os.mkfifo(run / name)
    status, output = run_verb(arguments_of(verb, run, runs[0], tmp_path))
    assert status == 1 or (verb not in ("audit", "report") and name in ("summary.json", "first_transition.json")), (
        output
    )


def test_declared_length_allocates_no_more_than_the_file_has(run):
    for seed in range(40):
        copy = shutil.copytree(run, run.parent / f"{seed}")
        damaged_runs.change_record(copy, random.Random(seed), None)
        tracemalloc.start()
        assert list(McapRecords(copy / "transitions.mcap"))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2**24  # declared are up to 2**64 bytes


def chunked(path, *, compression=CompressionType.ZSTD, data=b"{}", change=None):
    """Write a file with one row in a chunk whose record `change` may modify."""
    content = io.BytesIO()
    writer = Writer(content, compression=compression)
    writer.start()
    channel = writer.register_channel("reset", "json", 0)
    writer.add_message(channel, log_time=0, publish_time=0, data=data)
    writer.finish()
    if change is None:
        path.write_bytes(content.getvalue())
        return path
    content.seek(0)
    records = list(StreamReader(content, emit_chunks=True).records)
    (header,), (chunk,) = ([each for each in records if isinstance(each, kind)] for kind in (Header, Chunk))
    end = Footer(summary_start=0, summary_offset_start=0, summary_crc=0)
    path.write_bytes(MCAP0_MAGIC + records_of(header, change(chunk), DataEnd(0), end) + MCAP0_MAGIC)
    return path


def recompressed(chunk, content, **fields):
    changed = {"data": zstandard.compress(content), "uncompressed_size": len(content), "uncompressed_crc": 0}
    return dataclasses.replace(chunk, **{**changed, **fields})


def records_of(*records):
    builder = RecordBuilder()
    for record in records:
        record.write(builder)
    return builder.end()


BAD_CHUNKS = {
    "declares 1 EB": (lambda c: dataclasses.replace(c, uncompressed_size=2**60), "chunks that expand too much"),
    "declares less": (lambda c: dataclasses.replace(c, uncompressed_size=c.uncompressed_size - 1), "of another size"),
    "bomb": (lambda c: recompressed(c, bytes(10**8), uncompressed_size=100), "of another size"),
    "wrong checksum": (lambda c: dataclasses.replace(c, uncompressed_crc=1), "wrong checksum of a chunk"),
    "not zstd": (lambda c: dataclasses.replace(c, data=b"xxxx"), "cannot be decompressed"),
    "not lz4": (lambda c: dataclasses.replace(c, compression="lz4"), "cannot be decompressed"),
    "lz4 bomb": (
        lambda c: dataclasses.replace(
            c, compression="lz4", data=lz4.frame.compress(bytes(10**8)), uncompressed_size=100, uncompressed_crc=0
        ),
        "of another size",
    ),
    "unknown compression": (lambda c: dataclasses.replace(c, compression="xz"), "unknown compression 'xz'"),
    "chunk in a chunk": (lambda c: recompressed(c, records_of(c)), "unexpected record of opcode 6 in a chunk"),
    "end in a chunk": (lambda c: recompressed(c, records_of(DataEnd(0))), "unexpected record of opcode 15 in a chunk"),
    "cut off": (lambda c: recompressed(c, zstandard.decompress(c.data)[:-1]), "an incomplete record in a chunk"),
    "unknown": (lambda c: recompressed(c, bytes(9 * 10**6)), "unexpected record of opcode 0 in a chunk"),
    "too many": (lambda c: recompressed(c, records_of(*[Channel(1, "", "", {}, 0)] * 2000)), "too many records"),
    "too large": (lambda c: dataclasses.replace(c, uncompressed_size=2**26 + 1), "chunk of 67108865 bytes"),
}


@pytest.mark.parametrize("case", BAD_CHUNKS)
def test_damaged_chunk_ends_the_log_with_one_problem(tmp_path, case):
    change, problem = BAD_CHUNKS[case]
    reader = LogReader(chunked(tmp_path / "transitions.mcap", change=change))
    assert list(reader) == []
    assert problem in reader.problem
    assert reader.problem.count("transitions.mcap") == 1


def test_a_file_that_expands_too_much_is_read_up_to_the_limit(tmp_path):
    row = b'{"row": "%s"}' % (b"0" * 2**25)
    path = chunked(tmp_path / "transitions.mcap", data=row)
    records = McapRecords(path)
    assert (sum(kind == "Message" for kind, *_ in records), records.problem) == (1, "")
    content = path.read_bytes()
    start, end = (content.index(bytes([opcode]), 8) for opcode in (6, 15))
    path.write_bytes(content[:start] + 9 * content[start:end] + content[end:])
    assert sum(kind == "Message" for kind, *_ in records) == 2
    assert "chunks that expand too much" in records.problem


def test_rows_in_chunks_are_read(tmp_path):
    for compression in CompressionType:
        reader = LogReader(chunked(tmp_path / "transitions.mcap", compression=compression, data=b'{"row": 0}'))
        assert (list(reader), reader.problem) == ([{"row": 0}], "")


def test_lone_surrogates_are_recorded_as_question_marks(tmp_path):
    env = RecordTransitions(EmbodiedEnv("arm_reach", backend="fake"), tmp_path, policy="a\udc80")
    env.reset(seed=1)
    env.step({"what": "\ud800\U0001f916"})
    env.close()
    found = read_run(env.path)
    assert found.problem == ""
    assert found.manifest["policy"] == "a?"
    assert next(found.transitions())["action"] == {"what": "?\U0001f916"}
