"""Evaluation of policies with a progress display and printed results, for ``demo`` and ``evaluate``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from embodied_env.cli import SOUND, UNSOUND
from embodied_env.cli.arguments import add_json, add_seed, integer_from
from embodied_env.cli.live_table import LiveView
from embodied_env.contract import Contract, load_contract
from embodied_env.core.arguments import checked_path
from embodied_env.core.latency.statistics import INJECTED_STAGES, STAGES
from embodied_env.core.outcome_counts import SOLVED_AT_FIRST_STEP, SOLVED_AT_RESET
from embodied_env.core.terminal import make_console, say
from embodied_env.envs.explanation import operator_remedy
from embodied_env.evaluation.engine import Engine
from embodied_env.evaluation.episodes import Evaluation
from embodied_env.evaluation.runner import evaluate
from embodied_env.ros.fastdds import enable_large_segments

_STAGE_ORDER = (*STAGES, *INJECTED_STAGES)


def add_common_arguments(parser: argparse.ArgumentParser, *, backend: str, episodes: int) -> None:
    """Declare the arguments that ``demo`` and ``evaluate`` share, with their defaults."""
    option = parser.add_argument
    option("--backend", default=backend, help="name of the backend to run on")
    option("--episodes", type=integer_from(1), metavar="N", default=episodes, help="number of episodes per policy")
    add_seed(parser, "seed of the first episode")
    option("--out", metavar="DIR", default="runs", help="parent directory of the run directories")
    add_json(parser)


def run_policies(
    contract_name: str,
    policies: Sequence[str],
    args: argparse.Namespace,
    *,
    engine: Engine | None = None,
    has_closing: bool = False,
    **options: Any,  # noqa: ANN401 - of `evaluate_with_progress`
) -> int:
    """Evaluate policies, print the results, and return the exit status: 1 if a run is not sound.

    `has_closing`: end with the result in five lines, and the next command.
    """
    out = checked_path("--out", args.out)
    contract = load_contract(contract_name)
    enable_large_segments(contract)  # inherited by workers
    wants_report = getattr(args, "report", False)  # demo has none
    if wants_report:
        from embodied_env.analysis.report.figures import check_installed

        check_installed()  # before anything moves
    options |= {"backend": args.backend, "episodes": args.episodes, "seed": args.seed, "out": out}
    evaluations = evaluate_with_progress(contract, policies, engine=engine, **options)
    if args.json:
        say(as_json(contract, args.backend, evaluations))
    else:
        print_table(contract, args.backend, evaluations)
    if wants_report:
        from embodied_env.analysis.report.run_report import write_report

        for path in (path for evaluation in evaluations for path in evaluation.parts or (evaluation.path,)):
            say(f"report: {write_report(path).path}", file=sys.stderr)
    for evaluation in evaluations:
        _print_losses_and_stops(contract, evaluation)
    if has_closing and not args.json:
        print_closing(contract, args.backend, evaluations)
    unsound = [evaluation for evaluation in evaluations if evaluation.problem]
    for evaluation in unsound:
        say(f"not sound: {evaluation.path}: {evaluation.problem}", file=sys.stderr)
    return UNSOUND if unsound else SOUND


def _print_losses_and_stops(contract: Contract, evaluation: Evaluation) -> None:
    for loss in evaluation.losses:
        say(loss, file=sys.stderr)
    for reason, count in evaluation.summary["end_reasons"].items():
        if remedy := operator_remedy(reason, contract):
            text = f"{remedy}, then evaluate again: each reset begins with homing, if the contract declares a home"
            say(f"episodes ended by {reason}: {count}; {text}", file=sys.stderr)


def evaluate_with_progress(
    contract: Contract,
    policies: Sequence[str],
    *,
    episodes: int,
    engine: Engine | None = None,
    **options: Any,  # noqa: ANN401 - of evaluate
) -> list[Evaluation]:
    """Evaluate each policy in turn, with a live display on stderr."""
    done = []
    for policy in policies:
        with LiveView(contract, policy, episodes) as view:
            done.append(evaluate(contract, policy=policy, episodes=episodes, engine=engine, observer=view, **options))
    return done


def print_table(contract: Contract, backend: str, evaluations: Sequence[Evaluation]) -> None:
    """Print outcomes and latencies, one column per policy, and the path of each run."""
    from rich.table import Table
    from rich.text import Text

    console, summaries = make_console(), [evaluation.summary for evaluation in evaluations]
    dry = " · DRY RUN: no command was sent to the robot" if any(summary.get("dry_run") for summary in summaries) else ""
    outcome = Table("", title=f"{contract.name} v{contract.version} on {backend}{dry}", title_justify="left")
    latency = Table("stage", title="latency, ms: p50 / p95 / p99", title_justify="left")
    for evaluation in evaluations:
        outcome.add_column(evaluation.policy, justify="right")
        latency.add_column(evaluation.policy, justify="right")
    for label, cell in _OUTCOMES.items():
        outcome.add_row(label, *map(cell, summaries))
    stages = {stage for summary in summaries for stage in summary["latency"]}
    for stage in sorted(stages, key=lambda stage: (_STAGE_ORDER.index(stage.partition("[")[0]), stage)):
        name = Text(stage.replace("_s[", "[").removesuffix("_s"))
        latency.add_row(name, *(_percentiles(summary, stage) for summary in summaries))
    console.print(outcome)
    console.print(latency)
    console.print(f"contract fingerprint  {contract.fingerprint}", soft_wrap=True)
    for evaluation in evaluations:
        console.print(f"run ({evaluation.policy})  {evaluation.path}", soft_wrap=True)


def print_closing(contract: Contract, backend: str, evaluations: Sequence[Evaluation]) -> None:
    """Print the result of each policy, where the runs are, and the next command."""
    say(f"\nresult: {contract.name} on {backend}, {evaluations[0].summary['episodes']} episodes per policy")
    for evaluation in evaluations:
        summary = evaluation.summary
        latency = _percentiles(summary, "obs_to_command_s").split(" / ")[0]
        say(
            f"  {evaluation.policy}: {summary['successes']} solved, {_percent(summary['clipped_share'])} of the steps "
            f"clipped by the safety gate, observation to command {latency} ms (median)"
        )
    say(f"runs:   {', '.join(str(evaluation.path) for evaluation in evaluations)}")
    say(f"next:   embodied-env audit {evaluations[0].path}")


def as_json(contract: Contract, backend: str, evaluations: Sequence[Evaluation]) -> str:
    """Return the results as one JSON object."""
    runs: list[dict[str, Any]] = []
    for evaluation in evaluations:
        runs.append({"policy": evaluation.policy, "path": str(evaluation.path), "summary": dict(evaluation.summary)})
        if evaluation.parts:
            runs[-1] |= {"parts": [str(path) for path in evaluation.parts], "losses": evaluation.losses}
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
