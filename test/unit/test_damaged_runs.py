"""Damaged and forged runs: every verb gives a finding or one clear error, and never calls a changed row sound."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import traceback

import numpy as np
import pytest
from damaged_runs import damage

from embodied_env.cli import main
from embodied_env.env import EmbodiedEnv
from embodied_env.record import RecordTransitions
from embodied_env.record.log import LogReader

VERBS = (*("replay",) * 12, *("export",) * 7, *("profile",) * 5, *("compare --json",) * 4, "compare", "report")
RAW = {*map(chr, (*range(9), *range(11, 32), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)))}
OF_LIBRARIES = re.compile(r"<script[^>]*>.*?</script>", re.DOTALL)
FEW, MANY = 330, 10_000


def record(folder, seed):
    env = RecordTransitions(EmbodiedEnv("arm_reach", backend="fake"), folder)
    env.action_space.seed(seed)
    for first in (seed, None):
        env.reset(seed=first)
        for _ in range(3):
            env.step(env.action_space.sample() * np.float32(0.01))
    env.close()
    return env.path


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("originals")
    return record(folder, 1), record(folder, 2)


def told(arguments):
    """Run a verb; return its exit status and its output, or the traceback."""
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
        "compare --json": ["compare", str(original), str(path), "--json"],
        "compare": ["compare", str(original), str(path), "-o", str(out / "page.html")],
        "report": ["report", str(path), "-o", str(out / "page.html")],
    }[verb]


def rows_of(path):
    """Return the rows as text, or None where the log is not whole."""
    reader = LogReader(path / "transitions.mcap")
    rows = [json.dumps(row) for row in reader]
    return None if reader.problem else rows


def failure(runs, seed, folder, verbs=None):
    """Return what is wrong with how a mutant is treated, or ""."""
    original, other = runs
    shutil.rmtree(folder, ignore_errors=True)
    path = folder / "run"
    shutil.copytree(original, path)
    what = damage(path, seed, other)
    has_changed = "sealed" not in what and rows_of(path) != rows_of(original)
    for verb in verbs or ("audit", VERBS[seed % len(VERBS)]):
        status, output = told(arguments_of(verb, path, original, folder))
        page = (folder / "page.html").read_text() if (folder / "page.html").exists() else ""
        where = f"seed {seed}, {verb} of a run with {what}: "
        if status not in (0, 1, 2):
            return f"{where}status {status}\n{output}"
        if status == 0 and has_changed:
            return f"{where}status 0 though a row has changed"
        if raw := RAW & set(output + OF_LIBRARIES.sub("", page)):
            return f"{where}control characters are shown raw: {raw}"
        if "<script>alert" in page:
            return f"{where}a text of the run is a script of the page"
    return ""


def check(runs, seeds, folder):
    failures = [found for seed in seeds if (found := failure(runs, seed, folder))]
    assert not failures, f"{len(failures)} of {len(seeds)}:\n" + "\n".join(failures[:5])


def test_no_damage_ends_in_a_traceback_or_is_called_sound(runs, tmp_path):
    check(runs, range(FEW), tmp_path / "mutant")


@pytest.mark.long
def test_no_damage_of_many_ends_in_a_traceback_or_is_called_sound(runs, tmp_path):
    check(runs, range(FEW, FEW + MANY), tmp_path / "mutant")
