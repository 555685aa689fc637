"""Paths, modules and links in the Markdown files exist."""

import importlib
import importlib.util
import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from embodied_env.plugins.plugin_table import BUILT_IN

ROOT = Path(__file__).parents[2]
PAGES = [file.relative_to(ROOT).as_posix() for file in (*ROOT.glob("*.md"), *sorted(ROOT.glob("docs/**/*.md")))]
PATHS = re.compile(
    r"(?<![\w/.*-])((?:embodied_env|test|tools|examples|benchmarks|launch|docs|\.ci|\.github)/[\w./*-]*\w)"
)
SCHEMAS = re.compile(r"embodied_env/((policy|comparison)/)?\d|embodied_env/\w+-v\d")  # of files, and ids of Gymnasium
NAMES = re.compile(r"\bembodied_env((?:\.[A-Za-z_]\w*)+)")
OTHER_NAMES = {".Array", ".json", ".git"}  # a schema in a log, a file of an export, a repository
LINKS = re.compile(r"\]\(([^)\s]+)\)")
EXTENSIONS = re.findall(
    r"^\| `(\w+)` \|", (ROOT / "docs" / "concepts" / "architecture.md").read_text(), flags=re.MULTILINE
)
REMOVED = tuple(
    part
    for name in EXTENSIONS
    if not (ROOT / "embodied_env" / "extensions" / name).exists()
    for part in (f"embodied_env/extensions/{name}/", f"test/extensions/{name}/", f".extensions.{name}.")
) + (() if next(ROOT.glob("test/extensions/*/"), None) else ("test/extensions/*",))


def exists(name: str) -> bool:
    """Return whether a module has this dotted name, or an object of one."""
    module, _, attribute = name.rpartition(".")
    try:
        if importlib.util.find_spec(name) is not None:
            return True
    except ModuleNotFoundError:  # the part before the attribute is no package
        pass
    if not module or not exists(module):
        return False
    found = importlib.import_module(module)
    return attribute in dir(found) or hasattr(found, attribute)  # a listed name may be one of a removed extension


def found_in_pages(pattern: re.Pattern[str]) -> dict[str, set[str]]:
    """Return the matches of a pattern with the pages that have each."""
    found: dict[str, set[str]] = {}
    for page in PAGES:
        for match in pattern.findall((ROOT / page).read_text()):
            found.setdefault(match, set()).add(page)
    return found


def test_paths_exist():
    found = {
        path.replace("NAME", "*"): pages for path, pages in found_in_pages(PATHS).items() if not SCHEMAS.fullmatch(path)
    }
    assert {
        path: pages
        for path, pages in found.items()
        if not f"{path}/".startswith(REMOVED) and next(ROOT.glob(path), None) is None
    } == {}


def test_modules_exist():
    pytest.importorskip("rclpy")
    known = {*OTHER_NAMES, *(f".{kind}" for kind in BUILT_IN)}  # groups of entry points
    assert {
        name: pages
        for name, pages in found_in_pages(NAMES).items()
        if name not in known and not f"{name}.".startswith(REMOVED) and not exists(f"embodied_env{name}")
    } == {}


@pytest.mark.parametrize("page", [page for page in PAGES if not page.startswith("docs/")])  # MkDocs checks those
def test_links_exist(page):
    links = [urlsplit(link) for link in LINKS.findall((ROOT / page).read_text())]
    assert [link.path for link in links if not link.scheme and not (ROOT / link.path).exists()] == []
