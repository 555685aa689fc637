"""Cost of recording per step: with and without the recorder and images, in lockstep and in real time.

    python benchmarks/record.py [--steps N] [--rounds N] [--fifo-priority P] [--json]

The world is the `fake` one, which costs next to nothing: what is left is the step itself and its record. In real time
steps are paced; the result is the working time of `step` without its wait: the world's time (``world_s``) is
subtracted. Rows are written by a thread, which works while steps wait, or between them: ``mean_us`` has it in, to the
last row; the percentiles are of what the agent notices. Every round runs every case in an order of its own; a figure is
that of the steps, then the median of the rounds, and a ratio the median of the rounds' ratios to the case without
recording.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import embodied_env

WARM_UP = 20  # warm-up steps
CONTRACTS = {"no images": "arm_reach", "images": "door_open"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One configuration."""

    contract: str
    pacing: str
    record: bool


CASES = [
    Case(contract=contract, pacing=pacing, record=record)
    for contract in CONTRACTS.values()
    for pacing in ("lockstep", "realtime")
    for record in (False, True)
]


def work_durations_ns(case: Case, steps: int, fifo_priority: int | None) -> Iterator[int]:
    """Yield the working time of each step, and finally the time for the rows that were still waiting."""
    with tempfile.TemporaryDirectory() as folder:
        env = embodied_env.make(
            case.contract,
            backend="fake",
            free_running=case.pacing == "realtime",
            record=folder if case.record else None,
            fifo_priority=fifo_priority,
        )
        env.reset(seed=0)
        action = np.zeros(env.action_space.shape)
        for number in range(WARM_UP + steps):
            start_ns = time.perf_counter_ns()
            _, _, terminated, truncated, info = env.step(action)
            took_ns = time.perf_counter_ns() - start_ns
            if number >= WARM_UP:
                yield took_ns - round(info["latency"]["world_s"] * 1e9)
            if terminated or truncated:
                env.reset()
        start_ns = time.perf_counter_ns()
        if case.record:
            env.flush()
        yield time.perf_counter_ns() - start_ns
        env.close()


def figures(durations: list[int]) -> dict[str, float]:
    """Return percentiles and the mean, us."""
    values = np.array(durations[:-1]) / 1e3
    found = {name: float(np.percentile(values, q)) for name, q in (("p50_us", 50), ("p95_us", 95), ("p99_us", 99))}
    return {**found, "mean_us": float(np.sum(durations)) / 1e3 / len(values)}


def rounds(count: int, steps: int, fifo_priority: int | None) -> list[dict[Case, dict[str, float]]]:
    """Run every case in every round."""
    found = []
    for _ in track(range(count), description="rounds", console=Console(stderr=True)):
        order = random.sample(CASES, len(CASES))
        gc.collect()
        found.append({case: figures(list(work_durations_ns(case, steps, fifo_priority))) for case in order})
    return found


def rows(found: list[dict[Case, dict[str, float]]]) -> list[dict[str, object]]:
    """Return a row for each case."""
    table: list[dict[str, object]] = []
    names = {contract: name for name, contract in CONTRACTS.items()}
    for case in CASES:
        bare = Case(contract=case.contract, pacing=case.pacing, record=False)
        table.append(
            {
                "contract": case.contract,
                "images": names[case.contract],
                "pacing": case.pacing,
                "record": case.record,
                **{name: statistics.median(each[case][name] for each in found) for name in found[0][case]},
                "ratio": statistics.median(each[case]["p50_us"] / each[bare]["p50_us"] for each in found),
                "ratio_mean": statistics.median(each[case]["mean_us"] / each[bare]["mean_us"] for each in found),
                "ratio_p99": statistics.median(each[case]["p99_us"] / each[bare]["p99_us"] for each in found),
            }
        )
    return table


def print_table(table: list[Mapping[str, object]]) -> None:
    """Print a readable table."""
    shown = Table(title="one step, us", title_justify="left")
    for name in table[0]:
        shown.add_column(name)
    for row in table:
        shown.add_row(*(f"{value:.2f}" if isinstance(value, float) else str(value) for value in row.values()))
    Console().print(shown)


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300, help="of each case in each round (default: 300)")
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--fifo-priority", type=int, default=None, help="SCHED_FIFO for the stepping thread")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    args = parser.parse_args()
    table = rows(rounds(args.rounds, args.steps, args.fifo_priority))
    if args.json:
        print(json.dumps({"steps": args.steps, "rounds": args.rounds, "rows": table}, indent=2))
    else:
        print_table(table)


if __name__ == "__main__":
    main()
