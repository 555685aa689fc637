"""Joint positions of a simulator whose joints have their zeros elsewhere than those of the contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.types import Sample
from embodied_env.messages.message_types import JOINT_SENSOR


class JointZeros:
    """Converts joint positions: one of the contract is that of the simulator plus the zero of the joint."""

    def __init__(self, contract: Contract, layout: ActionLayout, zeros: Mapping[str, float]) -> None:
        """Prepare to convert; `zeros`: joint -> its position in the contract where the simulator has 0, rad or m."""
        self._commanded = np.where(layout.is_velocity, 0.0, [zeros.get(joint, 0.0) for joint in layout.joints])
        fields = {
            name: sensor.fields["position"]
            for name, sensor in contract.sensors.items()
            if sensor.type == JOINT_SENSOR and "position" in sensor.fields
        }
        self._measured = {
            name: np.array([zeros.get(joint, 0.0) for joint in field.joints or ()])
            for name, field in fields.items()
            if not zeros.keys().isdisjoint(field.joints or ())
        }

    def to_simulator(self, command: FloatArray) -> FloatArray:
        """Return the values of a command for the simulator."""
        return np.asarray(command - self._commanded)

    def to_contract(self, sample: Sample) -> Sample:
        """Return a reading of the simulator with the positions of the contract."""
        zeros = self._measured.get(sample.sensor)
        if zeros is None or "position" not in sample.values:
            return sample
        positions = sample.values["position"]
        return replace(sample, values={**sample.values, "position": (positions + zeros).astype(positions.dtype)})
