"""Find the slots of a batch whose readings are all valid."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from embodied_env.contract import Contract
from embodied_env.contract.spaces import field_layouts
from embodied_env.core.codes import Quality
from embodied_env.envs.gap_policy import finite_bounds
from embodied_env.extensions.vector.batches import BoolArray, SnapshotBatch


class BatchedGapPolicy:
    """Finds the slots of a batch whose readings are all valid; the others are left to `GapPolicy`."""

    def __init__(self, contract: Contract) -> None:
        """Resolve the sensors of `contract`."""
        self._max_age_ns = {name: sensor.max_age_s * 1e9 for name, sensor in contract.sensors.items()}
        self._bounds = {
            name: [(each.field, *bounds) for each in field_layouts(name, sensor) if (bounds := finite_bounds(each))]
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
