"""Evaluation of policies with a progress display and printed results, for ``demo`` and ``evaluate``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from embodied_env.cli import SOUND, UNSOUND
from embodied_env.cli.verb_arguments import add_json, add_seed, integer_from
from embodied_env.contract import Contract, load_contract
from embodied_env.contract.argument_checks import checked_path
from embodied_env.core.extensions import load_extension
from embodied_env.core.latency_statistics import ANNOTATED_STAGES, INJECTED_STAGES, STAGES
from embodied_env.core.outcome_counts import SOLVED_AT_FIRST_STEP, SOLVED_AT_RESET
from embodied_env.core.terminal import make_console, say
from embodied_env.envs.remedies import UNMOVED, operator_remedy
from embodied_env.errors import RecordError
from embodied_env.extensions.evaluation.episode_runner import PolicySource
from embodied_env.extensions.evaluation.evaluation import evaluate
from embodied_env.extensions.evaluation.evaluation_results import Evaluation, PolicyComparison, PolicyResult
from embodied_env.extensions.evaluation.live_table import LiveTable
from embodied_env.ros.transport.fastdds import enable_large_segments

if TYPE_CHECKING:
    from embodied_env.record.outcomes import Rate

_MAIN_STAGES = ("obs_age_max_s", "policy_s", "obs_to_command_s", "actuation_s", "end_to_end_s", "period_s")
_RARE = (
    "solved at reset (not rated)",
    "solved at first step, reset not judged (not rated)",
    "truncated",
    "steps without an action",
    "steps with a held reading",
    "missed deadlines",
)
"""Outcomes that a terminal shows if they occurred."""

_STAGE_ORDER = (*STAGES, *ANNOTATED_STAGES, *INJECTED_STAGES)


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
    policies: Sequence[str | PolicySource],
    args: argparse.Namespace,
    *,
    has_closing: bool = False,
    **options: Any,  # noqa: ANN401 - of `evaluate_with_progress`
) -> int:
    """Evaluate policies, print the results, and return the exit status: 1 if a run is not sound.

    `has_closing`: end with the result in five lines and the next command, instead of a comparison.
    """
    out = checked_path("--out", args.out)
    contract = load_contract(contract_name)
    enable_large_segments(contract)  # inherited by workers
    wants_report = getattr(args, "report", False)  # demo has none
    is_compared = len(policies) > 1 and not has_closing
    if wants_report:
        check_page_libraries = load_extension(
            "embodied_env.extensions.report.html_pages:check_page_libraries", needed_for="--report"
        )
        check_page_libraries()  # before anything moves
    if is_compared:
        import embodied_env.core.sample_statistics  # noqa: F401 - requires scipy
    options["confirm"] = confirm_at_terminal if sys.stdin is not None and sys.stdin.isatty() else None
    options |= {"backend": args.backend, "episodes": args.episodes, "seed": args.seed, "record": out}
    evaluation = evaluate_with_progress(contract, policies, **options)
    _print_results(evaluation, _compare(evaluation) if is_compared else (), as_json=args.json)
    if wants_report:
        write_report = load_extension("embodied_env.extensions.report.run_report:write_report", needed_for="--report")
        for path in (path for result in evaluation.results for path in result.parts or (result.path,)):
            say(f"report: {write_report(path).path}", file=sys.stderr)
    for result in evaluation.results:
        print_losses_and_stops(contract, result)
    if has_closing and not args.json:
        print_closing(evaluation)
    for result in evaluation.results:
        if result.problem:
            say(f"not sound: {result.path}: {result.problem}", file=sys.stderr)
    _print_journals(evaluation)
    return UNSOUND if evaluation.problem else SOUND


def confirm_at_terminal(problem: str) -> bool:
    """Ask the operator whether to continue with an implausible policy; return whether the answer is yes."""
    import termios

    say(f"implausible policy: {problem}", file=sys.stderr)
    termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)  # what was typed before the question
    say("The robot may move at full speed. Type yes to continue: ", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() == "yes"


def _compare(evaluation: Evaluation) -> Sequence[PolicyComparison]:
    try:
        return evaluation.compare()
    except RecordError as error:  # of a run that is not sound, which is printed after the results
        say(f"no comparison of the policies: {error}", file=sys.stderr)
        return ()


def _print_journals(evaluation: Evaluation) -> None:
    """Print which runs of worker processes were not rewritten for viewers; a run of this process warns itself."""
    from embodied_env.record.rewrite import is_journal

    for path in (path for result in evaluation.results for path in result.parts):
        if any(is_journal(path / name) for name in ("transitions.mcap", "messages.mcap")):
            say(f"not rewritten for viewers: {path}; use embodied-env repair", file=sys.stderr)


def _print_results(evaluation: Evaluation, comparisons: Sequence[PolicyComparison], *, as_json: bool) -> None:
    if as_json:
        compared = {"comparisons": [comparison.as_json() for comparison in comparisons]} if comparisons else {}
        say(json.dumps({**evaluation.as_json(), **compared}, indent=2))
        return
    print_table(evaluation)
    for comparison in comparisons:
        print_comparison(comparison)


def print_losses_and_stops(contract: Contract, result: PolicyResult) -> None:
    """Print on stderr what was lost, and what an operator does about the ends of the episodes."""
    for loss in result.losses:
        say(loss, file=sys.stderr)
    for joint, count in result.summary["unmoved_joints"].items():
        say(f"{joint} {UNMOVED} ({count} episodes)", file=sys.stderr)
    for reason, count in result.summary["end_reasons"].items():
        if remedy := operator_remedy(reason, contract):
            text = f"{remedy}, then evaluate again: each reset begins with homing, if the contract declares a home"
            say(f"episodes ended by {reason}: {count}; {text}", file=sys.stderr)


def evaluate_with_progress(
    contract: Contract,
    policies: Sequence[str | PolicySource],
    *,
    episodes: int,
    **options: Any,  # noqa: ANN401 - of evaluate
) -> Evaluation:
    """Evaluate the policies, with a live display on stderr."""
    names = [policy if isinstance(policy, str) else policy.address for policy in policies]
    with LiveTable(contract, ", ".join(names), episodes, episodes * len(names)) as view:
        return evaluate(contract, policies, episodes=episodes, observer=view, **options)


def print_table(evaluation: Evaluation) -> None:
    """Print outcomes and latencies, one column per policy, and the path of each run; on a terminal one screen of it."""
    from rich.table import Table
    from rich.text import Text

    console, contract, backend = make_console(highlight=False), evaluation.contract, evaluation.backend
    summaries = [result.summary for result in evaluation.results]
    is_brief = console.is_terminal
    style: dict[str, Any] = {"title_justify": "left", **({"box": None} if is_brief else {})}
    outcome = Table("", title=f"{contract.name} v{contract.version} on {backend} ({evaluation.world})", **style)
    latency = Table("stage", title="latency, ms: p50 / p95 / p99", **style)
    for result in evaluation.results:
        outcome.add_column(result.policy, justify="right")
        latency.add_column(result.policy, justify="right")
    for label, cell in _OUTCOMES.items():
        cells = [cell(summary) for summary in summaries]
        if not is_brief or label not in _RARE or set(cells) != {"0"}:
            outcome.add_row(label, *cells)
    stages = {stage for summary in summaries for stage in summary["latency"] if not is_brief or stage in _MAIN_STAGES}
    for stage in sorted(stages, key=lambda stage: (_STAGE_ORDER.index(stage.partition("[")[0]), stage)):
        name = Text(stage.replace("_s[", "[").removesuffix("_s"))
        latency.add_row(name, *(_percentiles(summary, stage, digits=1 if is_brief else 3) for summary in summaries))
    console.print(outcome)
    console.print(latency)
    console.print(f"contract fingerprint  {contract.fingerprint}", soft_wrap=True)
    for result in evaluation.results:
        console.print(f"run ({result.policy})  {result.path}", soft_wrap=True)


def print_comparison(comparison: PolicyComparison) -> None:
    """Print the success rates of two policies, and the differences of their success rates and returns."""
    say(f"{comparison.b} compared with {comparison.a}, with intervals at 95 %")
    for outcome in comparison.outcomes:
        say(f"  success rate, {outcome.how}: {_rate(outcome.b)}, {_rate(outcome.a)}")
        if (test := outcome.paired) is not None:
            found = _difference((test.only_b - test.only_a) / test.pairs, outcome.paired_difference, scale=100.0)
            say(f"    difference over {test.pairs} pairs, in points: {found}, p = {test.p_value:.3g}")
        elif outcome.difference is not None:
            found = _difference(outcome.b.share - outcome.a.share, outcome.difference, scale=100.0)
            say(f"    difference without pairs, in points: {found}")
    if (returns := comparison.returns) is not None:
        say(f"  difference of the returns over {returns.pairs} pairs: {_difference(returns.mean, returns.interval)}")
    if comparison.pairing.problem:
        say(f"  no pairs: {comparison.pairing.problem}")


def _rate(rate: Rate) -> str:
    share = _percent(rate.share if rate.trials else None)
    return f"{share} ({100 * rate.low:.1f} to {100 * rate.high:.1f}) of {rate.trials}" if rate.trials else share


def _difference(mean: float, interval: tuple[float, float] | None, *, scale: float = 1.0) -> str:
    ends = "" if interval is None else f" ({scale * interval[0]:+.4g} to {scale * interval[1]:+.4g})"
    return f"{scale * mean:+.4g}{ends}"


def print_closing(evaluation: Evaluation) -> None:
    """Print the result of each policy, where the runs are, and the next command."""
    results, contract = evaluation.results, evaluation.contract
    where = f"{contract.name} on {evaluation.backend} ({evaluation.world})"
    say(f"\nresult: {where}, {results[0].summary['episodes']} episodes per policy")
    for result in results:
        summary = result.summary
        latency = _percentiles(summary, "obs_to_command_s").split(" / ")[0]
        say(
            f"  {result.policy}: {summary['successes']} solved, {_percent(summary['clipped_share'])} of the steps "
            f"clipped by the safety gate, observation to command {latency} ms (median)"
        )
    say(f"runs:   {', '.join(str(result.path) for result in results)}")
    say(f"next:   embodied-env audit {results[0].path}")


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
    "end reasons": lambda s: ", ".join(_end_reason(s, reason) for reason in s["end_reasons"]) or "none",
    "return, mean": lambda s: "n/a" if s["return"]["mean"] is None else f"{s['return']['mean']:.3f}",
    "steps": lambda s: f"{s['steps']}",
    "steps without an action": lambda s: f"{s['missed_actions']}",
    "steps with a held reading": lambda s: _held(s["held_readings"]),
    "missed deadlines": lambda s: f"{s['missed_deadlines']}",
    "clipped steps": lambda s: _percent(s["clipped_share"]),
}


def _end_reason(summary: Mapping[str, Any], reason: str) -> str:
    joints = ", ".join(f"{joint} {count}" for joint, count in summary["stopped_joints"].get(reason, {}).items())
    return f"{reason} {summary['end_reasons'][reason]}" + (f" ({joints})" if joints else "")


def _held(readings: Mapping[str, Mapping[str, int]]) -> str:
    kinds = (f"{name} {count} {kind.lower()}" for name, found in readings.items() for kind, count in found.items())
    return ", ".join(kinds) or "0"


def _percentiles(summary: Mapping[str, Any], stage: str, *, digits: int = 3) -> str:
    values = summary["latency"].get(stage)
    if values is None:
        return "n/a"
    return " / ".join(f"{1e3 * values[key]:.{digits}f}" for key in ("p50_s", "p95_s", "p99_s"))
