"""Growth of the cost with the number of sensors, joints, environments, resets and steps.

    python benchmarks/scale.py [--steps N] [--rounds N] [--ros] [--resets N] [--json FILE]
                               [--memory-steps N] [--memory-backends NAME ...] [--memory-record]

    python benchmarks/scale.py --rounds 0 --resets 0 --memory-steps 1000000 --json memory.json

Contracts are made from `arm_reach`: 1 to 16 sensors more (joint states of six joints), arms of 6 to 64 joints, and 1
to 32 environments in one vector. The world is the `fake` one, which costs next to nothing, so what grows is ours: the
whole of a step, account and all. `--ros`: the sensors too over ROS 2 (`mujoco_ros`), where each is a topic more. Every
round runs every size in an order of its own; a figure is the least of the rounds: the median of a step, and the mean
time that the stepping thread itself was at work, without the tenth that took longest. What one more costs is the slope
of a straight line through those; `linear` is the share of their variance that the line explains.

Then what must not grow: threads, file descriptors, and resident memory, over resets (`--resets`, of `fake`) and over
steps (`--memory-steps`, with the resets between them; in the `fake` world and in `mujoco`, each in a process of its
own, recorded with `--memory-record`; of `mujoco_ros` the simulator's memory is looked at too), after a warm-up of a
tenth of them. What is held is printed after each tenth. (Resets over ROS 2 are counted by
``pytest -m long test/ros/test_isolation.py test/ros/test_faults.py -k resets``.)
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

import embodied_env
from embodied_env.contract import Contract

WARM_UP = 20
SENSORS = (1, 2, 4, 8, 16)
JOINTS = (6, 12, 24, 48, 64)
ENVIRONMENTS = (1, 2, 4, 8, 16, 32)
TARGET_US = 60.0
"""For each extra small topic, in the caller's path."""

FLAT_KB = 2048
TENTHS = 10

ARM = embodied_env.load_contract("arm_reach")


def with_sensors(count: int) -> Contract:
    """Return the arm with additional sensors."""
    extra = {f"extra_{number}": replace(ARM.sensors["joints"], topic=f"extra_{number}") for number in range(count)}
    return replace(ARM, sensors={**ARM.sensors, **extra})


def with_joints(count: int) -> Contract:
    """Return an arm with this number of joints, which repeat the limits of the six."""
    ((name, actuator),) = ARM.actuators.items()
    known = list(actuator.joints.values())
    limits = {f"joint_{number}": known[number % len(known)] for number in range(count)}
    fields = {field: replace(spec, joints=tuple(limits)) for field, spec in ARM.sensors["joints"].fields.items()}
    return replace(
        ARM,
        sensors={**ARM.sensors, "joints": replace(ARM.sensors["joints"], fields=fields)},
        actuators={name: replace(actuator, joints=limits)},
    )


def steps_of(contract: Contract, backend: str, steps: int) -> dict[str, float]:
    """Step, and return the median of a step and the mean CPU time of the stepping thread, us."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env = embodied_env.make(contract, backend=backend)
    env.reset(seed=0)
    action = np.zeros(env.action_space.shape)
    took, worked = [], []
    for _ in range(WARM_UP + steps):
        start_ns, start_cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        _, _, terminated, truncated, _ = env.step(action)
        worked.append(time.thread_time_ns() - start_cpu_ns)
        took.append(time.perf_counter_ns() - start_ns)
        if terminated or truncated:
            env.reset()
    env.close()
    return {
        "p50_us": statistics.median(took[WARM_UP:]) / 1e3,
        "thread_us": statistics.fmean(sorted(worked[WARM_UP:])[: max(1, steps * 9 // 10)]) / 1e3,
    }


def vector_steps_of(count: int, steps: int) -> dict[str, float]:
    """Return the same for a vector with this number of environments."""
    env = embodied_env.make_vec(ARM, num_envs=count, backend="fake")
    env.reset(seed=0)
    actions = np.zeros(env.action_space.shape)
    took, worked = [], []
    for _ in range(WARM_UP + steps):
        start_ns, start_cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        env.step(actions)
        worked.append(time.thread_time_ns() - start_cpu_ns)
        took.append(time.perf_counter_ns() - start_ns)
    env.close()
    return {
        "p50_us": statistics.median(took[WARM_UP:]) / 1e3,
        "thread_us": statistics.fmean(sorted(worked[WARM_UP:])[: max(1, steps * 9 // 10)]) / 1e3,
    }


Family = tuple[str, Sequence[int], Callable[[int], dict[str, float]]]


def families(steps: int, *, ros: bool, tiny: bool) -> list[Family]:
    """Return the families, their sizes, and the function that measures a size."""
    cut = 2 if tiny else None
    found: list[Family] = [
        ("sensors", SENSORS[:cut], lambda n: steps_of(with_sensors(n), "fake", steps)),
        ("joints", JOINTS[:cut], lambda n: steps_of(with_joints(n), "fake", steps)),
        ("environments", ENVIRONMENTS[:cut], lambda n: vector_steps_of(n, steps)),
    ]
    if ros:
        found.append(("topics", SENSORS[:cut], lambda n: steps_of(with_sensors(n), "mujoco_ros", steps)))
    return found


def measure(chosen: list[Family], rounds: int) -> list[dict[str, Any]]:
    """Run every size in every round; return a row for each, with the least of the rounds."""
    cases = [(name, size, run) for name, sizes, run in chosen for size in sizes]
    found: dict[tuple[str, int], list[dict[str, float]]] = {(name, size): [] for name, size, _ in cases}
    for number in range(rounds):
        for name, size, run in random.sample(cases, len(cases)):
            print(f"round {number + 1} of {rounds}: {size} {name}", file=sys.stderr)
            gc.collect()
            found[name, size].append(run(size))
    return [
        {"what": name, "size": size, **{key: min(one[key] for one in each) for key in each[0]}}
        for (name, size), each in found.items()
    ]


def slopes(table: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return for each family the cost of one more, us, and how well a straight line explains it, up to 1."""
    found = {}
    for name in dict.fromkeys(row["what"] for row in table):
        sizes = np.array([row["size"] for row in table if row["what"] == name], dtype=float)
        costs = np.array([row["thread_us"] for row in table if row["what"] == name])
        slope, start = np.polyfit(sizes, costs, 1)
        left = costs - (slope * sizes + start)
        spread = float(((costs - costs.mean()) ** 2).sum())
        linear = 1.0 - float((left**2).sum()) / spread if spread else 1.0
        found[name] = {"each_us": float(slope), "start_us": float(start), "linear": linear}
    return found


def holdings() -> dict[str, int]:
    """Return the resources of this process, and the memory of its child processes."""
    gc.collect()
    process = psutil.Process()
    children = process.children(recursive=True)
    segments = len(list(Path("/dev/shm").iterdir())) if Path("/dev/shm").is_dir() else 0  # noqa: S108 - only looked at
    return {
        "threads": process.num_threads(),
        "files": process.num_fds(),
        "shared_memory": segments,
        "resident_kb": process.memory_info().rss // 1024,
        "resident_kb_of_children": sum(child.memory_info().rss for child in children) // 1024,
    }


def over_resets(count: int) -> dict[str, dict[str, int]]:
    """Reset this many times; return the resources before and after."""
    env = embodied_env.make(ARM, backend="fake")
    for _ in range(WARM_UP):
        env.reset()
    before = holdings()
    for _ in range(count):
        env.reset()
    after = holdings()
    env.close()
    return {"before": before, "after": after}


def over_steps(count: int, backend: str, *, record: bool = False) -> dict[str, dict[str, int]]:
    """Step this many times, with resets in between; return the resources after each tenth: the first is the warm-up."""
    if record:
        with tempfile.TemporaryDirectory() as folder:
            return _over_steps(embodied_env.make(ARM, backend=backend, record=folder), count)
    return _over_steps(embodied_env.make(ARM, backend=backend), count)


def _over_steps(env: gymnasium.Env, count: int) -> dict[str, dict[str, int]]:
    env.reset(seed=0)
    action = np.zeros(6)
    found: dict[str, dict[str, int]] = {}
    for number in range(1, count + 1):
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()
        if number % max(1, count // TENTHS) == 0:
            found[f"{number} steps"] = holdings()
    env.close()
    return found


def apart(count: int, backend: str, *, record: bool = False) -> dict[str, dict[str, int]]:
    """Do the same in a separate process: free memory in this one would hide the growth."""
    command = [sys.executable, __file__, "--rounds", "0", "--resets", "0"]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "memory.json"
        asked = ["--memory-steps", str(count), "--memory-backends", backend, "--json", str(file)]
        asked += ["--memory-record"] if record else []
        subprocess.run([*command, *asked], check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - this script
        (found,) = json.loads(file.read_text())["held"].values()
    return found


def growth(held: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Return the resources that have grown."""
    first, *_, last = held.values()
    return {kind: last[kind] - first[kind] for kind in first}


def targets(found: Mapping[str, Mapping[str, float]], held: Mapping[str, Any]) -> dict[str, bool]:
    """Return the results against the targets."""
    verdicts = {
        f"{name}: <= {TARGET_US:.0f} us for each": found[name]["each_us"] <= TARGET_US
        for name in ("sensors", "topics")
        if name in found
    }
    for name, each in held.items():
        more = growth(each)
        verdicts[f"{name}: no thread and no file more"] = more["threads"] <= 0 and more["files"] <= 0
        kinds = ("resident_kb", "resident_kb_of_children")
        verdicts[f"{name}: memory is flat (2 MB)"] = all(more[kind] <= FLAT_KB for kind in kinds)
    return verdicts


def show(result: Mapping[str, Any]) -> None:
    """Print a readable table."""
    console = Console(width=120)
    for title, table in (
        ("a step", result["rows"]),
        ("one more", [{"what": name, **each} for name, each in result["slopes"].items()]),
        (
            "held",
            [
                {"over": name, "when": when, **what}
                for name, each in result["held"].items()
                for when, what in [*each.items(), ("more", result["growth"][name])]
            ],
        ),
    ):
        if not table:
            continue
        shown = Table(title=title, title_justify="left")
        for name in table[0]:
            shown.add_column(name)
        for row in table:
            shown.add_row(*(f"{value:.2f}" if isinstance(value, float) else str(value) for value in row.values()))
        console.print(shown)
    for target, reached in result["targets"].items():
        console.print(f"{target}: {'reached' if reached else 'NOT reached'}")


def main() -> int:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300, help="of each size in each round (default: 300)")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3; 0: only what must not grow")
    parser.add_argument("--ros", action="store_true", help="sensors over ROS 2 too (mujoco_ros)")
    parser.add_argument("--tiny", action="store_true", help="only the two smallest sizes of each")
    parser.add_argument("--resets", type=int, default=1000, help="default: 1000; 0: none")
    parser.add_argument("--memory-steps", type=int, default=100_000, help="default: 100000; 0: none")
    parser.add_argument("--memory-backends", nargs="+", default=["fake", "mujoco"], help="default: fake mujoco")
    parser.add_argument("--memory-record", action="store_true", help="record those steps: 5 kB of disk for each")
    parser.add_argument("--json", type=Path, default=None, help="write the result to this file")
    args = parser.parse_args()
    table = measure(families(args.steps, ros=args.ros, tiny=args.tiny), args.rounds) if args.rounds else []
    held = {}
    if args.resets:
        held["resets"] = over_resets(args.resets)
    if args.memory_steps:
        is_alone = len(args.memory_backends) == 1 and not args.rounds and not args.resets
        measured = over_steps if is_alone else apart
        for each in args.memory_backends:
            name = f"steps of {each}, recorded" if args.memory_record else f"steps of {each}"
            held[name] = measured(args.memory_steps, each, record=args.memory_record)
    found = slopes(table)
    more = {name: growth(each) for name, each in held.items()}
    result = {"rows": table, "slopes": found, "held": held, "growth": more, "targets": targets(found, held)}
    show(result)
    if args.json is not None:
        settings = {
            "steps": args.steps,
            "rounds": args.rounds,
            "resets": args.resets,
            "memory_steps": args.memory_steps,
        }
        args.json.write_text(json.dumps({**settings, **result}, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
