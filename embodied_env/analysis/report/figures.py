"""Figures by plotly: quiet, readable on a phone, and without anything that only a mouse can find.

plotly is imported when the first figure is drawn.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from embodied_env.analysis.report.html import FONT, INK, LINE, Block, check_templates, drawn_figure
from embodied_env.core.terminal import printable
from embodied_env.errors import MissingDependencyError

_CONFIG = {"displayModeBar": False, "responsive": True, "scrollZoom": False, "showTips": False}
_DIGITS = 5  # significant ones of a number in a figure


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a figure. With `low` it is a band from there to `y`, and not in the legend. NaN is a gap."""

    name: str
    y: Sequence[float]
    colour: str
    dash: str = "solid"  # "solid", "dash", "dot"
    width: float = 1.8
    low: Sequence[float] | None = None
    steps: bool = False  # a value holds until the next


def check_installed() -> None:
    """Raise MissingDependencyError when a package that a page needs is not installed."""
    _plotly()
    check_templates()
    import embodied_env.analysis.statistics  # noqa: F401, PLC0415 - raises without scipy


def library() -> str:
    """Return the JavaScript that figures need; one copy serves a page."""
    _plotly()
    from plotly.offline import get_plotlyjs  # noqa: PLC0415 - optional

    return str(get_plotlyjs())


def lines_figure(
    title: str,
    x: Sequence[float],
    lines: Sequence[Line],
    *,
    x_title: str,
    y_title: str,
    height_px: int = 230,
    from_zero: bool = False,
) -> Block:
    """Return lines over `x` as a div; `from_zero`: the vertical axis begins there."""
    go = _plotly()
    traces = [trace for line in lines for trace in _traces(go, [_rounded(value) for value in x], line)]
    figure = go.Figure(data=traces, layout=_layout(title, x_title, y_title, height_px))
    figure.update_layout(showlegend=sum(line.low is None for line in lines) > 1)
    if from_zero:
        figure.update_yaxes(rangemode="tozero")
    return _div(figure, height_px)


def heat_figure(
    title: str,
    x: Sequence[float],
    rows: Sequence[str],
    shares: Sequence[Sequence[float]],
    *,
    x_title: str,
    scale_title: str,
) -> Block:
    """Return shares from 0 to 1 as a map: one row per name, from above, over `x`; white is none."""
    go = _plotly()
    height_px = 110 + 22 * len(rows)
    heat = go.Heatmap(
        x=[_rounded(value) for value in x],
        y=list(range(len(rows))),
        z=[[_rounded(value) for value in row] for row in shares],
        zmin=0.0,
        zmax=1.0,
        colorscale=[[0.0, "#ffffff"], [0.02, "#cfe1f2"], [0.5, "#4292c6"], [1.0, "#08306b"]],
        colorbar={
            "title": {"text": _label(scale_title), "side": "top"},
            "orientation": "h",
            "thickness": 8,
            "y": 1.0,
            "yanchor": "bottom",
            "x": 1.0,
            "xanchor": "right",
            "len": 0.45,
            "tickformat": ".0%",
            "tickvals": [0, 0.5, 1],
        },
        hovertemplate="from %{x}: %{z:.1%}<extra></extra>",
    )
    figure = go.Figure(data=[heat], layout=_layout(title, x_title, "", height_px))
    names = [_label(row) for row in rows]
    figure.update_yaxes(autorange="reversed", showgrid=False, tickfont={"size": 11}, nticks=None)
    figure.update_yaxes(tickmode="array", tickvals=list(range(len(rows))), ticktext=names)
    figure.update_layout(margin={"t": 64})
    return _div(figure, height_px)


def _traces(go: Any, x: list[float | None], line: Line) -> list[Any]:  # noqa: ANN401 - a module
    shape = "hv" if line.steps else "linear"
    style = {"color": line.colour, "width": line.width, "dash": line.dash, "shape": shape}
    y, name = [_rounded(value) for value in line.y], _label(line.name)
    mode = "lines" if len(x) > 1 else "markers"
    if line.low is None:
        return [go.Scatter(x=x, y=y, name=name, mode=mode, line=style, marker={"color": line.colour})]
    none = {"width": 0, "shape": shape}
    low = [_rounded(value) for value in line.low]
    below = go.Scatter(x=x, y=low, mode="lines", line=none, showlegend=False, hoverinfo="skip")
    above = go.Scatter(
        x=x, y=y, mode="lines", line=none, fill="tonexty", fillcolor=line.colour, showlegend=False, hoverinfo="skip"
    )
    return [below, above]


def _layout(title: str, x_title: str, y_title: str, height_px: int) -> dict[str, Any]:
    axis = {
        "gridcolor": LINE,
        "linecolor": LINE,
        "zeroline": False,
        "automargin": True,
        "nticks": 6,
        "fixedrange": True,
        "exponentformat": "power",
    }
    return {
        "title": {"text": _label(title, longest=60), "font": {"size": 13}, "xref": "container", "x": 0, "y": 1,
                  "xanchor": "left", "yanchor": "top", "pad": {"t": 8}},
        "height": height_px,
        "margin": {"l": 8, "r": 12, "t": 56, "b": 8},
        "font": {"family": FONT, "size": 12, "color": INK},
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "dragmode": False,
        "hovermode": "x unified",
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom", "font": {"size": 11}},
        "xaxis": {**axis, "title": {"text": _label(x_title), "standoff": 4, "font": {"size": 11}}},
        "yaxis": {**axis, "title": {"text": _label(y_title), "standoff": 4, "font": {"size": 11}}},
    }  # fmt: skip


def _div(figure: Any, height_px: int) -> Block:  # noqa: ANN401 - of a library without types
    from plotly.io import to_html  # noqa: PLC0415 - optional

    drawn = to_html(figure, config=_CONFIG, include_plotlyjs=False, full_html=False, default_height=f"{height_px}px")
    return drawn_figure(drawn)


def _label(said: str, *, longest: int = 28) -> str:
    """Return a text for a figure, whose few tags of its own are escaped, cut where it would push the figure aside."""
    said = printable(said)
    return html.escape(said if len(said) <= longest else f"{said[: longest - 1]}…", quote=False)


def _rounded(value: float) -> float | None:
    """Return a number as short as a figure needs it; None is a gap."""
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None


def _plotly() -> Any:  # noqa: ANN401 - a module without type information
    try:
        import plotly.graph_objects  # noqa: PLC0415 - optional
    except ImportError:
        raise MissingDependencyError(
            "plotly", needed_for="drawing a report", remedy='pip install "embodied_env[report]"'
        ) from None
    return plotly.graph_objects
