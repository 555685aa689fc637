"""Draw charts as inline SVG with HTML text, without a library.

They are sharp at any width, for light and dark screens and for paper. One function per kind of chart; each returns
escaped HTML. Curves are paths in a box of `UNITS` by `UNITS`, coloured by ``page.css``. ``page.js`` adds a readout and
a table, which it computes from these paths.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from embodied_env.core.terminal import printable
from embodied_env.core.types import FloatArray
from embodied_env.extensions.report.html_pages import format_number, plural

COLUMNS = 300
"""Columns of a chart, each of which shows the smallest and the largest value in it."""

UNITS = 1000

_BEYOND = 20 * UNITS  # coordinates outside the box are cut off by the browser, and bounded for it
_TICKS = 4
_LARGEST = 1e150  # whose differences and multiples are finite


class Line(NamedTuple):
    """One line of a chart in a class `style` of ``page.css``, in which NaN is a gap."""

    name: str
    x: ArrayLike
    y: ArrayLike
    style: str
    sets_range: bool = True  # else its outliers may leave the chart


class Marks(NamedTuple):
    """Spans of a `style` "limit", "brake" or "notice", of `steps` steps in all."""

    name: str
    spans: Sequence[tuple[float, float]]
    steps: int
    style: str = "limit"


class Interval(NamedTuple):
    """A value with its interval, with NaN for what is unknown, and its numbers as `text`."""

    name: str
    value: float
    low: float
    high: float
    text: str
    style: str = "a"


class Bar(NamedTuple):
    """Successive episodes in the strip, with the `shares` of kinds of end, which sum up to 1."""

    text: str
    shares: Mapping[str, float]
    length: float
    low: float  # smallest return
    high: float  # largest return
    href: str = ""


def line_chart(
    title: str,
    lines: Sequence[Line],
    *,
    x_title: str,
    unit: str = "",
    limits: tuple[float, float] = (-math.inf, math.inf),
    marks: Sequence[Marks] = (),
    below: Sequence[Line] = (),
) -> str:
    """Return a chart of lines over x, with `marks` and a shade beyond `limits`.

    The marks are below the x axis. The lines `below`, of few points in any order, are drawn first, and are not in
    readout and table.
    """
    series = [(line, *extremes(line.x, line.y)) for line in lines]
    behind = [(line, np.asarray(line.x), np.asarray(line.y)) for line in below]
    ends = [float(end) for _, x, _ in series for end in (*x[:1], *x[-1:])]
    x_low, x_high = _padded_span(min(ends, default=0.0), max(ends, default=1.0))
    y_low, y_high = _padded(*_y_range([*series, *behind]))
    box = _Box(x_low, x_high, y_low, y_high)
    shaded = [(-_BEYOND, min(box.y(limits[1]), UNITS)), (max(box.y(limits[0]), 0), _BEYOND)]
    limited = "".join(
        f'<rect class="beyond" x="0" y="{top}" width="{UNITS}" height="{bottom - top}"/>'
        for top, bottom in ((max(top, 0), min(bottom, UNITS)) for top, bottom in shaded)
        if bottom > top
    )
    curves = "".join(f'<path class="{line.style}" d="{box.path(x, y)}"/>' for line, x, y in behind)
    curves += "".join(
        f'<path class="curve {line.style}" data-name="{_text(line.name)}" d="{box.path(x, y)}"/>'
        for line, x, y in series
    )
    grid = "".join(f"M0,{box.y(tick)}H{UNITS}" for tick in ticks(y_low, y_high))
    drawn = f'{limited}<path class="grid" d="{grid}"/>{curves}'
    rugs = "".join(_drawing_of_marks(each, box) for each in marks)
    notes = [f"limits {format_number(limits[0])} to {format_number(limits[1])}"] if any(np.isfinite(limits)) else []
    notes += [f"{name} {low} to {high}, cut off at the edge" for name, low, high in _cut_off(series, y_low, y_high)]
    return (
        f"{_caption(title, unit, *notes)}{_key([*lines, *below], marks)}"
        f'<div class="plot" data-x="{x_low:.6g} {x_high:.6g}" data-y="{y_low:.6g} {y_high:.6g}"'
        f' data-unit="{_text(unit)}" data-x-title="{_text(x_title)}">'
        f"{_y_axis(y_low, y_high)}{_drawing(drawn, _describe(title, unit, [*series, *behind], marks))}"
        f"{rugs}{_x_axis(x_low, x_high, x_title)}</div>"
    ).join(('<figure class="chart" tabindex="0">', "</figure>"))


def event_chart(rows: Sequence[Marks], steps: tuple[float, float], *, x_title: str) -> str:
    """Return a chart with a row for each of `rows`, from the first to the last of `steps`."""
    box = _Box(*_padded_span(*steps), 0.0, 1.0)
    drawn = "".join(_row("event", marks.name, _drawing_of_marks(marks, box), f"{marks.steps:,}") for marks in rows)
    axis = _row("event", "", _x_axis(box.x_low, box.x_high, x_title), "")
    return f'<figure class="chart events">{drawn}{axis}</figure>'


def interval_chart(
    title: str, rows: Sequence[Interval], *, span: tuple[float, float] = (0.0, 1.0), reference: float = math.nan
) -> str:
    """Return a dot with interval per row on one axis over `span`, and a `reference` line."""
    box, drawn = _Box(*span, 0.0, 1.0), ""
    for row in rows:
        parts = f'<path class="grid" d="M0,500H{UNITS}"/>'
        if math.isfinite(reference):
            parts += f'<path class="reference" d="M{box.x(reference)},0V{UNITS}"/>'
        if math.isfinite(row.low) and math.isfinite(row.high):
            parts += f'<path class="interval {row.style}" d="M{box.x(row.low)},500H{box.x(row.high)}"/>'
        if math.isfinite(row.value):
            parts += f'<path class="dot {row.style}" d="M{box.x(row.value)},500h0"/>'
        drawn += _row("interval-row", row.name, _drawing(parts, f"{row.name}: {row.text}", "rug"), row.text)
    return f'<figure class="chart intervals">{_caption(title)}{drawn}</figure>'


def stacked_timeline(
    rows: Sequence[tuple[str, Sequence[float], float]],
    segments: Sequence[tuple[str, str]],
    *,
    unit: str,
    limit: float = math.nan,
) -> str:
    """Return a bar of successive segments for each row.

    A row has a label, the length of each segment, and the measured total. `segments` are their styles and names. A line
    at `limit` crosses all bars.
    """
    ends = [end for _, lengths, total in rows for end in (sum(lengths), total, limit) if math.isfinite(end)]
    box, drawn = _Box(0.0, max(ends, default=0.0) or 1.0, 0.0, 1.0), ""
    for label, lengths, total in rows:
        at, parts, numbers = 0.0, "", []
        for (style, name), length in zip(segments, lengths, strict=True):
            numbers.append(f"{name} {format_number(length)}")
            parts += f'<rect class="{style}" x="{box.x(at)}" y="150" width="{box.x(length)}" height="700">'
            parts += f"<title>{_text(numbers[-1])} {_text(unit)}</title></rect>"
            at += length
        for style, place in (("total", total), ("reference", limit)):
            if math.isfinite(place):
                parts += f'<path class="{style}" d="M{box.x(place)},0V{UNITS}"/>'
        drawing = _drawing(parts, f"{label}, {unit}: {', '.join(numbers)}", "stack")
        drawn += _row("interval-row", label, drawing, f"{format_number(total)} {unit}" if math.isfinite(total) else "")
    axis = _row("interval-row", "", _x_axis(0.0, box.x_high, unit), "")
    return f'<figure class="chart timeline">{_swatches(segments)}{drawn}{axis}</figure>'


def episode_strip(title: str, bars: Sequence[Bar]) -> str:
    """Return a column for each bar, as long as it, coloured by kinds of end, above the return."""
    longest = max((bar.length for bar in bars), default=0.0) or 1.0
    returns = [value for bar in bars for value in (bar.low, bar.high) if math.isfinite(value)]
    low, high = _padded(min(returns, default=0.0), max(returns, default=0.0))
    box = _Box(0.0, 1.0, low, high)
    columns = []
    for index, bar in enumerate(bars):
        x, top, height = 10 * index, float(UNITS), max(bar.length / longest * UNITS, 30.0)
        parts = []
        for kind, share in bar.shares.items():
            top -= share * height
            parts.append(
                f'<rect class="{kind}" x="{x + 1}" y="{top:.0f}" width="8" height="{math.ceil(share * height)}"/>'
            )
        if math.isfinite(bar.low) and math.isfinite(bar.high):
            at = UNITS + 150
            parts.append(f'<path class="return" d="M{x + 5},{at + box.y(bar.high)}V{at + box.y(bar.low)}"/>')
        column = f'<rect class="hit" x="{x}" y="0" width="10" height="{2 * UNITS + 150}"/>{"".join(parts)}'
        named = f"<title>{_text(bar.text)}</title>{column}"
        if bar.href:
            columns.append(f'<a href="{_text(bar.href)}" aria-label="{_text(bar.text)}">{named}</a>')
        else:
            columns.append(f"<g>{named}</g>")
    summary = f"{title}: {plural(len(bars), 'column')}, longest {format_number(longest)} steps"
    return (
        f'<figure class="chart strip">{_caption(title)}<div class="plot">'
        f'<div class="y-axis"><span style="bottom:53.5%">0</span><span style="bottom:97%">{_tick(longest)}</span>'
        f'<span class="axis-title" style="bottom:73%">steps</span>'
        f'<span style="bottom:0">{format_number(low)}</span><span style="bottom:43%">{format_number(high)}</span>'
        f'<span class="axis-title" style="bottom:21%">return</span></div>'
        f'<svg viewBox="0 0 {10 * max(len(bars), 1)} {2 * UNITS + 150}" preserveAspectRatio="none" role="group"'
        f' style="max-width:{48 * max(len(bars), 1)}px" aria-label="{_text(summary)}">{"".join(columns)}</svg>'
        "</div></figure>"
    )


# ------------------------------------------------------------------------------------------------------------ helpers


def extremes(x: ArrayLike, y: ArrayLike, columns: int = COLUMNS) -> tuple[FloatArray, FloatArray]:
    """Return the smallest and the largest point of each column, NaN for a column of NaN."""
    places, values = np.asarray(x, np.float64).ravel(), np.asarray(y, np.float64).ravel()
    values = np.clip(np.where(np.isfinite(values), values, np.nan), -_LARGEST, _LARGEST)
    if len(values) <= 2 * columns:
        return places, values
    span = places[-1] - places[0] or 1.0
    column = np.minimum(((places - places[0]) / span * columns).astype(int), columns - 1)
    order = np.lexsort((values, column))  # NaN last
    first = np.flatnonzero(np.diff(column[order], prepend=-1))
    good = np.add.reduceat(np.isfinite(values[order]), first)
    kept = np.unique(np.concatenate([order[first], order[first + np.maximum(good, 1) - 1]]))
    return places[kept], values[kept]


def ticks(low: float, high: float) -> list[float]:
    """Return about `_TICKS` round numbers from `low` to `high`."""
    if not (math.isfinite(low) and math.isfinite(high) and high > low):
        return [low] if math.isfinite(low) else []
    raw = (high - low) / _TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= raw * 0.999)
    return [index * step for index in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


class _Box(NamedTuple):
    """The part of the plane that a chart shows, and its map to `UNITS`."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def x(self, value: float) -> int:
        return _bounded(UNITS * (value - self.x_low) / ((self.x_high - self.x_low) or 1.0))

    def y(self, value: float) -> int:
        return _bounded(UNITS * (1.0 - (value - self.y_low) / ((self.y_high - self.y_low) or 1.0)))

    def path(self, x: FloatArray, y: FloatArray) -> str:
        """Return the path of a line with gaps, in which a single point is a dot."""
        parts, pen = [], "M"
        for place, value in zip(x.tolist(), y.tolist(), strict=True):
            if math.isnan(value):
                pen = "M"
                continue
            point = f"{self.x(place)},{self.y(value)}"
            parts.append(f"M{point}h0L{point}" if pen == "M" else f" {point}")
            pen = "L"
        return "".join(parts)


def _bounded(value: float) -> int:
    return round(min(max(value, -_BEYOND), _BEYOND))


def _padded_span(low: float, high: float) -> tuple[float, float]:
    return (low, high) if high > low else (low - 0.5, low + 0.5)


def _y_range(series: Sequence[tuple[Line, FloatArray, FloatArray]]) -> tuple[float, float]:
    """Return the range of the lines that set it, extended at most to three times for others."""
    ranges = {True: (math.inf, -math.inf), False: (math.inf, -math.inf)}
    for line, _, y in series:
        good = y[np.isfinite(y)]
        if len(good):
            low, high = ranges[line.sets_range]
            ranges[line.sets_range] = min(low, float(good.min())), max(high, float(good.max()))
    (low, high), (other_low, other_high) = ranges[True], ranges[False]
    if low > high:
        return (other_low, other_high) if other_low <= other_high else (0.0, 1.0)
    reach = (high - low) or abs(high) or 1.0
    return min(low, max(other_low, low - reach)), max(high, min(other_high, high + reach))


def _cut_off(
    series: Sequence[tuple[Line, FloatArray, FloatArray]], low: float, high: float
) -> Iterator[tuple[str, str, str]]:
    for line, _, y in series:
        good = y[np.isfinite(y)]
        if len(good) and (good.min() < low or good.max() > high):
            yield line.name, format_number(float(good.min())), format_number(float(good.max()))


def _padded(low: float, high: float) -> tuple[float, float]:
    if max(abs(low), abs(high)) < 1.0 / _LARGEST:
        return -0.06, 1.0
    pad = 0.06 * (high - low) or 0.1 * abs(high)
    return low - pad, high + pad


def _text(value: object, longest: int = 160) -> str:
    shown = printable(str(value))
    return escape(shown if len(shown) <= longest else f"{shown[: longest - 1]}…")


def _caption(title: str, unit: str = "", *notes: str) -> str:
    shown = "".join(f' <span class="unit">{_text(each)}</span>' for each in (unit, *notes) if each)
    return f"<figcaption>{_text(title, 60)}{shown}</figcaption>"


def _key(lines: Sequence[Line], marks: Sequence[Marks]) -> str:
    named = [(line.style, line.name) for line in lines if len(lines) > 1 or not line.style.startswith("s")]
    named += dict.fromkeys((f"swatch {mark.style}", mark.name) for mark in marks)
    return _swatches(named)


def _row(kind: str, name: str, drawing: str, text: str) -> str:
    return (
        f'<div class="{kind}"><span class="label">{_text(name)}</span>{drawing}'
        f'<span class="below">{_text(text)}</span></div>'
    )


def _swatches(named: Sequence[tuple[str, str]]) -> str:
    items = "".join(f'<li><i class="{style}"></i>{_text(name, 40)}</li>' for style, name in named)
    return f'<ul class="key">{items}</ul>' if items else ""


def _drawing(content: str, label: str, kind: str = "lines") -> str:
    return (
        f'<svg class="{kind}" viewBox="0 0 {UNITS} {UNITS}" preserveAspectRatio="none" role="img"'
        f' aria-label="{_text(label, 400)}">{content}</svg>'
    )


def _describe(
    title: str, unit: str, series: Sequence[tuple[Line, FloatArray, FloatArray]], marks: Sequence[Marks]
) -> str:
    parts = []
    for line, _, y in series:
        good = y[np.isfinite(y)]
        span = f"{format_number(good.min())} to {format_number(good.max())} {unit}" if len(good) else "no value"
        parts.append(f"{line.name} {span.strip()}")
    parts += [f"{mark.name} at {plural(mark.steps, 'step')}" for mark in marks]
    return f"{title}: {'; '.join(parts)}"


def _y_axis(low: float, high: float) -> str:
    places = [(tick, 100 * (tick - low) / (high - low)) for tick in ticks(low, high)]
    labels = "".join(f'<span style="bottom:{place:.2f}%">{_tick(tick)}</span>' for tick, place in places)
    return f'<div class="y-axis" aria-hidden="true">{labels}</div>'


def _x_axis(low: float, high: float, title: str) -> str:
    places = [(tick, 100 * (tick - low) / ((high - low) or 1.0)) for tick in ticks(low, high)]
    labels = "".join(f'<span style="left:{place:.2f}%">{_tick(tick)}</span>' for tick, place in places)
    return f'<div class="x-axis" aria-hidden="true">{labels}<em>{_text(title, 40)}</em></div>'


def _tick(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1e5 else f"{value:.1e}"


def _drawing_of_marks(marks: Marks, box: _Box) -> str:
    """Draw a bar for each run of adjacent places, at least as wide as a pixel."""
    runs: list[list[int]] = []
    for left, right in ((box.x(first - 0.5), box.x(last + 0.5)) for first, last in marks.spans):
        if runs and left <= runs[-1][1] + 1:
            runs[-1][1] = max(right, runs[-1][1])
        else:
            runs.append([left, right])
    drawn = "".join(f"M{left},0H{max(right, left + 2)}V{UNITS}H{left}z" for left, right in runs)
    path = f'<path class="marks {marks.style}" d="{drawn}"><title>{_text(marks.name)}</title></path>'
    return _drawing(path, f"{marks.name}: {plural(marks.steps, 'step')}", "rug")
