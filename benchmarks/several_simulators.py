"""Steps per second of N simulators over ROS 2, and what the cores of this machine allow.

    python benchmarks/several_simulators.py [--num-envs N ...] [--steps N] [--rounds N] [--record] [--json]

A step of one environment costs CPU time in this process (`client_us`, of which `thread_us` in the stepping thread) and
in its simulator process (`server_us`). Cores that were never idle would take ``(client_us + server_us) / cores`` for
it: `share` is the part of that rate that was reached. With one environment nothing can overlap. Every round runs each N
in an order of its own, in new environments; making, resets and the first steps do not count. Figures are medians of the
rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time

import psutil
from rich.console import Console
from rich.table import Table

import embodied_env

WARM_UP = 30
TARGET = 0.8
Costs = dict[str, float]


def costs(num_envs: int, steps: int, *, record: bool = False, contract: str = "arm_reach") -> Costs:
    """Step N simulators, and return the costs of a step of one environment, us, and the share of the bound."""
    with tempfile.TemporaryDirectory() as folder:
        env = embodied_env.make_vec(
            contract, num_envs=num_envs, backend="mujoco_ros", record=folder if record else None
        )
        try:
            env.reset(seed=0)
            env.action_space.seed(0)
            actions = [env.action_space.sample() for _ in range(WARM_UP + steps)]
            servers = [psutil.Process(each["pid"]) for one in env.call("processes") for each in one]
            for number, action in enumerate(actions):
                if number == WARM_UP:
                    before = _clocks(servers)
                env.step(action)
            after = _clocks(servers)
        finally:
            env.close()
    wall, client, thread, server = ((b - a) / (num_envs * steps) * 1e6 for a, b in zip(before, after, strict=True))
    bound = (client + server) / (os.cpu_count() or 1)
    return {
        "wall_us": wall,
        "client_us": client,
        "thread_us": thread,
        "server_us": server,
        "steps_per_s": 1e6 / wall,
        "bound_per_s": 1e6 / bound,
        "share": bound / wall,
    }


def _clocks(servers: list[psutil.Process]) -> tuple[float, float, float, float]:
    """Return wall time, and the CPU time of this process, of this thread, and of the simulators, s."""
    used = sum(sum(process.cpu_times()[:2]) for process in servers)
    return time.perf_counter(), time.process_time(), time.thread_time(), used


def measured(sizes: list[int], steps: int, rounds: int, *, record: bool = False) -> list[dict[str, float]]:
    """Return a row for each N, with the medians of the rounds, and the extremes of the share."""
    found: dict[int, list[Costs]] = {size: [] for size in sizes}
    for _ in range(rounds):
        for size in random.sample(sizes, len(sizes)):
            found[size].append(costs(size, steps // size, record=record))
    return [
        {
            "num_envs": size,
            **{name: statistics.median(each[name] for each in rows) for name in rows[0]},
            "share_min": min(each["share"] for each in rows),
            "share_max": max(each["share"] for each in rows),
        }
        for size, rows in found.items()
    ]


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-envs", type=int, nargs="+", default=[1, 2, 4], help="default: 1 2 4")
    parser.add_argument("--steps", type=int, default=2000, help="of all environments in each round (default: 2000)")
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--record", action="store_true", help="record the steps")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    args = parser.parse_args()
    rows = measured(args.num_envs, args.steps, args.rounds, record=args.record)
    if args.json:
        print(json.dumps({**vars(args), "cpu_count": os.cpu_count(), "rows": rows}, indent=2))
        return
    table = Table(title=f"arm_reach, mujoco_ros{', recorded' * args.record}", title_justify="left")
    for name in rows[0]:
        table.add_column(name)
    for row in rows:
        table.add_row(*(f"{value:.2f}" if "share" in name else f"{value:.0f}" for name, value in row.items()))
    Console().print(table)
    verdict = "reached" if rows[-1]["share"] >= TARGET else "missed"
    print(f"share at N = {rows[-1]['num_envs']}: {rows[-1]['share']:.2f} (target {TARGET}: {verdict})")


if __name__ == "__main__":
    main()
