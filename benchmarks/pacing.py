"""Lateness of steps at 100 Hz while recording, of a loop that only sleeps until absolute deadlines, and of rtgym.

Each round runs each of them for 5 s, so that all rounds have over 10,000 periods. Lateness is the time from a deadline
``t0 + k * period`` to the return of the step that waited for it. The loop records nothing and simulates nothing: it is
the floor. The account is the working time of a step of ours, all of it but the wait; mean lateness is compared with its
mean, p99 with its p99. rtgym runs where it is installed (``pip install "embodied_env[bench]"``); it publishes no
deadlines, so its grid is that of its earliest step.
"""

from __future__ import annotations

import contextlib
import importlib.util
import tempfile
import time
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import embodied_env

from .arm import endless_arm
from .harness import Case, Samples, run_rounds

RATE_HZ, SECONDS, ROUNDS, WARM_UP = 100, 5.25, 20, 20
PERIOD_NS = 1_000_000_000 // RATE_HZ


def measure(*, smoke: bool) -> Samples:
    """Return figures of lateness in each round, µs, and errors of the mean rate, %."""
    steps = 100 if smoke else round(SECONDS * RATE_HZ)
    cases: dict[str, Case] = {"plain loop": lambda: plain_loop(steps), "embodied_env": lambda: ours(steps)}
    if importlib.util.find_spec("rtgym") is not None:
        cases["rtgym"] = lambda: rtgym_loop(steps)
    return run_rounds(cases, 2 if smoke else ROUNDS)


def figures(returned_ns: NDArray[np.int64], deadlines_ns: NDArray[np.int64]) -> dict[str, float]:
    """Return lateness after the warm-up, and the error of the mean rate."""
    late_us = (returned_ns - deadlines_ns)[WARM_UP:] / 1e3
    returned_ns = returned_ns[WARM_UP:]
    nominal_ns = (len(returned_ns) - 1) * PERIOD_NS
    rate_error = abs(nominal_ns / float(returned_ns[-1] - returned_ns[0]) - 1.0)
    return {**_summary(late_us), "rate error, %": 100.0 * rate_error}


def _summary(times_us: NDArray[np.float64]) -> dict[str, float]:
    return {"mean": float(times_us.mean()), **{f"p{q}": float(np.percentile(times_us, q)) for q in (50, 99)}}


def plain_loop(steps: int) -> dict[str, float]:
    """Sleep until absolute deadlines, and do nothing else."""
    deadlines = time.monotonic_ns() + PERIOD_NS * np.arange(1, steps + 1)
    returned = np.zeros(steps, dtype=np.int64)
    for step, deadline_ns in enumerate(deadlines.tolist()):
        if (left_ns := deadline_ns - time.monotonic_ns()) > 0:
            time.sleep(left_ns / 1e9)
        returned[step] = time.monotonic_ns()
    return figures(returned, deadlines)


def ours(steps: int) -> dict[str, float]:
    """Step the `fake` world in real time, recorded."""
    arm = endless_arm()
    watchdog = replace(arm.safety.watchdog, hold_steps=RATE_HZ, stop_steps=2 * RATE_HZ)
    contract = replace(arm, control_period_s=1 / RATE_HZ, safety=replace(arm.safety, watchdog=watchdog))
    returned, deadlines = np.zeros(steps, dtype=np.int64), np.zeros(steps, dtype=np.int64)
    account_us = np.zeros(steps)
    with tempfile.TemporaryDirectory() as folder:
        env = embodied_env.make(contract, backend="fake", pacing="realtime", record=folder)
        with contextlib.closing(env):
            env.reset(seed=1)
            pacer = env.unwrapped.stepper.backend.pacer
            for step in range(steps):
                start_ns = time.monotonic_ns()
                *_, terminated, truncated, info = env.step(np.zeros(6))
                returned[step] = time.monotonic_ns()
                deadlines[step] = pacer.deadline_ns - PERIOD_NS
                account_us[step] = (returned[step] - start_ns) / 1e3 - 1e6 * info["latency"]["world_s"]
                if terminated or truncated:
                    raise AssertionError(f"the episode ended: {info['end_reason']}")
    account = {f"account, {name}": value for name, value in _summary(account_us[WARM_UP:]).items()}
    return {**figures(returned, deadlines), **account}


def rtgym_loop(steps: int) -> dict[str, float]:
    """Step rtgym's thread-safe environment over a device that does nothing."""
    import gymnasium  # noqa: PLC0415 - with rtgym
    import rtgym  # noqa: PLC0415 - it may not be installed

    class Device(rtgym.RealTimeGymInterface):
        def send_control(self, control: object) -> None:
            pass

        def reset(self, **_: object) -> tuple[list[NDArray[np.float64]], dict[str, Any]]:
            return [np.zeros(12)], {}

        def get_obs_rew_terminated_info(self) -> tuple[list[NDArray[np.float64]], float, bool, dict[str, Any]]:
            return [np.zeros(12)], 0.0, False, {}

        def get_observation_space(self) -> gymnasium.Space[Any]:
            return gymnasium.spaces.Tuple((gymnasium.spaces.Box(-1.0, 1.0, (12,), np.float64),))

        def get_action_space(self) -> gymnasium.Space[Any]:
            return gymnasium.spaces.Box(-1.0, 1.0, (6,), np.float64)

        def get_default_action(self) -> NDArray[np.float64]:
            return np.zeros(6)

    times = dict.fromkeys(("time_step_duration", "start_obs_capture"), 1 / RATE_HZ)
    config = {**rtgym.DEFAULT_CONFIG_DICT, "interface": Device, **times}
    returned = np.zeros(steps, dtype=np.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # timeouts of steps, which are counted here
        env: Any = gymnasium.make("real-time-gym-ts-v1", config=config, disable_env_checker=True).unwrapped
        env.reset()
        for step in range(steps):
            env.step(np.zeros(6))
            returned[step] = time.monotonic_ns()
        env.wait()
    grid = PERIOD_NS * np.arange(steps)
    return figures(returned, grid + np.min((returned - grid)[WARM_UP:]))
