"""Time EAGERx in lockstep, in its single-process backend: `plain_world.PlainEnv` behind its engine for Gymnasium.

    PYTHON_WITH_EAGERX benchmarks/eagerx_lockstep.py MODEL.mjb SUBSTEPS STEPS

It is run by `inprocess.py`, and prints the durations of its steps, in ns, as JSON.
"""

from __future__ import annotations

import json
import sys
import time
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

WARM_UP = 10
RATE_HZ = 20.0


class ForEagerx(PlainEnv):
    """Adds what EAGERx requires of an environment in addition to Gymnasium."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012 - Gymnasium's
    reward_range = (-10.0, 0.0)

    def __init__(self, model: str, substeps: int, render_mode: str | None = None) -> None:
        """Render nothing."""
        super().__init__(model, substeps)
        self.render_mode = render_mode


def durations_ns(model: str, substeps: int, steps: int) -> list[int]:
    """Return the duration of each step."""
    gymnasium.register("Plain-v0", entry_point=ForEagerx, kwargs={"model": model, "substeps": substeps})
    graph = eagerx.Graph.create()
    arm = GymObject.make("arm", env_id="Plain-v0", rate=RATE_HZ, default_action=[0.0] * 6)
    graph.add(arm)
    graph.connect(action="action", target=arm.actuators.action)
    for name in ("observation", "reward", "terminated", "truncated"):
        graph.connect(source=getattr(arm.sensors, name), observation=name)
    engine = GymEngine.make(rate=RATE_HZ, sync=True, process=eagerx.ENVIRONMENT)
    env = EagerxGym("env", RATE_HZ, graph, engine, SingleProcess.make())
    env.reset()
    rng = np.random.default_rng(0)
    found = []
    for number in range(WARM_UP + steps):
        action: dict[str, Any] = {"action": rng.uniform(-0.05, 0.05, 6)}
        start_ns = time.perf_counter_ns()
        env.step(action)
        if number >= WARM_UP:
            found.append(time.perf_counter_ns() - start_ns)
    env.shutdown()
    return found


def main() -> None:
    """Run."""
    model, substeps, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with redirect_stdout(sys.stderr):
        found = durations_ns(model, substeps, steps)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
