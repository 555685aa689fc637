"""Figures by plotly, which is imported when the first one is drawn. None needs a mouse to be read."""

from __future__ import annotations

import hashlib
import html
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from embodied_env.analysis.report.html import check_installed as check_templates
from embodied_env.core.terminal import printable
from embodied_env.errors import MissingDependencyError

COLOURS = {
    "ink": "#1b1f24",
    "muted": "#57606a",
    "line": "#d8dee4",
    "blue": "#0072b2",
    "orange": "#e69f00",
    "vermilion": "#d55e00",
    "font": "system-ui, sans-serif",
}
BLUE, ORANGE, VERMILION = COLOURS["blue"], COLOURS["orange"], COLOURS["vermilion"]

_CONFIG = {"displayModeBar": False, "responsive": True, "scrollZoom": False, "showTips": False}
_HEIGHT_PX = 230
_SMALL = {"size": 11}


class Line(NamedTuple):
    """One line of a figure; NaN is a gap. With `low` it is a filled band up to `y`, without a legend entry."""

    name: str
    y: Sequence[float]
    colour: str
    dash: str = "solid"  # "solid", "dash", "dot"
    width: float = 1.8
    low: Sequence[float] | None = None


def check_installed() -> None:
    """Raise MissingDependencyError when plotly, jinja2 or scipy is not installed."""
    _plotly()
    check_templates()
    import embodied_env.analysis.statistics  # noqa: F401, PLC0415 - raises without scipy


def library() -> str:
    """Return the JavaScript of plotly; one copy serves a page."""
    _plotly()
    from plotly.offline import get_plotlyjs  # noqa: PLC0415 - optional

    return str(get_plotlyjs())


def lines_figure(title: str, x: Sequence[float], lines: Sequence[Line], *, x_title: str, y_title: str) -> str:
    """Return the HTML of a figure of lines over `x`."""
    go, places = _plotly(), _rounded(x)
    mode = "lines" if len(places) > 1 else "markers"
    band = {"x": places, "mode": "lines", "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip"}
    traces = []
    for line in lines:
        y = _rounded(line.y)
        if line.low is not None:
            traces += [go.Scatter(y=_rounded(line.low), **band)]
            traces += [go.Scatter(y=y, fill="tonexty", fillcolor=line.colour, **band)]
        else:
            style = {"color": line.colour, "width": line.width, "dash": line.dash}
            marker = {"color": line.colour}
            traces.append(go.Scatter(x=places, y=y, name=_label(line.name), mode=mode, line=style, marker=marker))
    figure = go.Figure(data=traces, layout=_layout(title, x_title, y_title, _HEIGHT_PX))
    figure.update_layout(showlegend=sum(line.low is None for line in lines) > 1)
    return _as_html(figure)


def heat_figure(
    title: str, x: Sequence[float], names: Sequence[str], shares: Sequence[Sequence[float]], *, x_title: str
) -> str:
    """Return the HTML of a heat map of shares from 0 to 1: one row per name, from the top, over `x`."""
    go = _plotly()
    rows = list(range(len(names)))
    heat = go.Heatmap(  # plotly.js places the axes wrongly for a colour bar without a title, even an empty one
        x=_rounded(x),
        y=rows,
        z=[_rounded(row) for row in shares],
        zmin=0.0,
        zmax=1.0,
        colorscale=[[0.0, "#ffffff"], [0.02, "#cfe1f2"], [0.5, "#4292c6"], [1.0, "#08306b"]],
        colorbar={"orientation": "h", "thickness": 8, "y": 1.0, "yanchor": "bottom", "x": 1.0, "xanchor": "right",
                  "len": 0.45, "tickformat": ".0%", "tickvals": [0, 0.5, 1], "title": {"text": "", "side": "top"}},
        hovertemplate="from %{x}: %{z:.1%}<extra></extra>",
    )  # fmt: skip
    figure = go.Figure(data=[heat], layout=_layout(title, x_title, "", 110 + 22 * len(names)))
    figure.update_yaxes(
        autorange="reversed", showgrid=False, tickfont=_SMALL, nticks=None, tickmode="array", tickvals=rows,
        ticktext=[_label(name) for name in names],
    )  # fmt: skip
    figure.update_layout(margin={"t": 64})
    return _as_html(figure)


def _layout(title: str, x_title: str, y_title: str, height_px: int) -> dict[str, Any]:
    line = COLOURS["line"]
    axis = {"gridcolor": line, "linecolor": line, "zeroline": False, "automargin": True, "nticks": 6,
            "fixedrange": True, "exponentformat": "power"}  # fmt: skip
    return {
        "title": {"text": _label(title, longest=60), "font": {"size": 13}, "xref": "container", "x": 0, "y": 1,
                  "xanchor": "left", "yanchor": "top", "pad": {"t": 8}},
        "height": height_px,
        "margin": {"l": 8, "r": 12, "t": 56, "b": 8},
        "font": {"family": COLOURS["font"], "size": 12, "color": COLOURS["ink"]},
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "dragmode": False,
        "hovermode": "x unified",
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom", "font": _SMALL},
        "xaxis": {**axis, "title": {"text": _label(x_title), "standoff": 4, "font": _SMALL}},
        "yaxis": {**axis, "title": {"text": _label(y_title), "standoff": 4, "font": _SMALL}},
    }  # fmt: skip


def _as_html(figure: Any) -> str:  # noqa: ANN401 - of a library without types
    from plotly.io import to_html  # noqa: PLC0415 - optional

    height = f"{figure.layout.height}px"
    name = f"figure-{hashlib.sha256(figure.to_json().encode()).hexdigest()[:16]}"  # the same in every page of a run
    options = {"config": _CONFIG, "include_plotlyjs": False, "full_html": False}
    return str(to_html(figure, default_height=height, div_id=name, **options))


def _label(name: str, *, longest: int = 28) -> str:
    """Return text for a figure: escaped, since plotly interprets a few tags, and cut so that it fits."""
    shown = printable(name)
    return html.escape(shown if len(shown) <= longest else f"{shown[: longest - 1]}…", quote=False)


def _rounded(values: Iterable[float]) -> list[float | None]:
    """Return values with five significant digits; None, a gap, for what is not finite."""
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values]


def _plotly() -> Any:  # noqa: ANN401 - a module without type information
    try:
        import plotly.graph_objects  # noqa: PLC0415 - optional
    except ImportError:
        raise MissingDependencyError("plotly", needed_for="drawing a report") from None
    return plotly.graph_objects
