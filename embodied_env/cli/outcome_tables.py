"""Tables of what evaluations came to: outcomes and latencies, on the terminal or as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from embodied_env.contract import Contract
from embodied_env.core.latency.statistics import INJECTED_STAGES, STAGES
from embodied_env.core.outcome_counts import SOLVED_AT_FIRST_STEP, SOLVED_AT_RESET
from embodied_env.core.terminal import make_console
from embodied_env.evaluation.episodes import Evaluation

_ORDER = (*STAGES, *INJECTED_STAGES)


def print_table(contract: Contract, backend: str, evaluations: Sequence[Evaluation]) -> None:
    """Print outcomes and latencies, one column per policy, and where each run lies."""
    from rich.table import Table
    from rich.text import Text

    console = make_console()
    dry = " · DRY RUN: nothing reached the robot" if any(e.summary.get("dry_run") for e in evaluations) else ""
    outcome = Table(title=f"{contract.name} v{contract.version} on {backend}{dry}", title_justify="left")
    outcome.add_column("")
    for evaluation in evaluations:
        outcome.add_column(evaluation.policy, justify="right")
    for label, cell in _OUTCOMES.items():
        outcome.add_row(label, *(cell(evaluation.summary) for evaluation in evaluations))
    console.print(outcome)

    latency = Table(title="latency, ms: p50 / p95 / p99", title_justify="left")
    latency.add_column("stage")
    for evaluation in evaluations:
        latency.add_column(evaluation.policy, justify="right")
    for stage in _stages([evaluation.summary for evaluation in evaluations]):
        latency.add_row(
            Text(stage.replace("_s[", "[").removesuffix("_s")),
            *(_percentiles(evaluation.summary, stage) for evaluation in evaluations),
        )
    console.print(latency)

    console.print(f"contract fingerprint  {contract.fingerprint}", soft_wrap=True)
    for evaluation in evaluations:
        console.print(f"run ({evaluation.policy})  {evaluation.path}", soft_wrap=True)


def as_json(contract: Contract, backend: str, evaluations: Sequence[Evaluation]) -> str:
    """Return the same as one JSON object."""
    return json.dumps(
        {
            "contract": contract.name,
            "fingerprint": contract.fingerprint,
            "backend": backend,
            "runs": [_run_as_json(evaluation) for evaluation in evaluations],
        },
        indent=2,
    )


def _run_as_json(evaluation: Evaluation) -> dict[str, Any]:
    said = {"policy": evaluation.policy, "path": str(evaluation.path), "summary": dict(evaluation.summary)}
    if evaluation.parts:
        said |= {"parts": [str(path) for path in evaluation.parts], "losses": list(evaluation.losses)}
    return said


def _percent(value: float | None) -> str:
    return "none" if value is None else f"{100 * value:.1f} %"


_OUTCOMES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "episodes": lambda s: f"{s['episodes']}",
    "success rate, truncation counted as failure": lambda s: _percent(s["success_rate"]),
    "success rate, truncation apart": lambda s: _percent(s["success_rate_not_truncated"]),
    "episodes in the success rate": lambda s: f"{s['rated']}",
    "solved at reset (in no rate)": lambda s: f"{s[SOLVED_AT_RESET]}",
    "solved at first step, reset not judged (in no rate)": lambda s: f"{s[SOLVED_AT_FIRST_STEP]}",
    "truncated": lambda s: f"{s['truncated']}",
    "ended by": lambda s: ", ".join(f"{reason} {count}" for reason, count in s["end_reasons"].items()) or "none",
    "return, mean": lambda s: "none" if s["return"]["mean"] is None else f"{s['return']['mean']:.3f}",
    "steps": lambda s: f"{s['steps']}",
    "missed deadlines": lambda s: f"{s['missed_deadlines']}",
    "clipped steps": lambda s: _percent(s["clipped_share"]),
}


def _stages(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the stages that were measured, in the order in which they happen."""
    found = dict.fromkeys(stage for summary in summaries for stage in summary["latency"])
    return sorted(found, key=lambda stage: (_ORDER.index(stage.partition("[")[0]), stage))


def _percentiles(summary: Mapping[str, Any], stage: str) -> str:
    values = summary["latency"].get(stage)
    if values is None:
        return "none"
    return " / ".join(f"{1e3 * values[key]:.3f}" for key in ("p50_s", "p95_s", "p99_s"))
