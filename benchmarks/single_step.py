"""A step of the backend `mujoco`, with and without the recorder, and of the same model in a bare loop.

The same commands go through all: a loop of ``mj_step`` (20 physics steps of a control period), the same with the
``mj_forward`` that sensors need, a plain Gymnasium environment, and `embodied_env`. They must come to the same joint
positions, bit for bit. The ratio of Python to physics depends on the processor and on what else runs: `step_counts`
counts instructions instead.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

import embodied_env

from .arm import SUBSTEPS, arm_model, endless_arm, kept_actions, limited_actions
from .harness import Case, Samples, durations_us, median_cpu_us, run_rounds
from .plain_world import PlainEnv, PlainWorld

Commands = NDArray[np.float64]


def measure(*, smoke: bool) -> Samples:
    """Return the median CPU time of a round's steps, µs."""
    rounds, steps = (7, 60) if smoke else (25, 150)
    model = arm_model()
    cases: dict[str, Case] = {}
    with contextlib.closing(embodied_env.make(endless_arm(), backend="mujoco")) as env:
        for kind, actions in (("kept", kept_actions(steps)), ("limited", limited_actions(steps))):
            cases |= cases_of(kind, actions, env, model)
        return run_rounds(cases, rounds)


def cases_of(kind: str, actions: Commands, env: Any, model: mujoco.MjModel) -> dict[str, Case]:  # noqa: ANN401
    """Return the cases that run these actions, after a check that they compute the same."""
    commands, positions = published(env, actions, are_limited=kind == "limited")
    world, plain = PlainWorld(model, SUBSTEPS), PlainEnv(model, SUBSTEPS)

    def physics(command: NDArray[np.float64]) -> None:
        world.step(command)
        mujoco.mj_forward(world.model, world.data)

    def timed(step: Callable[[Any], Any], reset: Callable[[], Any], inputs: Commands) -> Case:
        def case() -> float:
            reset()
            return median_cpu_us(step, inputs)

        return case

    cases = {
        f"mj_step loop, {kind}": timed(world.step, world.reset, commands),
        f"mj_step loop and mj_forward, {kind}": timed(physics, world.reset, commands),
        f"plain Gymnasium, {kind}": timed(plain.step, plain.reset, commands),
        f"embodied_env, {kind}": timed(env.step, lambda: env.reset(seed=0), actions),
    }
    for name, case in cases.items():
        case()
        found = {"plain": plain.positions, "embod": positions}.get(name[:5], world.data.qpos)
        if found.tobytes() != positions.tobytes():
            raise AssertionError(f"{name} ended at {found}, expected {positions}")
    return cases


def published(env: Any, actions: Commands, *, are_limited: bool) -> tuple[Commands, NDArray[np.float64]]:  # noqa: ANN401
    """Return the commands of these actions, and the last joint positions."""
    env.reset(seed=0)
    commands, changed = [], []
    for action in actions:
        *_, terminated, truncated, _ = env.step(action)
        report = env.unwrapped.last_transition.report
        commands.append(report.applied_si)
        changed.append(report.intervened)
        if terminated or truncated:
            raise AssertionError(f"the episode ended: {env.unwrapped.last_transition.end_reasons}")
    if not np.mean(changed) == are_limited:
        raise AssertionError(f"{np.mean(changed):.0%} of the actions were limited")
    return np.array(commands), env.unwrapped.last_transition.observation["joints_position"]


def measure_recorded(*, smoke: bool) -> Samples:
    """Return percentiles of long rounds of steps, with and without the recorder, µs."""
    rounds, steps = (3, 500) if smoke else (7, 5000)
    actions = kept_actions(steps)

    def case(*, is_recorded: bool) -> dict[str, float]:
        with tempfile.TemporaryDirectory() as folder:
            env = embodied_env.make(endless_arm(), backend="mujoco", record=folder if is_recorded else None)
            with contextlib.closing(env):
                env.reset(seed=0)
                p50, p99 = np.percentile(durations_us(env.step, actions), (50, 99))
        return {"p50": float(p50), "p99": float(p99)}

    return run_rounds(
        {"not recorded": lambda: case(is_recorded=False), "recorded": lambda: case(is_recorded=True)}, rounds
    )
