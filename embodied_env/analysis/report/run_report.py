"""The report of one run: read in one pass after its audit, and written as one page that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from embodied_env._version import __version__
from embodied_env.analysis.progress import NoProgress, Progress
from embodied_env.analysis.report.action_sections import actions_section, frames_section, gates_section
from embodied_env.analysis.report.collectors import RunCollector, collect_rows
from embodied_env.analysis.report.figures import check_installed, library
from embodied_env.analysis.report.formatting import plural
from embodied_env.analysis.report.html import Block, Html, bullets, render_page, section, write_page
from embodied_env.analysis.report.outcome_sections import (
    audit_section,
    head,
    outcome_section,
    said_of,
    what_ran_section,
)
from embodied_env.analysis.report.time_series import Timeline
from embodied_env.analysis.report.timing_sections import (
    clock_section,
    latency_section,
    not_measured_section,
    sensors_section,
)
from embodied_env.record import AuditReport, Run, audit_run
from embodied_env.record.run import inspect_run, problems_of_row

REPORT = "report.html"
"""The name of a report in its run directory."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """A report that was written: where, of how many transitions, and whether the audit found the run sound."""

    path: Path
    transitions: int
    sound: bool
    problems: tuple[str, ...]


def write_report(
    run_directory: str | Path, output: str | Path | None = None, *, progress: Progress | None = None
) -> Report:
    """Audit the run, and write its report to `output`: ``report.html`` in the run directory when it is None.

    A run that is not clean, or empty, has a report too, which says so.

    Raises:
        RecordError: when it is no run directory, or the page cannot be written.
        MissingDependencyError: when plotly, jinja2 or mcap is not installed.
    """
    check_installed()
    progress = progress or NoProgress()
    run, _ = inspect_run(run_directory)  # the audit tells what does not fit
    progress.start("audit", None)
    audit = audit_run(run_directory)
    progress.start("reading", audit.transitions)
    account = collect_rows(_rows(run, progress), audit.transitions)
    progress.start("drawing", None)
    made = build_page(run, audit, account)
    path = Path(run_directory) / REPORT if output is None else Path(output)
    write_page(path, made)
    return Report(path=path, transitions=account.steps, sound=audit.sound, problems=audit.problems)


def build_page(run: Run, audit: AuditReport, account: RunCollector) -> Html:
    """Return the page of `run`, whose rows were counted in `account`."""
    manifest, name = run.manifest, run.path.resolve().name
    blocks = [
        head(name, manifest, audit, account),
        outcome_section(account),
        audit_section(audit, account),
        latency_section(account),
        not_measured_section(account),
        gates_section(account),
        actions_section(account),
        sensors_section(account),
        clock_section(account),
        frames_section(account, run.array),
        what_ran_section(manifest, account),
        _how_section(account.timeline, account.steps),
    ]
    contract = manifest.get("contract")
    title = f"{said_of(contract.get('name') if isinstance(contract, dict) else None)}: {name}"
    return render_page(title=title, blocks=blocks, scripts=[library()])


def _how_section(timeline: Timeline, steps: int) -> Block:
    said = [
        f"Made by embodied_env {__version__} from the run's own log, read once; the page loads nothing from anywhere.",
        "Percentiles in tables are of all steps, from a sketch that is right within half a percent of the value.",
        (
            f"Figures over time have {plural(timeline.buckets, 'point')} of {plural(timeline.width, 'step')} each, "
            f"for {plural(steps, 'step')}: each point says what all steps in it say, exactly; none is left out."
        ),
        "Of fewer than 100 steps, p99 is next to the most of them.",
        "Intervals are Wilson's score intervals at 95 %; they take episodes to be independent.",
    ]
    if timeline.left_out:
        said.append(
            f"The run names more than can be told: {timeline.left_out:,} values are in no figure, or in no table."
        )
    return section("How this page was made", bullets(said), anchor="how")


def _rows(run: Run, progress: Progress) -> Iterator[object]:
    """Yield the rows that are valid, and None for each other one."""
    for row in run.unchecked_rows():
        progress.advance()
        yield None if problems_of_row(row) else row
