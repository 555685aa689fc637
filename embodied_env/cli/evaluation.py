"""Running a policy for some episodes, recorded, and showing what came of it. Shared by ``demo`` and ``evaluate``."""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from embodied_env.contract import Contract, load_contract
from embodied_env.errors import PolicyError, RecordError, UsageError
from embodied_env.tasks import Policy
from embodied_env.transition import end_kind


class Watcher(Protocol):
    """Told of a run while it runs."""

    def resetting(self) -> None:
        """An episode is about to be reset."""
        ...

    def stepped(self, info: Mapping[str, Any]) -> None:
        """A step was taken; `info` is what it returned."""
        ...

    def ended(self, episode: int) -> None:
        """An episode has ended; it was the `episode`-th, from 1."""
        ...


class Unwatched:
    """Nobody looks."""

    def resetting(self) -> None:
        """Nothing."""

    def stepped(self, info: Mapping[str, Any]) -> None:
        """Nothing."""

    def ended(self, episode: int) -> None:
        """Nothing."""


STAGES = (
    "driver_s",
    "transport_s",
    "transport_excess_s",
    "queue_s",
    "hold_s",
    "capture_age_s",
    "obs_skew_s",
    "obs_age_max_s",
    "handoff_s",
    "inference_s",
    "policy_s",
    "gate_s",
    "publish_s",
    "obs_to_command_s",
    "data_age_s",
    "actuation_s",
    "end_to_end_s",
    "world_s",
    "period_s",
    "jitter_s",
    "overrun_s",
)
"""In the order in which they happen."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One policy's run: where it lies, and its summary (``summary.json``)."""

    policy: str
    path: Path
    summary: Mapping[str, Any]
    problem: str  # why the run is not sound evidence, or ""


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
    from embodied_env.cli.policies import make_policy
    from embodied_env.env import EmbodiedEnv
    from embodied_env.record import RecordTransitions

    watch = watcher or Unwatched()
    act = make_policy(policy, contract, backend=backend, seed=seed)
    embodied = EmbodiedEnv(contract, backend=backend, **options)
    with RecordTransitions(embodied, out, messages=record_messages) as env:
        env.policy = policy
        for episode in range(episodes):
            watch.resetting()
            observation, _ = env.reset(seed=seed if episode == 0 else None)
            ended = False
            while not ended:
                action = _asked(act, observation, policy, episode, embodied.step_index)
                embodied.mark("policy")
                observation, _, terminated, truncated, info = env.step(action)
                ended = terminated or truncated
                watch.stepped(info)
            watch.ended(episode + 1)
    summary = _summary(env.path, env.losses.problem)
    return Evaluation(policy=policy, path=env.path, summary=summary, problem=_problem(env.path, summary))


def _summary(path: Path, problem: str) -> dict[str, Any]:
    """Return the summary of a run; raises RecordError when it could not be written."""
    try:
        summary: dict[str, Any] = json.loads((path / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise RecordError(f"{path}: the run has no summary: {problem or 'it was not closed'}") from None
    return summary


def _asked(act: Policy, observation: Any, policy: str, episode: int, step: int) -> Any:  # noqa: ANN401 - any action
    """Ask the policy for an action; an error of its own is shown whole, and then said in a line."""
    try:
        return act(observation)
    except Exception as error:
        traceback.print_exc()
        problem = f"{type(error).__name__}: {error}"
        raise PolicyError(f"--policy {policy!r} raised in episode {episode + 1}, step {step + 1}: {problem}") from error


def _problem(path: Path, summary: Mapping[str, Any]) -> str:
    """Say why a run is not sound evidence: its log is not whole, or an episode lost its world."""
    from embodied_env.record import read_run

    lost = [reason for reason in summary["end_reasons"] if end_kind(reason) == "backend_lost"]
    return read_run(path).problem or ", ".join(lost)


def evaluate_with_progress(
    contract: Contract,
    policies: Sequence[str],
    *,
    episodes: int,
    **options: Any,  # noqa: ANN401 - of `evaluate`
) -> list[Evaluation]:
    """Evaluate each policy in turn, under a live table on stderr."""
    from embodied_env.cli.live import LiveView

    done = []
    for policy in policies:
        with LiveView(contract, policy, episodes) as view:
            done.append(evaluate(contract, policy=policy, episodes=episodes, watcher=view, **options))
    return done


def add_common_arguments(parser: argparse.ArgumentParser, *, backend: str, episodes: int) -> None:
    """Declare what ``demo`` and ``evaluate`` have in common, with their defaults."""
    parser.add_argument("--backend", default=backend, help=f"which world (default: {backend})")
    parser.add_argument("--episodes", type=int, default=episodes, help=f"of each policy (default: {episodes})")
    parser.add_argument("--seed", type=int, default=0, help="of the first episode (default: 0)")
    parser.add_argument("--out", default="runs", help="where run directories are made (default: runs)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run_policies(contract_name: str, policies: Sequence[str], args: argparse.Namespace, **options: Any) -> int:  # noqa: ANN401
    """Evaluate, print, and return the exit status: 1 when a run is not sound evidence.

    Raises:
        UsageError: for a number of episodes or a seed that is not allowed.
    """
    if args.episodes < 1:
        raise UsageError(f"--episodes {args.episodes} is not allowed; allowed: 1 or more")
    if args.seed < 0:
        raise UsageError(f"--seed {args.seed} is not allowed; allowed: 0 or more")
    contract = load_contract(contract_name)
    evaluations = evaluate_with_progress(
        contract,
        policies,
        backend=args.backend,
        episodes=args.episodes,
        seed=args.seed,
        out=args.out,
        **options,
    )
    if args.json:
        print(as_json(contract, args.backend, evaluations))
    else:
        print_table(contract, args.backend, evaluations)
    unsound = [evaluation for evaluation in evaluations if evaluation.problem]
    for evaluation in unsound:
        print(f"not sound: {evaluation.path}: {evaluation.problem}", file=sys.stderr)
    return 1 if unsound else 0


def print_table(contract: Contract, backend: str, evaluations: Sequence[Evaluation]) -> None:
    """Print outcomes and latencies, one column per policy, and where each run lies."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    outcome = Table(title=f"{contract.name} v{contract.version} on {backend}", title_justify="left")
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
            "runs": [{"policy": e.policy, "path": str(e.path), "summary": dict(e.summary)} for e in evaluations],
        },
        indent=2,
    )


def _percent(value: float | None) -> str:
    return "none" if value is None else f"{100 * value:.1f} %"


_OUTCOMES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "episodes": lambda s: f"{s['episodes']}",
    "success rate, truncation counted as failure": lambda s: _percent(s["success_rate"]),
    "success rate, truncation apart": lambda s: _percent(s["success_rate_not_truncated"]),
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
    return sorted(found, key=lambda stage: (STAGES.index(stage.partition("[")[0]), stage))


def _percentiles(summary: Mapping[str, Any], stage: str) -> str:
    values = summary["latency"].get(stage)
    if values is None:
        return "none"
    return " / ".join(f"{1e3 * values[key]:.3f}" for key in ("p50_s", "p95_s", "p99_s"))
