"""Build the agent's observations and the evaluator's readings from snapshots."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.contract_schema import APPLIED_ACTIONS, TIME_REMAINING
from embodied_env.contract.sensor_schema import AGES
from embodied_env.contract.spaces import field_layouts
from embodied_env.core.types import Snapshot
from embodied_env.envs.gap_policy import GOOD
from embodied_env.timing.clock import NS_PER_S

Observation = dict[str, NDArray[Any]]
T = TypeVar("T")

_INVALID, _VALID = (np.frombuffer(bytes([mask]), dtype=np.int8) for mask in (0, 1))  # read-only, since shared


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
