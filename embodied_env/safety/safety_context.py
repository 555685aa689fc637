"""Build the safety context of an action from readings, their ages and the robot's safety inputs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from embodied_env.contract import Contract
from embodied_env.contract.required_sensors import required_sensors
from embodied_env.core.measured_joints import MeasuredJoints
from embodied_env.core.safety_input_state import InputStates
from embodied_env.core.types import SafetyContext, SensorStatus, Snapshot
from embodied_env.timing.clock import NS_PER_S

_NO_FORCES: Mapping[str, float] = {}


class SafetyContextBuilder:
    """Builds the safety context of each step of one contract."""

    def __init__(self, contract: Contract, joints: MeasuredJoints) -> None:
        self._required = required_sensors(contract)
        self._forces = {name: limit.field for name, limit in contract.safety.forces.items()}
        self._joints = joints

    def build(
        self,
        snapshot: Snapshot,
        *,
        since_frozen_ns: int,
        since_returned_ns: int,
        estops: InputStates,
        required: tuple[str, ...] = (),
    ) -> SafetyContext:
        """Return the safety context of an action based on `snapshot`.

        The times since the snapshot was taken, and since the agent received it, are 0 in lockstep. `estops` are the
        states of the robot's safety inputs, `required` the sensors of the policy in addition to the contract's.
        """
        latency_s = since_frozen_ns / NS_PER_S
        samples, now_ns = snapshot.samples, snapshot.now_ns
        sensors = {}
        for name in dict.fromkeys((*self._required, *required)) if required else self._required:
            sample = samples[name]
            age_s = (now_ns - sample.stamp_ns) / NS_PER_S + latency_s
            sensors[name] = SensorStatus(quality=sample.quality, age_s=age_s)
        return SafetyContext(
            sensors=sensors,
            measured=self._joints.positions_or_nan(snapshot),
            action_age_s=since_returned_ns / NS_PER_S,
            latency_s=latency_s,
            estops=estops,
            required=required,
            clock_jump="" if snapshot.clock is None else snapshot.clock.jump,
            forces=self._measured_forces(snapshot) if self._forces else _NO_FORCES,
            snapshot=snapshot,
        )

    def _measured_forces(self, snapshot: Snapshot) -> dict[str, float]:
        return {
            name: float(np.linalg.norm(np.asarray(snapshot.samples[name].values[field], dtype=np.float64)))
            for name, field in self._forces.items()
        }
