"""Run mutation tests of the safety package, with one textual mutant at a time in a copy of the package.

    python tools/mutants.py [part of a mutant's name ...]

`mutants.diff` lists the mutants. After `--- FILE`, a file of the package, each is

    @@ name: tests -k expression
    -text that is in the file once
    +text in its place

For each mutant the tests that should kill it run first, then those of all mutants. Prints a table; the exit status is
1 when a mutant survives, or when a mutant no longer matches the source.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUPPORT = ("test/support", "test/extensions/vector/support")


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """Mutant that turns `old` into `new` in `file`, which a test of `tests` that matches `by` should detect."""

    name: str
    file: str
    old: str
    new: str
    tests: str
    by: str


def read_mutants(text: str) -> Iterator[Mutant]:
    """Yield the mutants of a list."""
    for section in re.split(r"^--- ", text, flags=re.MULTILINE)[1:]:
        file, *hunks = re.split(r"\n@@ ", section)
        for hunk in hunks:
            head, *lines = hunk.splitlines()
            ((name, tests, by),) = re.findall(r"^(.*): (\S+)(?: -k (.*))?$", head)
            old, new = ("\n".join(line[1:] for line in lines if line[0] == sign) for sign in "-+")
            yield Mutant(name=name, file=file, old=old, new=new, tests=f"test/{tests}", by=by)


MUTANTS = tuple(read_mutants(Path(__file__).with_suffix(".diff").read_text()))
TESTS = {mutant.tests for mutant in MUTANTS}


def copy_of_the_package(folder: Path) -> Path:
    """Copy the package and its tests, so that the tests import the mutant."""
    for part in ("embodied_env", "config", "test"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    return folder


def run(folder: Path, tests: Iterable[str], by: str, *, timeout_s: float = 900) -> tuple[bool, str]:
    """Run tests in `folder` up to the first failure, and return whether all passed and which failed."""
    command = [sys.executable, "-m", "pytest", *tests, "-x", "-q", "--noconftest", "-p", "no:cacheprovider"]
    command += [
        "-c",
        os.devnull,
        "--rootdir",
        str(folder),
        "--import-mode=importlib",
        "-W",
        "ignore",
        "-m",
        "not long and not ros",
    ]
    command += ["--hypothesis-profile=ci"]  # has no deadline, which a busy machine would miss
    command += ["-o", f"pythonpath={' '.join(SUPPORT)}", "--tb=line", *(["-k", by] if by else [])]
    path = os.pathsep.join(map(str, (folder, *(folder / part for part in SUPPORT))))
    environment = {**os.environ, "PYTHONPATH": path, "EMBODIED_ENV_SHRINK": "0"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    failed = re.findall(r"^(?:FAILED|ERROR) \S*?::(\S+)", done.stdout, flags=re.MULTILINE)
    if done.returncode == 5:  # pytest: no test was selected
        return True, f"no test is named like {by!r}"
    if done.returncode not in (0, 1):
        return False, failed[0] if failed else (done.stdout + done.stderr)[-300:]
    return done.returncode == 0, failed[0] if failed else ""


def judge(mutant: Mutant) -> tuple[Mutant, str, str, float]:
    """Return the mutant, its result, the test that killed it, and the seconds it took."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant_") as temporary:
        folder = copy_of_the_package(Path(temporary))
        target = folder / "embodied_env" / mutant.file
        text = target.read_text()
        if (count := text.count(mutant.old)) != 1:
            return mutant, "DOES NOT FIT", f"{count} places", 0.0
        target.write_text(text.replace(mutant.old, mutant.new))
        passed, killer = run(folder, [mutant.tests], mutant.by)
        result = "killed"
        if passed:
            result = "killed by another"
            passed, killer = run(folder, TESTS, "")
        return mutant, "SURVIVED" if passed else result, killer, time.monotonic() - began


def main(names: list[str]) -> int:
    chosen = [mutant for mutant in MUTANTS if not names or any(name in mutant.name for name in names)]
    with tempfile.TemporaryDirectory(prefix="unharmed_") as temporary:
        passed, failed = run(copy_of_the_package(Path(temporary)), TESTS, "", timeout_s=3600)
    if not passed:
        print(f"the tests fail without a mutant: {failed}")
        return 1
    bad = 0
    print(f"{'mutant':58} {'expected':28} {'result':18} {'killed by':100} s")
    with ThreadPoolExecutor(max(1, os.cpu_count() or 1)) as pool:
        for mutant, result, killer, seconds in pool.map(judge, chosen):
            bad += result.isupper()
            print(
                f"{mutant.file + ': ' + mutant.name:58} {mutant.by:28} {result:18} {killer:100} {seconds:.0f}",
                flush=True,
            )
    print(f"{len(chosen)} mutants, {bad} survived or do not fit")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
