"""Builds the agent's observation: checks readings, replaces missing, stale and invalid ones by the last valid one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from sys import float_info
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract
from embodied_env.contract.schema import APPLIED_ACTIONS, TIME_REMAINING
from embodied_env.contract.spaces import FieldLayout, field_layouts
from embodied_env.core.codes import Quality
from embodied_env.core.types import Sample, Snapshot
from embodied_env.errors import BackendNotReadyError

GOOD = (Quality.OK, Quality.OUT_OF_RANGE)

_FEW = 16  # values; for fewer, plain floats beat arrays


class ObservationBuilder:
    """Keeps the last valid sample of each sensor of one episode."""

    def __init__(self, contract: Contract, *, future_tolerance_ns: int = 0) -> None:
        """Resolve the sensors of `contract`. A stamp may be so far ahead of now, where clocks are read twice."""
        self._contract = contract
        self._future_tolerance_ns = future_tolerance_ns
        self._layouts = {name: field_layouts(name, sensor) for name, sensor in contract.sensors.items()}
        self._checks = {name: [FieldCheck(layout) for layout in layouts] for name, layouts in self._layouts.items()}
        self._max_age_ns = {name: sensor.max_age_s * 1e9 for name, sensor in contract.sensors.items()}
        self._must_not_fail = frozenset(name for name, sensor in contract.sensors.items() if sensor.on_gap == "stop")
        keys = {name: [(layout.key, layout.field) for layout in layouts] for name, layouts in self._layouts.items()}
        self._visible = [
            (name, keys[name], f"{name}_valid" if sensor.mask else "")
            for name, sensor in contract.sensors.items()
            if sensor.visibility != "evaluator"
        ]
        self._evaluator_only = [name for name, sensor in contract.sensors.items() if sensor.visibility == "evaluator"]
        self._held: dict[str, Sample] = {}

    def begin(self, snapshot: Snapshot) -> Snapshot:
        """Begin an episode with its first snapshot, in which every sensor must be valid.

        Raises:
            BackendNotReadyError: naming each sensor that is missing or not valid.
        """
        self._held = {}
        settled = {name: self._classify(name, snapshot) for name in self._contract.sensors}
        bad = [
            f"{name} ({'no message' if sample is None else sample.reason or sample.quality.name.lower()})"
            for name, sample in settled.items()
            if sample is None or sample.quality not in GOOD
        ]
        if bad:
            raise BackendNotReadyError(f"after the reset these sensors have no valid reading: {', '.join(bad)}")
        self._held = {name: sample for name, sample in settled.items() if sample is not None}
        return replace(snapshot, samples=dict(self._held))

    def apply_gap_policy(self, snapshot: Snapshot) -> tuple[Snapshot, list[str]]:
        """Replace what is missing, invalid, stale or of the future by the last valid reading, and say so.

        Returns:
            The snapshot to judge and to show, and the sensors with a gap whose contract says ``on_gap: stop``.
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
        return replace(snapshot, samples=samples), gaps

    def lost(self, now_ns: int, why: str) -> Snapshot:
        """Return the last valid readings, marked as lost."""
        samples = {name: replace(self._last_valid(name, None), quality=Quality.LOST, reason=why) for name in self._held}
        return Snapshot(now_ns=now_ns, samples=samples)

    def observe(
        self, settled: Snapshot, step_index: int, applied: Iterable[NDArray[np.float64]] = ()
    ) -> dict[str, NDArray[Any]]:
        """Return the agent's observation in fresh arrays: an element of the observation space.

        `applied` are the last applied actions that the contract asks for, oldest first.

        A reading outside its declared range is handed out as it is; its quality says so.
        """
        observation: dict[str, NDArray[Any]] = {}
        for name, fields, mask in self._visible:
            sample = settled.samples[name]
            values = sample.values
            for key, field in fields:
                observation[key] = values[field].copy()
            if mask:
                observation[mask] = np.array([sample.quality in GOOD], dtype=np.int8)
        if self._contract.applied_actions:
            observation[APPLIED_ACTIONS] = np.concatenate(list(applied))
        episode = self._contract.episode
        if episode.kind == "finite_horizon":
            left = max(0, episode.horizon_steps - step_index) / episode.horizon_steps
            observation[TIME_REMAINING] = np.array([left], dtype=np.float64)
        return observation

    def evaluator_readings(self, settled: Snapshot) -> dict[str, dict[str, NDArray[Any]]]:
        """Return the evaluator's readings: sensor -> field -> fresh array."""
        return {
            name: {layout.field: settled.samples[name].values[layout.field].copy() for layout in self._layouts[name]}
            for name in self._evaluator_only
        }

    def _last_valid(self, name: str, rejected: Sample | None) -> Sample:
        """Return the last valid sample of `name`, with why it stands for `rejected` and what was counted since."""
        held = self._held[name]
        if rejected is None:
            return replace(held, quality=Quality.STALE, reason="no message", lost=0, duplicated=0, reordered=0)
        return replace(
            held,
            quality=rejected.quality,
            reason=rejected.reason,
            lost=rejected.lost,
            duplicated=rejected.duplicated,
            reordered=rejected.reordered,
        )

    def _classify(self, name: str, snapshot: Snapshot) -> Sample | None:
        """Return the sample of `name` with the quality that its values and stamp deserve."""
        sample = snapshot.samples.get(name)
        if sample is None or sample.quality is not Quality.OK:
            return sample
        age_ns = snapshot.now_ns - sample.stamp_ns
        if age_ns < -self._future_tolerance_ns:
            return replace(sample, quality=Quality.FUTURE, reason=f"stamped {-age_ns} ns after now")
        if age_ns > self._max_age_ns[name]:
            by = f" (by the clock {sample.suspect_clock}?)" if sample.suspect_clock else ""
            return replace(sample, quality=Quality.STALE, reason=f"{age_ns / 1e9:.3f} s old{by}")
        return self._judge_values(name, sample)

    def _judge_values(self, name: str, sample: Sample) -> Sample:
        """Return the sample with the quality of its values; INVALID goes before OUT_OF_RANGE."""
        problem = None
        for check in self._checks[name]:
            found = check.check(sample.values)
            if found is not None and (problem is None or problem[0] is not Quality.INVALID):
                problem = found
        return sample if problem is None else replace(sample, quality=problem[0], reason=problem[1])


class FieldCheck:
    """Checks the values of one field of a sensor: shape, precision, finite, within the declared range."""

    def __init__(self, layout: FieldLayout) -> None:
        """Resolve how: few values one by one, many at once, and no value of a type that cannot leave the range."""
        self._layout = layout
        self._field, self._shape, self._dtype = layout.field, layout.shape, layout.dtype
        self._is_small = layout.low.ndim == 1 and layout.low.size <= _FEW
        # one comparison of a float also tells whether it is finite
        self._lows = [max(low, -float_info.max) for low in layout.low.ravel().tolist()] if self._is_small else []
        self._highs = [min(high, float_info.max) for high in layout.high.ravel().tolist()] if self._is_small else []
        self._is_never_wrong = _covers_dtype(layout)

    def check(self, values: Mapping[str, NDArray[Any]]) -> tuple[Quality, str] | None:
        """Return the quality of the field in a reading's values and the reason, or None when nothing is wrong."""
        found = values.get(self._field)
        if found is None:
            return Quality.INVALID, f"{self._field} is missing"
        if found.shape != self._shape or found.dtype != self._dtype:
            wanted = f"{self._dtype}{list(self._shape)}"
            return Quality.INVALID, f"{self._field} is {found.dtype}{list(found.shape)}, not {wanted}"
        if self._is_within(found):
            return None
        if not np.isfinite(found).all():
            return Quality.INVALID, f"{self._field} is not finite"
        return Quality.OUT_OF_RANGE, f"{self._field} outside its declared range"

    def _is_within(self, found: NDArray[Any]) -> bool:
        """Tell whether every value is finite and within its range."""
        if self._is_small:
            for value, low, high in zip(found.tolist(), self._lows, self._highs, strict=True):
                if not low <= value <= high:
                    return False
            return True
        if self._is_never_wrong:
            return True
        low, high = self._layout.low, self._layout.high
        return bool(np.isfinite(found).all() and (found >= low).all() and (found <= high).all())


def _covers_dtype(layout: FieldLayout) -> bool:
    """Tell whether the declared range holds every value of the type, as of pixels."""
    if layout.dtype.kind not in "iu":
        return False
    of_type = np.iinfo(layout.dtype)
    return bool((layout.low <= of_type.min).all() and (layout.high >= of_type.max).all())
