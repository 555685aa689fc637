"""Where the joints are, as their sensors say: what a relay begins an epoch from."""

from __future__ import annotations

import numpy as np

from embodied_env.clock import NS_PER_S
from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.messages import JOINT_SENSOR


class MeasuredPositions:
    """The newest measured position of each joint, and when it was acquired, on the steady clock."""

    def __init__(self, contract: Contract, joints: tuple[str, ...]) -> None:
        """Find `joints` in the sensors of the agent."""
        found = {
            joint: (name, index, sensor.max_age_s)
            for name, sensor in contract.sensors.items()
            if sensor.type == JOINT_SENSOR and sensor.visibility == "agent" and "position" in sensor.fields
            for index, joint in enumerate(sensor.fields["position"].joints or ())
        }
        self._places = [(i, joint, *found[joint]) for i, joint in enumerate(joints) if joint in found]
        self._future_ns = round(contract.safety.observation.future_tolerance_s * NS_PER_S)
        self.sensors = tuple(dict.fromkeys(sensor for _, _, sensor, _, _ in self._places))
        self.positions = np.zeros(len(joints))  # what no sensor reports is at 0: its position does not count
        self._acquired_ns: dict[str, int] = {}

    def put(self, sensor: str, positions: FloatArray, acquired_ns: int, now_ns: int) -> bool:
        """Take a reading of `sensor`: in the order of its joints. False: it is not finite, or of the future."""
        if not np.isfinite(positions).all() or acquired_ns > now_ns + self._future_ns:
            return False
        if acquired_ns >= self._acquired_ns.get(sensor, acquired_ns):  # never a step back
            self._acquired_ns[sensor] = acquired_ns
            for i, _, name, index, _ in self._places:
                if name == sensor:
                    self.positions[i] = positions[index]
        return True

    def ages_s(self, now_ns: int) -> FloatArray:
        """Return how old each position is, shape (n_joints,): infinite before the first, 0 where none is needed."""
        ages = np.zeros(len(self.positions))
        for i, _, sensor, _, _ in self._places:
            acquired_ns = self._acquired_ns.get(sensor)
            ages[i] = np.inf if acquired_ns is None else max(0, now_ns - acquired_ns) / NS_PER_S
        return ages

    def problem(self, now_ns: int) -> str:
        """Return which joint is not known well enough to begin, or ""."""
        ages = self.ages_s(now_ns)
        for i, joint, sensor, _, max_age_s in self._places:
            if not ages[i] <= max_age_s:
                return f"the position of {joint} ({sensor}) is {ages[i]:.3f} s old; allowed: {max_age_s} s"
        return ""
