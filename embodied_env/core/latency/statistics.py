"""Percentiles per stage, over the infos of many steps, in memory that does not grow with them.

Only measured values count: those whose quality is OK. An upper bound (UNMARKED), a first step (FIRST), a held reading
(STALE, ...) or a negative difference of two clocks is no measurement of its stage, and NaN is none at all.
"""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.core.codes import Quality

STAGES = (
    "driver_s",
    "transport_s",
    "transport_excess_s",
    "queue_s",
    "hold_s",
    "capture_age_s",
    "obs_skew_s",
    "obs_age_max_s",
    "handoff_s",
    "inference_s",
    "policy_s",
    "gate_s",
    "publish_s",
    "obs_to_command_s",
    "data_age_s",
    "actuation_s",
    "end_to_end_s",
    "world_s",
    "period_s",
    "jitter_s",
    "overrun_s",
)
"""In the order in which they happen."""

INJECTED_STAGES = tuple(f"injected.{name}_s" for name in ("age", "inference", "actuation", "data_age", "end_to_end"))
"""What was put into a world that waits, in its own time."""

EXACT = 65_536
"""Values of a stage up to which its percentiles are exact. Of more they are those of so many, drawn by a fixed seed."""

KEPT = 8192
"""Numbers of a stream that a `Reservoir` keeps; statistics of a shorter stream are exact."""

_AT_ONCE = 1024  # steps

_OK = int(Quality.OK)
_PERCENTILES = (50.0, 95.0, 99.0)


@dataclass(frozen=True, kw_only=True)
class StageStatistics:
    """What `count` measured values of one stage say, in seconds.

    Percentiles of up to `EXACT` values are exact, those of more are of a fair sample of so many: what is called the
    99th is one between the 98.9th and the 99.1st, in 99 of 100 cases. They interpolate linearly between the two nearest
    of the sorted values.
    """

    count: int
    p50_s: float
    p95_s: float
    p99_s: float
    max_s: float


class LatencyStatistics:
    """Takes in infos one by one. A stage appears with its first measured value; one per sensor is ``stage[sensor]``."""

    def __init__(self) -> None:
        """Begin with no step."""
        self._stages: dict[str, _Stage] = {}
        self._waiting = 0  # steps

    def add(self, info: Mapping[str, Any]) -> None:
        """Take in the info of one step, as `step` returned it or as it was recorded; one without latency counts not."""
        latency = info.get("latency")
        if isinstance(latency, Mapping):
            for stage, value_s in measured(latency):
                if stage not in self._stages:
                    self._stages[stage] = _Stage()
                self._stages[stage].newest.append(value_s)
            self._waiting += 1
        if self._waiting >= _AT_ONCE:
            self._waiting = 0
            for each in self._stages.values():
                each.settle()

    def statistics(self) -> dict[str, StageStatistics]:
        """Return the statistics of each stage that was measured at least once."""
        return {stage: each.statistics() for stage, each in self._stages.items()}


class _Stage:
    """The values of one stage: the newest wait until there are some to take in at once."""

    def __init__(self) -> None:
        self.newest = array("d")
        self._sample = Reservoir(capacity=EXACT)
        self._most_s = -math.inf

    def settle(self) -> None:
        if self.newest:
            self._most_s = max(self._most_s, *self.newest)
            self._sample.add_all(self.newest)
            self.newest = array("d")

    def statistics(self) -> StageStatistics:
        self.settle()
        p50_s, p95_s, p99_s = np.percentile(self._sample.values(), _PERCENTILES).tolist()
        return StageStatistics(count=self._sample.count, p50_s=p50_s, p95_s=p95_s, p99_s=p99_s, max_s=self._most_s)


def latency_statistics(infos: Iterable[Mapping[str, Any]]) -> dict[str, StageStatistics]:
    """Return the statistics of each stage over `infos`, the infos of steps."""
    accumulated = LatencyStatistics()
    for info in infos:
        accumulated.add(info)
    return accumulated.statistics()


def measured(latency: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the name and the seconds of each stage in ``info["latency"]`` whose quality says that it was measured.

    One per sensor is ``stage[sensor]``. What was injected is ``injected.stage``: those of which it says how long.
    """
    yield from _measured(latency, latency.get("quality", {}), "")
    if isinstance(injected := latency.get("injected"), Mapping):
        yield from _measured(injected, latency.get("quality", {}).get("injected", {}), "injected.")


def _measured(values: Mapping[str, Any], qualities: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    for stage, quality in qualities.items():
        value = values.get(stage)
        if stage == "injected":
            continue
        if isinstance(quality, Mapping) and isinstance(value, Mapping):
            for sensor, code in quality.items():
                if code == _OK and (seconds := _finite(value.get(sensor))) is not None:
                    yield f"{prefix}{stage}[{sensor}]", seconds
        elif quality == _OK and (seconds := _finite(value)) is not None:
            yield f"{prefix}{stage}", seconds


def _finite(value: object) -> float | None:
    return float(value) if isinstance(value, float) and math.isfinite(value) else None


class Reservoir:
    """A fair sample of a stream: each number is in it with the same probability (algorithm L, Li 1994).

    The same stream and seed give the same sample.
    """

    def __init__(self, *, capacity: int = KEPT, seed: str = "") -> None:
        """Keep at most `capacity` numbers, drawn by `seed`."""
        self.count = 0
        self._capacity = capacity
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._kept = array("d")
        self._weight = 1.0
        self._next = 0  # the count at which a number is taken

    def add(self, value: float) -> None:
        """Add one number."""
        self.count += 1
        if len(self._kept) < self._capacity:
            self._kept.append(value)
            if len(self._kept) == self._capacity:
                self._next = self.count
                self._skip()
        elif self.count == self._next:
            self._kept[self._random.randrange(self._capacity)] = value
            self._skip()

    def add_all(self, values: array[float]) -> None:
        """Add many numbers: the same as one by one, in less time."""
        before, missing = self.count, self._capacity - len(self._kept)
        self.count += len(values)
        if missing:
            self._kept.extend(values[:missing])
            if len(values) < missing:
                return
            self._next = before + missing
            self._skip()
        while self._next <= self.count:
            self._kept[self._random.randrange(self._capacity)] = values[self._next - before - 1]
            self._skip()

    def values(self) -> NDArray[np.float64]:
        """Return the sample, in ascending order."""
        return np.sort(np.asarray(self._kept))

    def _skip(self) -> None:
        self._weight *= math.exp(math.log(self._draw()) / self._capacity)
        self._next += math.floor(math.log(self._draw()) / math.log1p(-self._weight)) + 1

    def _draw(self) -> float:
        return self._random.random() or 2.0**-53  # in (0, 1): it has a logarithm, which is not 0
