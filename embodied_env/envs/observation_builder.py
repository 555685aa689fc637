"""Replace faulty readings by the last valid one, and build observations from snapshots."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.contract_schema import APPLIED_ACTIONS, TIME_REMAINING
from embodied_env.contract.sensor_schema import AGES
from embodied_env.contract.spaces import FieldLayout, field_layouts
from embodied_env.core.code_types import Quality
from embodied_env.core.types import Sample, Snapshot
from embodied_env.errors import BackendNotReadyError
from embodied_env.timing.clock import NS_PER_S

Observation = dict[str, NDArray[Any]]
T = TypeVar("T")

_INVALID, _VALID = (np.frombuffer(bytes([mask]), dtype=np.int8) for mask in (0, 1))  # read-only, since shared
OUTSIDE = "{} is outside its declared range"
GOOD = (Quality.OK, Quality.OUT_OF_RANGE)

_OK = Quality.OK  # access to members of an enum is slow
_FEW = 16  # values; for fewer, plain floats are faster than arrays


def begin_history(first: T, length: int) -> deque[T]:
    """Return the history at the start of an episode, filled with `first`."""
    return deque([first] * length, maxlen=length)


class ObservationBuilder:
    """Builds the agent's observations and the evaluator's readings."""

    def __init__(self, contract: Contract) -> None:
        self.applied_actions, self.episode = contract.applied_actions, contract.episode
        self.observed_options = [name for name, option in contract.reset_options.items() if option.observed]
        layouts = {name: field_layouts(name, sensor) for name, sensor in contract.sensors.items()}
        self.visible = [
            (
                name,
                [(layout.key, layout.field, layout.history) for layout in layouts[name]],
                f"{name}_valid" if sensor.mask else "",
            )
            for name, sensor in contract.sensors.items()
            if sensor.visibility != "evaluator"
        ]
        self.evaluator_only = {
            name: [layout.field for layout in layouts[name]]
            for name, sensor in contract.sensors.items()
            if sensor.visibility == "evaluator"
        }

    def observe(
        self,
        history: Sequence[Snapshot],
        step_index: int,
        applied: Iterable[FloatArray] = (),
        sampled: Mapping[str, FloatArray] = MappingProxyType({}),
    ) -> Observation:
        """Return the observation of the last snapshots and applied actions, oldest first.

        The snapshots are those after the gap policy. `sampled` has the values of the reset options. The arrays may be
        those of the readings. A reading outside its declared range is returned unchanged, with the quality
        OUT_OF_RANGE.
        """
        observation: Observation = {}
        snapshot = history[-1]
        samples = snapshot.samples
        for name, fields, mask in self.visible:
            sample = samples[name]
            values = sample.values
            for key, field_name, length in fields:
                if length is None:
                    observation[key] = values[field_name]
                    continue
                window = [each.samples[name] for each in list(history)[-length:]]
                observation[key] = np.stack([each.values[field_name] for each in window])
                ages_s = [(snapshot.now_ns - each.stamp_ns) / NS_PER_S for each in window]  # held readings included
                observation[f"{key}{AGES}"] = np.array(ages_s)
            if mask:
                observation[mask] = _VALID if sample.quality in GOOD else _INVALID
        for name in self.observed_options:
            observation[name] = np.array(sampled[name], dtype=np.float64).reshape(-1)
        if self.applied_actions:
            observation[APPLIED_ACTIONS] = np.concatenate(list(applied))
        if self.episode.kind == "finite_horizon":
            left = max(0, self.episode.horizon_steps - step_index) / self.episode.horizon_steps
            observation[TIME_REMAINING] = np.array([left], dtype=np.float64)
        return observation

    def evaluator_readings(self, snapshot: Snapshot) -> dict[str, Observation]:
        """Return the evaluator's readings in new arrays by sensor and field."""
        return {
            name: {field_name: snapshot.samples[name].values[field_name].copy() for field_name in fields}
            for name, fields in self.evaluator_only.items()
        }


class GapPolicy:
    """Applies the gap policy of the contract during one episode."""

    def __init__(self, contract: Contract, *, future_tolerance_ns: int = 0) -> None:
        """Resolve the sensors of `contract`, with a tolerance for future stamps of another clock."""
        sensors = contract.sensors.items()
        self._checks = {
            name: SampleCheck.of(field_layouts(name, sensor), sensor.max_age_s * 1e9, future_tolerance_ns)
            for name, sensor in sensors
        }
        self._must_not_fail = frozenset(name for name, sensor in sensors if sensor.on_gap == "stop")
        self._held: Mapping[str, Sample] = {}

    def begin(self, snapshot: Snapshot) -> Snapshot:
        """Start an episode, or raise BackendNotReadyError unless every sensor is valid."""
        self._held = {}
        samples, bad = {}, []
        given = {**snapshot.samples, **find_faulty(snapshot, self._checks)}
        for name in self._checks:
            sample = given[name]
            if sample is not None and sample.quality in GOOD:
                samples[name] = sample
            else:
                reason = "no message" if sample is None else sample.reason or sample.quality.name.lower()
                bad.append(f"{name} ({reason})")
        if bad:
            raise BackendNotReadyError(f"no valid reading after the reset: {', '.join(bad)}")
        self._held = samples
        return replace(snapshot, samples=samples)

    def restore(self, snapshot: Snapshot) -> None:
        """Set the last valid samples to those of a snapshot."""
        self._held = snapshot.samples

    def apply(self, snapshot: Snapshot) -> tuple[Snapshot, list[str]]:
        """Replace missing, invalid, stale and future readings by the last valid one.

        Each replacement is marked with its reason. Also return the sensors with a gap whose contract has
        ``on_gap: stop``. A valid snapshot is returned as it is.
        """
        faulty = find_faulty(snapshot, self._checks)
        if faulty or len(snapshot.samples) != len(self._checks):
            return self._replace_gaps(snapshot, {**snapshot.samples, **faulty})
        self._held = snapshot.samples
        return snapshot, []

    def _replace_gaps(self, snapshot: Snapshot, given: Mapping[str, Sample | None]) -> tuple[Snapshot, list[str]]:
        samples, held, gaps = {}, dict(self._held), []
        for name in self._checks:
            sample = given[name]
            if sample is not None and sample.quality in GOOD:
                samples[name] = held[name] = sample
                continue
            samples[name] = self._last_valid(name, sample)
            if name in self._must_not_fail:
                gaps.append(name)
        self._held = held
        return replace(snapshot, samples=samples), gaps

    def lost(self, now_ns: int, why: str) -> Snapshot:
        """Return the last valid readings, marked as lost."""
        samples = {name: replace(self._last_valid(name, None), quality=Quality.LOST, reason=why) for name in self._held}
        return Snapshot(now_ns=now_ns, samples=samples)

    def _last_valid(self, name: str, rejected: Sample | None) -> Sample:
        """Return the last valid sample of `name` with quality and counts of the rejected one."""
        held = self._held[name]
        if rejected is None:
            return replace(held, quality=Quality.MISSING, reason="no message", lost=0, duplicated=0, reordered=0)
        return replace(
            held,
            quality=rejected.quality,
            reason=rejected.reason,
            lost=rejected.lost,
            duplicated=rejected.duplicated,
            reordered=rejected.reordered,
        )


class SampleCheck(NamedTuple):
    """The valid ages, shapes, dtypes and ranges of the samples of one sensor."""

    max_age_ns: float
    min_age_ns: float
    fields: list[tuple[FieldLayout, str, tuple[int, ...], np.dtype[Any], Any, Any]]  # with bounds of `_limits`

    @staticmethod
    def of(layouts: Sequence[FieldLayout], max_age_ns: float, future_tolerance_ns: int) -> SampleCheck:
        """Check fields of these layouts, with a tolerance for stamps in the future."""
        fields = [(each, each.field, each.shape, each.dtype, *_limits(each)) for each in layouts]
        return SampleCheck(max_age_ns, -future_tolerance_ns, fields)


def find_faulty(snapshot: Snapshot, checks: Mapping[str, SampleCheck]) -> dict[str, Sample | None]:
    """Return missing and faulty samples with their quality.

    Arrays of valid shape and dtype become read-only. Of several faulty fields, one that makes a sample INVALID counts.
    """
    given, now_ns = snapshot.samples, snapshot.now_ns
    faulty: dict[str, Sample | None] = {}
    for name, (max_age_ns, min_age_ns, fields) in checks.items():
        sample = given.get(name)
        if sample is None or sample.quality is not _OK:
            faulty[name] = sample
            continue
        age_ns = now_ns - sample.stamp_ns
        if not min_age_ns <= age_ns <= max_age_ns:
            faulty[name] = _mark_age(sample, age_ns)
            continue
        values = sample.values
        for layout, field, shape, dtype, low, high in fields:
            found = values.get(field)
            if found is None or found.shape != shape or found.dtype != dtype:
                faulty[name] = _mark_value(faulty.get(name) or sample, layout, found)
                continue
            found.setflags(write=False)  # tasks and filters see it before the record does
            if isinstance(low, float):
                for number in found.tolist():
                    if not low <= number <= high:
                        faulty[name] = _mark_value(faulty.get(name) or sample, layout, found)
                        break
            elif low is not None and not ((found >= low) & (found <= high)).all():
                faulty[name] = _mark_value(faulty.get(name) or sample, layout, found)
    return faulty


def _mark_age(sample: Sample, age_ns: int) -> Sample:
    if age_ns < 0:
        return replace(sample, quality=Quality.FUTURE, reason=f"stamped {-age_ns} ns in the future")
    clock = f" (stamped by the {sample.suspect_clock} clock?)" if sample.suspect_clock else ""
    return replace(sample, quality=Quality.STALE, reason=f"{age_ns / 1e9:.3f} s old{clock}")


def _mark_value(sample: Sample, layout: FieldLayout, found: NDArray[Any] | None) -> Sample:
    """Return the sample with the problem of a field, unless another made it INVALID."""
    if sample.quality is Quality.INVALID:
        return sample
    quality = Quality.INVALID
    if found is None:
        reason = f"{layout.field} is missing"
    elif found.shape != layout.shape or found.dtype != layout.dtype:
        expected = f"{layout.dtype}{list(layout.shape)}"
        reason = f"{layout.field} is {found.dtype}{list(found.shape)} (expected {expected})"
    elif not np.isfinite(found).all():
        reason = f"{layout.field} is not finite"
    else:
        quality, reason = Quality.OUT_OF_RANGE, OUTSIDE.format(layout.field)
    return replace(sample, quality=quality, reason=reason)


def _limits(layout: FieldLayout) -> tuple[Any, Any]:
    """Return the bounds of valid values, as floats if few and equal, or None without bounds."""
    low, high = finite_bounds(layout) or (None, None)
    if low is None or high is None or low.size > _FEW or low.ndim != 1 or np.ptp(low) or np.ptp(high):
        return low, high
    return float(low[0]), float(high[0])


def finite_bounds(layout: FieldLayout) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Return bounds that also reject NaN and infinity, or None if every value is valid."""
    low, high = layout.low, layout.high
    if layout.dtype.kind in "iu":  # e.g. pixels
        limits = np.iinfo(layout.dtype)
        return None if (low <= limits.min).all() and (high >= limits.max).all() else (low, high)
    largest = np.finfo(layout.dtype).max
    return np.maximum(low, -largest), np.minimum(high, largest)
