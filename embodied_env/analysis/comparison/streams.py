"""Streams of numbers, and shares of steps with an event, of one run, in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from embodied_env.analysis.report.time_series import Occurrences
from embodied_env.analysis.statistics import Sample, autoregressive_count

QUANTILES = (0.01, *(round(0.025 * i, 3) for i in range(1, 40)), 0.99)
"""Shares from 1 % to 99 % in steps of 2.5 %; 0.05, 0.5 and 0.95 are among them."""


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """Summary of a stream of `count` numbers, in its own unit.

    `missing` counts the steps without a number. `effective_count` is the number of independent values that are worth as
    much. `quantiles` are those of the shares `QUANTILES`.
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


class Stream(Sample):
    """Numbers of one feature, step by step, in memory that does not grow with the steps.

    `missing` counts the steps without a number.
    """

    def __init__(self) -> None:
        super().__init__()
        self.missing = 0
        # of the means of steps, less the first one so that nothing cancels: for the correlation of successive steps
        self._steps = self._episodes = self._pairs = 0
        self._episode = -1
        self._first = self._last = 0.0
        self._step_sum = self._step_squares = self._squared_changes = 0.0

    def add_step(self, values: Sequence[float], episode: int) -> None:
        """Add the finite numbers of one step, one or more. Successive steps are correlated through their means."""
        for value in values:
            self.add(value)
        mean = math.fsum(values) / len(values)
        if not self._steps:
            self._first = mean
        if episode == self._episode:
            self._pairs += 1
            self._squared_changes += (mean - self._last) * (mean - self._last)
        else:
            self._episode = episode
            self._episodes += 1
        self._steps += 1
        self._last = mean
        self._step_sum += mean - self._first
        self._step_squares += (mean - self._first) * (mean - self._first)

    def numbers(self) -> Numbers:
        """Return the summary of the numbers; there must be one."""
        return Numbers(
            count=self.count,
            missing=self.missing,
            effective_count=self._effective_count(),
            mean=self.total / self.count,
            least=self.least,
            most=self.most,
            quantiles=tuple(np.quantile(self.values(), QUANTILES).tolist()),
        )

    def _effective_count(self) -> float:
        """Return how many independent steps these are worth; constant numbers are taken as independent."""
        mean = self._step_sum / self._steps
        variance = self._step_squares / self._steps - mean * mean
        if not (self._pairs and math.isfinite(variance) and variance > 0.0):
            return float(self._steps)
        lag1 = 1.0 - self._squared_changes / self._pairs / (2.0 * variance)  # E(x' - x)^2 = 2 var (1 - r)
        return autoregressive_count(self._steps, lag1, least=self._episodes)


@dataclass(frozen=True, kw_only=True)
class Share:
    """Number of steps with an event, of `total` steps, which are worth `effective_total` independent ones."""

    count: int
    total: int
    effective_total: float

    @property
    def share(self) -> float:
        """From 0 to 1; NaN without steps."""
        return self.count / self.total if self.total else math.nan


def event_share(event: Occurrences, total: int, episodes: int) -> Share:
    """Return the share of `total` steps with an event, in `episodes` episodes, each 1 or more.

    Numbers of steps of two episodes must not be adjacent.
    """
    share = event.steps / total
    variance = share * (1.0 - share)
    effective_total = float(total)
    if variance > 0.0:
        lag1 = (event.adjacent / max(1, total - episodes) - share * share) / variance
        effective_total = autoregressive_count(total, lag1, least=min(episodes, total))
    return Share(count=event.steps, total=total, effective_total=effective_total)
