"""What is known beside an action when it is judged, from the last snapshot and from the clock."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from embodied_env.contract import Contract
from embodied_env.core.clock import NS_PER_S
from embodied_env.core.measured_joints import MeasuredJoints
from embodied_env.core.types import SafetyContext, SensorStatus, Snapshot


def required_sensors(contract: Contract) -> tuple[str, ...]:
    """Return the sensors that an action needs: the declared ones, else those that report the commanded joints.

    A sensor whose force is limited is always needed: the force that it measured before it fell silent says nothing.
    """
    declared = contract.safety.observation.required
    needed = _of_commanded_joints(contract) if declared is None else declared
    return tuple(dict.fromkeys((*needed, *contract.safety.forces)))


def _of_commanded_joints(contract: Contract) -> tuple[str, ...]:
    commanded = {joint for actuator in contract.actuators.values() for joint in actuator.joints}
    return tuple(
        name
        for name, sensor in contract.sensors.items()
        if sensor.visibility == "agent"
        and any(commanded.intersection(field.joints or ()) for field in sensor.fields.values())
    )


class SafetyContextBuilder:
    """Reads situations for one contract."""

    def __init__(self, contract: Contract, joints: MeasuredJoints) -> None:
        """Resolve the sensors that count."""
        self._required = required_sensors(contract)
        self._forces = {name: limit.field for name, limit in contract.safety.forces.items()}
        self._joints = joints

    def build(
        self, snapshot: Snapshot, *, since_frozen_ns: int, since_returned_ns: int, estops: Mapping[str, str]
    ) -> SafetyContext:
        """Return the situation.

        Args:
            snapshot: the settled snapshot that the action is based on.
            since_frozen_ns: how long ago the snapshot was taken; 0 in a world that waits.
            since_returned_ns: how long ago the agent got it; 0 in a world that waits.
            estops: the robot's safety inputs.
        """
        latency_s = since_frozen_ns / NS_PER_S
        samples, now_ns = snapshot.samples, snapshot.now_ns
        sensors = {}
        for name in self._required:
            sample = samples[name]
            age_s = (now_ns - sample.stamp_ns) / NS_PER_S + latency_s
            sensors[name] = SensorStatus(quality=sample.quality, age_s=age_s)
        return SafetyContext(
            sensors=sensors,
            measured=self._joints.positions_or_nan(snapshot),
            action_age_s=since_returned_ns / NS_PER_S,
            latency_s=latency_s,
            estops=estops,
            clock_jump="" if snapshot.clock is None else snapshot.clock.jump,
            forces={
                name: float(np.linalg.norm(np.asarray(samples[name].values[field], dtype=np.float64)))
                for name, field in self._forces.items()
            },
        )
