"""Run the cases of a benchmark in shuffled rounds, with one figure per case and round.

Ratios compare figures of the same round.

The speed of a machine changes by the minute, so cases are compared within a round, which runs all of them in an order
of its own. An estimate is the median over rounds, with a bootstrap interval.
"""

from __future__ import annotations

import gc
import random
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Samples = dict[str, list[float]]  # name -> a figure for each round
Figures = Callable[[Samples], list[float]]
Case = Callable[[], float | Mapping[str, float]]  # runs once; its figure, or several with their names

RESAMPLES = 2000


def run_rounds(cases: Mapping[str, Case], rounds: int) -> Samples:
    """Run every case in every round, in shuffled order."""
    samples: dict[str, Samples] = {name: {} for name in cases}
    for number in range(1, rounds + 1):
        for name in random.sample(list(cases), len(cases)):
            if sys.stderr.isatty():
                print(f"\rround {number} of {rounds}: {name:60.60}", end="", file=sys.stderr, flush=True)
            gc.collect()
            found = cases[name]()
            for figure, value in (found if isinstance(found, Mapping) else {"": found}).items():
                samples[name].setdefault(f"{name}, {figure}" if figure else name, []).append(value)
    if sys.stderr.isatty():
        print(f"\r{'':80}\r", end="", file=sys.stderr)
    return {name: values for each in samples.values() for name, values in each.items()}


def durations_us(
    step: Callable[[Any], Any], inputs: Iterable[Any], now_ns: Callable[[], int] = time.perf_counter_ns
) -> NDArray[np.float64]:
    """Call `step` with each input, and return the duration of each call by the clock `now_ns`, µs."""
    found = []
    for each in inputs:
        start_ns = now_ns()
        step(each)
        found.append(now_ns() - start_ns)
    return np.array(found) / 1e3


def median_cpu_us(step: Callable[[Any], Any], inputs: Iterable[Any]) -> float:
    """Return the median CPU time that this thread takes for a call, µs."""
    return float(np.median(durations_us(step, inputs, time.thread_time_ns)))


def mean_us(
    step: Callable[[Any], Any],
    inputs: Collection[Any],
    *,
    per_call: int = 1,
    now_ns: Callable[[], int] = time.perf_counter_ns,
) -> float:
    """Return the mean duration of a call, µs, divided by the units of work in it."""
    return float(durations_us(step, inputs, now_ns).sum()) / len(inputs) / per_call


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A median with its bootstrap interval of 95 %."""

    value: float
    low: float
    high: float


def estimate(values: Sequence[float]) -> Estimate:
    """Return the median over rounds with a bootstrap interval.

    Equal values give equal intervals.
    """
    rounds = np.asarray(values, dtype=np.float64)
    draws = np.random.default_rng(0).integers(0, len(rounds), (RESAMPLES, len(rounds)))
    low, high = np.percentile(np.median(rounds[draws], axis=1), (2.5, 97.5))
    return Estimate(value=float(np.median(rounds)), low=float(low), high=float(high))


def figure(name: str) -> Figures:
    """Return the samples of one name."""
    return lambda samples: samples[name]


def ratio(top: str, bottom: str) -> Figures:
    """Return the ratio of two figures in each round."""
    return lambda samples: [a / b for a, b in zip(samples[top], samples[bottom], strict=True)]


def excess(more: str, less: str, unit: str) -> Figures:
    """Return the difference of two figures in each round, as a multiple of a third."""
    return lambda samples: [(a - b) / c for a, b, c in zip(samples[more], samples[less], samples[unit], strict=True)]


def idle_rate(part: str, whole: str, cores: int) -> Figures:
    """Return the rate of `whole` relative to that of `part` on idle cores, from CPU times.

    The rest of `whole` is one thread.
    """
    return lambda samples: [a / (a + cores * (b - a)) for a, b in zip(samples[part], samples[whole], strict=True)]


def difference(more: str, less: str) -> Figures:
    """Return the difference of two figures in each round."""
    return lambda samples: [a - b for a, b in zip(samples[more], samples[less], strict=True)]
