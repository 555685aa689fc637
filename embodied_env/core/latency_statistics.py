"""Streaming percentiles of each latency stage over many steps, in bounded memory.

Only values whose quality is OK count: upper bounds (UNMARKED), first steps (FIRST), held readings (STALE, ...) and
negative durations are no measurements.
"""

from __future__ import annotations

import math
import random
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.core.code_types import Quality

STAGES = (  # stages in the order in which they happen
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
    "render_s",
    "period_s",
    "jitter_s",
    "overrun_s",
)

ANNOTATED_STAGES = (
    *(f"inference.{name}_s" for name in ("encode", "wire", "server", "decode")),
    "setpoints.worst_gap_s",
)
"""Stages of accounts in ``info["annotations"]``: an inference on a policy server, setpoints between steps."""

INJECTED_STAGES = tuple(f"injected.{name}_s" for name in ("age", "inference", "actuation", "data_age", "end_to_end"))
"""Delays injected into a lockstep world, in world time."""

EXACT = 65_536
"""Number of values of a stage up to which its percentiles are exact; above it they are of a sample of this size."""

Stage = tuple[str, str]  # name of a stage, and of its sensor or ""
KEPT = 8192  # default capacity of a `Reservoir`
_OK = int(Quality.OK)
_GATHERED_STEPS = 64  # added at once
_PERCENTILES = (50.0, 95.0, 99.0)


@dataclass(frozen=True, kw_only=True)
class StageStatistics:
    """Statistics of the `count` measured values of one stage, in seconds.

    Percentiles interpolate linearly between order statistics. Above `EXACT` values they are those of a uniform sample:
    with probability 0.99 the reported 99th is between the 98.9th and the 99.1st.
    """

    count: int
    p50_s: float
    p95_s: float
    p99_s: float
    max_s: float


class LatencyStatistics:
    """Accumulates the infos of steps by stage, as ``stage[sensor]`` for sensors."""

    def __init__(self) -> None:
        self._samples: defaultdict[Stage, Reservoir] = defaultdict(partial(Reservoir, capacity=EXACT))
        self._settle: Callable[[], None] = _nothing

    def add(self, info: Mapping[str, Any]) -> None:
        """Add the info of one step, as returned by `step` or recorded, unless it has no latency."""
        for stage, quality, value_s in all_stages_of(info):
            if quality == _OK and isinstance(value_s, float) and math.isfinite(value_s):
                self._samples[stage].add(value_s)

    def statistics(self) -> dict[str, StageStatistics]:
        """Return the statistics of each stage that was measured at least once."""
        self._settle()
        found = {}
        for (stage, sensor), sample in list(self._samples.items()):  # another thread may add
            p50_s, p95_s, p99_s = np.percentile(sample.values(), _PERCENTILES).tolist()
            found[f"{stage}[{sensor}]" if sensor else stage] = StageStatistics(
                count=sample.count, p50_s=p50_s, p95_s=p95_s, p99_s=p99_s, max_s=sample.most
            )
        return found


class LatencyColumns:
    """Gathers the latencies of steps that many environments take together, added many at once."""

    def __init__(self, statistics: Sequence[LatencyStatistics]) -> None:
        """Take one accumulator per environment, which is complete whenever its statistics are read."""
        self._samples = [each._samples for each in statistics]  # noqa: SLF001
        self._steps: list[tuple[NDArray[np.bool_], list[tuple[Stage, Any, Any]]]] = []
        for each in statistics:
            each._settle = self._settle  # noqa: SLF001

    def add(self, info: Mapping[str, Any], taken: NDArray[np.bool_]) -> None:
        """Add an info with a value per environment, of those that have `taken` the step."""
        self._steps.append((taken, list(all_stages_of(info))))
        if len(self._steps) >= _GATHERED_STEPS:
            self._settle()

    def _settle(self) -> None:
        gathered: defaultdict[Stage, list[NDArray[np.float64]]] = defaultdict(list)
        for taken, stages in self._steps:
            for stage, quality, values in stages:
                gathered[stage].append(np.where(taken & (quality == _OK), values, np.nan))
        self._steps.clear()
        for stage, rows in gathered.items():
            for samples, values in zip(self._samples, np.array(rows, dtype=np.float64).T, strict=True):
                if (measured := values[np.isfinite(values)]).size:
                    samples[stage].extend(measured)


def _nothing() -> None:
    """Settle nothing, since no step was taken as arrays."""


def all_stages_of(info: Mapping[str, Any]) -> Iterator[tuple[Stage, int, Any]]:
    """Yield each stage of a step's info, as `stages_of` does, and those of its annotations."""
    if isinstance(latency := info.get("latency"), Mapping):
        yield from stages_of(latency)
    if not isinstance(notes := info.get("annotations"), Mapping):
        return
    for stage in ANNOTATED_STAGES:
        name, _, key = stage.partition(".")
        if isinstance(account := notes.get(name), Mapping) and isinstance(value_s := account.get(key), float):
            yield (stage, ""), _OK, value_s


def stages_of(latency: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[Stage, int, Any]]:
    """Yield stage (or ``injected.NAME``), quality and value, s, in ``info["latency"]``."""
    for name, quality in latency.get("quality", {}).items():
        value, stage = latency.get(name), prefix + name
        if name == "injected":
            if isinstance(value, dict):
                yield from stages_of({**value, "quality": quality}, "injected.")
        elif isinstance(quality, dict):  # faster than Mapping
            values = value if isinstance(value, dict) else {}
            for sensor, code in quality.items():
                yield (stage, sensor), code, values.get(sensor)
        else:
            yield (stage, ""), quality, value


class Reservoir:
    """A uniform random sample of a stream (algorithm L, Li 1994), reproducible by its seed."""

    def __init__(self, *, capacity: int = KEPT, seed: str = "") -> None:
        self.count = 0
        self.most = -math.inf
        self._capacity = capacity
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._kept = array("d")
        self._weight = 1.0
        self._next = capacity  # count at which the next number is kept

    def add(self, value: float) -> None:
        """Add one number."""
        self.count += 1
        if value > self.most:  # noqa: PLR1730 - faster than max
            self.most = value
        if self.count <= self._capacity:
            self._kept.append(value)
        elif self.count == self._next:
            self._kept[self._random.randrange(self._capacity)] = value
        if self.count == self._next:
            self._weight *= math.exp(math.log(self._draw()) / self._capacity)
            self._next += math.floor(math.log(self._draw()) / math.log1p(-self._weight)) + 1

    def extend(self, values: NDArray[np.float64]) -> None:
        """Add numbers, the first of them at once."""
        room = max(0, self._capacity - 1 - self.count)
        if (first := values[:room]).size:
            self._kept.frombytes(first.tobytes())
            self.count += first.size
            self.most = max(self.most, float(first.max()))
        for value in values[room:].tolist():
            self.add(value)

    def values(self) -> NDArray[np.float64]:
        """Return the sample in ascending order."""
        return np.sort(np.asarray(self._kept))

    def _draw(self) -> float:
        return self._random.random() or 2.0**-53  # in (0, 1), so that the logarithm is finite


@dataclass(frozen=True)
class Percentiles:
    """Percentiles and extremes of `count` numbers, NaN and infinite if there are none."""

    count: int
    p50: float
    p95: float
    p99: float
    least: float
    most: float


class StreamSample(Reservoir):
    """A sample of a stream with exact extremes and sum, and all of up to `KEPT` numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.least, self.total = math.inf, 0.0

    def add(self, value: float) -> None:
        """Add a finite number."""
        super().add(value)
        self.least = min(self.least, value)
        self.total += value

    def extend(self, values: NDArray[np.float64]) -> None:
        """Add finite numbers."""
        for value in values.tolist():
            self.add(value)

    def percentiles(self) -> Percentiles:
        """Return the percentiles of the sample with the exact count and extremes."""
        p50, p95, p99 = np.quantile(self.values(), (0.5, 0.95, 0.99)).tolist() if self.count else [math.nan] * 3
        return Percentiles(self.count, p50, p95, p99, self.least, self.most)
