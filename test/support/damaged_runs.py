"""Copies of a recorded run that are each damaged in one way, which the seed determines."""

import json
import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import run_files

from embodied_env.record.row_log import LogReader, LogWriter
from embodied_env.record.row_types import RESET

LOG, MANIFEST, SUMMARY, FIRST = "transitions.mcap", "manifest.json", "summary.json", "first_transition.json"
FILES = (LOG, MANIFEST, SUMMARY, FIRST)
ESCAPES = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202egnp.exe\u2066\x7f</script><script>alert(1)</script>"
DEEP = "@deep@"
VALUES: tuple = (
    None, True, False, 0, 1, -1, 255, 2**31, 2**63, -(2**63), 2**64, 10**39, 10**400, 0.0, -0.0, 0.5, 1e-320, 1e308, -1e308,
    float("nan"), float("inf"), "", "x", "OK", "success", "1", "\ud800", "a\0b", "x" * 5000, ESCAPES, "../../etc/passwd",
    [], {}, [[]], [None], [1e308], ["x"], [1, 2], [[1], [1, 2]], {"repr": 1}, {"x": 1}, {"": {}}, DEEP,
    {"sha256": "0" * 64, "dtype": "uint8", "shape": [1]}, {"sha256": "0" * 64, "dtype": "O", "shape": [-1, 2**70]},
)  # fmt: skip
YAML_TEXTS = (
    "", "[", "contract: embodied_env/1", "a: &a [*a]", "x: " + "[" * 200, "a: &a [1,1]\nb: &b [*a,*a]\nc: [*b,*b]",
    "contract: embodied_env/1\nsafety: {urdf: /dev/zero}", ESCAPES, "\ud800",
)  # fmt: skip


def damage(path: Path, seed: int, other: Path) -> str:
    """Damage the run at `path`, possibly with parts of `other`, and return a description."""
    rng = random.Random(seed)
    kind = rng.choice(KINDS)
    return f"{kind.__name__}: {kind(path, rng, other)}"


def kind_of(seed: int) -> Callable[..., str]:
    return random.Random(seed).choice(KINDS)


def flip(path, rng, _):
    file, data = _chosen(path, rng)
    places = [rng.randrange(len(data)) for _ in range(rng.choice((1, 1, 1, 2, 20)))]
    for place in places:
        data[place] ^= 1 << rng.randrange(8)
    file.write_bytes(data)
    return f"{file.name} {places}"


def overwrite(path, rng, _):
    file, data = _chosen(path, rng)
    start, length = rng.randrange(len(data)), rng.choice((1, 8, 9, 100))
    data[start : start + length] = rng.choice((b"\0", b"\xff", b"[", b"9", b'"', b"\x1b")) * length
    file.write_bytes(data)
    return f"{file.name} {start}+{length}"


def cut(path, rng, _):
    file, data = _chosen(path, rng)
    size = rng.choice((0, 1, rng.randrange(len(data)), len(data) - 1))
    file.write_bytes(data[:size])
    return f"{file.name} to {size}"


def insert(path, rng, _):
    file, data = _chosen(path, rng)
    place, length = rng.randrange(len(data)), rng.choice((1, 9, 500))
    start = rng.randrange(len(data))
    data[place:place] = rng.choice((data[start : start + length], rng.randbytes(length)))
    file.write_bytes(data)
    return f"{file.name} {place}"


def swap(path, rng, other):
    name = rng.choice(FILES)
    shutil.copy(other / name, path / name)
    return name


def replace_file(path, rng, _):
    name, kind = rng.choice(FILES), rng.choice(("absent", "directory", "pipe", "device", "dangling"))
    file = path / name
    file.unlink()
    if kind == "directory":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind != "absent":
        file.symlink_to("/dev/zero" if kind == "device" else "/nowhere/at/all")
    return f"{name} {kind}"


def change_row(path, rng, _):
    rows = list(LogReader(path / LOG))
    index = rng.randrange(len(rows))
    what = _change(rows[index], rng)
    return f"row {index}: {what}, {_write_rows(path, rows, rng)}"


def change_order(path, rng, _):
    rows = list(LogReader(path / LOG))
    a, b = rng.sample(range(len(rows)), 2)
    what = rng.choice(("swap", "drop", "repeat", "schema", "no object", "no row"))
    if what == "swap":
        rows[a], rows[b] = rows[b], rows[a]
    elif what == "drop":
        del rows[a]
    elif what == "repeat":
        rows.insert(a, rows[b])
    elif what == "schema":
        rows[a]["schema"] = rows[b]["schema"] if rng.random() < 0.5 else rng.choice(VALUES)
    else:
        rows = [rng.choice(VALUES) if i == a else row for i, row in enumerate(rows)] if what == "no object" else []
    return f"{what} {a} {b}, {_write_rows(path, rows, rng)}"


def change_json(path, rng, _):
    file = path / rng.choice((MANIFEST, MANIFEST, SUMMARY, FIRST))
    value = json.loads(file.read_text())
    what = _change(value, rng)
    file.write_bytes(_text(value))
    return f"{file.name}: {what}"


def change_contract(path, rng, _):
    file = path / MANIFEST
    manifest = json.loads(file.read_text())
    text = manifest["contract"]["text"]
    start = rng.randrange(len(text))
    piece = rng.choice((*YAML_TEXTS, *(str(value) for value in VALUES)))
    manifest["contract"]["text"] = rng.choice((piece, text[:start] + piece + text[start + rng.randrange(20) :]))
    file.write_bytes(_text(manifest))
    return f"{start} {piece[:40]!r}"


def change_record(path, rng, _):
    """Insert an MCAP record with an arbitrary length before the end of the data."""
    file = path / LOG
    data = file.read_bytes()
    place = data.rindex(struct.pack("<BQ", 0x0F, 4))
    length = rng.choice((0, 1, 40, 2**31, 2**40, 2**63, 2**64 - 1))
    text = struct.pack("<I", 4) + b"zstd"
    bodies = {
        0x03: b"\0\0" + struct.pack("<I", 2**32 - 1),
        0x04: b"\1\0\1\0" + struct.pack("<I", 2**32 - 1),
        0x05: b"\0" * 21,
        0x06: struct.pack("<QQQI", 0, 0, 2**62, 0) + text + struct.pack("<Q", length) + b"(\xb5/\xfd\xa4\0\0\0@",
        0x09: struct.pack("<QQIIQ", 0, 0, 0, 0, length),
        0x0C: struct.pack("<II", 0, 2**32 - 1) + b"\0" * 30,
        0x77: b"x",
    }
    code = rng.choice(list(bodies))
    declared = rng.choice((len(bodies[code]), length))
    file.write_bytes(data[:place] + struct.pack("<BQ", code, declared) + bodies[code] + data[place:])
    return f"record {code:#x} of {declared}"


KINDS = (
    *(flip,) * 5, overwrite, overwrite, cut, insert, swap, replace_file, *(change_row,) * 9, change_order, change_order,
    *(change_json,) * 4, change_contract, change_record,
)  # fmt: skip


def _chosen(path, rng):
    file = path / rng.choice((LOG, LOG, LOG, *FILES))
    return file, bytearray(file.read_bytes())


def _change(value, rng):
    place = []
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            break
        key = rng.choice(keys)
        place.append(str(key))
        inside = value[key]
        if not isinstance(inside, (dict, list)) or not inside or rng.random() < 0.1:
            how = rng.random()
            if how < 0.15 and isinstance(value, dict):
                del value[key]
            elif how < 0.2 and isinstance(value, dict):
                value[ESCAPES] = value.pop(key)
            elif how < 0.3 and isinstance(inside, (int, float)) and not isinstance(inside, bool):
                value[key] = inside + rng.choice((1, -1, 1e-9))
            else:
                value[key] = rng.choice(VALUES)
            return f"{'.'.join(place)}: {str(value.get(key, '-') if isinstance(value, dict) else value[key])[:40]!r}"
        value = inside
    return "nothing"


def _text(value) -> bytes:
    return json.dumps(value).replace(f'"{DEEP}"', "[" * 50_000 + "]" * 50_000).encode()


def _write_rows(path, rows, rng) -> str:
    (path / LOG).unlink()
    writer = LogWriter(path / LOG)
    for row in rows:
        topic = "reset" if isinstance(row, dict) and row.get("schema") == RESET else "transition"
        writer._add_message(topic, [_text(row)], 0, 0)
        if rng.random() < 0.2:
            writer.flush()
    writer.close()
    if rng.random() < 0.5:
        return "as damage"
    run_files.seal(path)  # consistent with the hash, as a forger would
    return "sealed"
