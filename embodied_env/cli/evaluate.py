"""Running a policy for some episodes, recorded, and showing what came of it. Shared by ``demo`` and ``evaluate``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from embodied_env.contract import Contract, load_contract
from embodied_env.core.arguments import checked_path
from embodied_env.core.latency.statistics import INJECTED_STAGES, STAGES
from embodied_env.core.outcome_counts import SOLVED_AT_FIRST_STEP, SOLVED_AT_RESET
from embodied_env.core.terminal import make_console, say
from embodied_env.errors import RecordError, UsageError
from embodied_env.evaluation.engine import Engine, make_engine
from embodied_env.evaluation.episodes import EpisodeRunner, Evaluation, EvaluationJob, Watcher, problem_of
from embodied_env.ros.fastdds import enable_large_segments

_ORDER = (*STAGES, *INJECTED_STAGES)


def evaluate(  # noqa: PLR0913 - the public options
    contract: Contract,
    *,
    backend: str,
    policy: str,
    episodes: int,
    seed: int,
    out: str | Path,
    watcher: Watcher | None = None,
    record_messages: bool = False,
    **options: Any,  # noqa: ANN401 - of make
) -> Evaluation:
    """Run `episodes` episodes of `policy` on `backend`, recorded into a new run directory in `out`.

    The first reset is seeded with `seed`, the others go on from it. When it is interrupted, the run
    is closed soundly before the interrupt is raised.
    """
    job = EvaluationJob(
        contract=contract,
        backend=backend,
        policy=policy,
        seed=seed,
        options=options,
        record_messages=record_messages,
    )
    with EpisodeRunner(job, Path(out), watcher=watcher) as run:
        for episode in range(episodes):
            run.run(episode)
    summary = _summary(run.path, run.losses)
    return Evaluation(policy=policy, path=run.path, summary=summary, problem=problem_of(run.path, summary))


def _summary(path: Path, problem: str) -> dict[str, Any]:
    """Return the summary of a run; raises RecordError when it could not be written."""
    try:
        summary: dict[str, Any] = json.loads((path / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise RecordError(f"{path}: the run has no summary: {problem or 'it was not closed'}") from None
    return summary


def evaluate_with_progress(
    contract: Contract,
    policies: Sequence[str],
    *,
    episodes: int,
    engine: Engine | None = None,
    **options: Any,  # noqa: ANN401 - of `evaluate`
) -> list[Evaluation]:
    """Evaluate each policy in turn, under a live table on stderr; by an engine, under a bar."""
    from embodied_env.cli.live_table import LiveView

    done = []
    for policy in policies:
        if engine is not None:
            done.append(_by_engine(engine, contract, policy, episodes, **options))
            continue
        with LiveView(contract, policy, episodes) as view:
            done.append(evaluate(contract, policy=policy, episodes=episodes, watcher=view, **options))
    return done


def _by_engine(
    engine: Engine,
    contract: Contract,
    policy: str,
    episodes: int,
    *,
    backend: str,
    seed: int,
    out: str | Path,
    **options: Any,  # noqa: ANN401 - of `evaluate`
) -> Evaluation:
    from rich.progress import Progress

    recording = {"record_messages": options.pop("record_messages", False)}
    job = EvaluationJob(contract=contract, backend=backend, policy=policy, seed=seed, options=options, **recording)
    engine.check(job)  # before anything is drawn
    with Progress(console=make_console(stderr=True), transient=True) as bar:
        line = bar.add_task(f"{contract.name} · {policy}", total=episodes)
        return engine.evaluate(job, episodes=episodes, out=Path(out), ended=lambda: bar.advance(line))


def add_common_arguments(parser: argparse.ArgumentParser, *, backend: str, episodes: int) -> None:
    """Declare what ``demo`` and ``evaluate`` have in common, with their defaults."""
    parser.add_argument("--backend", default=backend, help=f"which world (default: {backend})")
    parser.add_argument("--episodes", type=int, default=episodes, help=f"of each policy (default: {episodes})")
    parser.add_argument("--seed", type=int, default=0, help="of the first episode (default: 0)")
    parser.add_argument("--out", default="runs", help="where run directories are made (default: runs)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run_policies(
    contract_name: str,
    policies: Sequence[str],
    args: argparse.Namespace,
    *,
    engine: Engine | None = None,
    **options: Any,  # noqa: ANN401 - of `evaluate`
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
    return _say_problems(evaluations)


def _say_problems(evaluations: Sequence[Evaluation]) -> int:
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


HELP = "run a policy for some episodes and record them"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("contract", help="a contract's name or file")
    parser.add_argument(
        "--policy",
        default="scripted",
        help="hold, random, scripted, checkpoint:FOLDER, or module:callable (default: scripted)",
    )
    add_common_arguments(parser, backend="mujoco", episodes=10)
    parser.add_argument("--clock", default="steady", help="steady or virtual (default: steady)")
    parser.add_argument("--pacing", default=None, help="lockstep or realtime (default: the backend's)")
    parser.add_argument("--fifo-priority", type=int, default=None, help="SCHED_FIFO for the stepping thread, 1 to 99")
    parser.add_argument(
        "--switch-interval", type=float, default=None, help="of the interpreter, s: for policies in threads of Python"
    )
    parser.add_argument(
        "--delay-profile", metavar="FILE", default=None, help="put these latencies into a world that waits"
    )
    parser.add_argument("--namespace", default=None, help="ROS 2 namespace, for a backend over ROS 2")
    parser.add_argument("--report", action="store_true", help="write report.html into the run directory, too")
    parser.add_argument("--attach", action="store_true", help="use a simulator that runs instead of starting one")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="of a robot: everything but motion; no command is published, nobody asked",
    )
    parser.add_argument("--relay", action="store_true", help="of a robot: through its relay, whatever the profile says")
    parser.add_argument("--engine", default=None, help="local, or ray: worker processes (default: this process)")
    parser.add_argument(
        "--workers", type=int, default=None, help="of the engine (default: one per CPU of this machine)"
    )
    parser.add_argument(
        "--episode-timeout",
        type=float,
        metavar="S",
        default=None,
        help="of an engine: seconds after which a hung worker is replaced (default: generous, from the contract)",
    )
    parser.add_argument(
        "--address", default=None, help="of a Ray cluster (default: RAY_ADDRESS, else one is started and ended here)"
    )
    parser.add_argument(
        "--record-messages", action="store_true", help="record the raw ROS 2 messages too, for a backend over ROS 2"
    )


def run(args: argparse.Namespace) -> int:
    """Evaluate one policy.

    Raises:
        UsageError: for workers of no engine.
    """
    if args.engine is None and args.workers is not None:
        raise UsageError(f"--workers {args.workers} is of an engine; allowed: with --engine local or ray")
    if args.engine is None and args.address is not None:
        raise UsageError(f"--address {args.address!r} is of an engine; allowed: with --engine ray")
    if args.engine is None and args.episode_timeout is not None:
        raise UsageError(
            f"--episode-timeout {args.episode_timeout} is of an engine; allowed: with --engine local or ray"
        )
    workers = (os.cpu_count() or 1) if args.workers is None else args.workers
    return run_policies(
        args.contract,
        [args.policy],
        args,
        engine=None
        if args.engine is None
        else make_engine(args.engine, workers, args.address, episode_timeout_s=args.episode_timeout),
        clock=args.clock,
        pacing=args.pacing,
        fifo_priority=args.fifo_priority,
        switch_interval_s=args.switch_interval,
        delay_profile=args.delay_profile,
        namespace=args.namespace,
        spawn=not args.attach,
        record_messages=args.record_messages,
        **_of_robot(args),
    )


def _of_robot(args: argparse.Namespace) -> dict[str, bool]:
    """Return the options of a robot that were asked for; another backend refuses them."""
    if args.dry_run:
        say("dry run: everything is checked and judged, nothing is published to the robot", file=sys.stderr)
    return {**({"armed": False} if args.dry_run else {}), **({"relay": True} if args.relay else {})}
