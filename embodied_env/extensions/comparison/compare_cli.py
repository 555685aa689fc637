"""The command ``embodied-env compare``, which finds differences between recorded runs."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import Any

from embodied_env.cli import SOUND, UNSOUND
from embodied_env.cli.verb_arguments import add_force, add_json, check_new, output_file, run_directory
from embodied_env.core.terminal import ProgressBar, make_console, say

_PAGE = "compare.html"
_PRINTED = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run_a", metavar="A", type=run_directory, help="first run directory, such as one in simulation")
    parser.add_argument(
        "others",
        metavar="B",
        nargs="+",
        type=run_directory,
        help="run directory to compare with A, such as one on a robot; repeatable",
    )
    help_ = f"HTML file to write (default: {_PAGE}; none with --json)"
    parser.add_argument("-o", "--output", type=output_file, metavar="FILE", help=help_)
    add_force(parser, "the HTML file")
    parser.add_argument(
        "--ignore",
        metavar="PATH",
        action="append",
        default=[],
        help="manifest path at or below which the runs may differ (repeatable; default: none)",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Compare runs with the first one, and return 1 if not comparable or not sound."""
    from embodied_env.extensions.comparison.comparability import NotComparableError
    from embodied_env.extensions.comparison.comparison_page import write_comparison
    from embodied_env.extensions.comparison.run_comparison import compare_with_first, comparisons_as_json
    from embodied_env.extensions.report.html_pages import check_page_libraries

    output = args.output or (None if args.json else _PAGE)
    check_new(output, force=args.force)
    if output is not None:
        check_page_libraries()
    try:
        with ProgressBar() as progress:
            comparisons = compare_with_first([args.run_a, *args.others], ignore=args.ignore, progress=progress)
            if output is not None:
                progress.start("drawing", None)
                write_comparison(comparisons, output, replace=args.force)
    except NotComparableError as refusal:
        _print_refusal(refusal.mismatches, as_json=args.json)
        return UNSOUND
    if args.json:
        say(json.dumps(comparisons_as_json(comparisons), indent=2))
    else:
        for comparison in comparisons:
            _print(comparison)
        say(f"page  {output}")
    problems = {side.run.path: side.run.problem for found in comparisons for side in (found.a, found.b)}
    for run_path, problem in problems.items():
        if problem:
            say(f"not sound: {run_path}: {problem}", file=sys.stderr)
    return UNSOUND if any(problems.values()) else SOUND


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


def _print(comparison: Any) -> None:  # noqa: ANN401 - imported when it runs
    from rich.table import Column, Table
    from rich.text import Text

    from embodied_env.extensions.comparison import comparison_findings as findings
    from embodied_env.extensions.comparison.comparison_page import name_of_side
    from embodied_env.extensions.comparison.run_features import SECTIONS

    console = make_console()
    for side in (comparison.a, comparison.b):
        console.print(Text(f"{side.name}  {name_of_side(side)}  {side.run.path}"), soft_wrap=True)
    for sentence in (*comparison.findings, *comparison.warnings):
        console.print(Text(sentence))
    likely = (found for found in comparison.differences if found.verdict in ("differs", "probably"))
    shown = [group[0] for group in findings.group_differences(likely)]
    numbers = [Column(heading, justify="right") for heading in (comparison.a.name, comparison.b.name, "difference")]
    table = Table("", Column("what", overflow="fold"), *numbers, "evidence")
    for section in SECTIONS:
        for index, found in enumerate([found for found in shown if found.name.section == section][:_PRINTED]):
            levels = (findings.describe_level(found.name, level.mean) for level in (found.a, found.b))
            size, evidence = findings.describe_difference(found), findings.describe_evidence(found)
            table.add_row("" if index else section, *map(Text, (findings.label(found.name), *levels, size, evidence)))
    if shown:
        console.print(table)
