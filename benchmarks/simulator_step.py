"""Stages of a step of `arm_reach` on a running Gazebo, compared with the embedded simulator over ROS 2.

    python benchmarks/simulator_step.py [--steps N] [--seed N] [--stand-in]

Start the server first: embodied-env launch gazebo contract:=arm_reach policy:=none

- ``command``: step() was entered -> the command was published: gate and arbiter;
- ``request``: published -> the simulator has replied that the request is queued;
- ``physics``: replied -> the clock has shown the end of the step;
- ``clock``: -> the clock has shown it again, which proves that the world is at rest;
- ``sensors``: -> every reading of this instant has arrived;
- ``account``: -> step() has returned: task, info, ledger.

For the embedded simulator, which has no such request, the four in the middle are one, ``world``. All are medians in
milliseconds, with the 99th percentile. ``messages`` are those that a step took through rclpy.

``--stand-in`` starts test/extensions/gazebo/support/mujoco_as_gazebo.py instead of Gazebo, with the physics of MuJoCo
and no bridge: what it measures is the share of this package, not that of Gazebo.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import embodied_env
from embodied_env.errors import EmbodiedEnvError
from embodied_env.timing.clock import NS_PER_S

STAND_IN = Path(__file__).parents[1] / "test" / "extensions" / "gazebo" / "support" / "mujoco_as_gazebo.py"
STAGES = ("command", "request", "physics", "clock", "sensors", "world", "account", "total")


def main() -> None:
    """Measure both backends and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="number of measured steps (default: 200)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random policy (default: 0)")
    parser.add_argument("--stand-in", action="store_true", help="start the stand-in instead of using a running Gazebo")
    args = parser.parse_args()
    embodied_env.make("arm_reach", backend="gazebo").close()  # raises before the stand-in is started
    with stand_in() if args.stand_in else contextlib.nullcontext():
        results = {"stand-in" if args.stand_in else "gazebo": measured("gazebo", args.steps, args.seed)}
    results["mujoco_ros"] = measured("mujoco_ros", args.steps, args.seed)
    table = Table("", *results, title=f"ms, median (p99) of {args.steps} steps of 50 ms")
    for stage in (*STAGES, "messages"):
        table.add_row(stage, *(shown(found.get(stage)) for found in results.values()))
    rates = [f"{1000 / found['total'][0]:.0f}" for found in results.values()]
    table.add_row("steps per s", *rates)
    Console().print(table)


def shown(numbers: list[float] | None) -> str:
    return "-" if numbers is None else f"{numbers[0]:.2f} ({numbers[1]:.2f})"


@contextlib.contextmanager
def stand_in() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, STAND_IN])  # noqa: S603 - our own file
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def measured(backend: str, steps: int, seed: int) -> dict[str, list[float]]:
    """Return median and 99th percentile of each stage."""
    taken: list[int] = [0]
    found: dict[str, list[float]] = {"messages": []}
    random = np.random.default_rng(seed)
    with contextlib.closing(embodied_env.make("arm_reach", backend=backend)) as env:
        base: Any = env.unwrapped
        env.reset(seed=seed)
        base.feed.sink = lambda message: taken.__setitem__(0, taken[0] + (not message.is_ours))
        for _ in range(steps):
            taken[0] = 0
            *_, terminated, truncated, info = env.step(random.uniform(-0.3, 0.3, 6))
            returned_s = time.monotonic()
            if info["end_reason"].startswith("backend_lost"):
                raise SystemExit(f"{backend}: {info['end_reason']}: {info['messages']}")
            for stage, duration_s in durations(base, returned_s).items():
                found.setdefault(stage, []).append(1e3 * duration_s)
            found["messages"].append(taken[0])
            if terminated or truncated:
                env.reset()
    return {stage: [float(np.median(values)), float(np.quantile(values, 0.99))] for stage, values in found.items()}


def durations(env: Any, returned_s: float) -> dict[str, float]:  # noqa: ANN401 - an EmbodiedEnv
    """Return the stages of the last step in seconds."""
    stamps = {name: stamp_ns / NS_PER_S for name, stamp_ns in env.last_transition.stamps_ns.items()}
    ends = {"command": stamps["published"]}
    control = getattr(env.stepper.backend, "_control", None)
    if (times := getattr(control, "last_step", None)) is not None:
        reached_s = max(times.answered_s, times.reached_s)
        ends |= {"request": times.answered_s, "physics": reached_s, "clock": times.at_rest_s}
    ends |= {"sensors" if times is not None else "world": stamps["observed"], "account": returned_s}
    begin_s, stages = stamps["entered"], {}
    for stage, end_s in ends.items():
        stages[stage], begin_s = end_s - begin_s, end_s
    return {**stages, "total": returned_s - stamps["entered"]}


if __name__ == "__main__":
    try:
        main()
    except EmbodiedEnvError as error:
        raise SystemExit(f"error: {error}") from None
