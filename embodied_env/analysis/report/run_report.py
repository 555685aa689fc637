"""The report of one run: its rows are read once, after the audit, and written as one self-contained page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embodied_env._version import __version__
from embodied_env.analysis.progress import NO_PROGRESS, Progress
from embodied_env.analysis.report.actions import Actions, GateActivity
from embodied_env.analysis.report.figures import check_installed, library
from embodied_env.analysis.report.formatting import describe_value, mapping_of
from embodied_env.analysis.report.html import render_page
from embodied_env.analysis.report.key_frames import KeyFrames
from embodied_env.analysis.report.outcomes import Outcomes
from embodied_env.analysis.report.time_series import Timeline
from embodied_env.analysis.report.timing import Clocks, Sensors, Stages
from embodied_env.core.latency.statistics import KEPT
from embodied_env.core.outcome_counts import describe_exclusions
from embodied_env.record import AuditReport, Run, audit_run
from embodied_env.record.manifest import write_text
from embodied_env.record.rows import RESET
from embodied_env.record.run import inspect_run, row_violations

REPORT = "report.html"
"""Default name of a report, in its run directory."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """A report that was written, and the result of the audit in it."""

    path: Path
    transitions: int
    sound: bool
    problems: tuple[str, ...]


class RunStatistics:
    """Everything that a report shows of the rows of a run, in bounded memory.

    Attributes:
        steps: transitions.
        unreadable: rows that do not fit their schema; they are skipped.
        unaccounted: transitions that an outer wrapper added; they count in the outcomes only.
    """

    def __init__(self, steps: int) -> None:
        """Start without rows; `steps`, the number of transitions to come, divides the figures over time."""
        self.timeline = Timeline(steps)
        self.outcomes = Outcomes()
        self.stages = Stages(self.timeline)
        self.sensors = Sensors(self.timeline)
        self.clocks = Clocks()
        self.gates = GateActivity(self.timeline)
        self.actions = Actions(self.timeline)
        self.frames = KeyFrames()
        self.steps = self.unreadable = self.unaccounted = 0

    def add(self, row: Any) -> None:  # noqa: ANN401 - JSON types
        """Add one row."""
        if row_violations(row):
            self.unreadable += 1
            return
        self.outcomes.add(row)
        if row["schema"] != RESET:
            self.steps += 1
            self._add_step(row)
        self.frames.add(self.steps, row)

    def _add_step(self, row: Mapping[str, Any]) -> None:
        self.timeline.begin_step(self.steps)
        if row["inner"] is None:
            self.unaccounted += 1
            return
        info = row["info"]
        self.stages.add(self.steps, info)
        self.sensors.add(info["sensors"])
        self.clocks.add(row)
        self.gates.add(self.steps, row)
        self.actions.add(self.steps, info["action"])

    @property
    def left_out(self) -> int:
        """Values that are not shown, since the run has more names than the report keeps."""
        stages, gates = self.stages, self.gates
        kept = (self.timeline.series, stages.samples, stages.unmeasured, self.sensors.by_name, gates.fired)
        return sum(names.left_out for names in (*kept, gates.notices, self.actions.joints))


def write_report(
    run_directory: str | Path, output: str | Path | None = None, *, progress: Progress = NO_PROGRESS
) -> Report:
    """Audit a run and write its report to `output`: to ``report.html`` in the run directory by default.

    The report of a run that is not clean, or empty, names the problem.

    Raises:
        RecordError: when `run_directory` is no run directory, or the page cannot be written.
        MissingDependencyError: when plotly, jinja2, scipy or mcap is not installed.
    """
    check_installed()
    run, _ = inspect_run(run_directory)  # the audit lists what does not fit
    progress.start("audit", None)
    audit = audit_run(run_directory)
    progress.start("reading", audit.transitions)
    statistics = RunStatistics(audit.transitions)
    for row in run.unchecked_rows():
        statistics.add(row)
        progress.advance()
    progress.start("drawing", None)
    path = Path(run_directory) / REPORT if output is None else Path(output)
    write_text(path, build_page(run, audit, statistics))
    return Report(path=path, transitions=statistics.steps, sound=audit.sound, problems=audit.problems)


def build_page(run: Run, audit: AuditReport, statistics: RunStatistics) -> str:
    """Return the report of `run`, whose rows are in `statistics`."""
    name, summary = run.path.resolve().name, statistics.outcomes.summary()
    contract = describe_value(mapping_of(run.manifest, "contract").get("name"))
    return render_page(
        "report.html",
        title=f"{contract}: {name}",
        script=library(),
        version=__version__,
        kept=KEPT,
        name=name,
        audit=audit,
        manifest=run.manifest,
        run=statistics,
        summary=summary,
        exclusions=describe_exclusions(summary),
        latency=statistics.stages.section(),
        gates=statistics.gates.section(),
        actions=statistics.actions.figures(),
        sensors=statistics.sensors.figures(),
        frames=statistics.frames.section(run.array),
    )
