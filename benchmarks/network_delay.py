"""Age of executed actions, and control periods without one, against the delay of a policy server, in real time.

    python benchmarks/network_delay.py [--rates HZ ...] [--delays MS ...] [--modes MODE ...] [--seconds S]

Measures 90 settings by default, one after the other, and prints the tables in Markdown: about 11 minutes on an
otherwise idle machine.

A policy draws circles with two joints of the shipped arm, from the last applied command, in chunks of 16 positions.
Each chunk leads to its own circle, some hundredths of a radian from the others, since the chunks of learned
policies differ, too. An inference takes the delay, with a uniform jitter of 20 %. The contract is the shipped one with
another rate; only pauses and missing actions do not end the episode.

- Age: from the observation to the publication of the action; of a blended action the mean by weight.
- Without an action: share of the control periods in which no action was executed, because the robot waited, because no
  chunk had an action, or because the action was refused as too late.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

import embodied_env
from embodied_env.contract import Contract, load_contract
from embodied_env.core.code_types import Severity
from embodied_env.core.policy import CHUNK_MODES, PolicyIdentity
from embodied_env.policies.chunk_execution import ChunkRunner

RATES_HZ, DELAYS_MS = (10, 20, 50), (0, 50, 100, 200, 300, 500)
JITTER = 0.2  # of the delay
WARM_UP_S = 1.0
LENGTH = 16  # of a chunk
JOINTS, RADIUS, FREQUENCY_HZ = (0, 5), 0.5, 0.25  # of the circle, rad and Hz
SPREAD, SETTLING_S = 0.02, 0.2  # of the circles, rad; time constant in which a chunk reaches its own


class Circles:
    """A policy that draws circles, behind a delay."""

    identity = PolicyIdentity(name="circles", format="python")
    continues_chunks = True

    def __init__(self, contract: Contract, delay_s: float) -> None:
        self._period_s, self._delay_s = contract.control_period_s, delay_s
        self.begun_ns: list[int] = []  # when each inference began

    def reset(self, *, seed: int, episode_index: int) -> None:  # noqa: ARG002 - one episode
        self._rng = np.random.default_rng(seed)
        self._center: NDArray[np.float64] | None = None
        self._chunk = np.zeros((0, 6))
        self._prefix: tuple[int, int] | None = None

    def continue_chunk(self, *, executed: int, delay: int) -> None:
        self._prefix = executed, delay

    def __call__(self, observation: Mapping[str, NDArray[Any]], /) -> NDArray[np.float64]:
        self.begun_ns.append(time.monotonic_ns())
        chunk = self._plan(observation["applied_actions"])
        if self._prefix is not None:
            chunk = self._continue(chunk, *self._prefix)
        self._chunk, self._prefix = chunk, None
        time.sleep(self._delay_s * (1.0 + self._rng.uniform(-JITTER, JITTER)))
        return chunk

    def _plan(self, applied: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the way along the circle from the last applied command, to a circle that is drawn for the chunk."""
        arm = applied[list(JOINTS)]
        if self._center is None:
            self._center = arm - [RADIUS, 0.0]
        x, y = arm - self._center
        times = self._period_s * np.arange(1, LENGTH + 1)
        angles = math.atan2(y, x) + 2.0 * np.pi * FREQUENCY_HZ * times
        own = self._rng.normal(0.0, SPREAD, 2)
        circle = self._center + RADIUS * np.column_stack([np.cos(angles), np.sin(angles)])
        offset = np.array([x, y]) * (1.0 - RADIUS / math.hypot(x, y))
        settled = np.exp(-times / SETTLING_S)[:, None]
        chunk = np.tile(applied, (LENGTH, 1))
        chunk[:, JOINTS] = circle + own + (offset - own) * settled
        return chunk

    def _continue(self, chunk: NDArray[np.float64], executed: int, delay: int) -> NDArray[np.float64]:
        """Return the chunk with those actions of the last one that are executed meanwhile, faded into the others."""
        left = self._chunk[executed:]
        weights = np.clip((len(left) - np.arange(len(left))) / max(1, len(left) - delay), 0.0, 1.0)[:, None]
        return np.vstack([weights * left + (1.0 - weights) * chunk[: len(left)], chunk[len(left) :]])

    def close(self) -> None:
        """Free nothing."""


def contract_at(rate_hz: int) -> Contract:
    """Return the shipped arm with position commands and an episode that does not end by pauses."""
    shipped = load_contract("arm_reach")
    arm = replace(shipped.actuators["arm"], command="position", scale="physical")
    steps = 1000 * rate_hz
    return replace(
        shipped,
        control_period_s=1.0 / rate_hz,
        actuators={"arm": arm},
        action=replace(shipped.action, dtype="float64"),
        applied_actions=1,
        episode=replace(shipped.episode, horizon_steps=steps),
        task=replace(shipped.task, parameters={**shipped.task.parameters, "success_radius_m": 1e-6}),
        policy=replace(shipped.policy, max_missed=steps),
        safety=replace(shipped.safety, watchdog=replace(shipped.safety.watchdog, stop_steps=steps)),
    )


def measure(
    rate_hz: int, mode: str, delay_ms: int, seconds: float, backend: str = "mujoco", *, warm_up_s: float = WARM_UP_S
) -> tuple[list[float], float]:
    """Run one episode, and measure its actions.

    Returns:
        The ages of the executed actions, ms, and the share of periods without an action, %.
    """
    contract = contract_at(rate_hz)
    policy = Circles(contract, delay_ms / 1e3)
    ages_ms: list[float] = []
    began_ns = now_ns = 0
    with (
        closing(ChunkRunner(policy, mode, pacing="realtime")) as runner,
        closing(embodied_env.make(contract, backend=backend, pacing="realtime")) as env,
    ):
        runner.reset(seed=1, episode_index=0)
        observation, _ = env.reset(seed=1)
        warm_ns = time.monotonic_ns() + round(warm_up_s * 1e9)
        while now_ns < warm_ns + seconds * 1e9:
            action = runner(observation)
            account = runner.take_accounts().get("chunk")
            observation, _, terminated, truncated, info = env.step(action)
            now_ns = time.monotonic_ns()
            if terminated or truncated:
                raise SystemExit(f"{rate_hz} Hz, {mode}, {delay_ms} ms: the episode ended ({info['end_reason']})")
            taken = env.unwrapped.last_transition
            if not began_ns:
                began_ns = now_ns if now_ns > warm_ns else 0
            elif taken.report.disposition < Severity.HOLD:
                ages_ms.append((taken.stamps_ns["published"] - begun_ns(policy.begun_ns, account)) / 1e6)
    periods = (now_ns - began_ns) / contract.control_period_ns
    return ages_ms, 100.0 * max(0.0, 1.0 - len(ages_ms) / max(periods, 1.0))


def begun_ns(begun: Sequence[int], account: Mapping[str, Any] | None) -> float:
    """Return when the inference of an action began, or the mean of those of a blended action.

    Without an account it is the last inference that began.
    """
    if account is None:
        return begun[-1]
    used = [(account["id"], account["weight"]), *((number, weight) for number, _, weight in account["older"])]
    return sum(weight * begun[number] for number, weight in used)


def main() -> None:
    """Measure, and print a table for each result with a line for each rate and mode and a column for each delay."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rates", type=int, nargs="*", default=RATES_HZ, help="in Hz (default: 10 20 50)")
    parser.add_argument("--delays", type=int, nargs="*", default=DELAYS_MS, help="in ms (default: 0 to 500)")
    parser.add_argument("--modes", nargs="*", default=CHUNK_MODES, choices=CHUNK_MODES, help="default: all")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each setting (default: 6)")
    args = parser.parse_args()
    heads = ["rate", "chunks", *(f"{delay} ms" for delay in args.delays)]
    ages, shares = ([f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"] for _ in range(2))
    for rate, mode in product(args.rates, args.modes):
        print(f"{rate} Hz, {mode}", file=sys.stderr)
        found = [measure(rate, mode, delay, args.seconds) for delay in args.delays]
        cells = [f"{np.mean(ages_ms):.0f} ({max(ages_ms):.0f})" if ages_ms else "-" for ages_ms, _ in found]
        ages.append(f"| {rate} Hz | `{mode}` | {' | '.join(cells)} |")
        shares.append(f"| {rate} Hz | `{mode}` | {' | '.join(f'{without:.0f}' for _, without in found)} |")
    print("\nAge of the executed action, ms: mean (max)\n", *ages, sep="\n")
    print("\nControl periods without an action, %\n", *shares, sep="\n")


if __name__ == "__main__":
    main()
