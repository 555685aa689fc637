"""Run the delete test, which removes extensions and their tests and runs the tests of everything else.

    python tools/delete_test.py [NAME ...] [--only PATH ...] [--collect]

It copies the checkout without the folders `embodied_env/extensions/NAME` and `test/extensions/NAME`, and without those
of the extensions that need it, and runs the remaining tests in the copy. Prints a table, and the tests that failed; the
exit status is 1 when there are any.

Without names it removes all extensions at once, and then groups of them, in which only tests of the extensions that are
left and tests of the core that use one are run. For each extension and each other one that it does not need, a group
has the other one and leaves the first, which takes half of the time of removing each alone.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from embodied_env.extensions import removed_with

ROOT = Path(__file__).resolve().parent.parent
EXTENSIONS = sorted(folder.parent.name for folder in ROOT.glob("embodied_env/extensions/*/__init__.py"))
Pair = tuple[frozenset[str], str]
"""Extensions that a test uses, and another one."""

ONLY_THE_COPY = """
import sys

sys.meta_path[:] = [each for each in sys.meta_path if not getattr(each, "__module__", "").startswith("__editable__")]
"""
"""A `sitecustomize` module: an editable installation of the checkout would import the folders that were removed."""

CHECK = """
import pathlib, sys, embodied_env, embodied_env.extensions
from importlib.util import find_spec
assert pathlib.Path(embodied_env.__file__).is_relative_to(pathlib.Path.cwd()), embodied_env.__file__
assert not [name for name in sys.argv[1:] if find_spec(f"embodied_env.extensions.{name}")], "a removed folder is found"
"""


def copy_without(names: Sequence[str], folder: Path) -> tuple[int, int]:
    """Copy the files of the checkout that are not ignored, and return the number of files and lines left out."""
    left_out = tuple(f"{place}/extensions/{name}/" for place in ("embodied_env", "test") for name in names)
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = lines = 0
    for file in filter(lambda file: (ROOT / file).is_file(), listed.split("\0")[:-1]):
        if file.startswith(left_out):
            files, lines = files + 1, lines + (ROOT / file).read_bytes().count(b"\n")
        else:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, folder / file)
    return files, lines


def removed_groups() -> list[list[str]]:
    """Return groups of extensions, so that each test runs without each extension that it does not need."""
    used = {frozenset(_required([name])) for name in EXTENSIONS}
    for file in ROOT.glob("test/**/test_*.py"):
        for marked in re.findall(r"\bneeds\(([^()]*)\)", file.read_text(encoding="utf-8")):
            used.add(frozenset(_required([*re.findall(r'"(\w+)"', marked), *file.relative_to(ROOT).parts])))
    pairs = {(names, other) for names in used for other in EXTENSIONS if other not in names}
    groups = []
    while pairs:
        names, other = min(pairs, key=lambda pair: (sorted(pair[0]), pair[1]))
        kept, removed = set(names), set(removed_with(other))
        for name in EXTENSIONS:
            if name in kept | removed:
                continue
            with_it, without_it = kept | _required([name]), removed | {*removed_with(name)}
            is_kept = len(_separated(pairs, with_it, removed)) > len(_separated(pairs, kept, without_it))
            if without_it & kept or (is_kept and not with_it & removed):
                kept = with_it
            else:
                removed = without_it
        pairs -= _separated(pairs, kept, removed)
        groups.append(sorted(removed))
    return groups


def _required(names: Iterable[str]) -> set[str]:
    """Return the extensions among `names`, and those that they need."""
    return {each for each in EXTENSIONS if {*names} & {*removed_with(each)}}


def _separated(pairs: set[Pair], kept: set[str], removed: set[str]) -> set[Pair]:
    return {(names, other) for names, other in pairs if names <= kept and other in removed}


def run_without(names: Sequence[str], paths: Sequence[str], *, collect: bool) -> tuple[str, list[str]]:
    """Run the tests without these extensions, and return the row of the table and the lines of failures."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="without_extensions_") as temporary:
        checkout, site = Path(temporary, "checkout"), Path(temporary, "site")
        files, lines = copy_without(names, checkout)
        site.mkdir()
        (site / "sitecustomize.py").write_text(ONLY_THE_COPY)
        path = os.pathsep.join([str(site), str(checkout), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path}
        check = [sys.executable, "-c", CHECK, *names]
        subprocess.run(check, cwd=checkout, env=environment, check=True)
        there = [path for path in paths if (checkout / path).exists()]
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", *there]
        command += ["--collect-only", "-n", "0"] if collect else []
        done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    found = re.findall(r"(\d+)\S* (?:tests? )?(passed|failed|skipped|collected|error)", done.stdout[-300:])
    counts = {what: int(count) for count, what in found}
    failures = sorted(set(re.findall(r"^(?:FAILED|ERROR) \S+", done.stdout, flags=re.MULTILINE)))
    if done.returncode and not failures:
        failures = [(done.stdout + done.stderr)[-2000:]]
    row = f"{files:>5}{lines:>7}"
    columns = ("collected" if collect else "passed", "failed", "error", "skipped")
    row += "".join(f"{counts.get(column, 0):>9}" for column in columns)
    removed = "all extensions" if len(names) == len(EXTENSIONS) else ", ".join(names)
    return f"{row}{time.monotonic() - began:>7.0f}  {removed}", failures


def files_of_extensions() -> list[str]:
    """Return the folder of the extensions' tests, and the files elsewhere with tests that use an extension."""
    marked = [file for file in ROOT.glob("test/**/test_*.py") if "needs(" in file.read_text(encoding="utf-8")]
    found = {file.relative_to(ROOT).as_posix() for file in marked}
    return ["test/extensions", *sorted(path for path in found if not path.startswith("test/extensions/"))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"of {', '.join(EXTENSIONS)}")
    parser.add_argument("--only", metavar="PATH", nargs="+", default=[], help="tests to run, instead of all")
    parser.add_argument("--collect", action="store_true", help="collect the tests without running them")
    options = parser.parse_args()
    if unknown := sorted({*options.names} - {*EXTENSIONS}):
        parser.error(f"no extension is called {', '.join(unknown)}")
    runs = [(removed_with(name), options.only) for name in options.names]
    if not options.names:
        only = options.only or files_of_extensions()
        runs = [(EXTENSIONS, options.only), *((group, only) for group in removed_groups())]
    print(f"files  lines{'collected' if options.collect else 'passed':>9}   failed   errors  skipped      s  removed")
    every = []
    for names, only in runs:
        row, failures = run_without(names, only, collect=options.collect)
        print(row, *failures, sep="\n", flush=True)
        every += failures
    return 1 if every else 0


if __name__ == "__main__":
    sys.exit(main())
