"""A self-contained page of HTML: its shell and style, and the few pieces it is built from. Everything is escaped here.

Nothing is loaded from anywhere: a policy in the page forbids it, so that also a name in a run cannot.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from embodied_env.errors import RecordError
from embodied_env.printable import printable
from embodied_env.report.style import SCRIPT, STYLE

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
_WIDE = 24  # characters of a cell that may stand in one line
_LONGEST = 300  # characters of a text that came from a run

Html = str
"""Text that is safe in a page."""


def text(value: object, *, longest: int = _LONGEST) -> Html:
    """Return `value` as escaped text, control characters included, cut where it is very long."""
    said = printable(str(value))
    cut = said if len(said) <= longest else f"{said[:longest]}… ({len(said)} characters)"
    return html.escape(cut, quote=True)


def page(*, title: str, head: Html, sections: Sequence[Html], scripts: Sequence[str] = ()) -> Html:
    """Return the whole page.

    Args:
        title: of the window.
        head: what stands above the sections.
        sections: see `section`.
        scripts: JavaScript that the sections need, before them.
    """
    loaded = "".join(f"<script>{script}</script>\n" for script in scripts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>{STYLE}</style>\n{loaded}</head>\n<body>\n<main>\n"
        f"{head}\n{''.join(sections)}</main>\n<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def section(title: str, *parts: Html, anchor: str = "") -> Html:
    """Return one section under a heading."""
    mark = f' id="{text(anchor)}"' if anchor else ""
    return f"<section{mark}>\n<h2>{text(title)}</h2>\n{''.join(parts)}</section>\n"


def subheading(title: str) -> Html:
    """Return a heading inside of a section."""
    return f"<h3>{text(title)}</h3>\n"


def paragraph(said: str, *, kind: str = "") -> Html:
    """Return a paragraph of plain text; `kind`: "note", "warning" or ""."""
    mark = f' class="{text(kind)}"' if kind else ""
    return f"<p{mark}>{text(said, longest=2000)}</p>\n"


def bullets(items: Iterable[str]) -> Html:
    """Return a list of plain texts."""
    return "<ul>" + "".join(f"<li>{text(item, longest=600)}</li>" for item in items) + "</ul>\n"


def verdict(*, good: bool, word: str, said: str) -> Html:
    """Return the verdict: a word that stands out, and a sentence. It is told apart by its sign too, not by colour."""
    return (
        f'<div class="verdict {"good" if good else "bad"}"><span class="sign" aria-hidden="true">'
        f"{'✓' if good else '✕'}</span><div><strong>{text(word)}</strong><span>{text(said)}</span></div></div>\n"
    )


def cards(items: Iterable[tuple[str, str, str]]) -> Html:
    """Return figures that stand out: what it is, its value with unit, and a line below it."""
    each = (
        f'<div class="card"><span class="label">{text(label)}</span><span class="value">{text(value)}</span>'
        f'<span class="below">{text(below)}</span></div>'
        for label, value, below in items
    )
    return f'<div class="cards">{"".join(each)}</div>\n'


def table(header: Sequence[str], rows: Iterable[Sequence[str | Html]], *, numbers: Sequence[int] = ()) -> Html:
    """Return a table that scrolls by itself on a narrow screen.

    Args:
        header: a text for each column.
        rows: cells; plain text, or what `bar` and `code` return.
        numbers: the columns that are aligned to the right.
    """

    def cell(tag: str, index: int, content: str) -> Html:
        shown = content if isinstance(content, _Safe) else text(content)
        kind = "number" if index in numbers else _kind(content)
        mark = f' class="{kind}"' if kind else ""
        return f"<{tag}{mark}>{shown}</{tag}>"

    top = "".join(cell("th", index, name) for index, name in enumerate(header))
    body = "".join(
        f"<tr>{''.join(cell('td', index, content) for index, content in enumerate(row))}</tr>\n" for row in rows
    )
    return (
        '<div class="scroll" tabindex="0"><table>\n'
        f"<thead><tr>{top}</tr></thead>\n<tbody>\n{body}</tbody></table></div>\n"
    )


def facts(pairs: Iterable[tuple[str, str | Html]]) -> Html:
    """Return names and values, one below the other."""
    each = (
        f"<dt>{text(name)}</dt><dd>{value if isinstance(value, _Safe) else text(value, longest=600)}</dd>"
        for name, value in pairs
    )
    return f"<dl>{''.join(each)}</dl>\n"


def bar(share: float, *, low: float | None = None, high: float | None = None) -> Html:
    """Return a bar for a share from 0 to 1, with the interval that it lies in where both ends are given."""
    if not math.isfinite(share):
        return _Safe("")
    whisker = ""
    if low is not None and high is not None:
        whisker = f'<i style="left:{100 * low:.2f}%;width:{100 * (high - low):.2f}%"></i>'
    return _Safe(f'<span class="bar"><b style="width:{100 * min(max(share, 0.0), 1.0):.2f}%"></b>{whisker}</span>')


def code(value: object) -> Html:
    """Return a text in the type of machines, which may be broken anywhere."""
    return _Safe(f"<code>{text(value)}</code>")


def grid(parts: Iterable[Html]) -> Html:
    """Return parts beside one another, or below on a narrow screen."""
    return f'<div class="grid">{"".join(parts)}</div>\n'


def picture(png_base64: str, caption: str) -> Html:
    """Return an image that stands in the page."""
    source = f"data:image/png;base64,{text(png_base64, longest=len(png_base64))}"
    return f'<figure><img alt="{text(caption)}" src="{source}"><figcaption>{text(caption)}</figcaption></figure>\n'


def _kind(content: str) -> str:
    """Return how wide a cell wants to be: "long" where a word must be broken, "wide" where there are many."""
    if len(content) > _WIDE and max(map(len, content.split()), default=0) > _WIDE:
        return "long"
    return "wide" if len(content) > _WIDE else ""


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


class _Safe(str):
    """Text that was escaped already."""

    __slots__ = ()
