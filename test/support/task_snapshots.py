"""Snapshots for the judges of tasks, by sensor and field."""

from collections.abc import Mapping
from typing import Any

import numpy as np

import embodied_env
from embodied_env.contract import Contract
from embodied_env.core.code_types import Quality
from embodied_env.core.policy import PolicyFunction
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


def end_of_episode(contract: Contract, policy: PolicyFunction, seed: int, **options: Any) -> str:
    """Return the end reason of an episode on MuJoCo, with these reset options."""
    with embodied_env.make(contract, backend="mujoco", clock="virtual") as env:
        seen, _ = env.reset(seed=seed, options=options)
        reason = ""
        while not reason:
            seen, *_, info = env.step(policy(seen))
            reason = str(info["end_reason"])
    return reason
