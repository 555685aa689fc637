"""The report of one run: its rows are read once, after the audit, and written as one self-contained page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from embodied_env._version import __version__
from embodied_env.analysis.progress import NoProgress, Progress
from embodied_env.analysis.report.actions import Actions, GateActivity
from embodied_env.analysis.report.figures import check_installed, library
from embodied_env.analysis.report.formatting import (
    describe_value,
    mapping_of,
    milliseconds,
    percent,
    plural,
    share_of,
)
from embodied_env.analysis.report.html import Cell, code, render_page, write_page
from embodied_env.analysis.report.key_frames import KeyFrames
from embodied_env.analysis.report.outcomes import Outcomes
from embodied_env.analysis.report.time_series import Timeline
from embodied_env.analysis.report.timing import Clocks, Sensors, Stages
from embodied_env.core.latency.statistics import KEPT
from embodied_env.record import AuditReport, Run, audit_run
from embodied_env.record.rows import RESET
from embodied_env.record.run import inspect_run, row_violations

REPORT = "report.html"
"""Default name of a report, in its run directory."""

_LONGEST_POLICY = 80  # characters in the heading; the last section has all of it
_MOST_SEEDS = 40
_MOST_PROCESSES = 50


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
        unaccounted: transitions that an outer wrapper made up; they count in the outcomes only.
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
        self.stages.add(self.steps, info["latency"])
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
    run_directory: str | Path, output: str | Path | None = None, *, progress: Progress | None = None
) -> Report:
    """Audit a run and write its report to `output`: to ``report.html`` in the run directory by default.

    A run that is not clean, or empty, gets a report that says so.

    Raises:
        RecordError: when `run_directory` is no run directory, or the page cannot be written.
        MissingDependencyError: when plotly, jinja2, scipy or mcap is not installed.
    """
    check_installed()
    progress = progress or NoProgress()
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
    write_page(path, build_page(run, audit, statistics))
    return Report(path=path, transitions=statistics.steps, sound=audit.sound, problems=audit.problems)


def build_page(run: Run, audit: AuditReport, statistics: RunStatistics) -> str:
    """Return the report of `run`, whose rows are in `statistics`."""
    manifest, name = run.manifest, run.path.resolve().name
    contract = mapping_of(manifest, "contract")
    policy = describe_value(manifest.get("policy"))
    if len(policy) > _LONGEST_POLICY:
        policy = f"{policy[:_LONGEST_POLICY]}…"
    missed = f"{statistics.outcomes.summary()['missed_deadlines']:,} in {plural(statistics.steps, 'step')}"
    return render_page(
        "report.html",
        title=f"{describe_value(contract.get('name'))}: {name}",
        script=library(),
        version=__version__,
        kept=KEPT,
        heading=f"{describe_value(contract.get('name'))} on {describe_value(manifest.get('backend'))}",
        subtitle=f"policy {policy} · started {describe_time(manifest.get('started_utc'))} · {name}",
        audit=audit,
        run=statistics,
        highlights=_cards(statistics),
        outcome=statistics.outcomes.section(),
        latency=statistics.stages.latency_section(),
        unmeasured=statistics.stages.not_measured_section(statistics.steps),
        gates=statistics.gates.section(statistics.steps),
        actions=statistics.actions.section(),
        sensors=statistics.sensors.section(),
        clocks=statistics.clocks.section(missed),
        frames=statistics.frames.section(run.array),
        provenance=_provenance(manifest, statistics.outcomes),
    )


def describe_time(value: object) -> str:
    """Return an ISO 8601 time to the second in UTC; anything else as `describe_value` does."""
    try:
        when = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        when = None
    if when is None or when.tzinfo is None:
        return describe_value(value)
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _cards(statistics: RunStatistics) -> list[tuple[str, str, str]]:
    """Return label, value and details of the most important numbers."""
    cards = [
        (f"Success rate ({label})", percent(rate.share), rate.describe(noun))
        for label, noun, rate in statistics.outcomes.rates()
    ]
    cards.append(("Steps", f"{statistics.steps:,}", f"in {plural(statistics.outcomes.resets, 'episode')}"))
    if (command := statistics.stages.samples.get(("obs_to_command_s", ""))) is not None:
        found = command.percentiles()
        details = f"median {milliseconds(found.p50)} ms, p99 {milliseconds(found.p99)} ms"
        cards.append(("Observation to command, p95", f"{milliseconds(found.p95)} ms", details))
    if accounted := statistics.steps - statistics.unaccounted:
        intervened = statistics.gates.intervened
        details = f"{intervened:,} of {plural(accounted, 'step')}"
        cards.append(("Steps changed by the gates", share_of(intervened, accounted), details))
    return cards


def _provenance(manifest: Mapping[str, Any], outcomes: Outcomes) -> dict[str, Any]:
    """Return what ran: facts, versions, wrappers and processes of the manifest."""
    contract, host = mapping_of(manifest, "contract"), mapping_of(manifest, "host")
    keys = ("backend", "policy", "pacing", "clock", "scheduling")
    seeds = [str(seed) for seed in manifest.get("seeds", ())]
    shown_seeds = ", ".join(seeds[:_MOST_SEEDS]) or "none"
    if len(seeds) > _MOST_SEEDS:
        shown_seeds += f" and {len(seeds) - _MOST_SEEDS:,} more"
    kinds = ", ".join(f"{kind} ({count:,})" for kind, count in outcomes.reset_kinds.items())
    facts: list[tuple[str, Cell]] = [
        ("Contract", f"{describe_value(contract.get('name'))} v{describe_value(contract.get('version'))}"),
        ("Source", code(describe_value(contract.get("source")))),
        ("Contract fingerprint", code(describe_value(contract.get("fingerprint")))),
        ("Backend fingerprint", code(describe_value(manifest.get("backend_fingerprint")))),
        *((key.capitalize(), describe_value(manifest.get(key))) for key in keys),
        ("Seeds given to resets", shown_seeds),
        ("Resets", f"{outcomes.resets:,}" + (f": {kinds}" if kinds else "")),
        ("Started, UTC", describe_value(manifest.get("started_utc"))),
        ("Ended, UTC", describe_value(manifest.get("ended_utc"))),
        ("Host", f"{describe_value(host.get('platform'))}, {describe_value(host.get('cpu_count'))} CPUs"),
    ]
    return {
        "facts": facts,
        "versions": [(name, describe_value(of)) for name, of in manifest.get("versions", {}).items()],
        "wrappers": [
            (code(layer["class"]), code("not recorded" if layer["kwargs"] is None else describe_value(layer["kwargs"])))
            for layer in manifest.get("wrappers", ())
        ],
        "processes": [
            (describe_value(process.get("role")), describe_value(process.get("pid")))
            for process in manifest.get("processes", ())[:_MOST_PROCESSES]
        ],
    }
