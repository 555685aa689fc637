"""Check that threads, file descriptors, shared memory and resident memory do not grow over a million steps.

    python -m benchmarks.memory STEPS BACKEND

It prints the resources of the process after each tenth of the steps as JSON. The first tenth is the warm-up.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import psutil

import embodied_env

TENTHS, FLAT_KB = 10, 2048
Held = dict[str, dict[str, int]]  # after so many steps, by resource


def holdings() -> dict[str, int]:
    """Return the resources of this process, and the memory of its child processes."""
    gc.collect()
    process, shared = psutil.Process(), Path("/dev/shm")  # noqa: S108 - only looked at
    return {
        "threads": process.num_threads(),
        "files": process.num_fds(),
        "shared_memory": len(list(shared.iterdir())) if shared.is_dir() else 0,
        "resident_kb": process.memory_info().rss // 1024,
        "resident_kb_of_children": sum(child.memory_info().rss for child in process.children(recursive=True)) // 1024,
    }


def over_steps(count: int, backend: str) -> Held:
    """Step `count` times with resets in between, and return the resources after each tenth."""
    held: Held = {}
    with embodied_env.make("arm_reach", backend=backend) as env:
        env.reset(seed=0)
        for number in range(1, count + 1):
            *_, terminated, truncated, _ = env.step(np.zeros(6))
            if terminated or truncated:
                env.reset()
            if number % max(1, count // TENTHS) == 0:
                held[f"{number} steps"] = holdings()
    return held


def over_steps_apart(count: int, backend: str) -> Held:
    """Run `over_steps` in a separate process, since free memory in this one would hide the growth."""
    command = [sys.executable, "-m", "benchmarks.memory", str(count), backend]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, check=True)  # noqa: S603
    held: Held = json.loads(done.stdout)
    return held


def grown(held: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Return the resources that grew after the first tenth, where memory may vary by `FLAT_KB`."""
    first, *_, last = held.values()
    more = {kind: last[kind] - first[kind] for kind in first}
    return {kind: by for kind, by in more.items() if by > (FLAT_KB if kind.startswith("resident") else 0)}


if __name__ == "__main__":
    print(json.dumps(over_steps(int(sys.argv[1]), sys.argv[2])))
