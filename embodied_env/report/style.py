"""Colours and font of pages and their figures; the rest of the style is ``templates/page.css``."""

from __future__ import annotations

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
