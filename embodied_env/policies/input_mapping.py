"""Inputs of a policy from an observation by component and unit, with images as trained."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, compress, pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract
from embodied_env.contract.actuator_schema import FloatArray
from embodied_env.contract.sensor_schema import FieldSpec, ResizeSpec, SensorSpec
from embodied_env.contract.spaces import FieldLayout, field_layouts, message_field
from embodied_env.contract.value_checks import allow, one_of, require
from embodied_env.core.policy import Observation
from embodied_env.core.reading_conversion import resize_image
from embodied_env.policies.normalization import make_normalizer
from embodied_env.policies.policy_file import ImageSpec, InputPart, OutputPart, PolicyFile, PolicyInputSpec
from embodied_env.tasks.task_parts import norm

T = TypeVar("T")

_SIZES = {"rad": ("rad", 1.0), "deg": ("rad", math.pi / 180), "m": ("m", 1.0), "cm": ("m", 0.01), "mm": ("m", 0.001)}
UNITS = {**_SIZES, **{f"{unit}/s": (f"{base}/s", size) for unit, (base, size) in _SIZES.items()}}
"""Unit -> unit of contracts, and its size in that."""

RANGES = {"-100..100": (-100.0, 100.0), "0..100": (0.0, 100.0), "-1..1": (-1.0, 1.0), "0..1": (0.0, 1.0)}
"""Units that are shares of the `limits` of a joint."""

_ORDERS = {"xyzw": [0, 1, 2, 3], "wxyz": [3, 0, 1, 2]}
_CHANNELS = {"rgb8": "rgb", "rgba8": "rgb", "bgr8": "bgr", "bgra8": "bgr", "mono8": "mono", "mono16": "16 bits"}
_COLORS = ("rgb", "bgr")
_MOST_SHOWN = 10  # joints in a message
_SPREAD = (0.1, 300.0)  # of a normalized image; statistics of 0 to 1 for pixels of 0 to 255 exceed it, and the reverse


class ObservedField(NamedTuple):
    """A field of a sensor that the agent sees."""

    sensor: SensorSpec
    spec: FieldSpec
    layout: FieldLayout

    @property
    def is_rotation(self) -> bool:
        """Whether it is a quaternion."""
        return message_field(self.sensor, self.layout.field, self.spec).rotation


def observed_fields(contract: Contract) -> dict[str, ObservedField]:
    """Return the fields by key of the observation, which has other keys too, such as masks."""
    return {
        layout.key: ObservedField(sensor, sensor.fields[layout.field], layout)
        for name, sensor in contract.sensors.items()
        if sensor.visibility == "agent"
        for layout in field_layouts(name, sensor)
    }


class _VectorPart(NamedTuple):
    """Consecutive components of a vector as gain * value + bias."""

    key: str  # of the observation, or of the last outputs
    places: list[int] | None  # on the last axis of a field; None: an output
    labels: list[str]
    units: Sequence[str | None]  # in the contract
    gain: FloatArray
    bias: FloatArray


class VectorInput:
    """An input made of parts, with label and unit of each component, and slice of each part."""

    def __init__(self, file: PolicyFile, contract: Contract, path: str, spec: PolicyInputSpec) -> None:
        """Find the components by name, or raise ContractError for those that do not fit."""
        self._parts = [
            _find_part(file, contract, f"{path}.parts[{index}]", part, has_history=spec.history is not None)
            for index, part in enumerate(spec.parts or ())
        ]
        self.labels = [label for part in self._parts for label in part.labels]
        self.units = [unit for part in self._parts for unit in part.units]
        ends = accumulate((len(part.labels) for part in self._parts), initial=0)
        self.slices = [slice(start, end) for start, end in pairwise(ends)]
        self.shape = (len(self.labels),)
        self._transforms = [*zip(self.slices, spec.parts or (), strict=True)]
        self._gain = np.concatenate([part.gain for part in self._parts])
        self._bias = np.concatenate([part.bias for part in self._parts])
        self._normalizer = make_normalizer(file, path, spec.normalize, len(self.labels))

    def deviations(self, observation: Observation, last_outputs: Mapping[str, NDArray[Any]]) -> list[tuple[str, float]]:
        """Return name and distance of each component from its statistics, in standard deviations."""
        if self._normalizer is None:
            return []
        found = self._normalizer.deviations(self._convert(observation, last_outputs)).tolist()
        of_fields = [part.places is not None for part in self._parts for _ in part.labels]
        return [*compress(zip(self.labels, found, strict=True), of_fields)]

    def read(self, observation: Observation, last_outputs: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Return the vector for `observation`."""
        values = self._convert(observation, last_outputs)
        return values if self._normalizer is None else self._normalizer.normalize(values)

    def _convert(self, observation: Observation, last_outputs: Mapping[str, NDArray[Any]]) -> FloatArray:
        """Return the vector in the policy's units, not normalised."""
        values = self.read_raw(observation, last_outputs).astype(np.float64)
        for place, part in self._transforms:
            values[place] = transform(part, values[place])
        converted: FloatArray = values * self._gain + self._bias
        return converted

    def read_raw(self, observation: Observation, last_outputs: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Return the components of `observation` as they are, in the order of the vector."""
        arrays = [
            last_outputs[part.key] if part.places is None else np.asarray(observation[part.key])[..., part.places]
            for part in self._parts
        ]
        return np.concatenate(arrays, axis=None)


def transform(part: InputPart, values: FloatArray) -> FloatArray:
    """Return reciprocals or directions of values along the last axis, if `part` has them."""
    if part.reciprocal_from is not None:
        values = 1.0 / np.maximum(values, part.reciprocal_from)
    if part.direction_from is not None:
        values = values / np.maximum(norm(values), part.direction_from)[..., np.newaxis]
    return values


def _find_part(file: PolicyFile, contract: Contract, path: str, part: InputPart, *, has_history: bool) -> _VectorPart:
    if part.last_output is not None:
        allow(file.chunk is None, f"{path}.last_output", "output of a chunk", "that of single actions")
        size = file.outputs[part.last_output].size
        labels = [f"last {part.last_output}[{n}]" for n in range(size)]
        return _VectorPart(part.last_output, None, labels, [None] * size, np.ones(size), np.zeros(size))
    key, spaces = str(part.field), contract.observation_space.spaces
    require(key in spaces, f"{path}.field", one_of(key, spaces))
    shape, joints = spaces[key].shape or (1,), tuple[str, ...]()
    if (field := observed_fields(contract).get(key)) is not None:
        is_vector, is_once = field.sensor.encoding is None, field.spec.history is None or not has_history
        require(is_vector, f"{path}.field", f"{key!r} is an image (expected a vector; give it as image)")
        require(is_once, f"{path}.field", f"{key!r} has a history in the contract too (expected one of them)")
        joints = field.spec.joints or ()
    if field is not None and joints:
        is_named = part.joints is not None and part.unit is not None and part.components is None
        require(is_named, path, f"{key!r} has joints (expected joints by name, with their unit)")
        index = joint_places(file, f"{path}.joints", part.joints or (), joints, f"joints of {key}")
        names = [joints[n] for n in index]
        units: Sequence[str | None] = [field.spec.units_by_joint()[name] for name in names]
    else:
        require(part.joints is None, f"{path}.joints", f"{key!r} has no joints (expected null); give components")
        index = list(range(shape[-1]) if part.components is None else part.components)
        allow(all(0 <= n < shape[-1] for n in index), f"{path}.components", index, f"0 to {shape[-1] - 1}")
        names = [str(n) for n in index]
        units = [None if field is None else str(field.spec.unit)] * len(names)
    if field is not None and field.is_rotation:
        allow(part.quaternion is not None, f"{path}.quaternion", part.quaternion, "xyzw or wxyz, as in training")
        index = [_ORDERS[str(part.quaternion)][n] for n in index]
        names = ["xyzw"[n] for n in index]
    else:
        require(part.quaternion is None, f"{path}.quaternion", f"{key!r} is no orientation (expected null)")
    factor, zero, gain, offset = find_conversion(file, contract, path, part, [*zip(names, units, strict=True)])
    rows = math.prod(shape[:-1])  # of a history, or of a field with several axes
    of_row = [f"{key}[{row}]" for row in range(rows)] if rows > 1 else [key]
    labels = [f"{row}[{name}]" for row in of_row for name in names]
    gains, biases = np.tile(factor * gain, rows), np.tile((zero - offset) * gain, rows)
    return _VectorPart(key, index, labels, [*units] * rows, gains, biases)


class ImageInput:
    """An input that is an image, uint8 or float32, in the shape of the model."""

    def __init__(
        self, file: PolicyFile, contract: Contract, path: str, spec: PolicyInputSpec, image: ImageSpec
    ) -> None:
        """Find the image, or raise ContractError for one that cannot be made as in training."""
        self._spec = image
        fields = {key: found for key, found in observed_fields(contract).items() if found.sensor.encoding is not None}
        require(image.field in fields, f"{path}.image.field", one_of(image.field, fields))
        sensor, field, layout = fields[image.field]
        own, is_color = _CHANNELS.get(str(sensor.pixels), "depth"), image.channels in _COLORS
        needed = ("mono",) if image.expand else _COLORS if is_color else (image.channels,)
        remedy = "; set expand to repeat it in three channels" if is_color and own == "mono" else ""
        fits = own in needed and (is_color or not image.expand)
        require(fits, f"{path}.image.channels", f"{image.channels} of an image in {sensor.encoding}{remedy}")
        is_single = layout.history is None
        require(is_single, f"{path}.image.field", f"{image.field!r} has a history in the contract (expected none)")
        problem = f"{image.field!r} has a resize in the contract too (expected one of them)"
        require(image.method is None or field.resize is None, f"{path}.image.method", problem)
        (height, width), is_same = layout.shape[:2], layout.shape[:2] == image.size
        remedy = "change resize in the contract" if field.resize else "give the method that the training resized with"
        expected = f"{image.size[0]}x{image.size[1]}, as in training"
        problem = f"{image.field!r} is {height}x{width} (expected {expected}); {remedy}"
        require(is_same or image.method is not None, f"{path}.image.size", problem)
        is_sharp = own != "depth" or is_same or image.resample == "nearest"
        allow(is_sharp, f"{path}.image.resample", image.resample, "nearest for depth")
        self._resize = None
        if image.method is not None and not is_same:
            self._resize = ResizeSpec(size=image.size, method=image.method, resample=image.resample)
        self._is_swapped = own in _COLORS and own != image.channels
        count = 3 if is_color else 1
        self.shape = (*image.size, count) if image.layout == "hwc" else (count, *image.size)
        low, high = image.range or (0.0, 255.0)
        gain, bias = np.full(count, (high - low) / 255), np.full(count, low)
        self._clip = None
        if (normalizer := make_normalizer(file, path, spec.normalize, count)) is not None:
            (gain, bias), self._clip = normalizer.combine(gain, bias), normalizer.clip
            spread = 255 * gain
            is_plausible = own == "depth" or bool(((spread > _SPREAD[0]) & (spread < _SPREAD[1])).all())
            problem = f"statistics of another range: 0 and 255 become {bias[0]:.4g} and {bias[0] + spread[0]:.4g}"
            expected = f"{_SPREAD[0]:g} to {_SPREAD[1]:g} between them); give the range that they are of"
            require(is_plausible, f"{path}.image.range", f"{problem} (expected {expected}")
        of_channels = (count,) if image.layout == "hwc" else (count, 1, 1)
        self._gain, self._bias = (each.astype(np.float32).reshape(of_channels) for each in (gain, bias))
        if len({*gain.tolist()}) == len({*bias.tolist()}) == 1:  # a number is faster than one for each channel
            self._gain, self._bias = self._gain.ravel()[:1], self._bias.ravel()[:1]
        is_raw = image.range is None and spec.normalize is None and own != "depth"
        self.dtype = np.dtype(np.uint8 if is_raw else np.float32)

    def read(self, observation: Observation, _: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Return the image for `observation`."""
        pixels, spec = np.asarray(observation[self._spec.field])[:, :, :3], self._spec  # without alpha
        if self._is_swapped:
            pixels = pixels[:, :, ::-1]
        if self._resize is not None:
            pixels = resize_image(np.ascontiguousarray(pixels), self._resize)
        if spec.expand:
            pixels = np.repeat(pixels, 3, axis=2)
        pixels = (pixels if spec.layout == "hwc" else pixels.transpose(2, 0, 1)).astype(self.dtype, order="C")
        if self.dtype == np.float32:
            pixels *= self._gain
            pixels += self._bias
        if self._clip is not None:
            np.clip(pixels, -self._clip, self._clip, out=pixels)
        return pixels


def joint_places(file: PolicyFile, path: str, joints: Sequence[str], known: Sequence[str], owner: str) -> list[int]:
    """Return the places of the policy's joints in `known`, or raise ContractError without one."""
    named = [file.joint_names.get(joint, joint) for joint in joints]
    lost = [repr(joint) for joint, name in zip(joints, named, strict=True) if name not in known]
    problem = f"policy has {len(joints)} joints; no counterpart in the contract for {', '.join(lost[:_MOST_SHOWN])}"
    require(not lost, path, f"{problem} (expected {owner}: {', '.join(known)}); map names with joint_names")
    allow(len({*named}) == len(named), path, f"{list(joints)}, which joint_names maps to {named}", "different joints")
    return [known.index(name) for name in named]


def find_conversion(
    file: PolicyFile, contract: Contract, path: str, part: InputPart | OutputPart, own: Sequence[tuple[str, str | None]]
) -> tuple[FloatArray, ...]:
    """Return factor and zero of the unit, sign times scale, and offset by component.

    The conversion of the unit is ``factor * value + zero``. `own` has name and unit of each component in the contract.
    Raises ContractError for components that do not fit.
    """
    units = zip(_each(f"{path}.unit", part.unit, len(own)), own, strict=True)
    maps = [_unit_map(file, contract, f"{path}.unit", unit, known, name) for unit, (name, known) in units]
    factor, zero = np.array(maps, dtype=np.float64).reshape(-1, 2).T
    keys = (("sign", part.sign), ("scale", part.scale), ("offset", part.offset))
    sign, scale, offset = (np.array(_each(f"{path}.{key}", value, len(own)), np.float64) for key, value in keys)
    return factor, zero, sign * scale, offset


def _each(path: str, value: T | tuple[T, ...], count: int) -> tuple[T, ...]:
    """Return one value per component, or raise ContractError for another number of them."""
    if not isinstance(value, tuple):
        return (value,) * count
    allow(len(value) == count, path, f"{len(value)} values", f"one for all, or {count}")
    return value


def _unit_map(
    file: PolicyFile, contract: Contract, path: str, unit: str | None, own: str | None, name: str
) -> tuple[float, float]:
    """Return factor and zero that convert a value of `name` from the unit `own` to `unit`."""
    if unit is None or unit == own:
        return 1.0, 0.0
    (base, size), (own_base, own_size) = UNITS.get(unit, (None, 1.0)), UNITS.get(own or "", ("", 1.0))
    if base == own_base:
        return own_size / size, 0.0
    known = [*(u for u, (b, _) in UNITS.items() if b == own), *(RANGES if own in ("rad", "m") else ())]
    allow(unit in known, path, f"{unit!r} of {name!r}", f"one of: {', '.join(known) or own}")
    limits = {file.joint_names.get(joint, joint): bounds for joint, bounds in file.limits.items()}
    joints = {joint: spec for actuator in contract.actuators.values() for joint, spec in actuator.joints.items()}
    hint = f"; in the contract it is {list(joints[name].position or ())}" if name in joints else ""
    require(name in limits, path, f"{unit!r} of {name!r} without limits (expected limits.{name} of the training{hint})")
    (first, last), (low, high) = limits[name], RANGES[unit]
    factor = (high - low) / (last - first)
    return factor, low - factor * first
