"""Text of unknown origin, made safe to print on a terminal or to show in a page."""

from __future__ import annotations

import re

_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Return `text` with control characters, bidirectional controls and lone surrogates escaped, ESC as ``\u001b``.

    Newlines and tabs stay. The result of JSON text is JSON of the same value.
    """
    return _UNSAFE.sub(lambda match: f"\\u{ord(match.group()):04x}", text)
