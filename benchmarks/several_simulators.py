"""Steps of N simulators over ROS 2, and the rate that the cores of this machine allow.

A step of one environment costs CPU time in this process (client, of which the stepping thread has a part) and in its
simulator's process (server). Cores that were never idle would take ``(client + server) / cores`` for it; the share is
the part of that rate that was reached. Idle cores are what was lost, but for the time that other processes took. With
one environment nothing can overlap. Each round makes new environments; making, resets and the first steps do not count.
"""

from __future__ import annotations

import functools
import os
import tempfile
import time
from contextlib import closing

import numpy as np
import psutil

import embodied_env

from .arm import endless_arm, kept_actions
from .harness import Samples, run_rounds

WARM_UP, ENV_STEPS = 30, 2000


def measure(*, smoke: bool) -> Samples:
    """Return times of a step of one environment, µs, and the share of the bound."""
    steps = 200 if smoke else ENV_STEPS
    sizes = {f"N = {size}": functools.partial(costs, size, steps // size) for size in (1, 2, 4)}
    recorded = functools.partial(costs, 4, steps // 4, is_recorded=True)
    return run_rounds({**sizes, "N = 4, recorded": recorded}, 2 if smoke else 5)


def costs(num_envs: int, steps: int, *, is_recorded: bool = False) -> dict[str, float]:
    """Step N simulators, and return the costs of a step of one environment, and the share of the bound."""
    actions = kept_actions(WARM_UP + steps, num_envs).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        env = embodied_env.make_vec(
            endless_arm(), num_envs=num_envs, backend="mujoco_ros", record=folder if is_recorded else None
        )
        with closing(env):
            env.reset(seed=0)
            servers = [psutil.Process(each["pid"]) for one in env.call("processes") for each in one]
            for number, action in enumerate(actions):
                if number == WARM_UP:
                    before = _clocks(servers)
                env.step(action)
            after = _clocks(servers)
    found = {name: (after[name] - before[name]) / (num_envs * steps) * 1e6 for name in before}
    bound = (found["client"] + found["server"]) / (os.cpu_count() or 1)
    return {**found, "share": bound / found["wall"]}


def _clocks(servers: list[psutil.Process]) -> dict[str, float]:
    """Return wall time, the CPU time of this process, of this thread and of the simulators, and idle time, s."""
    return {
        "wall": time.perf_counter(),
        "client": time.process_time(),
        "stepping thread": time.thread_time(),
        "server": sum(sum(process.cpu_times()[:2]) for process in servers),
        "idle cores": psutil.cpu_times().idle,
    }
