"""Streaming percentiles of each latency stage over the infos of many steps, in bounded memory.

Only values whose quality is OK count: upper bounds (UNMARKED), first steps (FIRST), held readings (STALE, ...) and
negative durations are no measurements.
"""

from __future__ import annotations

import math
import random
from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
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
"""Stages in the order in which they happen."""

INJECTED_STAGES = tuple(f"injected.{name}_s" for name in ("age", "inference", "actuation", "data_age", "end_to_end"))
"""Delays injected into a lockstep world, in world time."""

EXACT = 65_536
"""Number of values of a stage up to which its percentiles are exact; above it they are of a sample of this size."""

KEPT = 8192
"""Default capacity of a `Reservoir`."""

_OK = int(Quality.OK)
_PERCENTILES = (50.0, 95.0, 99.0)


@dataclass(frozen=True, kw_only=True)
class StageStatistics:
    """Statistics of the `count` measured values of one stage, in seconds.

    Percentiles interpolate linearly between order statistics. Above `EXACT` values they are those of a uniform sample:
    with probability 0.99 the reported 99th lies between the 98.9th and the 99.1st.
    """

    count: int
    p50_s: float
    p95_s: float
    p99_s: float
    max_s: float


class LatencyStatistics:
    """Accumulates the infos of steps. A stage appears with its first value; per sensor it is ``stage[sensor]``."""

    def __init__(self) -> None:
        self._samples: defaultdict[str, Reservoir] = defaultdict(partial(Reservoir, capacity=EXACT))

    def add(self, info: Mapping[str, Any]) -> None:
        """Add the info of one step, as returned by `step` or recorded; without latency it is ignored."""
        latency = info.get("latency")
        if not isinstance(latency, Mapping):
            return
        for stage, value_s in measured(latency):
            self._samples[stage].add(value_s)

    def statistics(self) -> dict[str, StageStatistics]:
        """Return the statistics of each stage that was measured at least once."""
        found = {}
        for stage, sample in self._samples.items():
            p50_s, p95_s, p99_s = np.percentile(sample.values(), _PERCENTILES).tolist()
            found[stage] = StageStatistics(
                count=sample.count, p50_s=p50_s, p95_s=p95_s, p99_s=p99_s, max_s=sample.maximum
            )
        return found


def measured(latency: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield name and seconds of each measured stage in ``info["latency"]``.

    A stage per sensor is ``stage[sensor]``, an injected delay ``injected.stage``.
    """
    quality = latency.get("quality", {})
    yield from _measured(latency, quality, "")
    if isinstance(injected := latency.get("injected"), Mapping):
        yield from _measured(injected, quality.get("injected", {}), "injected.")


def _measured(values: Mapping[str, Any], qualities: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    for stage, quality in qualities.items():
        value: Any = values.get(stage)
        if stage == "injected":
            continue
        if isinstance(quality, Mapping) and isinstance(value, Mapping):
            for sensor, code in quality.items():
                if code == _OK and _is_finite(value.get(sensor)):
                    yield f"{prefix}{stage}[{sensor}]", float(value[sensor])
        elif quality == _OK and _is_finite(value):
            yield f"{prefix}{stage}", float(value)


def _is_finite(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value)


class Reservoir:
    """A uniform random sample of a stream (algorithm L, Li 1994), reproducible by its seed."""

    def __init__(self, *, capacity: int = KEPT, seed: str = "") -> None:
        self.count = 0
        self.maximum = -math.inf
        self._capacity = capacity
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._kept = array("d")
        self._weight = 1.0
        self._next = capacity  # count at which the next number is kept

    def add(self, value: float) -> None:
        """Add one number."""
        self.count += 1
        self.maximum = max(self.maximum, value)
        if self.count <= self._capacity:
            self._kept.append(value)
        elif self.count == self._next:
            self._kept[self._random.randrange(self._capacity)] = value
        if self.count == self._next:
            self._weight *= math.exp(math.log(self._draw()) / self._capacity)
            self._next += math.floor(math.log(self._draw()) / math.log1p(-self._weight)) + 1

    def values(self) -> NDArray[np.float64]:
        """Return the sample in ascending order."""
        return np.sort(np.asarray(self._kept))

    def _draw(self) -> float:
        return self._random.random() or 2.0**-53  # in (0, 1), so that the logarithm is finite
