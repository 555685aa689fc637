"""The folders of the tests mirror those of the package, and the name of a test file begins with that of its module."""

import functools
import re
from collections import Counter
from pathlib import Path

import embodied_env

PACKAGE = Path(embodied_env.__file__).parent
TESTS = Path(__file__).parents[1]
FILES = sorted(TESTS.rglob("test_*.py"))
FREE = ("project",)
"""Folders of checks of the whole repository; the names of their files are free."""

HELPERS = ("support", *FREE)
"""Folders without a counterpart in the package."""


def place_of(file: Path) -> str:
    return file.relative_to(TESTS).as_posix()


@functools.cache
def modules_of(folder: str) -> set[str]:
    return {file.stem for file in (PACKAGE / folder).glob("*.py")} - {"__init__", "__main__"}


def module_of(file: Path) -> str | None:
    """Return the longest module name that a test file ``test_<module>[_<aspect>]`` is named after."""
    name = file.stem.removeprefix("test_")
    found = [each for each in modules_of(place_of(file.parent)) if re.fullmatch(rf"{each}(_[a-z0-9]+)*", name)]
    return max(found, key=len, default=None)


def test_test_files_are_named_after_modules():
    """The name of a test file is ``test_<module>[_<aspect>].py``."""
    named = [file for file in FILES if place_of(file).split("/")[0] not in FREE]
    assert {
        place_of(file): sorted(modules_of(place_of(file.parent))) for file in named if module_of(file) is None
    } == {}


def test_names_of_test_files_are_unique():
    assert [name for name, count in Counter(file.name for file in FILES).items() if count > 1] == []


def test_every_folder_of_tests_mirrors_a_package():
    folders = {place_of(file.parent) for file in TESTS.rglob("*.py")} - {"."}
    alone = {folder for folder in folders if not (PACKAGE / folder / "__init__.py").is_file()}
    assert {folder for folder in alone if {*folder.split("/")}.isdisjoint(HELPERS)} == set()
