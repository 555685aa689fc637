"""From what a world sent to what the agent sees: ages are checked, gaps are held and named, nothing is zero-filled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from sys import float_info
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract
from embodied_env.contract.schema import APPLIED_ACTIONS, TIME_REMAINING
from embodied_env.contract.spaces import FieldLayout, field_layouts
from embodied_env.core.types import Quality, Sample, Snapshot
from embodied_env.errors import BackendNotReadyError

GOOD = (Quality.OK, Quality.OUT_OF_RANGE)

_OK = Quality.OK  # a name of a module is found sooner than a member

_FEW = 16  # values; for fewer, plain floats beat arrays

_IS_VALID, _IS_HELD = np.ones(1, dtype=np.int8), np.zeros(1, dtype=np.int8)  # masks, to be copied


class _Sound(NamedTuple):
    """What a field of a sound reading is."""

    field: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    lows: tuple[float, ...]  # of few values, without what is not finite: one comparison tells both
    highs: tuple[float, ...]
    bounds: tuple[NDArray[Any], NDArray[Any]] | None  # of many values; None: they are few, or none can be wrong


class ObservationBuilder:
    """Keeps the last valid sample of each sensor of one episode."""

    def __init__(self, contract: Contract, *, future_tolerance_ns: int = 0) -> None:
        """Resolve the sensors of `contract`. A stamp may be so far ahead of now, where clocks are read twice."""
        self._contract = contract
        self._future_tolerance_ns = future_tolerance_ns
        self._layouts = {name: field_layouts(name, sensor) for name, sensor in contract.sensors.items()}
        self._max_age_ns = {name: sensor.max_age_s * 1e9 for name, sensor in contract.sensors.items()}
        self._sound = [
            (name, self._max_age_ns[name], [_sound(layout) for layout in layouts])
            for name, layouts in self._layouts.items()
        ]
        self._must_not_fail = frozenset(name for name, sensor in contract.sensors.items() if sensor.on_gap == "stop")
        keys = {name: [(layout.key, layout.field) for layout in layouts] for name, layouts in self._layouts.items()}
        self._shown = [
            (name, keys[name], f"{name}_valid" if sensor.mask else "")
            for name, sensor in contract.sensors.items()
            if sensor.visibility != "evaluator"
        ]
        self._told = [name for name, sensor in contract.sensors.items() if sensor.visibility == "evaluator"]
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
        given, held, now_ns = snapshot.samples, self._held, snapshot.now_ns
        soonest_ns = -self._future_tolerance_ns
        samples: dict[str, Sample] = {}
        gaps: list[str] = []
        for name, max_age_ns, fields in self._sound:
            sample = given.get(name)
            if (
                sample is not None
                and sample.quality is _OK
                and soonest_ns <= now_ns - sample.stamp_ns <= max_age_ns
                and _is_sound(sample.values, fields)
            ):
                samples[name] = held[name] = sample
            else:
                samples[name] = self._gap_sample(name, snapshot, gaps)
        return snapshot.with_samples(samples), gaps

    def _gap_sample(self, name: str, snapshot: Snapshot, gaps: list[str]) -> Sample:
        """Return what stands for the sensor: its sample with the quality that it deserves, or the last valid one."""
        sample = self._classify(name, snapshot)
        if sample is not None and sample.quality in GOOD:
            self._held[name] = sample
            return sample
        if name in self._must_not_fail:
            gaps.append(name)
        return self._last_valid(name, sample)

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
        for name, fields, mask in self._shown:
            sample = settled.samples[name]
            values = sample.values
            for key, field in fields:
                observation[key] = values[field].copy()
            if mask:
                is_valid = sample.quality is _OK or sample.quality in GOOD
                observation[mask] = (_IS_VALID if is_valid else _IS_HELD).copy()
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
            for name in self._told
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
        if sample is None or sample.quality is not _OK:
            return sample
        age_ns = snapshot.now_ns - sample.stamp_ns
        if age_ns < -self._future_tolerance_ns:
            return replace(sample, quality=Quality.FUTURE, reason=f"stamped {-age_ns} ns after now")
        if age_ns > self._max_age_ns[name]:
            by = f" (by the clock {sample.suspect_clock}?)" if sample.suspect_clock else ""
            return replace(sample, quality=Quality.STALE, reason=f"{age_ns / 1e9:.3f} s old{by}")
        return self._judge_values(name, sample)

    def _judge_values(self, name: str, sample: Sample) -> Sample:
        out_of_range = ""
        for layout in self._layouts[name]:
            problem = _shape_problem(sample.values, layout.field, layout.shape, layout.dtype)
            if problem:
                return replace(sample, quality=Quality.INVALID, reason=problem)
            values = sample.values[layout.field]
            if not np.isfinite(values).all():
                return replace(sample, quality=Quality.INVALID, reason=f"{layout.field} is not finite")
            if (values < layout.low).any() or (values > layout.high).any():
                out_of_range = f"{layout.field} outside its declared range"
        return replace(sample, quality=Quality.OUT_OF_RANGE, reason=out_of_range) if out_of_range else sample


def _sound(layout: FieldLayout) -> _Sound:
    """Resolve how a field is checked: few values one by one, many at once, and none that cannot be wrong."""
    low, high = layout.low, layout.high
    lows: tuple[float, ...] = ()
    highs: tuple[float, ...] = ()
    bounds = None
    if low.ndim == 1 and low.size <= _FEW:
        lows = tuple(max(value, -float_info.max) for value in low.tolist())
        highs = tuple(min(value, float_info.max) for value in high.tolist())
    elif not _holds_anything(layout):
        bounds = (low, high)
    return _Sound(layout.field, layout.shape, layout.dtype, lows, highs, bounds)


def _holds_anything(layout: FieldLayout) -> bool:
    """Tell whether no value of the type can be outside of the range, as of pixels."""
    if layout.dtype.kind not in "iu":
        return False
    of_type = np.iinfo(layout.dtype)
    return bool((layout.low <= of_type.min).all() and (layout.high >= of_type.max).all())


def _is_sound(values: Mapping[str, NDArray[Any]], fields: list[_Sound]) -> bool:
    """Tell whether every field has its shape and precision, and every value is finite and within its range."""
    for field, shape, dtype, lows, highs, bounds in fields:
        found = values.get(field)
        if found is None or found.shape != shape or found.dtype != dtype:
            return False
        if lows:
            for value, low, high in zip(found.tolist(), lows, highs):  # noqa: B905 - it has their shape
                if not low <= value <= high:
                    return False
        elif bounds is not None and not _are_within(found, *bounds):
            return False
    return True


def _are_within(values: NDArray[Any], low: NDArray[Any], high: NDArray[Any]) -> bool:
    return bool(np.isfinite(values).all() and (values >= low).all() and (values <= high).all())


def _shape_problem(values: Mapping[str, NDArray[Any]], field: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> str:
    if field not in values:
        return f"{field} is missing"
    found = values[field]
    if found.shape != shape or found.dtype != dtype:
        return f"{field} is {found.dtype}{list(found.shape)}, not {dtype}{list(shape)}"
    return ""
