"""Results of evaluations: outcomes and latencies, as tables or as JSON."""

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
    """Print outcomes and latencies, one column per policy, and the path of each run."""
    from rich.table import Table
    from rich.text import Text

    console, summaries = make_console(), [evaluation.summary for evaluation in evaluations]
    dry = " · DRY RUN: nothing reached the robot" if any(summary.get("dry_run") for summary in summaries) else ""
    outcome = Table("", title=f"{contract.name} v{contract.version} on {backend}{dry}", title_justify="left")
    latency = Table("stage", title="latency, ms: p50 / p95 / p99", title_justify="left")
    for evaluation in evaluations:
        outcome.add_column(evaluation.policy, justify="right")
        latency.add_column(evaluation.policy, justify="right")
    for label, cell in _OUTCOMES.items():
        outcome.add_row(label, *map(cell, summaries))
    stages = {stage for summary in summaries for stage in summary["latency"]}
    for stage in sorted(stages, key=lambda stage: (_ORDER.index(stage.partition("[")[0]), stage)):
        name = Text(stage.replace("_s[", "[").removesuffix("_s"))
        latency.add_row(name, *(_percentiles(summary, stage) for summary in summaries))
    console.print(outcome)
    console.print(latency)
    console.print(f"contract fingerprint  {contract.fingerprint}", soft_wrap=True)
    for evaluation in evaluations:
        console.print(f"run ({evaluation.policy})  {evaluation.path}", soft_wrap=True)


def as_json(contract: Contract, backend: str, evaluations: Sequence[Evaluation]) -> str:
    """Return the results as one JSON object."""
    runs: list[dict[str, Any]] = []
    for evaluation in evaluations:
        summary = dict(evaluation.summary)
        runs.append({"policy": evaluation.policy, "path": str(evaluation.path), "summary": summary})
        if evaluation.parts:
            runs[-1] |= {"parts": [str(path) for path in evaluation.parts], "losses": list(evaluation.losses)}
    head = {"contract": contract.name, "fingerprint": contract.fingerprint, "backend": backend}
    return json.dumps({**head, "runs": runs}, indent=2)


def _percent(value: float | None) -> str:
    return "n/a" if value is None else f"{100 * value:.1f} %"


_OUTCOMES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "episodes": lambda s: f"{s['episodes']}",
    "success rate (truncated counted as failure)": lambda s: _percent(s["success_rate"]),
    "success rate (excluding truncated)": lambda s: _percent(s["success_rate_not_truncated"]),
    "episodes in the success rate": lambda s: f"{s['rated']}",
    "solved at reset (not rated)": lambda s: f"{s[SOLVED_AT_RESET]}",
    "solved at first step, reset not judged (not rated)": lambda s: f"{s[SOLVED_AT_FIRST_STEP]}",
    "truncated": lambda s: f"{s['truncated']}",
    "end reasons": lambda s: ", ".join(f"{reason} {count}" for reason, count in s["end_reasons"].items()) or "none",
    "return, mean": lambda s: "n/a" if s["return"]["mean"] is None else f"{s['return']['mean']:.3f}",
    "steps": lambda s: f"{s['steps']}",
    "missed deadlines": lambda s: f"{s['missed_deadlines']}",
    "clipped steps": lambda s: _percent(s["clipped_share"]),
}


def _percentiles(summary: Mapping[str, Any], stage: str) -> str:
    values = summary["latency"].get(stage)
    if values is None:
        return "n/a"
    return " / ".join(f"{1e3 * values[key]:.3f}" for key in ("p50_s", "p95_s", "p99_s"))
