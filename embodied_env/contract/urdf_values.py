"""The values in a URDF: numbers, vectors, origins, shapes and ranges, each checked as it is read."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from embodied_env.contract.checks import one_of, require
from embodied_env.contract.kinematics import enclosing_capsule, frame_of, step_of
from embodied_env.contract.model import FloatArray
from embodied_env.errors import ContractError


class _NoDoctype(ET.TreeBuilder):
    def doctype(self, name: str, pubid: str | None, system: str | None) -> NoReturn:  # noqa: ARG002 - expat's names
        """Refuse: a DOCTYPE can define entities."""
        raise ContractError("urdf", f"<!DOCTYPE {name}> is not allowed; allowed: a file without")


def parse_xml(text: str | bytes) -> ET.Element:
    """Return the root element; raises ContractError for what is not well-formed, has a DOCTYPE or is no robot."""
    parser = ET.XMLParser(target=_NoDoctype())  # noqa: S314 - see _NoDoctype
    try:
        parser.feed(text)
        root = parser.close()
    except (ET.ParseError, LookupError) as error:  # the latter: an encoding that does not exist
        raise ContractError("urdf", f"not well-formed XML: {error}") from None
    if root.tag != "robot":
        raise ContractError("urdf", f"the root element is <{root.tag}>; allowed: <robot>")
    return root


def read_range(element: ET.Element, kind: str, path: str) -> tuple[float, float] | None:
    """Return the range within the hard limits and the soft ones; None where there are no hard ones.

    A soft limit that is not there does not count. Of two hard ones, the one that is not there is 0: so URDF has it.
    """
    if kind not in ("revolute", "prismatic"):
        return None
    low, high, given = -math.inf, math.inf, False
    for tag, lower, upper in (
        ("limit", "lower", "upper"),
        ("safety_controller", "soft_lower_limit", "soft_upper_limit"),
    ):
        found = element.find(tag)
        if found is None:
            continue
        least, most = read_number(found, lower, f"{path}.{tag}"), read_number(found, upper, f"{path}.{tag}")
        low, high = max(low, -math.inf if least is None else least), min(high, math.inf if most is None else most)
        given = given or (tag == "limit" and not (least is None and most is None))
    if not given:
        return None
    if math.isinf(low) or math.isinf(high):  # the default of URDF for the one that is not there
        low, high = (0.0 if math.isinf(low) else low), (0.0 if math.isinf(high) else high)
    require(low <= high, f"{path}.limit", f"the range from {low} to {high} is empty or inverted")
    return low, high


def read_geometry(element: ET.Element, path: str) -> tuple[FloatArray, float]:
    """Return ends and radius of the capsule that encloses a shape. The length of a capsule is its straight part's."""
    allowed = ("sphere", "cylinder", "box", "capsule", "mesh")
    require(element.tag in allowed, path, f"<{element.tag}>: {one_of(element.tag, allowed)}")
    if element.tag == "box":
        sizes = read_vector(element, "size", None, path)
    else:
        radius = read_number(element, "radius", path)
        length = 0.0 if element.tag == "sphere" else read_number(element, "length", path)
        require(radius is not None and length is not None, path, "radius or length is missing")
        sizes = np.array([2.0 * (radius or 0.0), 0.0, length or 0.0])
    require(bool((sizes >= 0.0).all()) and sizes[0] > 0.0, path, f"{(sizes / 2).tolist()} m; allowed: sizes above 0")
    return enclosing_capsule(element.tag, sizes / 2.0)


def named_elements(root: ET.Element, tag: str) -> dict[str, ET.Element]:
    """Return the elements by their names, which must be there and differ."""
    found: dict[str, ET.Element] = {}
    for element in root.findall(tag):
        name = element.get("name", "")
        require(name != "" and name not in found, f"urdf.{tag}", f"the name {name!r} is empty or taken")
        found[name] = element
    return found


def child_attribute(element: ET.Element, tag: str, key: str, path: str) -> str:
    """Return an attribute of a child element, which must be there."""
    child = element.find(tag)
    value = None if child is None else child.get(key)
    if value is None:
        raise ContractError(f"{path}.{tag}.{key}", "missing; allowed: a name")
    return value


def read_number(element: ET.Element, key: str, path: str) -> float | None:
    """Return a finite number, or None where there is no such attribute."""
    text = element.get(key)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    require(math.isfinite(value), f"{path}.{key}", f"{text!r} is not allowed; allowed: a finite number")
    return value


def read_vector(element: ET.Element | None, key: str, default: Sequence[float] | None, path: str) -> FloatArray:
    """Return three finite numbers."""
    text = None if element is None else element.get(key)
    if text is None:
        if default is None:
            raise ContractError(f"{path}.{key}", "missing; allowed: three numbers")
        return np.array(default, dtype=np.float64)
    try:
        values = np.array([float(part) for part in text.split()])
    except ValueError:
        values = np.array([])
    allowed = values.shape == (3,) and bool(np.isfinite(values).all())
    require(allowed, f"{path}.{key}", f"{text!r} is not allowed; allowed: three finite numbers")
    return values


def read_origin(element: ET.Element, path: str) -> FloatArray:
    """Return the frame in <origin>: fixed-axis roll, pitch and yaw, so Rz(yaw) Ry(pitch) Rx(roll)."""
    origin = element.find("origin")
    position, angles = (read_vector(origin, key, (0.0, 0.0, 0.0), f"{path}.origin") for key in ("xyz", "rpy"))
    roll, pitch, yaw = (
        step_of(axis, angle, slides=False) for axis, angle in zip(np.eye(3), angles.tolist(), strict=True)
    )
    frame: FloatArray = frame_of(position) @ yaw @ pitch @ roll
    return frame
