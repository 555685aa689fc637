"""Store the results of all benchmarks in a JSON file, and print them as tables of `docs/reference/performance.md`.

A table of the page is between ``<!-- results: NAME -->`` and ``<!-- end -->``: that of all targets (`targets`), or that
of a benchmark. Tables come from the file alone.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .harness import Estimate, Samples, estimate, ratio
from .targets import BENCHMARKS

RESULTS = Path(__file__).with_name("results.json")
PAGE = Path(__file__).parents[1] / "docs" / "reference" / "performance.md"
TABLE = re.compile(r"(<!-- results: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

Results = dict[str, dict[str, Any]]  # by benchmark


def read_results(file: Path = RESULTS) -> Results:
    """Return the recorded results, which are empty without a file."""
    results: Results = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return results


def write_result(name: str, samples: Samples, file: Path = RESULTS) -> None:
    """Replace the result of one benchmark."""
    result = {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "machine": machine(),
        "samples": {case: [float(f"{value:.4g}") for value in values] for case, values in samples.items()},
    }
    results = read_results(file) | {name: result}
    ordered = {each: results[each] for each in BENCHMARKS if each in results}
    text = json.dumps(ordered, indent=1, ensure_ascii=False)
    text = re.sub(r"\[[^\]]*\]", lambda found: re.sub(r"\s+", " ", found[0]), text)  # a list on one line
    file.write_text(text + "\n", encoding="utf-8")


def machine() -> str:
    """Return processor, system and Python of this machine."""
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    processor = f"{os.cpu_count()} cores{f' of {found[1]}' if found else ''}"
    return f"{processor}, {platform.system()} {platform.release()}, Python {platform.python_version()}"


def fill_page(page: str, results: Results) -> str:
    """Return the page with the tables of these results."""
    return TABLE.sub(lambda found: f"{found[1]}\n{table(found[2], results)}\n\n{found[3]}", page)


def table(name: str, results: Results) -> str:
    """Return a table in Markdown."""
    rows = target_rows(results) if name == "targets" else case_rows(name, results)
    lines = [f"| {' | '.join(row)} |" for row in rows]
    if name == "targets":
        runs: dict[str, list[str]] = {}
        for benchmark, result in results.items():
            runs.setdefault(f"{result['date']} on {result['machine']}", []).append(f"`{benchmark}`")
        lines += [f"\nMeasured {run}: {', '.join(names)}." for run, names in sorted(runs.items())]
    return "\n".join(lines)


def target_rows(results: Results) -> Iterator[tuple[str, ...]]:
    """Yield the rows of all targets."""
    yield "target", "bound", "result", "", "benchmark"
    yield ("---",) * 5
    for name, benchmark in BENCHMARKS.items():
        samples = results.get(name, {}).get("samples", {})
        for target in benchmark.targets:
            found = target.measured(samples)
            if found is None:
                yield target.definition, target.bound, "not measured", "", f"`{name}`"
                continue
            verdict = {True: "reached", False: "**missed**", None: ""}[target.is_reached(found)]
            yield target.definition, target.bound, text(found, target.unit), verdict, f"`{name}`"


def case_rows(name: str, results: Results) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a benchmark's cases."""
    benchmark, samples = BENCHMARKS[name], results.get(name, {}).get("samples", {})
    reference = benchmark.reference
    columns = ("", f"median, {benchmark.unit}", *(() if reference is None else (f"to {reference}",)))
    yield columns
    yield ("---",) * len(columns)
    for case, values in samples.items():
        others = () if reference is None else (text(estimate(ratio(case, reference)(samples))),)
        yield case, text(estimate(values)), *others


def text(found: Estimate, unit: str = "") -> str:
    """Return a median with its interval."""
    return f"{number(found.value)}{unit} ({number(found.low)} to {number(found.high)})"


def number(value: float) -> str:
    """Return a number with three digits, or as a whole one."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def update_page(results: Results) -> None:
    """Write the tables of the page."""
    PAGE.write_text(fill_page(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
