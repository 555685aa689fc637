"""Read the names, frames, joints, inertias, shapes, sensors and systems of an SDF world that tests compare."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np


def numbers(element: ET.Element | None, default: str = "") -> np.ndarray:
    text = default if element is None else element.text or default
    return np.array([float(part) for part in text.split()])


def text_of(element: ET.Element, path: str) -> str:
    found = element.find(path)
    assert found is not None, f"<{element.tag} name={element.get('name')!r}> has no {path}"
    return (found.text or "").strip()


def number_of(element: ET.Element, path: str) -> float:
    return float(text_of(element, path))


def rotation(axis: np.ndarray, angle: float) -> np.ndarray:
    x, y, z = axis
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross


def frame(pose: np.ndarray) -> np.ndarray:
    """Return the (4, 4) frame of ``x y z roll pitch yaw``."""
    made = np.eye(4)
    roll, pitch, yaw = pose[3:]
    made[:3, :3] = rotation(np.eye(3)[2], yaw) @ rotation(np.eye(3)[1], pitch) @ rotation(np.eye(3)[0], roll)
    made[:3, 3] = pose[:3]
    return made


def pose_frame(element: ET.Element) -> np.ndarray:
    return frame(numbers(element.find("pose"), "0 0 0 0 0 0"))


def named(element: ET.Element, tag: str) -> dict[str, ET.Element]:
    return {child.get("name", ""): child for child in element.findall(tag)}


@dataclass(frozen=True, kw_only=True)
class SdfModel:
    """One model without its nested models, which are read separately."""

    element: ET.Element

    @property
    def links(self) -> dict[str, ET.Element]:
        return named(self.element, "link")

    @property
    def joints(self) -> dict[str, ET.Element]:
        return named(self.element, "joint")

    @property
    def is_static(self) -> bool:
        return self.element.findtext("static") == "true"

    def joint_of(self, link: str) -> ET.Element | None:
        carriers = [joint for joint in self.joints.values() if joint.findtext("child") == link]
        assert len(carriers) <= 1
        return carriers[0] if carriers else None

    def fixed_to(self, link: str) -> list[str]:
        """Return the links on fixed joints of `link` that have its frame."""
        joints = [joint for joint in self.joints.values() if joint.get("type") == "fixed"]
        held = [text_of(joint, "child") for joint in joints if joint.findtext("parent") == link]
        return [child for child in held if child in self.links and self.links[child].find("pose") is None]

    def link_frame(self, link: str, positions: Mapping[str, float], at: np.ndarray | None = None) -> np.ndarray:
        """Return the frame of a link in the world, (4, 4), with the joints at `positions` and the model at `at`."""
        element = self.links[link]
        pose = element.find("pose")
        under = None if pose is None else pose.get("relative_to")
        model = pose_frame(self.element) if at is None else at
        before = model if under is None else self.link_frame(under, positions, at)
        made = before @ pose_frame(element)
        joint = self.joint_of(link)
        if joint is None or joint.get("type") == "fixed":
            return made
        anchor, axis = pose_frame(joint), numbers(joint.find("axis/xyz"))
        moved, value = np.eye(4), positions.get(joint.get("name", ""), 0.0)
        if joint.get("type") == "prismatic":
            moved[:3, 3] = axis * value
        else:
            moved[:3, :3] = rotation(axis, value)
        return made @ anchor @ moved @ np.linalg.inv(anchor)


@dataclass(frozen=True, kw_only=True)
class SdfWorld:
    element: ET.Element

    @classmethod
    def read(cls, file: Path) -> SdfWorld:
        root = ET.fromstring(file.read_text())  # noqa: S314 - our own file
        assert root.tag == "sdf"
        (world,) = root
        assert world.tag == "world"
        return cls(element=world)

    @property
    def name(self) -> str:
        return self.element.get("name", "")

    @property
    def models(self) -> dict[str, SdfModel]:
        return {name: SdfModel(element=element) for name, element in named(self.element, "model").items()}

    def model_with_joint(self, joint: str) -> SdfModel:
        (model,) = [model for model in self.models.values() if joint in model.joints]
        return model

    def model_with_link(self, link: str) -> SdfModel:
        (model,) = [model for model in self.models.values() if link in model.links]
        return model

    def sensor_on(self, topic: str) -> ET.Element:
        (sensor,) = [sensor for sensor in self.element.iter("sensor") if sensor.findtext("topic") == topic]
        return sensor

    def topics(self) -> Iterator[tuple[str, str]]:
        """Yield each Gazebo topic and its owner, which is a sensor type or an element of a system."""
        for sensor in self.element.iter("sensor"):
            yield text_of(sensor, "topic"), sensor.get("type", "")
        for plugin in self.element.iter("plugin"):
            system = plugin.get("name", "").split("::")[-1]
            for key in ("topic", "odom_topic"):
                if (topic := plugin.findtext(key)) is not None:
                    yield topic, f"{system}.{key}"
            yield from ((out.get("topic", ""), f"{system}.{out.get('type')}") for out in plugin.findall("output"))
