"""Evaluation of policies with a progress display and printed results, for ``demo`` and ``evaluate``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from embodied_env.cli import SOUND, UNSOUND
from embodied_env.cli.arguments import add_json, check_seed
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
    """Declare the arguments that ``demo`` and ``evaluate`` share, with their defaults."""
    parser.add_argument("--backend", default=backend, help="name of the backend")
    parser.add_argument("--episodes", type=int, default=episodes, help="number of episodes per policy")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first episode")
    parser.add_argument("--out", metavar="DIR", default="runs", help="directory of the run directories")
    add_json(parser)


def run_policies(
    contract_name: str,
    policies: Sequence[str],
    args: argparse.Namespace,
    *,
    engine: Engine | None = None,
    **options: Any,  # noqa: ANN401 - of `evaluate_with_progress`
) -> int:
    """Evaluate policies, print the results, and return the exit status: 1 if a run is not sound.

    Raises:
        UsageError: for an invalid number of episodes or seed.
    """
    if args.episodes < 1:
        raise UsageError(f"--episodes {args.episodes} is not allowed; allowed: 1 or more")
    check_seed(args.seed)
    out = checked_path("--out", args.out)
    contract = load_contract(contract_name)
    enable_large_segments(contract)  # inherited by workers
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
        from embodied_env.analysis.report.run_report import write_report

        for path in (path for evaluation in evaluations for path in evaluation.parts or (evaluation.path,)):
            say(f"report: {write_report(path).path}", file=sys.stderr)
    for evaluation in evaluations:
        for loss in evaluation.losses:
            say(loss, file=sys.stderr)
    unsound = [evaluation for evaluation in evaluations if evaluation.problem]
    for evaluation in unsound:
        say(f"not sound: {evaluation.path}: {evaluation.problem}", file=sys.stderr)
    return UNSOUND if unsound else SOUND


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
    """Evaluate each policy in turn, with a live table on stderr, or with an engine a progress bar."""
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
            engine.check(job)  # before the display starts
        view = LiveView(contract, policy, episodes) if engine is None else EpisodeBar(contract, policy, episodes)
        with view:
            done.append(run_job(job, episodes=episodes, out=Path(out), engine=engine, observer=view))
    return done
