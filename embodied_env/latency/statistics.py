"""Percentiles per stage, over the infos of many steps.

Only measured values count: those whose quality is OK. An upper bound (UNMARKED), a first step (FIRST), a held reading
(STALE, ...) or a negative difference of two clocks is no measurement of its stage, and NaN is none at all.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from embodied_env.transition import Quality

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

_OK = int(Quality.OK)
_PERCENTILES = (50.0, 95.0, 99.0)


@dataclass(frozen=True, kw_only=True)
class StageStatistics:
    """What `count` measured values of one stage say, in seconds.

    Percentiles interpolate linearly between the two nearest of the sorted values.
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
        self._values: dict[str, array[float]] = {}

    def add(self, info: Mapping[str, Any]) -> None:
        """Take in the info of one step, as `step` returned it or as it was recorded; one without latency counts not."""
        latency = info.get("latency")
        if isinstance(latency, Mapping):
            for stage, value_s in measured(latency):
                if stage not in self._values:
                    self._values[stage] = array("d")
                self._values[stage].append(value_s)

    def statistics(self) -> dict[str, StageStatistics]:
        """Return the statistics of each stage that was measured at least once."""
        return {stage: _statistics(values) for stage, values in self._values.items()}


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


def _statistics(values: array[float]) -> StageStatistics:
    p50_s, p95_s, p99_s = np.percentile(np.asarray(values), _PERCENTILES).tolist()
    return StageStatistics(count=len(values), p50_s=p50_s, p95_s=p95_s, p99_s=p99_s, max_s=max(values))
