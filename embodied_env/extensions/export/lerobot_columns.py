"""Assign observation and action fields to columns of a LeRobot dataset, with statistics."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract
from embodied_env.contract.spaces import ActionLayout, message_field
from embodied_env.errors import UsageError
from embodied_env.extensions.export.exported_episodes import (
    ArrayField,
    Arrays,
    EpisodeReader,
    ExportedStep,
    Leaves,
    named,
)
from embodied_env.messages.declaration import AXES
from embodied_env.messages.sensor_types import SENSOR_MESSAGES
from embodied_env.policies.input_mapping import ObservedField, observed_fields

STATE, ENVIRONMENT = "observation.state", "observation.environment_state"
Feature = dict[str, Any]  # dtype, shape and names of a column
_QUANTITIES = {"position": "pos", "velocity": "vel"}
_AXES = ["height", "width", "channels"]
_MOMENTS = ("min", "max", "mean", "std")
_QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}


class Columns:
    """The columns of the observations and actions of a run.

    Scalars and vectors form ``observation.state``, what the robot measures of itself, and
    ``observation.environment_state``, all else; images are RGB; other arrays, such as depth, are columns of their own.
    """

    def __init__(self, source: EpisodeReader, environment: Collection[str] | None = None) -> None:
        """Assign fields to columns, or raise UsageError for an `environment` key without a vector.

        `environment` has the keys of the environment state. With None they are chosen by the type of sensor.
        """
        contract, leaves = source.contract, source.observation
        vectors = {key: leaf for key, leaf in leaves.items() if len(leaf.shape) <= 1}
        unknown = [repr(key) for key in environment or () if key not in vectors]
        if unknown:
            expected = f"expected vectors of the observation: {', '.join(vectors)}"
            raise UsageError(f"cannot export {', '.join(unknown)} as {ENVIRONMENT} ({expected})")
        around = _environment_keys(contract) if environment is None else environment
        groups = {
            STATE: {key: leaf for key, leaf in vectors.items() if key not in around},
            ENVIRONMENT: {key: leaf for key, leaf in vectors.items() if key in around},
        }
        self._vectors = {column: group for column, group in groups.items() if group}
        self._arrays = {
            named("observation.images" if leaf.is_image else "observation", key).replace("/", "_"): key
            for key, leaf in leaves.items()
            if key not in vectors
        }
        self._fields = {} if source.has_wrappers else observed_fields(contract)
        self._action, self._applied = source.action, source.applied
        names = _names(vectors, self._fields)
        joints: list[str] | None = None
        if not source.has_wrappers:
            layout = ActionLayout(contract)
            joints = list(layout.joints)
            self._action, self._applied = (  # a Dict space sorts its keys
                {key: group[key] for key in layout.slices if key in group} or group
                for group in (source.action, source.applied)
            )
        self.features: dict[str, Feature] = {
            **{c: _vector(_joined({key: names[key] for key in group})) for c, group in self._vectors.items()},
            **{column: self._array(key, leaves[key]) for column, key in self._arrays.items()},
            "action": _vector(joints or _joined(_names(source.action, {}))),
            "applied_action": _vector(joints or _joined(_names(source.applied, {}))),
        }
        keys = {column: list(group) for column, group in self._vectors.items()}
        keys |= {column: [key] for column, key in self._arrays.items()}
        units = {key: field.spec.unit for key, field in self._fields.items()}
        self.units = {column: {key: units.get(key) for key in group} for column, group in keys.items()}

    def read(self, step: ExportedStep) -> dict[str, NDArray[Any]]:
        """Return the value of each column."""
        images = {column: key for column, key in self._arrays.items() if self.features[column]["dtype"] == "image"}
        return {
            **{column: _flat(group, step.observation) for column, group in self._vectors.items()},
            **{column: step.observation[key] for column, key in self._arrays.items()},
            **{column: self._rgb(key, step.observation[key]) for column, key in images.items()},
            "action": _flat(self._action, step.action),
            "applied_action": _flat(self._applied, step.action_applied),
        }

    def _array(self, key: str, leaf: ArrayField) -> Feature:
        if leaf.is_image:
            return {"dtype": "image", "shape": [*leaf.shape[:2], 3], "names": _AXES}
        is_image = self._encoding(key) != "" and len(leaf.shape) == len(_AXES)
        return {"dtype": leaf.dtype, "shape": list(leaf.shape), "names": _AXES if is_image else None}

    def _rgb(self, key: str, image: NDArray[Any]) -> NDArray[Any]:
        """Return an image in the channels of LeRobot's cameras."""
        if image.shape[2] == 1:
            return np.repeat(image, 3, axis=2)
        image = image[:, :, :3]  # without alpha
        return np.ascontiguousarray(image[:, :, ::-1] if self._encoding(key).startswith("bgr") else image)

    def _encoding(self, key: str) -> str:
        return (self._fields[key].sensor.pixels or "") if key in self._fields else ""


def new_statistics(features: Mapping[str, Mapping[str, Any]]) -> dict[str, ColumnStatistics]:
    """Return empty statistics of images and vectors, the columns that LeRobot can join."""
    found = {}
    for name, feature in features.items():
        shape, dtype = tuple(feature["shape"]), feature["dtype"]
        if dtype == "image" or (len(shape) == 1 and dtype != "string"):
            found[name] = ColumnStatistics(shape, is_image=dtype == "image", has_quantiles=dtype == "float32")
    return found


class ColumnStatistics:
    """Minimum, maximum, mean and standard deviation of each element.

    An element that is once not finite has none. Those of an image are per channel, of shape (channels, 1, 1), of pixels
    between 0 and 1; of each image, four numbers per channel are kept. All other values are kept, with `has_quantiles`
    as float32, so that quantiles are exact.
    """

    def __init__(self, shape: tuple[int, ...], *, is_image: bool = False, has_quantiles: bool = False) -> None:
        self.count = 0
        self.names = (*_MOMENTS, *_QUANTILES) if has_quantiles else _MOMENTS  # of the statistics
        self.shape = (shape[2], 1, 1) if is_image else shape
        self._is_image = is_image
        self._kept = array("f" if has_quantiles else "d")

    def add(self, value: Any) -> None:  # noqa: ANN401 - an array, or a number
        """Add one value."""
        self.count += 1
        kept = np.asarray(value)
        if self._is_image:
            pixels = kept.reshape(-1, kept.shape[2]) / 255.0
            kept = np.stack([pixels.min(0), pixels.max(0), pixels.mean(0), pixels.var(0)])
        self._kept.frombytes(kept.astype(self._kept.typecode).tobytes())

    def merge(self, other: ColumnStatistics) -> None:
        """Add the values of `other`."""
        self.count += other.count
        self._kept += other._kept

    @property
    def is_known(self) -> bool:
        """Whether every value was finite."""
        return bool(np.isfinite(np.array(self._kept)).all())

    def as_json(self) -> dict[str, Any]:
        """Return the statistics as nested lists, with None for an element that was once not finite."""
        found = self._of_images() if self._is_image else self._of_values()
        return {**{name: values.tolist() for name, values in found.items()}, "count": [self.count]}

    def _rows(self) -> NDArray[Any]:
        shape = (len(_MOMENTS), *self.shape) if self._is_image else self.shape
        return np.array(self._kept).reshape(self.count, *shape)

    def _of_images(self) -> dict[str, NDArray[Any]]:
        """Return the statistics of the pixels of all images, which have the same size."""
        low, high, means, variances = self._rows().swapaxes(0, 1)
        deviation = np.sqrt(variances.mean(0) + means.var(0))
        return dict(zip(_MOMENTS, (low.min(0), high.max(0), means.mean(0), deviation), strict=True))

    def _of_values(self) -> dict[str, NDArray[Any]]:
        rows = self._rows()
        unknown = ~np.isfinite(rows).all(axis=0)
        rows[:, unknown] = 0.0  # NumPy would warn
        mean, deviation = (function(rows, axis=0, dtype=np.float64) for function in (np.mean, np.std))
        found = [np.min(rows, axis=0), np.max(rows, axis=0), mean, deviation]
        if len(self.names) > len(_MOMENTS):
            found += [*np.quantile(rows, [*_QUANTILES.values()], axis=0)]
        none: Any = None
        return {name: np.where(unknown, none, values) for name, values in zip(self.names, found, strict=True)}


def _environment_keys(contract: Contract) -> set[str]:
    """Return the keys of the observation of other sensors than the robot's own, and of options."""
    own = {name for name, message in SENSOR_MESSAGES.items() if message.of_robot}
    others = [name for name, sensor in contract.sensors.items() if sensor.type not in own]
    fields = {f"{name}_{field}" for name in others for field in contract.sensors[name].fields}
    return fields | {f"{name}_valid" for name in others} | set(contract.reset_options)


def _names(group: Leaves, fields: Mapping[str, ObservedField]) -> dict[str, list[str]]:
    """Return the joints of components by key, with quantity or key where needed to differ."""
    forms: list[dict[str, list[str]]] = [{}, {}, {}]
    for key, leaf in group.items():
        field = fields.get(key)
        names = [_component_names(key, leaf, field)] * len(forms)
        if field is not None and (joints := field.spec.joints):
            quantity = _QUANTITIES.get(field.layout.field, field.layout.field)
            names = [[*joints], [f"{joint}.{quantity}" for joint in joints], [f"{key}.{joint}" for joint in joints]]
        for form, each in zip(forms, names, strict=True):
            form[key] = each
    different = (form for form in forms if len({*_joined(form)}) == len(_joined(form)))
    return next(different, forms[-1])


def _component_names(key: str, leaf: ArrayField, field: ObservedField | None) -> list[str]:
    """Return KEY.INDEX, or KEY.AXIS for a vector x, y, z or a quaternion x, y, z, w."""
    column = "" if field is None else message_field(field.sensor, field.layout.field, field.spec).column
    parts = list(AXES.get(column, "")) or [str(index) for index in range(leaf.size)]
    return [named(key or "value", part) for part in parts]


def _joined(names: Mapping[str, Sequence[str]]) -> list[str]:
    return [name for group in names.values() for name in group]


def _vector(names: Sequence[str]) -> Feature:
    """Return the feature of a vector in float32, as LeRobot's policies require."""
    return {"dtype": "float32", "shape": [len(names)], "names": list(names)}


def _flat(leaves: Leaves, arrays: Arrays) -> NDArray[Any]:
    flat = [arrays[key].reshape(-1) for key in leaves]
    return np.concatenate(flat).astype(np.float32) if flat else np.empty(0, np.float32)
