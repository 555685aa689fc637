"""A stand-in for a Gazebo server with a drafted world, which publishes what the configuration of its bridge has.

    python drafted_stand_in.py CONTRACT BRIDGE [ANYTHING ...]

A base moves as commanded, and joints go to their commands at once. As a program it runs until SIGTERM, so that a script
named ``gz`` can start it.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import yaml
from simulator_stand_ins import STAND_INS, Faults, RosGzStandIn, host_until_signal

from embodied_env.contract import load_contract
from embodied_env.contract.spaces import field_layouts
from embodied_env.messages.message_types import message_class
from embodied_env.ros.embedded_sim.message_encoder import to_message


class DraftedStandIn(RosGzStandIn):
    """Publish each contract sensor at its rate, by the types of the bridge, and iterate by steps of the profile."""

    def __init__(self, faults: Faults, *, contract, bridge):
        self.contract, profile = contract, contract.backends["gazebo"]
        super().__init__(faults, name=profile["world"])
        self._step_s = profile["step_s"]
        entries = {entry["ros_topic_name"]: entry for entry in bridge if "ros_topic_name" in entry}
        self.clock_entry = entries.pop("/clock")
        types = {name: entry["ros_type_name"] for name, entry in entries.items()}
        self._positions, self._twist, self._pose = {}, (0.0, 0.0), np.zeros(3)  # x, y, heading
        self._sensors = []
        for name, sensor in contract.sensors.items():
            kind = message_class(types.get(sensor.topic, sensor.type))
            shared = self._joints if sensor.topic == "joint_states" else None
            publisher = shared or self.node.create_publisher(kind, f"/{sensor.topic}", 10)
            period_s = 1.0 / sensor.rate_hz if sensor.rate_hz else contract.control_period_s
            self._sensors.append((sensor, field_layouts(name, sensor), publisher, round(period_s / self._step_s)))
        self._drives = []
        for actuator in contract.actuators.values():
            kind = message_class(types.get(actuator.topic, actuator.type))
            subscription = self.node.create_subscription(kind, f"/{actuator.topic}", print, 10)
            self._drives.append((actuator, kind, subscription))
        self._positions = {joint: 0.0 for each in contract.actuators.values() for joint in each.joints}
        self.commands = 0

    def _take_commands(self):
        taken = False
        for actuator, kind, subscription in self._drives:
            while (found := subscription.handle.take_message(kind, False)) is not None:
                taken, message = True, found[0]
                self.commands += 1
                if actuator.command == "twist":
                    self._twist = message.linear.x, message.angular.z
                else:
                    values = message.points[-1].positions if hasattr(message, "points") else np.ravel(message.data)
                    self._positions.update(zip(actuator.joints, map(float, values), strict=True))
        return taken

    def _publish_step(self):
        """Iterate as the base class does, with the physics step of the profile."""
        world, (speed, rate) = self.world, self._twist
        self._pose += self._step_s * np.array([speed * math.cos(self._pose[2]), speed * math.sin(self._pose[2]), rate])
        world.now_ns += round(self._step_s * 1e9)
        world.iterations += 1
        self._publish_clock()
        for sensor, layouts, publisher, iterations in self._sensors:
            if world.iterations % iterations == 0:
                values = {layout.field: self._value(sensor, layout) for layout in layouts}
                publisher.publish(to_message(sensor, values, world.now_ns))
        world.pending = max(0, world.pending - 1)

    def _value(self, sensor, layout):
        if sensor.fields[layout.field].joints:
            is_position = layout.field == "position"
            joints = sensor.fields[layout.field].joints
            return np.array([self._positions[joint] * is_position for joint in joints])
        heading = self._pose[2] / 2
        known = {"position": [*self._pose[:2], 0.0], "orientation": [0.0, 0.0, math.sin(heading), math.cos(heading)]}
        known |= {"linear": [self._twist[0], 0.0, 0.0]}
        return np.array(known.get(layout.field, np.ones(layout.shape)), dtype=layout.dtype)

    def request_reset(self, *, time_too=True):
        super().request_reset(time_too=time_too)
        self._twist, self._pose = (0.0, 0.0), np.zeros(3)
        self._positions = dict.fromkeys(self._positions, 0.0)

    def _set_pose(self, request, response):
        """Place a model, which moves on from there if it is the drafted one."""
        pose = request.pose
        if request.entity.name == "rover":
            heading = 2.0 * math.atan2(pose.orientation.z, pose.orientation.w)
            self._pose = np.array([pose.position.x, pose.position.y, heading])
        return super()._set_pose(request, response)


STAND_INS["drafted"] = DraftedStandIn


def read_draft(contract, bridge):
    """Return the options of the stand-in for a drafted contract and the configuration of its bridge."""
    return {"contract": load_contract(contract), "bridge": yaml.safe_load(Path(bridge).read_text())}


if __name__ == "__main__":
    host_until_signal("drafted", **read_draft(*sys.argv[1:3]))
