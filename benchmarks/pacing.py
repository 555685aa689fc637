"""Timing accuracy of steps: this environment while recording, rtgym and a plain loop, in one run.

    python benchmarks/pacing.py [--seconds S] [--rounds N] [--rates HZ ...] [--backend B] [--fifo-priority P]
                                [--json [FILE]]

    python benchmarks/pacing.py --rates 100 --fifo-priority 50 --json pacing.json

The second command measures the targets: seven rounds at 100 Hz, about 3 minutes, on an otherwise idle machine.
else.

rtgym's thread-safe environment (``pip install "embodied_env[bench]"``) and the plain loop record nothing and simulate
nothing: they are the floor. A loop that works for a fifth of each period shows the effect of the scheduler on a busy
thread: where cores are shared, it is woken later than one that only sleeps. ``--fifo-priority`` puts all of
them under SCHED_FIFO. Every round runs each of them at each rate, idle and with one busy process per core, in a random
order. The figures are of the instants at which `step` returns; for this environment also of those at which it freezes
its readings. A figure is the median of the rounds; a ratio is of two figures of one round, and the median of the
rounds, with the smallest and the largest.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import embodied_env

WARM_UP = 20  # warm-up periods
PLAIN, WORKING, RTGYM = "plain loop", "plain loop that works", "rtgym, thread-safe"
OURS, FROZEN = "embodied_env, recording", "its readings"
WORK = 0.2  # of a period

Instants = Mapping[str, NDArray[np.int64]]  # by name, when each step was done, ns
Key = tuple[str, int, bool]  # who, rate in Hz, whether the machine is loaded


def plain_loop(rate_hz: int, steps: int) -> Instants:
    """Sleep until absolute deadlines, and do nothing else."""
    return {PLAIN: sleep_loop(rate_hz, steps, work=0.0)}


def working_loop(rate_hz: int, steps: int) -> Instants:
    """Compute for a part of each period, and sleep until absolute deadlines."""
    return {WORKING: sleep_loop(rate_hz, steps, work=WORK)}


def sleep_loop(rate_hz: int, steps: int, *, work: float) -> NDArray[np.int64]:
    """Return the start of each period; `work`: the part of it spent computing."""
    period_ns = round(1e9 / rate_hz)
    deadline_ns = time.monotonic_ns()
    seen = np.zeros(steps, dtype=np.int64)
    for step in range(steps):
        began_ns = time.thread_time_ns()
        while time.thread_time_ns() - began_ns < work * period_ns:
            pass
        deadline_ns += period_ns
        left_ns = deadline_ns - time.monotonic_ns()
        if left_ns > 0:
            time.sleep(left_ns / 1e9)
        seen[step] = time.monotonic_ns()
    return seen


def ours(rate_hz: int, steps: int, *, backend: str) -> Instants:
    """Step `backend` in real time, recorded. A reset after a safety stop counts as time between steps."""
    arm = embodied_env.load_contract("arm_reach")
    contract = replace(
        arm,
        control_period_s=1 / rate_hz,
        episode=replace(arm.episode, horizon_steps=steps + 1),
        safety=replace(arm.safety, watchdog=replace(arm.safety.watchdog, hold_steps=rate_hz, stop_steps=2 * rate_hz)),
    )
    returned, frozen = np.zeros(steps, dtype=np.int64), np.zeros(steps, dtype=np.int64)
    action = np.zeros(6)
    with tempfile.TemporaryDirectory() as folder:
        env = embodied_env.make(contract, backend=backend, pacing="realtime", record=folder)
        env.reset(seed=1)
        for step in range(steps):
            *_, truncated, _ = env.step(action)
            returned[step] = time.monotonic_ns()
            frozen[step] = env.unwrapped.last_transition.stamps_ns["observed"]
            if truncated:
                env.reset()
        env.close()
    return {OURS: returned, FROZEN: frozen}


def rtgym_loop(rate_hz: int, steps: int) -> Instants:
    """Step rtgym's thread-safe environment over a device that does nothing."""
    import gymnasium  # noqa: PLC0415 - with rtgym
    import rtgym  # noqa: PLC0415 - it may not be installed

    class Device(rtgym.RealTimeGymInterface):
        def send_control(self, control: object) -> None:
            pass

        def reset(self, **_: object) -> tuple[list[NDArray[np.float64]], dict]:
            return [np.zeros(12)], {}

        def get_obs_rew_terminated_info(self) -> tuple[list[NDArray[np.float64]], float, bool, dict]:
            return [np.zeros(12)], 0.0, False, {}

        def get_observation_space(self) -> gymnasium.Space:
            return gymnasium.spaces.Tuple((gymnasium.spaces.Box(-1.0, 1.0, (12,), np.float64),))

        def get_action_space(self) -> gymnasium.Space:
            return gymnasium.spaces.Box(-1.0, 1.0, (6,), np.float64)

        def get_default_action(self) -> NDArray[np.float64]:
            return np.zeros(6)

    period_s = 1 / rate_hz
    config = {
        **rtgym.DEFAULT_CONFIG_DICT,
        "interface": Device,
        "time_step_duration": period_s,
        "start_obs_capture": period_s,
    }
    seen = np.zeros(steps, dtype=np.int64)
    action = np.zeros(6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # timeouts of steps, which are counted here
        env = gymnasium.make("real-time-gym-ts-v1", config=config, disable_env_checker=True).unwrapped
        env.reset()
        for step in range(steps):
            env.step(action)
            seen[step] = time.monotonic_ns()
        env.wait()
    return {RTGYM: seen}


def figures(seen: NDArray[np.int64], rate_hz: int) -> dict[str, float]:
    """Return period errors (us), the error of the mean rate (%), and how many deadlines passed without a step."""
    seen, period_ns = seen[WARM_UP:], 1e9 / rate_hz
    periods = np.diff(seen)
    p50, p95, p99 = np.percentile(np.abs(periods - period_ns), [50, 95, 99]) / 1e3
    mean_error = len(periods) * period_ns / (seen[-1] - seen[0]) - 1.0
    missed = np.floor(periods / period_ns - 0.5).clip(min=0).sum()
    return {
        "p50_us": float(p50),
        "p95_us": float(p95),
        "p99_us": float(p99),
        "rate_error_percent": 100 * abs(float(mean_error)),
        "missed": float(missed),
    }


@contextlib.contextmanager
def load(loaded: bool) -> Iterator[None]:  # noqa: FBT001 - one of two conditions
    """Keep every core busy, if requested."""
    work = "import os; os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))\nwhile True: pass"
    count = (os.cpu_count() or 1) if loaded else 0
    busy = [subprocess.Popen([sys.executable, "-c", work]) for _ in range(count)]  # noqa: S603 - our own line
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def measure(rates_hz: list[int], seconds: float, rounds: int, backend: str) -> dict[Key, list[dict[str, float]]]:
    """Return for each contestant, rate and load the figures of each round."""
    contestants: dict[str, Callable[[int, int], Instants]] = {
        PLAIN: plain_loop,
        WORKING: working_loop,
        OURS: partial(ours, backend=backend),
    }
    if importlib.util.find_spec("rtgym") is None:
        print('rtgym is not installed (pip install "embodied_env[bench]"): the others run alone', file=sys.stderr)
    else:
        contestants[RTGYM] = rtgym_loop
    found: dict[Key, list[dict[str, float]]] = {}
    for round_index in range(rounds):
        runs = [(who, rate, loaded) for who in contestants for rate in rates_hz for loaded in (False, True)]
        random.shuffle(runs)
        for who, rate_hz, loaded in runs:
            gc.collect()
            print(f"round {round_index + 1} of {rounds}: {who}, {rate_hz} Hz, loaded: {loaded}", file=sys.stderr)
            with load(loaded):
                for name, seen in contestants[who](rate_hz, WARM_UP + round(seconds * rate_hz)).items():
                    found.setdefault((name, rate_hz, loaded), []).append(figures(seen, rate_hz))
    return found


def rows(found: dict[Key, list[dict[str, float]]]) -> list[dict[str, object]]:
    """Return the medians, and the ratios of the p99 to those of the plain loop and of rtgym in the same round."""
    table = []
    for (name, rate_hz, loaded), rounds in sorted(found.items(), key=lambda item: (item[0][2], item[0][1], item[0][0])):
        row: dict[str, object] = {"who": name, "rate_hz": rate_hz, "loaded": loaded}
        row |= {key: statistics.median(figure[key] for figure in rounds) for key in rounds[0]}
        for key, other in (("p99_to_plain", PLAIN), ("p99_to_rtgym", RTGYM)):
            others = found.get((other, rate_hz, loaded))
            ratios = [a["p99_us"] / b["p99_us"] for a, b in zip(rounds, others, strict=True)] if others else None
            row[key] = statistics.median(ratios) if ratios else None
            row[f"{key}_spread"] = [min(ratios), max(ratios)] if ratios else None
        table.append(row)
    return table


def targets(table: list[dict[str, object]]) -> dict[str, bool | None]:
    """Return whether the targets are reached, idle and loaded, at 100 Hz; None: not measured."""
    verdicts: dict[str, bool | None] = {}
    for row in table:
        if row["who"] not in (OURS, FROZEN) or row["rate_hz"] != 100:
            continue
        where = f"{row['who']}, {'loaded' if row['loaded'] else 'idle'}"
        plain, rtgym = row["p99_to_plain"], row["p99_to_rtgym"]
        verdicts[f"{where}: p99 <= 1.2 x the plain loop's"] = float(str(plain)) <= 1.2
        verdicts[f"{where}: p99 <= rtgym's"] = None if rtgym is None else float(str(rtgym)) <= 1.0
        verdicts[f"{where}: mean rate error <= 0.1 %"] = float(str(row["rate_error_percent"])) <= 0.1
    return verdicts


def spread_of(ratio: object, spread: object) -> str:
    """Return a ratio with its smallest and largest value as text; empty if not measured."""
    return f"{ratio:.2f} ({spread[0]:.2f} to {spread[1]:.2f})" if isinstance(spread, list) else ""


def show(table: list[dict[str, object]]) -> None:
    """Print the table and the targets."""
    console = Console(width=160)
    drawn = Table(title="period error, us, and rate", title_justify="left")
    for head in ("", "Hz", "load", "p50", "p95", "p99", "rate error", "missed", "p99 / plain", "p99 / rtgym"):
        drawn.add_column(head, justify="left" if head in ("", "load") else "right")
    for row in table:
        ratios = [spread_of(row[key], row[f"{key}_spread"]) for key in ("p99_to_plain", "p99_to_rtgym")]
        drawn.add_row(
            str(row["who"]),
            str(row["rate_hz"]),
            "busy" if row["loaded"] else "idle",
            *(f"{row[key]:.0f}" for key in ("p50_us", "p95_us", "p99_us")),
            f"{row['rate_error_percent']:.3f} %",
            f"{row['missed']:.0f}",
            *ratios,
        )
    console.print(drawn)
    for target, reached in targets(table).items():
        console.print(f"{target}: {'not measured' if reached is None else 'reached' if reached else 'NOT reached'}")


def main() -> int:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="of each run (default: 3)")
    parser.add_argument("--rounds", type=int, default=7, help="(default: 7)")
    parser.add_argument("--rates", type=int, nargs="+", default=[50, 100, 200], help="Hz (default: 50 100 200)")
    parser.add_argument(
        "--backend", default="fake", help="of this environment: fake (default), which simulates nothing, or mujoco"
    )
    parser.add_argument("--fifo-priority", type=int, default=None, help="SCHED_FIFO for all of them, 1 to 99")
    parser.add_argument(
        "--json", metavar="FILE", nargs="?", const="-", help="write the result; without a file: print it as JSON"
    )
    args = parser.parse_args()
    if args.fifo_priority is not None:  # rtgym's thread inherits it
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(args.fifo_priority))
    load_before = os.getloadavg()[0]
    table = rows(measure(args.rates, args.seconds, args.rounds, args.backend))
    asked = {name: getattr(args, name) for name in ("rounds", "seconds", "backend", "fifo_priority")}
    result = json.dumps({**asked, "load_before": load_before, "rows": table, "targets": targets(table)}, indent=2)
    if args.json == "-":
        print(result)
        return 0
    show(table)
    if args.json is not None:
        Path(args.json).write_text(result + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
