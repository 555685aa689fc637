"""Rendering of self-contained HTML pages from templates that escape every text.

The content security policy of a page forbids it to load anything, so text from a run cannot load anything either.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embodied_env.analysis.report.formatting import plural
from embodied_env.core.terminal import printable
from embodied_env.errors import MissingDependencyError, RecordError

if TYPE_CHECKING:
    from jinja2 import Environment

COLOURS = {
    "ink": "#1b1f24",
    "muted": "#57606a",
    "line": "#d8dee4",
    "blue": "#0072b2",  # blue, orange and vermilion: the colour-blind safe palette of Okabe and Ito
    "orange": "#e69f00",
    "vermilion": "#d55e00",
    "font": "system-ui, -apple-system, Segoe UI, Roboto, Helvetica Neue, Arial, sans-serif",
}
"""Custom properties of the style sheet, by name."""

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
_TEMPLATES = Path(__file__).with_name("templates")
_WIDE = 24  # characters of a cell that fit on one line
_LONGEST = 600  # characters of one text

Cell = str | Mapping[str, Any]
"""Content of a table cell: plain text, or the result of `bar` or `code`."""


def render_page(template: str, *, title: str, **content: object) -> str:
    """Return the page of `template` with `content`.

    Raises:
        MissingDependencyError: when jinja2 is not installed.
    """
    return _environment().get_template(template).render(title=title, policy=POLICY, colours=COLOURS, **content)


def text(value: object, longest: int = _LONGEST) -> str:
    """Return `value` as text without control characters, cut to `longest` characters; markup is returned unchanged.

    Templates apply it to every expression, and then escape the text.
    """
    if hasattr(value, "__html__"):
        return value  # type: ignore[return-value] # jinja2's Markup, a str
    shown = printable(str(value))
    return shown if len(shown) <= longest else f"{shown[:longest]}… ({len(shown)} characters)"


def bar(share: float, *, low: float | None = None, high: float | None = None) -> Cell:
    """Return a bar of a share from 0 to 1, with its interval where both ends are given; nothing for NaN."""
    if not math.isfinite(share):
        return ""
    whisker = None if low is None or high is None else (f"{100 * low:.2f}", f"{100 * (high - low):.2f}")
    return {"kind": "bar", "width": f"{100 * min(max(share, 0.0), 1.0):.2f}", "whisker": whisker}


def code(value: object) -> Cell:
    """Return text in a monospaced font that may be broken anywhere."""
    return {"kind": "code", "value": str(value)}


def write_page(path: Path, page: str) -> None:
    """Write a page atomically.

    Raises:
        RecordError: when it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.new")
    try:
        temporary.write_text(page, encoding="utf-8", errors="replace")
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
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
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        finalize=text,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"plural": plural, "cell_class": _cell_class}
    return environment


def _cell_class(content: Cell, is_number: bool) -> str:  # noqa: FBT001 - a filter of templates
    """Return the CSS class of a cell: "number", "long" where words must be broken, "wide" for several words."""
    if is_number:
        return "number"
    if not isinstance(content, str) and content["kind"] == "bar":
        return "long"
    shown = content if isinstance(content, str) else str(content["value"])
    if len(shown) <= _WIDE:
        return ""
    return "long" if max(map(len, shown.split()), default=0) > _WIDE else "wide"
