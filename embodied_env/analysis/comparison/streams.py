"""Streams of numbers and of events of one run, summed up in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodied_env.analysis.statistics import autoregressive_count
from embodied_env.core.latency.statistics import Reservoir


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """What a stream of `count` numbers says, in its own unit.

    `missing` counts the steps in which there should be one and is none. `effective_count` is how many independent
    numbers they are worth. `quantiles` are those of the shares `QUANTILES`.
    """

    count: int
    missing: int
    effective_count: float
    mean: float
    least: float
    most: float
    quantiles: tuple[float, ...]

    def quantile(self, share: float) -> float:
        """Return the quantile of `share`, one of `QUANTILES`."""
        return self.quantiles[QUANTILES.index(share)]


QUANTILES = (0.01, *(round(0.025 * i, 3) for i in range(1, 40)), 0.99)
"""From the first to the last hundredth, in steps of 2.5 %; 0.05, 0.5 and 0.95 are among them."""


class Stream:
    """Takes in the numbers of one thing, step by step. Memory does not grow with the steps."""

    def __init__(self, *, seed: str = "") -> None:
        """Begin with no number."""
        self.missing = 0
        self._sample = Reservoir(seed=seed)
        self._chain = _Chain()
        self._least, self._most, self._sum = math.inf, -math.inf, 0.0

    def add(self, value: float, episode: int) -> None:
        """Take in the finite number of one step of this episode."""
        self._chain.add(value, episode)
        self._take(value)

    def add_all(self, values: Sequence[float], episode: int) -> None:
        """Take in the finite numbers of one step, 1 or more: many of a kind, which say no more than one if they agree.

        How far steps hang together is told by their means.
        """
        self._chain.add(math.fsum(values) / len(values), episode)
        for value in values:
            self._take(value)

    def miss(self) -> None:
        """Note a number that should be there, and is not."""
        self.missing += 1

    @property
    def count(self) -> int:
        """How many numbers were taken in."""
        return self._sample.count

    def values(self) -> NDArray[np.float64]:
        """Return a fair sample of the numbers, in ascending order; all of them up to `KEPT`."""
        return self._sample.values()

    def numbers(self) -> Numbers:
        """Return what the numbers say; there must be one."""
        return Numbers(
            count=self.count,
            missing=self.missing,
            effective_count=self._chain.effective_count(),
            mean=self._sum / self.count,
            least=self._least,
            most=self._most,
            quantiles=tuple(np.quantile(self.values(), QUANTILES).tolist()),
        )

    def _take(self, value: float) -> None:
        self._least, self._most = min(self._least, value), max(self._most, value)
        self._sum += value
        self._sample.add(value)


class _Chain:
    """How far the number of a step hangs together with that of the step before, within episodes."""

    def __init__(self) -> None:
        self._count = self._episodes = self._pairs = 0
        self._episode = -1
        self._first = self._last = 0.0
        self._sum = self._squares = 0.0  # of the numbers, less the first, so that nothing cancels
        self._changes = 0.0  # squared, from step to step

    def add(self, value: float, episode: int) -> None:
        if not self._count:
            self._first = value
        self._count += 1
        if episode != self._episode:
            self._episode = episode
            self._episodes += 1
        else:
            change = value - self._last
            self._pairs += 1
            self._changes += change * change
        self._last = value
        moved = value - self._first
        self._sum += moved
        self._squares += moved * moved

    def effective_count(self) -> float:
        """Return how many independent numbers these are worth.

        Numbers that never vary do not show how they hang together; they are taken as independent.
        """
        mean = self._sum / self._count
        variance = self._squares / self._count - mean * mean
        if not (self._pairs and math.isfinite(variance) and variance > 0.0):
            return float(self._count)
        lag1 = 1.0 - self._changes / self._pairs / (2.0 * variance)  # E(x' - x)^2 = 2 var (1 - r)
        return autoregressive_count(self._count, min(1.0, max(-1.0, lag1)), least=self._episodes)


@dataclass(frozen=True, kw_only=True)
class Share:
    """In how many of `total` steps something was so, and how many independent steps these are worth."""

    count: int
    total: int
    effective_total: float

    @property
    def share(self) -> float:
        """From 0 to 1; NaN of no step."""
        return self.count / self.total if self.total else math.nan


class EventCounter:
    """Counts the steps in which something was so. It need not be told of the others."""

    def __init__(self) -> None:
        """Begin with no step."""
        self._count = self._pairs = 0
        self._last = -1

    def add(self, step: int) -> None:
        """It was so in the step number `step`, told in ascending order; steps of two episodes are no neighbours."""
        if step == self._last:
            return
        self._count += 1
        self._pairs += step == self._last + 1
        self._last = step

    def share(self, total: int, episodes: int) -> Share:
        """Return its share of `total` steps in so many `episodes`; 1 or more."""
        share = self._count / total
        variance = share * (1.0 - share)
        if variance == 0.0:
            return Share(count=self._count, total=total, effective_total=float(total))
        neighbours = max(1, total - episodes)
        lag1 = (self._pairs / neighbours - share * share) / variance
        worth = autoregressive_count(total, min(1.0, max(-1.0, lag1)), least=min(episodes, total))
        return Share(count=self._count, total=total, effective_total=worth)
