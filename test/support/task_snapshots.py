"""Snapshots for the judges of tasks, by sensor and field."""

from collections.abc import Mapping

import numpy as np

from embodied_env.core.code_types import Quality
from embodied_env.core.types import Sample, Snapshot


def snapshot_of(values: Mapping[str, Mapping[str, np.ndarray]], **qualities: Quality) -> Snapshot:
    """Return readings of this moment, which are valid unless their quality is given."""
    samples = {
        name: Sample(
            sensor=name, values=dict(fields), stamp_ns=0, arrival_ns=0, quality=qualities.get(name, Quality.OK)
        )
        for name, fields in values.items()
    }
    return Snapshot(now_ns=0, samples=samples)
