"""``embodied-env compare``: the differences between two recorded runs of one contract."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import Any

from embodied_env.cli import SOUND, UNSOUND
from embodied_env.cli.arguments import add_json, run_directory
from embodied_env.cli.progress import ProgressBar
from embodied_env.core.outcome_counts import describe_exclusions
from embodied_env.core.terminal import make_console, say

_PAGE = "compare.html"
_PRINTED = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run_a", metavar="A", type=run_directory, help="first run directory, such as one in simulation")
    parser.add_argument("run_b", metavar="B", type=run_directory, help="second run directory, such as one on a robot")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help=f"HTML file to write (default: {_PAGE}; none with --json)"
    )
    parser.add_argument(
        "--ignore",
        metavar="PATH",
        action="append",
        default=[],
        help="manifest path at or below which the runs may differ (repeatable; default: none)",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Compare two runs and return the exit status: 1 if they are not comparable or one is not sound."""
    from embodied_env.analysis.comparison.comparability import NotComparableError
    from embodied_env.analysis.comparison.compare import compare_runs
    from embodied_env.analysis.comparison.page import write_comparison
    from embodied_env.analysis.report.figures import check_installed

    output = args.output or (None if args.json else _PAGE)
    if output is not None:
        check_installed()
    try:
        with ProgressBar() as progress:
            comparison = compare_runs(args.run_a, args.run_b, ignore=args.ignore, progress=progress)
            if output is not None:
                progress.start("drawing", None)
                write_comparison(comparison, output)
    except NotComparableError as refusal:
        _print_refusal(refusal.mismatches, as_json=args.json)
        return UNSOUND
    if args.json:
        say(json.dumps(comparison.as_json(), indent=2))
    else:
        _print(comparison, output)
    for path in comparison.terms.idle:
        say(f"--ignore {path} has no effect: the runs do not differ there", file=sys.stderr)
    for side in (comparison.a, comparison.b):
        if side.run.problem:
            say(f"not sound: {side.run.path}: {side.run.problem}", file=sys.stderr)
    return SOUND if comparison.sound else UNSOUND


def _print_refusal(mismatches: Any, *, as_json: bool) -> None:  # noqa: ANN401 - imported when it runs
    if as_json:
        say(json.dumps({"refused": True, "differences": [dataclasses.asdict(found) for found in mismatches]}, indent=2))
        return
    for found in mismatches:
        say(f"{found.path}: A has {json.dumps(found.a)}, B has {json.dumps(found.b)}")
    say(
        "runs not compared (expected the same contract and wrappers, and both or neither a dry run); "
        "use --ignore PATH to accept a difference"
    )


def _print(comparison: Any, output: str | None) -> None:  # noqa: ANN401 - imported when it runs
    from rich.table import Column, Table
    from rich.text import Text

    from embodied_env.analysis.comparison.page import describe_gap, label
    from embodied_env.analysis.report.formatting import percent

    console = make_console()
    for outcome in comparison.outcomes:
        rates = (f"{percent(rate.share)} of {rate.trials}" for rate in (outcome.a, outcome.b))
        console.print(f"success, {outcome.how}: A {', B '.join(rates)}", soft_wrap=True)
    for name, side in (("A", comparison.a), ("B", comparison.b)):
        for sentence in describe_exclusions(side.summary):
            console.print(f"run {name}: {sentence}", soft_wrap=True)
    shown = [ranked.gap for ranked in comparison.ranking if ranked.gap.is_more_than_chance]
    numbers = [Column(heading, justify="right") for heading in ("A", "B", "distance")]
    ranking = Table("what", *numbers, title="largest differences", title_justify="left")
    for gap in shown[:_PRINTED]:
        ranking.add_row(Text(label(gap.name)), *map(Text, describe_gap(gap)), f"{gap.distance:.2f}")
    if shown:
        console.print(ranking)
    else:
        console.print("no statistically significant difference")
    if output is not None:
        console.print(f"page  {output}", soft_wrap=True)
