"""Evaluation with a progress display and printed results, for ``demo`` and ``evaluate``."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embodied_env.cli import SOUND, UNSOUND
from embodied_env.contract import Contract, load_contract
from embodied_env.contract.argument_checks import checked_path
from embodied_env.core.code_table import UNMOVED, operator_remedy
from embodied_env.core.excluded_episodes import SOLVED_AT_FIRST_STEP, SOLVED_AT_RESET
from embodied_env.core.latency_statistics import ANNOTATED_STAGES, INJECTED_STAGES, STAGES
from embodied_env.core.plugin_loading import load_extension
from embodied_env.core.terminal import ProgressBar, make_console, say
from embodied_env.errors import EmbodiedEnvError, RecordError
from embodied_env.extensions.evaluation.episode_runner import PolicySource
from embodied_env.extensions.evaluation.evaluation import evaluate
from embodied_env.extensions.evaluation.evaluation_results import Evaluation, PolicyComparison, PolicyResult
from embodied_env.extensions.evaluation.live_table import LiveTable
from embodied_env.policies.policy_loader import parse_address
from embodied_env.record.row_log import describe_chain
from embodied_env.record.run import read_run
from embodied_env.ros.transport.fastdds import enable_large_segments

if TYPE_CHECKING:
    from embodied_env.record.summary import Rate

_MAIN_STAGES = ("obs_age_max_s", "policy_s", "obs_to_command_s", "actuation_s", "end_to_end_s", "period_s")
_STAGE_ORDER = (*STAGES, *ANNOTATED_STAGES, *INJECTED_STAGES)


def run_policies(
    contract_name: str,
    policies: Sequence[PolicySource],
    args: argparse.Namespace,
    *,
    has_closing: bool = False,
    **options: Any,  # noqa: ANN401 - of `evaluate`
) -> int:
    """Evaluate policies, print the results, and return 1 if a run is not sound.

    With `has_closing`, the output ends with the result in five lines and the next command, instead of a comparison.
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
        import embodied_env.core.significance_tests  # noqa: F401 - requires scipy
    options["confirm"] = confirm_at_terminal if sys.stdin is not None and sys.stdin.isatty() else None
    options |= {"backend": args.backend, "episodes": args.episodes, "seed": args.seed, "record": out}
    known, names = set(out.glob("*")), [policy.address for policy in policies]
    each = args.episodes * max(1, len(options.get("instructions", ())))
    try:
        with LiveTable(contract, ", ".join(names), each, each * len(names)) as view:
            evaluation = evaluate(contract, policies, observer=view, **options)
    except (KeyboardInterrupt, EmbodiedEnvError):
        _print_interrupted(names, sorted({*out.glob("*")} - known), as_json=args.json)
        raise
    _print_results(evaluation, _compare(evaluation) if is_compared else (), as_json=args.json)
    if wants_report:
        write_report = load_extension("embodied_env.extensions.report.run_report:write_report", needed_for="--report")
        for path in (path for result in evaluation.results for path in result.parts or (result.path,)):
            with ProgressBar() as progress:
                report = write_report(path, progress=progress)
            say(f"report: {report.path}", file=sys.stderr)
    for address, result in zip(names, evaluation.results, strict=True):
        print_losses_and_stops(contract, result)
        _print_deviations(address, result.parts or (result.path,), as_json=args.json)
    if has_closing and not args.json:
        print_closing(evaluation)
    for result in evaluation.results:
        if result.problem:
            say(f"not sound: {result.path}: {result.problem}", file=sys.stderr)
    return UNSOUND if evaluation.problem else SOUND


def confirm_at_terminal(problem: str) -> bool:
    """Ask the operator whether to continue with an implausible policy, and return the answer."""
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


def _print_results(evaluation: Evaluation, comparisons: Sequence[PolicyComparison], *, as_json: bool) -> None:
    if as_json:
        compared = {"comparisons": [comparison.as_json() for comparison in comparisons]} if comparisons else {}
        say(json.dumps({**evaluation.as_json(), **compared}, indent=2))
        return
    print_table(evaluation)
    for comparison in comparisons:
        print_comparison(comparison)


def _print_interrupted(addresses: Sequence[str], paths: Iterable[Path], *, as_json: bool) -> None:
    """Print the runs of an evaluation that ended early, with the deviations of what was played."""
    for path in paths:
        with contextlib.suppress(EmbodiedEnvError):  # the reason for the end is more important
            identity = read_run(path).manifest.get("policy")
            if isinstance(identity, Mapping) and identity.get("name") in addresses:
                say(f"run ({identity['name']})  {path}", file=sys.stderr)
                _print_deviations(identity["name"], [path], as_json=as_json)


def _print_deviations(address: str, paths: Iterable[Path], *, as_json: bool) -> None:
    """Write and print how a policy deviated from the run that it plays, if it plays one."""
    played = parse_address(address)
    if played.name != "run":
        return
    write = load_extension(
        "embodied_env.extensions.replay.playback_deviations:write_deviations", needed_for="a playback"
    )
    for path in paths:
        say(f"deviations from {played.location}, in full in {path}/playback.json:", file=sys.stderr)
        for line in write(path, played.location):
            say(line, file=sys.stderr if as_json else sys.stdout)


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


def print_table(evaluation: Evaluation) -> None:
    """Print outcomes, latencies and runs by policy, on a terminal only one screen."""
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
    for label, (cell, is_rare) in _OUTCOMES.items():
        cells = [cell(summary) for summary in summaries]
        if not is_brief or not is_rare or set(cells) != {"0"}:
            outcome.add_row(label, *cells)
    prompts = dict.fromkeys(prompt for summary in summaries for prompt in summary["instructions"])
    for prompt in prompts if len(prompts) > 1 else ():
        outcome.add_row(Text(f"success rate of {prompt!r}"), *(_rate_of_prompt(each, prompt) for each in summaries))
    stages = {stage for summary in summaries for stage in summary["latency"] if not is_brief or stage in _MAIN_STAGES}
    for stage in sorted(stages, key=lambda stage: (_STAGE_ORDER.index(stage.partition("[")[0]), stage)):
        name = Text(stage.replace("_s[", "[").removesuffix("_s"))
        latency.add_row(name, *(_percentiles(summary, stage, digits=1 if is_brief else 3) for summary in summaries))
    console.print(outcome)
    console.print(latency)
    console.print(f"contract fingerprint  {contract.fingerprint}", soft_wrap=True)
    for result in evaluation.results:
        console.print(f"run ({result.policy})  {result.path}", soft_wrap=True)
        for head in _heads(result):
            console.print(f"  {head}", soft_wrap=True)


def _rate_of_prompt(summary: Mapping[str, Any], prompt: str) -> str:
    counts = summary["instructions"].get(prompt)
    return "n/a" if not counts or not counts["rated"] else _percent(counts["successes"] / counts["rated"])


def _heads(result: PolicyResult) -> list[str]:
    return [describe_chain(read_run(path).manifest) for path in result.parts or (result.path,)]


def print_comparison(comparison: PolicyComparison) -> None:
    """Print success rates of two policies, and the differences of rates and returns."""
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
    for result in results:
        say(f"run:    {result.path}")
        for head in _heads(result):
            say(f"        {head}")
    say(f"next:   embodied-env audit {results[0].path}")


def _percent(value: float | None) -> str:
    return "n/a" if value is None else f"{100 * value:.1f} %"


_OUTCOMES: Mapping[str, tuple[Callable[[Mapping[str, Any]], str], bool]] = {
    "episodes": (lambda s: f"{s['episodes']}", False),
    "success rate (truncated counted as failure)": (lambda s: _percent(s["success_rate"]), False),
    "success rate (excluding truncated)": (lambda s: _percent(s["success_rate_not_truncated"]), False),
    "episodes in the success rate": (lambda s: f"{s['rated']}", False),
    "solved at reset (not rated)": (lambda s: f"{s[SOLVED_AT_RESET]}", True),
    "solved at first step, reset not judged (not rated)": (lambda s: f"{s[SOLVED_AT_FIRST_STEP]}", True),
    "truncated": (lambda s: f"{s['truncated']}", True),
    "end reasons": (lambda s: ", ".join(_end_reason(s, reason) for reason in s["end_reasons"]) or "none", False),
    "return, mean": (lambda s: "n/a" if s["return"]["mean"] is None else f"{s['return']['mean']:.3f}", False),
    "steps": (lambda s: f"{s['steps']}", False),
    "steps without an action": (lambda s: f"{s['missed_actions']}", True),
    "steps with a held reading": (lambda s: _held(s["held_readings"]), True),
    "missed deadlines": (lambda s: f"{s['missed_deadlines']}", True),
    "clipped steps": (lambda s: _percent(s["clipped_share"]), False),
}
"""Row of the table -> its cell, and whether a terminal shows it only if it occurred."""


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
