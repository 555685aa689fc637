"""The page of a fit with its values, their intervals, and the motion measured, before and after."""

from __future__ import annotations

from pathlib import Path

from embodied_env._version import __version__
from embodied_env.extensions.identification.identification import Identification
from embodied_env.extensions.report.charts import Interval, Line, interval_chart, line_chart
from embodied_env.extensions.report.html_pages import render_page
from embodied_env.record.manifest import write_text
from embodied_env.sim.identified_parameters import parameter_name


def write_page(found: Identification, path: str | Path, *, replace: bool = True) -> None:
    """Write the HTML page of a fit.

    Raises:
        RecordError: when it cannot be written.
        MissingDependencyError: when jinja2 is not installed.
    """
    page = render_page(
        "identify.html",
        title=f"{found.model.contract}: identified parameters",
        version=__version__,
        found=found,
        model=found.model,
        name=parameter_name,
        changes_chart=_draw_changes(found),
        overlays=[_draw_motion(found, index) for index in range(len(found.traces))],
    )
    write_text(Path(path), page, replace=replace)


def _draw_changes(found: Identification) -> str:
    """Return the identified values as multiples of those of the model, with their intervals."""
    rows = []
    for each in found.model.parameters:
        if each.model > 0.0:
            value, low, high = (end / each.model for end in (each.value, each.low, each.high))
            text = f"{each.model:.4g} → {each.value:.4g} ({each.low:.4g} to {each.high:.4g})"
            rows.append(Interval(parameter_name(each.kind, each.of), value, low, high, text, "s0"))
    if not rows:
        return ""
    most = 1.05 * max(2.0, *(row.high for row in rows))
    return interval_chart("Identified values, in multiples of the model's", rows, span=(0.0, most), reference=1.0)


def _draw_motion(found: Identification, index: int) -> str:
    trace = found.traces[index]
    curves = (("measured", trace.measured, "measured"), ("before", trace.before, "a"), ("after", trace.after, "b"))
    lines = [Line(name, trace.times_s, values, style) for name, values, style in curves]
    return line_chart(trace.title, lines, x_title="time, s", unit=trace.joint.unit)
