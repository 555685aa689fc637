"""Write the report of a run as one self-contained page, in one pass over its rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from embodied_env._version import __version__
from embodied_env.contract import Contract
from embodied_env.core.code_table import UNMOVED
from embodied_env.core.excluded_episodes import describe_exclusions
from embodied_env.core.latency_statistics import KEPT
from embodied_env.core.terminal import NO_PROGRESS, Progress
from embodied_env.errors import ContractError, RecordError
from embodied_env.extensions.audit import AuditReport, audit_run
from embodied_env.extensions.report.episode_traces import EpisodeTraces, is_underrun
from embodied_env.extensions.report.figures import (
    KINDS,
    draw_deviations,
    draw_episode,
    draw_rates,
    draw_reasons,
    draw_strip,
)
from embodied_env.extensions.report.html_pages import check_page_libraries, describe_value, mapping_of, render_page
from embodied_env.extensions.report.key_frames import can_draw
from embodied_env.extensions.report.totals import Clocks, Gates, Sensors, Stages, stage_label
from embodied_env.record import Run
from embodied_env.record.manifest import contract_of_manifest, world_of, write_text
from embodied_env.record.row_schema import validate_row
from embodied_env.record.row_types import RESET, RecordedRow
from embodied_env.record.run import inspect_run
from embodied_env.record.summary import Outcomes

REPORT = "report.html"
"""Default name of a report, in its run directory."""

_MOST_CHARACTERS = 2_000_000  # length of the charts and pictures of all episodes


@dataclass(frozen=True, kw_only=True)
class Report:
    """A report that was written, and the result of the audit in it."""

    path: Path
    transitions: int
    sound: bool
    problems: tuple[str, ...]


class RunStatistics:
    """Everything that a report shows of the rows of a run, in bounded memory."""

    def __init__(self, contract: Contract | None = None, *, is_valid: bool = False) -> None:
        """Start without rows, which fit their schema if an audit found so (`is_valid`)."""
        self._is_valid = is_valid
        self.outcomes = Outcomes()
        self.episodes = EpisodeTraces(contract)
        self.stages = Stages()
        self.sensors = Sensors()
        self.clocks = Clocks()
        self.gates = Gates()
        self.steps = self.underruns = 0  # transitions, and those without an action of a chunk
        self.unreadable = self.unaccounted = 0  # rows that do not fit their schema, and that an outer wrapper added

    def add(self, value: object) -> None:
        """Add one row."""
        row = cast("RecordedRow", value) if self._is_valid else validate_row(value)[0]
        if row is None:
            self.unreadable += 1
            return
        self.outcomes.add(row)
        if row["schema"] == RESET:
            if self.outcomes.episode is not None:
                self.episodes.begin(self.outcomes.episode, row)
        else:
            self.steps += 1
            self.episodes.add(row)
            if row["inner"] is None:
                self.unaccounted += 1
                return
            self.stages.add(self.steps, row["info"])
            self.sensors.add(self.steps, row["info"]["sensors"])
            self.clocks.add(row)
            self.gates.add(self.steps, row)
            self.underruns += is_underrun(row["info"])

    @property
    def left_out(self) -> int:
        """Values that are not shown, since the run has more names than the report keeps."""
        kept = (self.stages.samples, self.stages.unmeasured, self.sensors.by_name, self.gates.found)
        return sum(names.left_out for names in kept) + sum(trace.left_out for trace in self.episodes.kept)


def write_report(
    run_directory: str | Path,
    output: str | Path | None = None,
    *,
    replace: bool = True,
    progress: Progress = NO_PROGRESS,
) -> Report:
    """Audit a run and write its report to `output`.

    The default is ``report.html`` in the run directory. Without `replace` it is a new file.
    The report of a run that is not clean, or empty, names the problem.

    Raises:
        RecordError: when `run_directory` is no run directory, or the page cannot be written.
        MissingDependencyError: when jinja2 or mcap is not installed.
    """
    check_page_libraries()
    run, _ = inspect_run(run_directory)  # the audit lists what does not fit
    progress.start("audit", None)
    audit = audit_run(run_directory, watcher=progress.advance)
    progress.start("reading", audit.transitions)
    contract, problem = _read_contract(run)
    statistics = RunStatistics(contract, is_valid=audit.sound)
    for row in run.log:
        statistics.add(row)
        progress.advance()
    statistics.episodes.close()
    progress.start("drawing", None)
    path = Path(run_directory) / REPORT if output is None else Path(output)
    write_text(path, build_page(run, audit, statistics, contract, problem), replace=replace)
    return Report(path=path, transitions=statistics.steps, sound=audit.sound, problems=audit.problems)


def build_page(run: Run, audit: AuditReport, found: RunStatistics, contract: Contract | None, problem: str) -> str:
    """Return the report of `run`, with why its contract cannot be read as `problem`, or ""."""
    name, summary = run.path.resolve().name, found.outcomes.as_json("")
    contract_name = describe_value(mapping_of(run.manifest, "contract").get("name"))
    is_paced = contract is not None and run.manifest.get("pacing") == "realtime"
    kinds = Counter(episode.kind for episode in found.outcomes.episodes)
    drawn = _draw_episodes(run, found.episodes)
    return render_page(
        "report.html",
        title=f"{contract_name}: {name}",
        version=__version__,
        kept=KEPT,
        name=name,
        audit=audit,
        manifest=run.manifest,
        unmoved=UNMOVED,
        world=world_of(run.manifest),
        contract_problem=problem,
        run=found,
        summary=summary,
        exclusions=describe_exclusions(summary),
        rates=draw_rates(found.outcomes.rates()),
        reasons=draw_reasons(summary),
        strip=draw_strip(found.outcomes.episodes, [episode["outcome"].number for episode in drawn]),
        kinds={kind: words for kind, words in KINDS.items() if kind in kinds},
        counts=kinds,
        episodes=sorted(drawn, key=lambda each: each["outcome"].number),
        default=drawn[0]["outcome"].number if drawn else None,
        can_draw=can_draw(),
        deviations=draw_deviations(run.path),
        identified=_identified_of(contract, run.manifest.get("backend")),
        period_s=None if contract is None else contract.control_period_s,
        timeline=found.stages.timeline(contract.control_period_s if is_paced and contract is not None else None),
        stage_label=stage_label,
    )


def _identified_of(contract: Contract | None, backend: object) -> str:
    named = {} if contract is None else mapping_of(contract.backends, str(backend), "identified")
    return f"{describe_value(named['file'])}, SHA-256 {describe_value(named.get('sha256'))}" if "file" in named else ""


def _draw_episodes(run: Run, traces: EpisodeTraces) -> list[dict[str, Any]]:
    """Return charts and pictures of the most important episodes, as far as they fit."""
    drawn: list[dict[str, Any]] = []
    space = _MOST_CHARACTERS
    for trace in traces.by_importance():
        trace.chunks.read(run.array, trace.steps)
        sections, pictures = draw_episode(trace), trace.frames.pictures(run.array) if can_draw() else {}
        space -= sum(len(figure) for _, figures in sections for figure in figures)
        space -= sum(len(picture.jpeg) for of_camera in pictures.values() for picture in of_camera)
        if space < 0 and drawn:
            break
        drawn.append({"outcome": trace.outcome, "sections": sections, "pictures": pictures, "frames": trace.frames})
    return drawn


def _read_contract(run: Run) -> tuple[Contract | None, str]:
    try:
        return contract_of_manifest(run.manifest), ""
    except (ContractError, RecordError) as error:
        return None, str(error)
