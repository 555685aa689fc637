"""Time of `import embodied_env` compared with `import gymnasium`.

    python benchmarks/import.py [--rounds N] [--json FILE]

Each import is the first of a fresh interpreter, timed in there; every round runs all of them in an order of its own. A
ratio is that of one round. What must not come with it (the loader of contracts, simulators, ROS) is looked for, too.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

PACKAGES = ("gymnasium", "numpy", "embodied_env")
AGAINST = "gymnasium"
LATER = ("pydantic", "yaml", "mujoco", "rclpy", "rich", "mcap")  # imported only on use
PROBE = """
import json, sys, time
start_ns = time.perf_counter_ns()
import {package}
took_ns = time.perf_counter_ns() - start_ns
print(json.dumps([took_ns, [name for name in {later} if name in sys.modules]]))
"""


def probe(package: str) -> tuple[float, list[str]]:
    """Return the duration of the import, ms, and the modules of `LATER` that it imported."""
    code = PROBE.format(package=package, later=LATER)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603
    took_ns, found = json.loads(done.stdout)
    return took_ns / 1e6, found


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=11, help="default: 11")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the table")
    args = parser.parse_args()
    rounds: list[dict[str, float]] = []
    for _ in track(range(args.rounds), description="rounds", console=Console(stderr=True)):
        found = {package: probe(package) for package in random.sample(PACKAGES, len(PACKAGES))}
        if brought := found["embodied_env"][1]:
            raise SystemExit(f"import embodied_env imports {', '.join(brought)}")
        rounds.append({package: took_ms for package, (took_ms, _) in found.items()})
    table: list[dict[str, Any]] = []
    for package in PACKAGES:
        ratios = [found[package] / found[AGAINST] for found in rounds]
        p50_ms = statistics.median(found[package] for found in rounds)
        spread = [min(ratios), max(ratios)]
        table.append({"package": package, "p50_ms": p50_ms, "ratio": statistics.median(ratios), "ratio_spread": spread})
    shown = Table("import", "p50, ms", f"/ {AGAINST}")
    for row in table:
        low, high = row["ratio_spread"]
        shown.add_row(row["package"], f"{row['p50_ms']:.0f}", f"{row['ratio']:.2f} ({low:.2f} to {high:.2f})")
    Console().print(shown)
    if args.json is not None:
        args.json.write_text(json.dumps({"rounds": args.rounds, "rows": table}, indent=2) + "\n")


if __name__ == "__main__":
    main()
