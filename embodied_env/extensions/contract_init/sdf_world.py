"""Read an SDF world and its local includes as data, within limits of size and time."""

from __future__ import annotations

import math
import os
import re
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from embodied_env.contract.bounded_files import MOST_XML_BYTES, read_file, read_xml
from embodied_env.contract.value_checks import allow, check_magnitude, check_text, one_of
from embodied_env.errors import ContractError
from embodied_env.extensions.contract_init.contract_draft import Joint

STEP_S, REAL_TIME_FACTOR = 0.001, 1.0  # the defaults of SDF
_MOST_INCLUDES, _DEEPEST, _MOST_S = 200, 16, 20.0
_UNLIMITED = 1e15  # SDF writes 1e16 for no limit
_UNITS = {"revolute": "rad", "continuous": "rad", "prismatic": "m"}
_DOWNLOAD = re.compile(r"(https?|fuel)://")
_RESOURCE_PATHS = ("GZ_SIM_RESOURCE_PATH", "SDF_PATH")
_WORLD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Gap = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class SdfSensor:
    """A sensor whose `scope` is its place in the names of topics."""

    name: str
    kind: str
    scope: str
    element: ET.Element


@dataclass(frozen=True, kw_only=True)
class SdfModel:
    """A model whose `scope` is its place in the names of topics, such as ``world/W/model/M``."""

    name: str
    scope: str
    joints: Mapping[str, Joint]
    sensors: tuple[SdfSensor, ...]
    plugins: tuple[ET.Element, ...]
    nested: tuple[SdfModel, ...]

    def tree(self) -> Iterator[SdfModel]:
        """Yield the model and those nested in it."""
        yield self
        for each in self.nested:
            yield from each.tree()


@dataclass(kw_only=True)
class SdfWorld:
    """A world of an SDF file, with None for missing values and `gaps` for unreadable parts."""

    name: str
    folder: Path
    step_s: float | None
    real_time_factor: float | None
    plugins: tuple[ET.Element, ...]
    models: dict[str, SdfModel]
    gaps: list[Gap] = field(default_factory=list)


def read_world(file: Path) -> SdfWorld:
    """Read the first world of an SDF file, or raise ContractError."""
    reader = _SdfReader()
    root = reader.read(file)
    world = root.find("world")
    if world is None:
        remedy = "include its model in a world"
        raise ContractError("sdf", f"no <world> in {str(file)!r} (expected one); {remedy}")
    name = _name(world, "sdf.world")
    allow(bool(_WORLD_NAME.fullmatch(name)), "sdf.world", f"name {name!r}", "letters, digits and _, as a ROS 2 name")
    physics = world.find("physics")
    found = SdfWorld(
        name=name,
        folder=file.resolve().parent,
        step_s=number(physics, "max_step_size", None, "sdf.physics"),
        real_time_factor=number(physics, "real_time_factor", None, "sdf.physics"),
        plugins=tuple(world.findall("plugin")),
        models={},
        gaps=reader.gaps,
    )
    if found.step_s is not None:
        check_magnitude("sdf.physics.max_step_size", found.step_s, least=1e-6)
        allow(found.step_s > 0.0, "sdf.physics.max_step_size", found.step_s, "> 0 s")
    for element in reader.models(world, found.folder, (file.resolve(),)):
        model = _read_model(element, f"world/{name}")
        allow(model.name not in found.models, "sdf.model", f"name {model.name!r}", "unique")
        found.models[model.name] = model
    return found


def text_of(element: ET.Element | None, path: str) -> str | None:
    """Return the text of a child element, without spaces around it, or None without one."""
    child = None if element is None else element.find(path)
    return None if child is None else (child.text or "").strip()


def number(element: ET.Element | None, path: str, default: float | None, where: str) -> float | None:
    """Return the number of a child element, which may be infinite, or `default` without one."""
    text = text_of(element, path)
    if text is None:
        return default
    try:
        value = float(text[:40])
    except ValueError:
        value = math.nan
    allow(not math.isnan(value), f"{where}.{path.replace('/', '.')}", repr(text[:40]), "a number")
    return value


def is_true(element: ET.Element, path: str, *, default: bool) -> bool:
    """Return the truth value of a child element, or `default` without one."""
    text = text_of(element, path)
    return default if text is None else text.lower() in ("true", "1")


def find_file(uri: str, folder: Path) -> Path | None:
    """Return the file or folder of a URI, relative to `folder` or Gazebo's resource paths."""
    scheme, _, rest = uri.rpartition("://")
    roots = [folder]
    if scheme in ("", "model", "package"):
        paths = (os.environ.get(name, "") for name in _RESOURCE_PATHS)
        roots += [Path(each) for path in paths for each in path.split(os.pathsep) if each]
    elif scheme != "file":
        return None
    try:
        return next((path for root in roots if (path := root / rest).exists()), None)
    except (OSError, ValueError):  # a path that is too long, not permitted, or with NUL
        return None


class _SdfReader:
    """Reads files within one budget, and replaces includes by what they contain."""

    def __init__(self) -> None:
        self.gaps: list[Gap] = []
        self._bytes_left, self._includes, self._end_s = MOST_XML_BYTES, 0, time.monotonic() + _MOST_S
        self._merged: list[ET.Element] = []

    def read(self, file: Path) -> ET.Element:
        allow(time.monotonic() < self._end_s, "sdf", "takes too long to read", f"at most {_MOST_S:g} s")
        try:
            content = read_file(file, most_bytes=self._bytes_left)
        except OSError as error:
            limit = f"expected at most {MOST_XML_BYTES} bytes with all includes"
            raise ContractError("sdf", f"cannot read a file ({limit}): {error}") from None
        self._bytes_left -= len(content)
        return read_xml(content, path=f"sdf[{file.name}]", root="sdf")

    def models(self, parent: ET.Element, folder: Path, stack: tuple[Path, ...]) -> Iterator[ET.Element]:
        """Yield the models of a world or model, with those that includes name in their place."""
        allow(len(stack) <= _DEEPEST, "sdf.include", "nested too deeply", f"at most {_DEEPEST} levels")
        for child in parent:
            if child.tag == "include":
                yield from self._included(child, folder, stack)
            elif child.tag == "model":
                self._expand(child, folder, stack)
                yield child

    def _expand(self, model: ET.Element, folder: Path, stack: tuple[Path, ...]) -> None:
        """Replace the includes of a model and its nested models by the models they name."""
        found = list(self.models(model, folder, stack))
        for child in [each for each in model if each.tag in ("include", "model")]:
            model.remove(child)
        for each in found:
            if any(each is merged for merged in self._merged):
                model.extend(child for child in each if child.tag != "pose")
            else:
                model.append(each)

    def _included(self, include: ET.Element, folder: Path, stack: tuple[Path, ...]) -> Iterator[ET.Element]:
        self._includes += 1
        allow(self._includes <= _MOST_INCLUDES, "sdf.include", "too many includes", f"at most {_MOST_INCLUDES}")
        uri = text_of(include, "uri") or ""
        check_text("sdf.include.uri", uri)
        if _DOWNLOAD.match(uri):
            where = f"gz fuel download -u {uri}, then include it by path"
            self.gaps.append((f"the model {uri}, which is not downloaded", where))
            return
        file = _model_file(find_file(uri, folder))
        if file is None:
            self.gaps.append((f"the model {uri}: no such file", "correct the URI, or set GZ_SIM_RESOURCE_PATH"))
            return
        allow(file not in stack, "sdf.include", f"{uri!r} includes itself", "no cycle")
        if file.suffix == ".urdf":
            self.gaps.append((f"the model {uri}: a URDF", "contract init --from-sdf WORLD --urdf FILE"))
            return
        model = self.read(file).find("model")
        if model is None:
            return  # an actor or a light
        if (name := text_of(include, "name")) is not None:
            model.set("name", name)
        if include.get("merge", "false").lower() in ("true", "1"):
            self._merged.append(model)
        model.extend(include.findall("plugin"))
        self._expand(model, file.parent, (*stack, file))
        yield model


def _model_file(path: Path | None) -> Path | None:
    if path is None or not path.is_dir():
        return None if path is None else path.resolve()
    names = sorted(path.glob("*.sdf"))
    preferred = [path / "model.sdf", *names]
    return next((each.resolve() for each in preferred if each.is_file()), None)


def _name(element: ET.Element, where: str) -> str:
    name = element.get("name", "")
    check_text(where, name)
    return name


def _read_model(element: ET.Element, parent: str) -> SdfModel:
    name = _name(element, "sdf.model")
    scope = f"{parent}/model/{name}"
    joints: dict[str, ET.Element] = {}
    for each in element.findall("joint"):
        joint_name = _name(each, f"sdf.model[{name}].joint")
        allow(joint_name not in joints, f"sdf.model[{name}].joint", f"name {joint_name!r}", "unique")
        joints[joint_name] = each
    sensors = list(_sensors(element.findall("link"), f"{scope}/link", "sdf.link"))
    sensors += _sensors(joints.values(), f"{scope}/joint", "sdf.joint")
    return SdfModel(
        name=name,
        scope=scope,
        joints={key: joint for key, each in joints.items() if (joint := _read_joint(key, each)) is not None},
        sensors=tuple(sensors),
        plugins=tuple(element.findall("plugin")),
        nested=tuple(_read_model(each, scope) for each in element.findall("model")),
    )


def _sensors(parents: Iterable[ET.Element], scope: str, where: str) -> Iterator[SdfSensor]:
    for parent in parents:
        for each in parent.findall("sensor"):
            name, kind = _name(each, f"{where}.sensor"), each.get("type", "")
            check_text(f"{where}.sensor.type", kind)
            yield SdfSensor(name=name, kind=kind, scope=f"{scope}/{_name(parent, where)}/sensor/{name}", element=each)


def _read_joint(name: str, element: ET.Element) -> Joint | None:
    """Return the limits of a joint, or None unless it moves along or around one axis."""
    kind, where = element.get("type", ""), f"sdf.joint[{name}]"
    known = (*_UNITS, "fixed", "ball", "universal", "screw", "revolute2", "gearbox")
    allow(kind in known, f"{where}.type", one_of(kind, known), "a type of SDF")
    if kind not in _UNITS:
        return None
    low = number(element, "axis/limit/lower", -math.inf, where)
    high = number(element, "axis/limit/upper", math.inf, where)
    speed = number(element, "axis/limit/velocity", math.inf, where)
    is_limited = low is not None and high is not None and -_UNLIMITED < low < high < _UNLIMITED
    return Joint(
        unit=_UNITS[kind],
        position=(low, high) if low is not None and high is not None and is_limited and kind != "continuous" else None,
        velocity=speed if speed is not None and 0.0 < speed < _UNLIMITED else None,
        is_continuous=_UNITS[kind] == "rad" and not is_limited,
        source="the world",
        moves=element.find("axis/mimic") is None,
    )
