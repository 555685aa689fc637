"""Inputs of a policy from the observation of a contract: components by name, in its units; images as in training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract
from embodied_env.contract.schema import FloatArray, ResizeSpec, SensorSpec
from embodied_env.contract.spaces import FieldLayout, field_layouts
from embodied_env.contract.value_checks import allow, one_of, require
from embodied_env.core.image_processing import resize_image
from embodied_env.core.policy import Observation
from embodied_env.policies.policy_file import ImageSpec, InputPart, InputSpec, PolicyFile
from embodied_env.policies.statistics import make_normalizer

T = TypeVar("T")

_ANGLES = {
    "rad": ("rad", 1.0),
    "deg": ("rad", math.pi / 180),
    "rad/s": ("rad/s", 1.0),
    "deg/s": ("rad/s", math.pi / 180),
}
_LENGTHS = {"m": ("m", 1.0), "cm": ("m", 0.01), "mm": ("m", 0.001), "m/s": ("m/s", 1.0), "mm/s": ("m/s", 0.001)}
UNITS: Mapping[str, tuple[str, float]] = {**_ANGLES, **_LENGTHS}
"""Unit -> unit of contracts, and its size in that."""

RANGES: Mapping[str, tuple[float, float]] = {
    "-100..100": (-100, 100),
    "0..100": (0, 100),
    "-1..1": (-1, 1),
    "0..1": (0, 1),
}
"""Units that are shares of the `limits` of a joint."""

_ORDERS = {"xyzw": [0, 1, 2, 3], "wxyz": [3, 0, 1, 2]}
_CHANNELS = {"rgb8": "rgb", "rgba8": "rgb", "bgr8": "bgr", "bgra8": "bgr", "mono8": "mono"}


class VectorInput:
    """An input made of parts.

    Attributes:
        labels: name of each component.
        units: unit of each component in the contract, None without one.
        slices: components of each part.
        shape: of the vector.
    """

    def __init__(self, file: PolicyFile, contract: Contract, path: str, spec: InputSpec) -> None:
        """Find the components by name; raises ContractError for those that do not fit."""
        self._parts: list[tuple[str, list[int] | None]] = []
        gains, biases = [np.zeros(0)], [np.zeros(0)]
        self.labels: list[str] = []
        self.units: list[Any] = []
        self.slices: list[slice] = []
        for index, part in enumerate(spec.parts or ()):
            start = len(self.labels)
            if part.last_output is None:
                has_history = spec.history is not None
                gain, bias = self._add_field(file, contract, f"{path}.parts[{index}]", part, has_history=has_history)
            else:
                where = f"{path}.parts[{index}].last_output"
                allow(file.chunk is None, where, "output of a chunk", "that of single actions")
                size = file.outputs[part.last_output].size
                self.labels += [f"last {part.last_output}[{n}]" for n in range(size)]
                self.units += [None] * size
                self._parts.append((part.last_output, None))
                gain, bias = np.ones(size), np.zeros(size)
            gains.append(gain)
            biases.append(bias)
            self.slices.append(slice(start, len(self.labels)))
        self.shape = (len(self.labels),)
        self._gain, self._bias = np.concatenate(gains), np.concatenate(biases)
        self._normalizer = make_normalizer(file, path, spec.normalize, len(self.labels))

    def read(self, observation: Observation, last_outputs: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Return the vector for `observation`."""
        values = self.read_raw(observation, last_outputs) * self._gain + self._bias
        return values if self._normalizer is None else self._normalizer.normalize(values)

    def read_raw(self, observation: Observation, last_outputs: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Return the components of `observation` as they are, in the order of the vector."""
        return np.concatenate(
            [
                last_outputs[key] if index is None else np.asarray(observation[key])[..., index].ravel()
                for key, index in self._parts
            ]
        )

    def _add_field(
        self, file: PolicyFile, contract: Contract, path: str, part: InputPart, *, has_history: bool
    ) -> tuple[FloatArray, FloatArray]:
        """Add the components of a field, and return their gain and bias."""
        key, spaces = str(part.field), contract.observation_space.spaces
        require(key in spaces, f"{path}.field", one_of(key, spaces))
        sensor, layout = _fields(contract).get(key, (None, None))
        spec = None if sensor is None or layout is None else sensor.fields[layout.field]
        is_vector = sensor is None or sensor.encoding is None
        require(is_vector, f"{path}.field", f"{key!r} is an image (expected a vector; give it as image)")
        is_once = spec is None or spec.history is None or not has_history
        require(is_once, f"{path}.field", f"{key!r} has a history in the contract too (expected one of them)")
        shape, joints = spaces[key].shape or (1,), spec.joints or () if spec is not None else ()
        if joints:
            is_named = part.joints is not None and part.unit is not None and part.components is None
            require(is_named, path, f"{key!r} has joints (expected joints by name, with their unit)")
            index = joint_places(file, f"{path}.joints", part.joints or (), joints, f"joints of {key}")
        else:
            require(part.joints is None, f"{path}.joints", f"{key!r} has no joints (expected null); give components")
            index = list(range(shape[-1]) if part.components is None else part.components)
            allow(all(0 <= n < shape[-1] for n in index), f"{path}.components", index, f"0 to {shape[-1] - 1}")
        is_rotation = layout is not None and spec is not None and spec.path is None and layout.field == "orientation"
        if is_rotation:
            allow(part.quaternion is not None, f"{path}.quaternion", part.quaternion, "xyzw or wxyz, as in training")
            index = [_ORDERS[str(part.quaternion)][n] for n in index]
        else:
            require(part.quaternion is None, f"{path}.quaternion", f"{key!r} is no orientation (expected null)")
        own = spec.units_by_joint() if spec is not None and joints else {}
        names = [joints[n] for n in index] if joints else ["xyzw"[n] if is_rotation else str(n) for n in index]
        unit_of_all = spec.unit if spec is not None and isinstance(spec.unit, str) else None
        units = [own.get(name, unit_of_all) for name in names]
        keys = [each(f"{path}.{key}", getattr(part, key), len(index)) for key in ("unit", "sign", "offset", "scale")]
        gains, biases = [], []
        for name, known, unit, sign, offset, scale in zip(names, units, *keys, strict=True):
            factor, zero = unit_map(file, contract, f"{path}.unit", unit, known, name)
            gains.append(factor * sign * scale)
            biases.append((zero - offset) * sign * scale)
        rows = math.prod(shape[:-1])
        self.units += units * rows
        self.labels += [
            f"{key}[{name}]" if rows == 1 else f"{key}[{row}][{name}]" for row in range(rows) for name in names
        ]
        self._parts.append((key, index))
        return np.tile(gains, rows), np.tile(biases, rows)


class ImageInput:
    """An input that is an image.

    Attributes:
        shape: of the image for the model.
        dtype: uint8 or float32.
    """

    def __init__(self, file: PolicyFile, contract: Contract, path: str, spec: InputSpec, image: ImageSpec) -> None:
        """Find the image; raises ContractError for one that cannot be made as in training."""
        self._spec = image
        fields = {key: found for key, found in _fields(contract).items() if found[0].encoding is not None}
        require(image.field in fields, f"{path}.image.field", one_of(image.field, fields))
        sensor, layout = fields[image.field]
        own, wanted = _CHANNELS.get(str(sensor.encoding), "depth"), image.channels
        is_color = wanted in ("rgb", "bgr")
        fits = own == "mono" if is_color and image.expand else own == wanted or (is_color and own in ("rgb", "bgr"))
        remedy = "; set expand to repeat it in three channels" if is_color and own == "mono" else ""
        require(fits, f"{path}.image.channels", f"{wanted} of an image in {sensor.encoding}{remedy}")
        is_single = layout.history is None
        require(is_single, f"{path}.image.field", f"{image.field!r} has a history in the contract (expected none)")
        has_resize = sensor.fields[layout.field].resize is not None
        problem = f"{image.field!r} has a resize in the contract too (expected one of them)"
        require(image.method is None or not has_resize, f"{path}.image.method", problem)
        size, is_same = layout.shape[:2], layout.shape[:2] == image.size
        remedy = "change resize in the contract" if has_resize else "give the method that the training resized with"
        expected = f"{image.size[0]}x{image.size[1]}, as in training"
        problem = f"{image.field!r} is {size[0]}x{size[1]} (expected {expected}); {remedy}"
        require(is_same or image.method is not None, f"{path}.image.size", problem)
        is_sharp = own != "depth" or is_same or image.resample == "nearest"
        allow(is_sharp, f"{path}.image.resample", image.resample, "nearest for depth")
        self._resize = None
        if image.method is not None and not is_same:
            self._resize = ResizeSpec(size=image.size, method=image.method, resample=image.resample)
        self._swap = is_color and own in ("rgb", "bgr") and own != wanted
        count = 3 if is_color else 1
        self.shape = (*image.size, count) if image.layout == "hwc" else (count, *image.size)
        self._normalizer = make_normalizer(file, path, spec.normalize, count)
        is_raw = image.range is None and spec.normalize is None and own != "depth"
        self.dtype = np.dtype(np.uint8 if is_raw else np.float32)

    def read(self, observation: Observation, _: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Return the image for `observation`."""
        pixels, spec = np.asarray(observation[self._spec.field]), self._spec
        pixels = pixels[:, :, :3][:, :, ::-1] if self._swap else pixels[:, :, :3]
        if self._resize is not None:
            pixels = resize_image(np.ascontiguousarray(pixels), self._resize)
        if spec.expand:
            pixels = np.repeat(pixels, 3, axis=2)
        pixels = pixels.astype(self.dtype)
        if spec.range is not None:
            low, high = spec.range
            pixels = pixels / np.float32(255) * np.float32(high - low) + np.float32(low)
        if self._normalizer is not None:
            pixels = self._normalizer.normalize(pixels).astype(np.float32)
        return np.ascontiguousarray(pixels if spec.layout == "hwc" else pixels.transpose(2, 0, 1))


class TextInput:
    """The task's instruction."""

    def __init__(self, contract: Contract, path: str) -> None:
        """Read the instruction; raises ContractError without one."""
        self._text = contract.task.instruction
        require(self._text is not None, f"{path}.text", f"no task.instruction in the contract {contract.name}")

    def read(self, *_: object) -> str:
        """Return the instruction."""
        return str(self._text)


def _fields(contract: Contract) -> dict[str, tuple[SensorSpec, FieldLayout]]:
    seen = {name: sensor for name, sensor in contract.sensors.items() if sensor.visibility == "agent"}
    return {each.key: (sensor, each) for name, sensor in seen.items() for each in field_layouts(name, sensor)}


def joint_places(file: PolicyFile, path: str, joints: Sequence[str], known: Sequence[str], owner: str) -> list[int]:
    """Return the places of the policy's joints in `known`; raises ContractError for one without a counterpart."""
    named = [file.joint_names.get(joint, joint) for joint in joints]
    lost = [repr(joint) for joint, name in zip(joints, named, strict=True) if name not in known]
    problem = f"policy has {len(joints)} joints; no counterpart in the contract for {', '.join(lost)}"
    require(not lost, path, f"{problem} (expected {owner}: {', '.join(known)}); map names with joint_names")
    allow(len({*named}) == len(named), path, f"{list(joints)}, which joint_names maps to {named}", "different joints")
    return [known.index(name) for name in named]


def each(path: str, value: T | tuple[T, ...], count: int) -> list[T]:
    """Return one value per component; raises ContractError for another number of them."""
    if not isinstance(value, tuple):
        return [value] * count
    allow(len(value) == count, path, f"{len(value)} values", f"one for all, or {count}")
    return list(value)


def unit_map(
    file: PolicyFile, contract: Contract, path: str, unit: str | None, own: str | None, name: str
) -> tuple[float, float]:
    """Return factor and zero of the value in `unit`, ``factor * value + zero``, for a value in the unit `own`."""
    if unit is None or unit == own:
        return 1.0, 0.0
    (base, size), (known_base, known_size) = UNITS.get(unit, (None, 1.0)), UNITS.get(own or "", ("", 1.0))
    if base == known_base:
        return known_size / size, 0.0
    known = [*(u for u, (b, _) in UNITS.items() if b == own), *(RANGES if own in ("rad", "m") else ())]
    allow(unit in known, path, f"{unit!r} of {name!r}", f"one of: {', '.join(known) or own}")
    limits = {file.joint_names.get(joint, joint): bounds for joint, bounds in file.limits.items()}
    joints = {joint: spec for actuator in contract.actuators.values() for joint, spec in actuator.joints.items()}
    hint = f"; in the contract it is {list(joints[name].position or ())}" if name in joints else ""
    require(name in limits, path, f"{unit!r} of {name!r} without limits (expected limits.{name} of the training{hint})")
    (first, last), (low, high) = limits[name], RANGES[unit]
    factor = (high - low) / (last - first)
    return factor, low - factor * first
