"""Measure, compare with the targets, and write `benchmarks/results.json` and the page in `docs/`.

    python -m benchmarks                  all benchmarks, about 20 minutes on an otherwise idle machine
    python -m benchmarks NAME ...         some of them; the results of the others are kept
    python -m benchmarks --smoke          a short run, which fails if a ratio or a count is worse than the recorded one
    python -m benchmarks --page           only write the page from the results

Each case is measured in shuffled rounds with its alternatives; a result is the median over rounds of a ratio within
each round, with its bootstrap interval of 95 %.
"""

from __future__ import annotations

import argparse
import sys
import time

from rich.console import Console
from rich.table import Table

from .page import number, read_results, target_rows, text, update_page, write_result
from .targets import BENCHMARKS


def main() -> int:
    """Return the exit status, which is 1 if the smoke edition found a regression."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"benchmarks (default: all of {', '.join(BENCHMARKS)})"
    )
    parser.add_argument("--smoke", action="store_true", help="short run in comparison with the recorded results")
    parser.add_argument("--page", action="store_true", help="write the page, measure nothing")
    args = parser.parse_args()
    if unknown := [name for name in args.names if name not in BENCHMARKS]:
        parser.error(f"unknown benchmark: {unknown[0]} (expected one of: {', '.join(BENCHMARKS)})")
    if args.smoke:
        names = args.names or [name for name, benchmark in BENCHMARKS.items() if benchmark.is_in_smoke]
        return max(smoke(name) for name in names)
    for name in () if args.page else args.names or BENCHMARKS:
        start_s = time.monotonic()
        write_result(name, BENCHMARKS[name].measure(smoke=False))
        print(f"{name}: {time.monotonic() - start_s:.0f} s", file=sys.stderr)
    update_page(read_results())
    print_targets()
    return 0


def smoke(name: str, *, is_last: bool = False) -> int:
    """Measure a benchmark briefly, and return 1 if two measurements in a row are regressions."""
    benchmark, recorded = BENCHMARKS[name], read_results().get(name, {}).get("samples", {})
    samples, status = benchmark.measure(smoke=True), 0
    for target in benchmark.targets:
        found, known = target.measured(samples), target.measured(recorded)
        if not target.smoke_factor or found is None or known is None:
            continue
        is_worse = target.is_regression(found, known)
        comparison = f"{number(found.value)}, recorded {text(known)}"
        print(f"{name}: {target.definition}: {comparison}{f', worse by more than {target.smoke_factor}' * is_worse}")
        status |= is_worse
    return smoke(name, is_last=True) if status and not is_last else status


def print_targets() -> None:
    """Print the table of all targets."""
    head, _, *rows = target_rows(read_results())
    table = Table(*head)
    for row in rows:
        table.add_row(*(cell.replace("**", "").replace("`", "") for cell in row))
    Console().print(table)


if __name__ == "__main__":
    raise SystemExit(main())
