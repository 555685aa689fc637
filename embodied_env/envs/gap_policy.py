"""The gap policy: check the age and the values of each reading, and replace a faulty one by the last valid one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract
from embodied_env.contract.spaces import FieldLayout, field_layouts
from embodied_env.core.batches import BoolArray, SnapshotBatch
from embodied_env.core.codes import Quality
from embodied_env.core.types import Sample, Snapshot
from embodied_env.errors import BackendNotReadyError

GOOD = (Quality.OK, Quality.OUT_OF_RANGE)

_FEW = 16  # values; for fewer, plain floats are faster than arrays


class GapPolicy:
    """Applies the gap policy of the contract during one episode."""

    def __init__(self, contract: Contract, *, future_tolerance_ns: int = 0) -> None:
        """Resolve the sensors of `contract`; the tolerance applies to stamps of another clock in the future."""
        self._future_tolerance_ns = future_tolerance_ns
        sensors = contract.sensors.items()
        self._checks = {name: [FieldCheck(each) for each in field_layouts(name, sensor)] for name, sensor in sensors}
        self._max_age_ns = {name: sensor.max_age_s * 1e9 for name, sensor in sensors}
        self._must_not_fail = frozenset(name for name, sensor in sensors if sensor.on_gap == "stop")
        self._held: dict[str, Sample] = {}

    def begin(self, snapshot: Snapshot) -> Snapshot:
        """Start an episode; raises BackendNotReadyError unless every sensor of its first snapshot is valid."""
        self._held = {}
        bad = []
        for name in self._checks:
            sample = self._classify(name, snapshot)
            if sample is not None and sample.quality in GOOD:
                self._held[name] = sample
            else:
                reason = "no message" if sample is None else sample.reason or sample.quality.name.lower()
                bad.append(f"{name} ({reason})")
        if bad:
            self._held = {}
            raise BackendNotReadyError(f"no valid reading after the reset: {', '.join(bad)}")
        return replace(snapshot, samples=dict(self._held))

    def restore(self, snapshot: Snapshot) -> None:
        """Set the last valid samples to those of a snapshot."""
        self._held = dict(snapshot.samples)

    def apply(self, snapshot: Snapshot) -> tuple[Snapshot, list[str]]:
        """Replace missing, invalid, stale and future readings by the last valid one, marked with the reason.

        Also return the sensors with a gap whose contract has ``on_gap: stop``.
        """
        samples: dict[str, Sample] = {}
        gaps: list[str] = []
        for name in self._checks:
            sample = self._classify(name, snapshot)
            if sample is not None and sample.quality in GOOD:
                samples[name] = self._held[name] = sample
                continue
            samples[name] = self._last_valid(name, sample)
            if name in self._must_not_fail:
                gaps.append(name)
        return Snapshot(  # `replace` takes five times as long
            now_ns=snapshot.now_ns,
            samples=samples,
            reset=snapshot.reset,
            clock=snapshot.clock,
            actuation=snapshot.actuation,
            injected=snapshot.injected,
        ), gaps

    def lost(self, now_ns: int, why: str) -> Snapshot:
        """Return the last valid readings, marked as lost."""
        samples = {name: replace(self._last_valid(name, None), quality=Quality.LOST, reason=why) for name in self._held}
        return Snapshot(now_ns=now_ns, samples=samples)

    def _last_valid(self, name: str, rejected: Sample | None) -> Sample:
        """Return the last valid sample of `name` with the quality and the counts of the rejected one."""
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

    def _classify(self, name: str, snapshot: Snapshot) -> Sample | None:
        """Return the sample of `name` with its quality by stamp and values; INVALID precedes OUT_OF_RANGE."""
        sample = snapshot.samples.get(name)
        if sample is None or sample.quality is not Quality.OK:
            return sample
        age_ns = snapshot.now_ns - sample.stamp_ns
        if age_ns < -self._future_tolerance_ns:
            return replace(sample, quality=Quality.FUTURE, reason=f"stamped {-age_ns} ns in the future")
        if age_ns > self._max_age_ns[name]:
            clock = f" (stamped by the {sample.suspect_clock} clock?)" if sample.suspect_clock else ""
            return replace(sample, quality=Quality.STALE, reason=f"{age_ns / 1e9:.3f} s old{clock}")
        problem = None
        for check in self._checks[name]:
            found = check.check(sample.values)
            if found is not None and (problem is None or problem[0] is not Quality.INVALID):
                problem = found
        for values in sample.values.values():  # tasks and filters see them before the record does
            values.setflags(write=False)
        return sample if problem is None else replace(sample, quality=problem[0], reason=problem[1])


class FieldCheck:
    """Checks one field of a sensor: shape, dtype, finite values, declared range."""

    def __init__(self, layout: FieldLayout) -> None:
        """Choose the range check: few values one by one, many as arrays, none where the range covers the dtype."""
        self._layout, self._bounds = layout, _finite_bounds(layout)
        self._few: tuple[list[float], list[float]] | None = None
        if self._bounds is not None and layout.low.ndim == 1 and layout.low.size <= _FEW:
            low, high = self._bounds
            self._few = low.tolist(), high.tolist()

    def check(self, values: Mapping[str, NDArray[Any]]) -> tuple[Quality, str] | None:
        """Return quality and reason of a faulty field, or None when it is valid."""
        layout = self._layout
        found = values.get(layout.field)
        if found is None:
            return Quality.INVALID, f"{layout.field} is missing"
        if found.shape != layout.shape or found.dtype != layout.dtype:
            expected = f"{layout.dtype}{list(layout.shape)}"
            return Quality.INVALID, f"{layout.field} is {found.dtype}{list(found.shape)} (expected {expected})"
        if self._is_within(found):
            return None
        if not np.isfinite(found).all():
            return Quality.INVALID, f"{layout.field} is not finite"
        return Quality.OUT_OF_RANGE, f"{layout.field} is outside its declared range"

    def _is_within(self, found: NDArray[Any]) -> bool:
        if self._few is not None:
            lows, highs = self._few
            for value, least, largest in zip(found.tolist(), lows, highs, strict=True):
                if not least <= value <= largest:
                    return False
            return True
        if self._bounds is None:
            return True
        low, high = self._bounds
        return bool(((found >= low) & (found <= high)).all())


class BatchedGapPolicy:
    """Finds the slots of a batch whose readings are all valid; the others are left to `GapPolicy`."""

    def __init__(self, contract: Contract) -> None:
        """Resolve the sensors of `contract`."""
        self._max_age_ns = {name: sensor.max_age_s * 1e9 for name, sensor in contract.sensors.items()}
        self._bounds = {
            name: [(each.field, *bounds) for each in field_layouts(name, sensor) if (bounds := _finite_bounds(each))]
            for name, sensor in contract.sensors.items()
        }

    def apply(self, snapshot: SnapshotBatch) -> tuple[SnapshotBatch, BoolArray]:
        """Return the snapshot with the quality of valid readings, and the slots in which all are valid."""
        samples, are_valid = {}, np.ones(snapshot.now_ns.shape, dtype=np.bool_)
        for name, sample in snapshot.samples.items():
            age_ns = snapshot.now_ns - sample.stamp_ns
            are_valid &= (age_ns >= 0) & (age_ns <= self._max_age_ns[name]) & (sample.quality == int(Quality.OK))
            samples[name] = sample
            for field, low, high in self._bounds[name]:
                values = sample.values[field]
                is_within = (values >= low) & (values <= high)
                if not is_within.all():
                    others = tuple(range(1, values.ndim))
                    are_valid &= np.isfinite(values).all(axis=others)
                    quality = np.where(is_within.all(axis=others), samples[name].quality, Quality.OUT_OF_RANGE)
                    samples[name] = replace(samples[name], quality=quality.astype(np.int8))
        return SnapshotBatch(now_ns=snapshot.now_ns, samples=samples), are_valid


def _finite_bounds(layout: FieldLayout) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Return bounds with which one comparison also rejects NaN and infinity; None if every value is valid."""
    low, high = layout.low, layout.high
    if layout.dtype.kind in "iu":  # e.g. pixels
        limits = np.iinfo(layout.dtype)
        return None if (low <= limits.min).all() and (high >= limits.max).all() else (low, high)
    largest = np.finfo(layout.dtype).max
    return np.maximum(low, -largest), np.minimum(high, largest)
