"""Age of executed actions, pauses and jerk against the delay of a policy server, in real time.

    python benchmarks/network_delay.py [--rates HZ ...] [--delays MS ...] [--modes MODE ...] [--seconds S]

Measures 180 settings by default, one after the other, and prints the tables in Markdown: about 22 minutes on an
otherwise idle machine.

A policy draws circles with two joints of the shipped arm, from the last applied command, in chunks of 16 positions.
Each chunk leads to its own circle, some hundredths of a radian from the others, since the chunks of learned
policies differ, too. An inference takes the delay, with a uniform jitter of 20 %. The contract is the shipped one with
another rate; only pauses and missing actions do not end the episode.

- Age: from the observation to the publication of the action; of a blended action the mean by weight.
- Without an action: share of the control periods in which no action was executed, because the robot waited, because no
  chunk had an action, or because the action was refused as too late.
- Jerk: that of a drive whose controller follows each published command at once: the held command passes four lags of
  10 ms (-3 dB at 7 Hz). The larger of the two joints, every millisecond. Third differences of the commands themselves
  depend on the rate at which they are published, and could not be compared.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

import embodied_env
from embodied_env.backends.fake import FakeBackend
from embodied_env.backends.mujoco_realtime import RealtimeMujocoBackend
from embodied_env.contract import Contract, load_contract
from embodied_env.core.codes import Severity
from embodied_env.core.policy import CHUNK_MODES, PolicyIdentity
from embodied_env.core.types import ApprovedCommand, SentCommand
from embodied_env.policies.chunks import ChunkRunner

RATES_HZ, DELAYS_MS = (10, 20, 50), (0, 50, 100, 200, 300, 500)
SETPOINT_HZ = 200
JITTER = 0.2  # of the delay
WARM_UP_S = 1.0
LENGTH = 16  # of a chunk
JOINTS, RADIUS, FREQUENCY_HZ = (0, 5), 0.5, 0.25  # of the circle, rad and Hz
SPREAD, SETTLING_S = 0.02, 0.2  # of the circles, rad; time constant in which a chunk reaches its own
LAG_S, TICK_NS = 0.01, 1_000_000

Backend = type[FakeBackend | RealtimeMujocoBackend]
Published = list[tuple[int, NDArray[np.float64]]]  # when each command left, ns, and its positions


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The parameters of one measurement."""

    rate_hz: int
    setpoint_hz: int | None
    mode: str
    delay_ms: int


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
        beside = np.array([x, y]) * (1.0 - RADIUS / math.hypot(x, y))
        settled = np.exp(-times / SETTLING_S)[:, None]
        chunk = np.tile(applied, (LENGTH, 1))
        chunk[:, JOINTS] = circle + own + (beside - own) * settled
        return chunk

    def _continue(self, chunk: NDArray[np.float64], executed: int, delay: int) -> NDArray[np.float64]:
        """Return the chunk with those actions of the last one that are executed meanwhile, faded into the others."""
        left = self._chunk[executed:]
        weights = np.clip((len(left) - np.arange(len(left))) / max(1, len(left) - delay), 0.0, 1.0)[:, None]
        return np.vstack([weights * left + (1.0 - weights) * chunk[: len(left)], chunk[len(left) :]])

    def close(self) -> None:
        """Free nothing."""


def contract_at(setting: Setting) -> Contract:
    """Return the shipped arm, commanded by position; pauses do not end its episode."""
    shipped = load_contract("arm_reach")
    setpoint_rate_hz = None if setting.setpoint_hz is None else float(setting.setpoint_hz)
    arm = replace(shipped.actuators["arm"], command="position", scale="physical", setpoint_rate_hz=setpoint_rate_hz)
    steps = 1000 * setting.rate_hz
    return replace(
        shipped,
        control_period_s=1.0 / setting.rate_hz,
        actuators={"arm": arm},
        action=replace(shipped.action, dtype="float64"),
        applied_actions=1,
        episode=replace(shipped.episode, horizon_steps=steps),
        task=replace(shipped.task, parameters={**shipped.task.parameters, "success_radius_m": 1e-6}),
        policy=replace(shipped.policy, max_missed=steps),
        safety=replace(shipped.safety, watchdog=replace(shipped.safety.watchdog, stop_steps=steps)),
    )


@contextmanager
def commands_of(backend: Backend) -> Iterator[Published]:
    """Collect every command that a backend publishes, where it leaves."""
    found: Published = []
    send = backend.send

    def send_and_collect(self: Any, command: ApprovedCommand) -> SentCommand:  # noqa: ANN401 - either class
        found.append((time.monotonic_ns(), command.values))
        return send(self, command)

    backend.send = send_and_collect  # type: ignore[method-assign]
    try:
        yield found
    finally:
        backend.send = send  # type: ignore[method-assign]


def measure(setting: Setting, seconds: float, backend: Backend, *, warm_up_s: float = WARM_UP_S) -> dict[str, Any]:
    """Run one episode; return its row of the result."""
    contract = contract_at(setting)
    policy = Circles(contract, setting.delay_ms / 1e3)
    runner = ChunkRunner(policy, setting.mode, pacing="realtime")
    ages_ns: list[float] = []
    gaps_s: list[float] = []
    began_ns = now_ns = 0
    with commands_of(backend) as published:
        env = embodied_env.make(contract, backend="fake" if backend is FakeBackend else "mujoco", pacing="realtime")
        try:
            runner.reset(seed=1, episode_index=0)
            observation, _ = env.reset(seed=1)
            warm_ns = time.monotonic_ns() + round(warm_up_s * 1e9)
            while now_ns < warm_ns + seconds * 1e9:
                action = runner(observation)
                account = runner.take_accounts().get("chunk")
                observation, _, terminated, truncated, info = env.step(action)
                now_ns = time.monotonic_ns()
                if terminated or truncated:
                    raise SystemExit(f"{setting}: the episode ended ({info['end_reason']})")
                taken = env.unwrapped.last_transition
                if not began_ns:
                    began_ns = now_ns if now_ns > warm_ns else 0
                    continue
                if taken.report.disposition < Severity.HOLD:
                    ages_ns.append(taken.stamps_ns["published"] - begun_ns(policy.begun_ns, account))
                if setting.setpoint_hz is not None:
                    gaps_s.append(info["annotations"]["setpoints"]["worst_gap_s"])
        finally:
            env.close()
            runner.close()
    jerks = jerk_of_drives(published, began_ns, now_ns)
    periods = (now_ns - began_ns) / contract.control_period_ns
    return {
        "age_mean_ms": float(np.mean(ages_ns)) / 1e6 if ages_ns else None,
        "age_max_ms": max(ages_ns) / 1e6 if ages_ns else None,
        "without_percent": 100.0 * max(0.0, 1.0 - len(ages_ns) / periods),
        "jerk_p99": float(np.percentile(jerks, 99)) if ages_ns else None,
        "jerk_max": float(jerks.max()) if ages_ns else None,
        "gap_p50_ms": float(np.median(gaps_s)) * 1e3 if gaps_s else None,
        "gap_max_ms": max(gaps_s) * 1e3 if gaps_s else None,
    }


def begun_ns(begun: Sequence[int], account: Mapping[str, Any] | None) -> float:
    """Return when the inference of an action began, or the mean of those of a blended one; no account: the last."""
    if account is None:
        return begun[-1]
    used = [(account["id"], account["weight"]), *((number, weight) for number, _, weight in account["older"])]
    return sum(weight * begun[number] for number, weight in used)


def jerk_of_drives(published: Published, begin_ns: int, end_ns: int) -> NDArray[np.float64]:
    """Return the jerk of the faster joint at each tick, rad/s^3, behind four lags."""
    stamps = np.array([stamp for stamp, _ in published])
    values = np.array([positions[list(JOINTS)] for _, positions in published])
    count = (end_ns - int(stamps[0])) // TICK_NS + 1
    jumps = np.zeros((count, len(JOINTS)))
    ticks = -((stamps[0] - stamps[1:]) // TICK_NS)
    is_seen = ticks < count
    np.add.at(jumps, ticks[is_seen], np.diff(values, axis=0)[is_seen])
    x = np.arange(0.0, 20.0, TICK_NS / 1e9 / LAG_S)
    response = (x - x**2 + x**3 / 6.0) * np.exp(-x) / LAG_S**3  # third derivative of that to a unit jump
    jerk = np.column_stack([np.convolve(joint, response)[:count] for joint in jumps.T])
    return np.abs(jerk[max(0, (begin_ns - int(stamps[0])) // TICK_NS) :]).max(axis=1)


Rows = Mapping[Setting, Mapping[str, Any]]
Cell = Callable[[Mapping[str, Any]], str]


def tables(rows: Rows) -> str:
    """Return the tables in Markdown."""
    return "\n".join([
        table(rows, "Age of the executed action, ms: mean (max)", None, age),
        table(rows, "Control periods without an action, %", None, lambda row: f"{row['without_percent']:.0f}"),
        table(rows, "Jerk, 1000 rad/s³, without setpoints: 99 % (max)", None, jerk),
        table(rows, f"Jerk, 1000 rad/s³, with setpoints at {SETPOINT_HZ} Hz: 99 % (max)", SETPOINT_HZ, jerk),
        *punctuality(rows),
    ])  # fmt: skip


def table(rows: Rows, title: str, setpoint_hz: int | None, cell: Cell) -> str:
    """Return one table: a line for each rate and mode, a column for each delay."""
    delays = sorted({setting.delay_ms for setting in rows})
    heads = ["rate", "chunks", *(f"{delay} ms" for delay in delays)]
    lines = [f"\n{title}\n", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for rate in sorted({setting.rate_hz for setting in rows}):
        for mode in CHUNK_MODES:
            keys = [Setting(rate_hz=rate, setpoint_hz=setpoint_hz, mode=mode, delay_ms=delay) for delay in delays]
            found = [cell(rows[key]) if key in rows else "" for key in keys]
            if any(found):
                lines.append(f"| {' | '.join([f'{rate} Hz', f'`{mode}`', *found])} |")
    return "\n".join(lines)


def age(row: Mapping[str, Any]) -> str:
    """Return the cell of a table; without an action there is no age."""
    return "-" if row["age_mean_ms"] is None else f"{row['age_mean_ms']:.0f} ({row['age_max_ms']:.0f})"


def jerk(row: Mapping[str, Any]) -> str:
    """Return the cell of a table; without an action there is no motion."""
    return "-" if row["jerk_p99"] is None else f"{row['jerk_p99'] / 1e3:.2g} ({row['jerk_max'] / 1e3:.2g})"


def punctuality(rows: Rows) -> Iterable[str]:
    """Return a line about the gaps between setpoints."""
    gaps = [row for row in rows.values() if row["gap_max_ms"] is not None]
    if gaps:
        median, worst = np.median([row["gap_p50_ms"] for row in gaps]), max(row["gap_max_ms"] for row in gaps)
        yield f"\nWorst gap of the setpoints in a step, ms: median {median:.1f}, max {worst:.0f}"


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rates", type=int, nargs="*", default=RATES_HZ, help="in Hz (default: 10 20 50)")
    parser.add_argument("--delays", type=int, nargs="*", default=DELAYS_MS, help="in ms (default: 0 to 500)")
    parser.add_argument("--modes", nargs="*", default=CHUNK_MODES, choices=CHUNK_MODES, help="default: all")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each setting (default: 6)")
    args = parser.parse_args()
    rows = {}
    for rate, delay, mode, setpoint_hz in product(args.rates, args.delays, args.modes, (None, SETPOINT_HZ)):
        setting = Setting(rate_hz=rate, setpoint_hz=setpoint_hz, mode=mode, delay_ms=delay)
        print(setting, file=sys.stderr)
        rows[setting] = measure(setting, args.seconds, RealtimeMujocoBackend)
    print(tables(rows))


if __name__ == "__main__":
    main()
