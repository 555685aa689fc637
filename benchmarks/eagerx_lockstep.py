"""Time EAGERx in lockstep with its single-process backend.

    PYTHON_WITH_EAGERX benchmarks/eagerx_lockstep.py MODEL.mjb SUBSTEPS

Its engine for Gymnasium runs `plain_world.PlainEnv`. `batched.py` starts this script. Each line on standard input is a
number of steps, and the script prints their mean duration in µs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

import eagerx
import gymnasium
import numpy as np
from eagerx.backends.single_process import SingleProcess
from eagerx.engines.openai_gym.engine import GymEngine
from eagerx.engines.openai_gym.env import EagerxGym
from eagerx.engines.openai_gym.objects import GymObject
from plain_world import PlainEnv

RATE_HZ = 20.0


class ForEagerx(PlainEnv):
    """Adds what EAGERx requires of an environment in addition to Gymnasium."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012 - Gymnasium's
    reward_range = (-10.0, 0.0)

    def __init__(self, model: str, substeps: int, render_mode: str | None = None) -> None:
        """Render nothing."""
        super().__init__(model, substeps)
        self.render_mode = render_mode


def make_env(model: str, substeps: int) -> EagerxGym:
    """Return an EAGERx environment with a graph of one object."""
    maker: Callable[..., Any] = ForEagerx
    gymnasium.register("Plain-v0", entry_point=maker, kwargs={"model": model, "substeps": substeps})
    graph = eagerx.Graph.create()
    arm = GymObject.make("arm", env_id="Plain-v0", rate=RATE_HZ, default_action=[0.0] * 6)
    graph.add(arm)
    graph.connect(action="action", target=arm.actuators.action)
    for name in ("observation", "reward", "terminated", "truncated"):
        graph.connect(source=getattr(arm.sensors, name), observation=name)
    engine = GymEngine.make(rate=RATE_HZ, sync=True, process=eagerx.ENVIRONMENT)
    return EagerxGym("env", RATE_HZ, graph, engine, SingleProcess.make())


def main() -> None:
    """Run."""
    rng = np.random.default_rng(0)
    with redirect_stdout(sys.stderr):
        env = make_env(sys.argv[1], int(sys.argv[2]))
        env.reset()
        for line in sys.stdin:
            actions = [{"action": action} for action in rng.uniform(-0.05, 0.05, (int(line), 6))]
            start_ns = time.perf_counter_ns()
            for action in actions:
                env.step(action)
            mean_us = (time.perf_counter_ns() - start_ns) / 1e3 / len(actions)
            print(mean_us, file=sys.__stdout__, flush=True)
        env.shutdown()


if __name__ == "__main__":
    main()
