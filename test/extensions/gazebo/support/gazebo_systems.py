"""Systems of Gazebo as far as the worlds need them, which fail where those of a real server fail.

Each follows the source that it names, of gz-sim 8.14, 9.5 and 10.4 (Harmonic, Ionic, Jetty) unless stated otherwise.
"""

import xml.etree.ElementTree as ET
from collections.abc import Mapping
from typing import Any

import numpy as np
from sdf_world import number_of, numbers, pose_frame, text_of

DEEPEST_MATCH = 2

SILENT_AFTER_RESET = ("gz::sim::systems::Contact", "gz::sim::systems::TouchPlugin")
"""Systems that publish nothing after a reset of the world.

A reset destroys and reloads every system without ISystemReset, and restores all components of the start
(SystemManager::Reset, EntityComponentManager::ResetTo). In the iteration of the reset no system is updated, and the
flags of new entities are cleared at its end. Contact creates its sensors for new entities only (Contact.cc; 10.4 has
an ISystemReset that searches again). TouchPlugin is kept, but its ContactSensorData is a component that the restored
start does not have (TouchPlugin.cc). Imu and ForceTorque search all entities in their first update.
"""


class FieldTooDeepError(Exception):
    """Error of protobuf at each message.

    It reads the fields of a matcher with the reflection of the first level.
    """


def triggers(plugin: ET.Element, message: Mapping[str, Any]) -> bool:
    """Return whether a TriggeredPublisher publishes its output (TriggeredPublisher.cc, FieldMatcher::DoMatch).

    All matches must hold; a field that is not in the message has its default value, 0.
    """
    return all(_matches(match, message) for match in plugin.findall("input/match"))


def _matches(match: ET.Element, message: Mapping[str, Any]) -> bool:
    path = match.get("field", "").split(".")
    if len(path) > DEEPEST_MATCH:
        raise FieldTooDeepError(match.get("field"))
    value: Any = message
    for name in path:
        value = value.get(name, 0.0)
    is_equal = abs(value - float(match.text or "")) <= float(match.get("tol", "1e-8"))
    return is_equal == (match.get("logic_type", "positive") == "positive")


def measured_force(joint: ET.Element, sensor: ET.Element, force_n: np.ndarray) -> np.ndarray:
    """Return what a force-torque sensor publishes in the frame of its child link (ForceTorqueSensor::Update).

    `force_n` is that of the parent on the child, in the frame of the child: gz-physics 7 to 9 return getBodyForce of
    DART (GetJointTransmittedWrenchInJointFrame), which is measured from parent to child (gz-sensors 8 to 10).
    """
    assert text_of(sensor, "force_torque/frame") == "child"
    assert np.array_equal(pose_frame(joint)[:3, :3], np.eye(3))
    direction = text_of(sensor, "force_torque/measure_direction")
    return {"parent_to_child": 1.0, "child_to_parent": -1.0}[direction] * force_n


class PositionServo:
    """A joint of gz_ros2_control 1.2 that is commanded by position (GazeboSimSystem::write).

    Its velocity is proportional to the distance, and physics reaches it within the same step.
    """

    def __init__(self, plugin: ET.Element, *, update_rate_hz: float, step_s: float) -> None:
        self._rate_per_s = float(plugin.findtext("position_proportional_gain", "0.1")) * update_rate_hz
        self._step_s = step_s
        self.position = self.velocity = 0.0

    def move(self, command: float, duration_s: float) -> None:
        for _ in range(round(duration_s / self._step_s)):
            self.velocity = self._rate_per_s * (command - self.position)
            self.position += self.velocity * self._step_s


class Truck:
    """A model that VelocityControl moves, and that TriggeredPublishers turn where its pose matches."""

    def __init__(self, model: ET.Element, *, step_s: float) -> None:
        plugins = {plugin.get("name", ""): plugin for plugin in model.findall("plugin")}
        self._velocity = numbers(plugins["gz::sim::systems::VelocityControl"].find("initial_linear"))
        self._turns = [plugin for plugin in model.findall("plugin") if plugin.find("input") is not None]
        source = plugins["gz::sim::systems::PosePublisher"]
        for turn in self._turns:
            read = turn.find("input")
            assert read is not None
            assert (read.get("type"), read.get("topic")) == ("gz.msgs.Pose", text_of(source, "topic"))
        assert number_of(source, "update_frequency") <= 0  # at every step
        self._step_s = step_s
        self.position = pose_frame(model)[:3, 3]

    def step(self) -> None:
        """Move by one step of physics, and turn at a trigger."""
        self.position = self.position + self._velocity * self._step_s
        pose = {"position": dict(zip("xyz", self.position.tolist(), strict=True))}
        for turn in self._turns:
            if triggers(turn, pose):
                axis, _, value = text_of(turn, "output").removeprefix("linear: {").removesuffix("}").partition(": ")
                self._velocity = np.eye(3)["xyz".index(axis)] * float(value)
