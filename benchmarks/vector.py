"""Steps per second of N environments: this vector environment and Gymnasium's, of the same environments.

    python benchmarks/vector.py [--backend B] [--contract C] [--num-envs N ...] [--steps N] [--rounds N] [--json]

`EmbodiedVectorEnv`, with and without threads for the worlds (`mujoco`), `SyncVectorEnv` and `AsyncVectorEnv` step the
same environments with the same random actions, autoreset included (NEXT_STEP), in one run. Every round makes each of
them again and steps it, for each N, in an order of its own; making, the first reset and the first steps do not count. A
rate is steps of single environments per second, the median of the rounds; a ratio is ours to theirs of the same round,
with the smallest and the largest of the rounds and the median.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial

from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import embodied_env

WARM_UP = 10  # warm-up steps
OURS, THREADS, SYNC, ASYNC = "EmbodiedVectorEnv", "EmbodiedVectorEnv, threads", "SyncVectorEnv", "AsyncVectorEnv"

Rates = dict[tuple[int, str], float]  # by N and who, steps of single environments per second


def single(contract: str, backend: str) -> embodied_env.EmbodiedEnv:
    """Make one environment; importable, so that a spawned process can."""
    return embodied_env.make(contract, backend=backend)


def made(who: str, contract: str, backend: str, num_envs: int) -> VectorEnv:
    """Create the environments of one case."""
    if who in (OURS, THREADS):
        threads = (os.cpu_count() or 1) if who == THREADS else 0
        return embodied_env.make_vec(contract, num_envs=num_envs, backend=backend, threads=threads)
    makers: list[Callable[[], embodied_env.EmbodiedEnv]] = [partial(single, contract, backend)] * num_envs
    return SyncVectorEnv(makers) if who == SYNC else AsyncVectorEnv(makers, context="spawn")


def rate(who: str, contract: str, backend: str, num_envs: int, steps: int) -> float:
    """Return steps of single environments per second."""
    env = made(who, contract, backend, num_envs)
    try:
        env.reset(seed=0)
        env.action_space.seed(0)
        for number in range(WARM_UP + steps):
            if number == WARM_UP:
                start_ns = time.perf_counter_ns()
            env.step(env.action_space.sample())
        return num_envs * steps / (time.perf_counter_ns() - start_ns) * 1e9
    finally:
        env.close()


def measured(args: argparse.Namespace) -> list[Rates]:
    """Run every case in every round."""
    threaded = args.backend == "mujoco" and args.contract != "door_open"  # those with cameras
    whos = [OURS, *([THREADS] if threaded else []), SYNC, ASYNC]
    cases = [(num_envs, who) for num_envs in args.num_envs for who in whos]
    found = []
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("cases", total=args.rounds * len(cases))
        for _ in range(args.rounds):
            rates: Rates = {}
            for num_envs, who in random.sample(cases, len(cases)):
                gc.collect()
                rates[num_envs, who] = rate(who, args.contract, args.backend, num_envs, args.steps)
                progress.advance(task)
            found.append(rates)
    return found


def rows(found: list[Rates]) -> list[dict[str, object]]:
    """Return a row for each case."""
    table: list[dict[str, object]] = []
    for num_envs, who in sorted(found[0]):
        ratios = [rates[num_envs, OURS] / rates[num_envs, who] for rates in found]
        table.append(
            {
                "num_envs": num_envs,
                "who": who,
                "steps_per_s": statistics.median(rates[num_envs, who] for rates in found),
                "ratio": statistics.median(ratios),
                "ratio_min": min(ratios),
                "ratio_max": max(ratios),
            }
        )
    return table


def print_table(table: list[Mapping[str, object]], title: str) -> None:
    """Print a readable table."""
    shown = Table(title=title, title_justify="left")
    for name in ("num_envs", "who", "steps/s", "ours / theirs", "spread"):
        shown.add_column(name)
    for row in table:
        spread = f"{row['ratio_min']:.2f} to {row['ratio_max']:.2f}"
        shown.add_row(str(row["num_envs"]), str(row["who"]), f"{row['steps_per_s']:.0f}", f"{row['ratio']:.2f}", spread)
    Console().print(shown)


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="mujoco", help="default: mujoco")
    parser.add_argument("--contract", default="arm_reach", help="default: arm_reach")
    parser.add_argument("--num-envs", type=int, nargs="+", default=[1, 2, 4, 8], help="default: 1 2 4 8")
    parser.add_argument("--steps", type=int, default=200, help="of each slot in each round (default: 200)")
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    args = parser.parse_args()
    table = rows(measured(args))
    if args.json:
        print(json.dumps({**vars(args), "cpu_count": os.cpu_count(), "rows": table}, indent=2))
    else:
        print_table(table, f"{args.contract}, {args.backend}")


if __name__ == "__main__":
    main()
