"""Self-contained HTML pages from templates that escape every text.

The content security policy of a page forbids it to load anything, so text from a run cannot load anything either.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embodied_env.core.terminal import printable
from embodied_env.errors import MissingDependencyError
from embodied_env.record.manifest import name_of_policy

if TYPE_CHECKING:
    from jinja2 import Environment

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
_TEMPLATES = Path(__file__).with_name("templates")
_WIDE = 24  # characters of a cell that fit on one line
_LONGEST = 600  # characters of one text


def render_page(template: str, *, title: str, **content: object) -> str:
    """Return the page of `template`, or raise MissingDependencyError without jinja2."""
    return _environment().get_template(template).render(title=title, policy=POLICY, **content)


def text(value: object, longest: int = _LONGEST) -> str:
    """Return `value` as text without control characters, cut to `longest` characters.

    Markup is returned unchanged. Templates apply it to every expression, and then escape the text.
    """
    if hasattr(value, "__html__"):
        return value  # type: ignore[return-value] # jinja2's Markup, a str
    shown = printable(str(value))
    return shown if len(shown) <= longest else f"{shown[:longest]}… ({len(shown)} characters)"


def check_page_libraries() -> None:
    """Raise MissingDependencyError when jinja2 is not installed."""
    _environment()


def format_number(value: float) -> str:
    """Return three significant digits, or "none" if not finite."""
    if not math.isfinite(value):
        return "none"
    size = abs(value)
    if size == 0:
        return "0"
    if not 1e-5 <= size < 1e7:
        return f"{value:.2e}"
    decimals = max(0, 2 - math.floor(math.log10(size)))
    return f"{value:,.{decimals}f}"


def milliseconds(seconds: float) -> str:
    """Return a duration as a number of milliseconds, without the unit."""
    return format_number(1e3 * seconds)


def percent(share: float | None) -> str:
    """Return a share from 0 to 1 in percent, or "none" for None and NaN."""
    return "none" if share is None or not math.isfinite(share) else f"{100 * share:.1f} %"


def share_of(count: int, total: int) -> str:
    """Return `count / total` in percent, in which a positive share never reads as 0 %."""
    if not count and total:
        return "0 %"
    return "< 0.1 %" if count < total / 1000 else percent(count / total if total else None)


def plural(count: int, one: str, many: str = "") -> str:
    """Return a count with its noun, such as "1 step" or "2 steps"."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def mapping_of(value: object, *keys: str) -> Mapping[str, Any]:
    """Return the mapping at the path `keys` in `value`, or an empty one where there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def describe_value(value: object) -> str:
    """Return a value of a manifest in one line, or "unknown" for None and ""."""
    if value is None or value == "":
        return "unknown"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@cache
def _environment() -> Environment:
    try:
        import jinja2
    except ImportError:
        raise MissingDependencyError("jinja2", needed_for="writing a page") from None
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        finalize=text,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["zip"] = zip
    environment.filters |= {
        "cell_class": _cell_class,
        "count": "{:,}".format,
        "describe": describe_value,
        "described": _describe_entry,
        "name_of_policy": name_of_policy,
        "json": partial(json.dumps, ensure_ascii=False, sort_keys=True, default=str),
        "mapping": mapping_of,
        "milliseconds": milliseconds,
        "number": format_number,
        "percent": percent,
        "plural": plural,
        "policy_text": _describe_policy,
        "share_of": share_of,
    }
    return environment


def _describe_entry(manifest: object, *keys: str) -> str:
    return describe_value(mapping_of(manifest, *keys[:-1]).get(keys[-1]))


def _describe_policy(manifest: object) -> str:
    """Return the identity of a policy, such as "pick, library onnx 1.2, sha256 9f..."."""
    identity = mapping_of(manifest, "policy") or {"name": mapping_of(manifest).get("policy")}
    parts = (f"{key} {value}" for key, value in identity.items() if key != "name" and value not in (None, ""))
    return ", ".join((describe_value(identity.get("name")), *parts))


def _cell_class(content: object) -> str:
    """Return the CSS class of a cell, "long" to break words, "wide" for several, or ""."""
    shown = str(content)
    if len(shown) <= _WIDE:
        return ""
    return "long" if max(map(len, shown.split()), default=0) > _WIDE else "wide"
