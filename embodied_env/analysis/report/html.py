"""A self-contained page of HTML: the blocks that it consists of, and its rendering by templates that escape every text.

Nothing is loaded from anywhere: a policy in the page forbids it, so that a name in a run cannot load anything either.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embodied_env.core.terminal import printable
from embodied_env.errors import MissingDependencyError, RecordError

INK = "#1b1f24"
MUTED = "#57606a"
LINE = "#d8dee4"

BLUE, ORANGE, VERMILION = "#0072b2", "#e69f00", "#d55e00"
"""From the palette of Okabe and Ito, which the colour-blind tell apart."""

PALE_ORANGE = "#f0bf55"
"""For what lies behind another line."""

FONT = "system-ui, -apple-system, Segoe UI, Roboto, Helvetica Neue, Arial, sans-serif"

COLOURS = {
    "ink": INK,
    "muted": MUTED,
    "line": LINE,
    "blue": BLUE,
    "orange": ORANGE,
    "vermilion": VERMILION,
    "font": FONT,
}
"""Custom properties of the style sheet, by name."""

if TYPE_CHECKING:
    from jinja2 import Environment

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
_TEMPLATES = Path(__file__).with_name("templates")
_WIDE = 24  # characters of a cell that may stand in one line
_LONGEST = 300  # characters of a text that came from a run

Html = str
"""A page, or a part of one that a library has drawn."""

Block = Mapping[str, Any]
"""One piece of a page: its "kind", which has a branch in ``templates/blocks.html``, and its content as plain data."""

Cell = str | Block
"""Plain text, or what `bar` and `code` return."""


def render_page(*, title: str, blocks: Sequence[Block | None], scripts: Sequence[str] = ()) -> Html:
    """Return the whole page.

    Args:
        title: of the window.
        blocks: from above; None is left out, here and inside of blocks.
        scripts: trusted JavaScript that figures need.

    Raises:
        MissingDependencyError: when jinja2 is not installed.
    """
    template = _environment().get_template("page.html")
    return template.render(title=title, blocks=blocks, scripts=scripts, policy=POLICY, colours=COLOURS)


def text(value: object, longest: int = _LONGEST) -> str:
    """Return `value` as plain text without control characters, cut where it is very long; templates escape it."""
    said = printable(str(value))
    return said if len(said) <= longest else f"{said[:longest]}… ({len(said)} characters)"


def heading(title: str, below: str) -> Block:
    """Return the title of the page, with a line below it."""
    return {"kind": "heading", "title": title, "below": below}


def section(title: str, *parts: Block | None, anchor: str = "") -> Block:
    """Return one section under a heading."""
    return {"kind": "section", "title": title, "parts": parts, "anchor": anchor}


def group(*parts: Block | None) -> Block:
    """Return parts one below the other."""
    return {"kind": "group", "parts": parts}


def subheading(title: str) -> Block:
    """Return a heading inside of a section."""
    return {"kind": "subheading", "title": title}


def paragraph(said: str, *, kind: str = "") -> Block:
    """Return a paragraph of plain text; `kind`: "note", "warning" or ""."""
    return {"kind": "paragraph", "said": said, "mark": kind}


def bullets(items: Iterable[str]) -> Block:
    """Return a list of plain texts."""
    return {"kind": "bullets", "entries": tuple(items)}


def verdict(*, good: bool, word: str, said: str) -> Block:
    """Return the verdict: a word that stands out, and a sentence. It has a sign too, not only a colour."""
    return {"kind": "verdict", "good": good, "word": word, "said": said}


def cards(items: Iterable[tuple[str, str, str]]) -> Block:
    """Return figures that stand out: what it is, its value with unit, and a line below it."""
    return {"kind": "cards", "entries": tuple(items)}


def table(header: Sequence[str], rows: Iterable[Sequence[Cell]], *, numbers: Sequence[int] = ()) -> Block:
    """Return a table that scrolls by itself on a narrow screen.

    Args:
        header: a text for each column.
        rows: their cells.
        numbers: the columns that are aligned to the right.
    """
    return {"kind": "table", "header": header, "rows": tuple(rows), "numbers": numbers}


def facts(pairs: Iterable[tuple[str, Cell]]) -> Block:
    """Return names and values, one below the other."""
    return {"kind": "facts", "pairs": tuple(pairs)}


def bar(share: float, *, low: float | None = None, high: float | None = None) -> Cell:
    """Return a bar for a share from 0 to 1, with its interval where both ends are given; nothing for NaN."""
    if not math.isfinite(share):
        return ""
    whisker = None if low is None or high is None else (f"{100 * low:.2f}", f"{100 * (high - low):.2f}")
    return {"kind": "bar", "width": f"{100 * min(max(share, 0.0), 1.0):.2f}", "whisker": whisker}


def code(value: object) -> Block:
    """Return a text in a monospaced type, which may be broken anywhere."""
    return {"kind": "code", "value": str(value)}


def grid(parts: Iterable[Block | None], *, kind: str = "grid") -> Block:
    """Return parts beside one another, or below on a narrow screen; `kind`: "grid" or "pictures"."""
    return {"kind": "grid", "parts": tuple(parts), "mark": kind}


def drawn_figure(drawn: Html) -> Block:
    """Return a figure that a library has drawn: its HTML goes into the page as it is."""
    return {"kind": "figure", "drawn": drawn}


def picture(png_base64: str, caption: str) -> Block:
    """Return an image that is part of the page."""
    return {"kind": "picture", "png_base64": png_base64, "caption": caption}


def write_page(path: Path, made: Html) -> None:
    """Write a page in one go: a reader sees the old one or the new one.

    Raises:
        RecordError: when it cannot be written.
    """
    beside = path.with_name(f".{path.name}.new")
    try:
        beside.write_text(made, encoding="utf-8", errors="replace")
        beside.replace(path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise RecordError(f"{path}: the page cannot be written: {error}") from None


def check_templates() -> None:
    """Raise MissingDependencyError when jinja2 is not installed."""
    _environment()


@cache
def _environment() -> Environment:
    try:
        import jinja2  # noqa: PLC0415 - optional
    except ImportError:
        raise MissingDependencyError(
            "jinja2", needed_for="writing a page", remedy='pip install "embodied_env[report]"'
        ) from None
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"text": text, "cell_class": _cell_class}
    return made


def _cell_class(content: Cell, is_number: bool) -> str:  # noqa: FBT001 - a filter of templates
    """Return the class of a cell: "number", "long" where a word must be broken, "wide" where there are many."""
    if is_number:
        return "number"
    if not isinstance(content, str) and content["kind"] == "bar":
        return "long"
    said = content if isinstance(content, str) else str(content["value"])
    if len(said) > _WIDE and max(map(len, said.split()), default=0) > _WIDE:
        return "long"
    return "wide" if len(said) > _WIDE else ""
