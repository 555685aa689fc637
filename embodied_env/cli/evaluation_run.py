"""Evaluate policies under a progress display and print the result: what ``demo`` and ``evaluate`` share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from embodied_env.cli.live_table import EpisodeBar, LiveView
from embodied_env.cli.outcome_tables import as_json, print_table
from embodied_env.contract import Contract, load_contract
from embodied_env.core.arguments import checked_path
from embodied_env.core.terminal import say
from embodied_env.errors import UsageError
from embodied_env.evaluation.engine import Engine
from embodied_env.evaluation.episodes import Evaluation, EvaluationJob
from embodied_env.evaluation.runner import run_job
from embodied_env.ros.fastdds import enable_large_segments


def add_common_arguments(parser: argparse.ArgumentParser, *, backend: str, episodes: int) -> None:
    """Declare what ``demo`` and ``evaluate`` have in common, with their defaults."""
    parser.add_argument("--backend", default=backend, help=f"name of the backend (default: {backend})")
    parser.add_argument(
        "--episodes", type=int, default=episodes, help=f"number of episodes per policy (default: {episodes})"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the first episode (default: 0)")
    parser.add_argument("--out", default="runs", help="folder of the run directories (default: runs)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run_policies(
    contract_name: str,
    policies: Sequence[str],
    args: argparse.Namespace,
    *,
    engine: Engine | None = None,
    **options: Any,  # noqa: ANN401 - of `evaluate_with_progress`
) -> int:
    """Evaluate, print, and return the exit status: 1 when a run is not sound evidence.

    Raises:
        UsageError: for a number of episodes or a seed that is not allowed.
    """
    if args.episodes < 1:
        raise UsageError(f"--episodes {args.episodes} is not allowed; allowed: 1 or more")
    if args.seed < 0:
        raise UsageError(f"--seed {args.seed} is not allowed; allowed: 0 or more")
    out = checked_path("--out", args.out)
    contract = load_contract(contract_name)
    enable_large_segments(contract)  # also for the workers: they inherit it
    wants_report = getattr(args, "report", False)  # demo has none
    if wants_report:
        from embodied_env.analysis.report.figures import check_installed

        check_installed()  # before anything moves
    evaluations = evaluate_with_progress(
        contract,
        policies,
        backend=args.backend,
        episodes=args.episodes,
        seed=args.seed,
        out=out,
        engine=engine,
        **options,
    )
    if args.json:
        say(as_json(contract, args.backend, evaluations))
    else:
        print_table(contract, args.backend, evaluations)
    if wants_report:
        _write_reports(evaluations)
    return _print_problems(evaluations)


def evaluate_with_progress(  # noqa: PLR0913 - the public options
    contract: Contract,
    policies: Sequence[str],
    *,
    backend: str,
    episodes: int,
    seed: int,
    out: str | Path,
    engine: Engine | None = None,
    record_messages: bool = False,
    **options: Any,  # noqa: ANN401 - of make
) -> list[Evaluation]:
    """Evaluate each policy in turn, below a live table on stderr; with an engine, below a bar."""
    done = []
    for policy in policies:
        job = EvaluationJob(
            contract=contract,
            backend=backend,
            policy=policy,
            seed=seed,
            options=options,
            record_messages=record_messages,
        )
        if engine is not None:
            engine.check(job)  # before anything is drawn
        view = LiveView(contract, policy, episodes) if engine is None else EpisodeBar(contract, policy, episodes)
        with view:
            done.append(run_job(job, episodes=episodes, out=Path(out), engine=engine, observer=view))
    return done


def _print_problems(evaluations: Sequence[Evaluation]) -> int:
    """Print what was lost and what is not sound on stderr, and return the exit status."""
    for evaluation in evaluations:
        for loss in evaluation.losses:
            say(loss, file=sys.stderr)
    unsound = [evaluation for evaluation in evaluations if evaluation.problem]
    for evaluation in unsound:
        say(f"not sound: {evaluation.path}: {evaluation.problem}", file=sys.stderr)
    return 1 if unsound else 0


def _write_reports(evaluations: Sequence[Evaluation]) -> None:
    """Write ``report.html`` into each run directory, those of workers too; say so on stderr, not in anybody's JSON."""
    from embodied_env.analysis.report.run_report import write_report

    for path in (path for evaluation in evaluations for path in evaluation.parts or (evaluation.path,)):
        report = write_report(path)
        say(f"report: {report.path}", file=sys.stderr)
