"""The columns of a LeRobot dataset that hold observation and action: which field is where, names, units and dtypes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract
from embodied_env.contract.spaces import ActionLayout, message_field
from embodied_env.errors import UsageError
from embodied_env.extensions.export.exported_episodes import EpisodeReader, ExportedStep
from embodied_env.extensions.export.exported_fields import ArrayField, Arrays, Leaves, named
from embodied_env.policies.input_mapping import ObservedField, observed_fields

STATE, ENVIRONMENT = "observation.state", "observation.environment_state"

Feature = dict[str, Any]
"""A column: dtype, shape and names."""

_ROBOT_SENSORS = (
    "geometry_msgs/msg/Twist",
    "geometry_msgs/msg/TwistStamped",
    "geometry_msgs/msg/WrenchStamped",
    "nav_msgs/msg/Odometry",
    "sensor_msgs/msg/BatteryState",
    "sensor_msgs/msg/Imu",
    "sensor_msgs/msg/JointState",
    "trajectory_msgs/msg/JointTrajectory",
)
"""Types of sensors that measure the robot itself."""

_QUANTITIES = {"position": "pos", "velocity": "vel"}
_AXES = ["height", "width", "channels"]


class Columns:
    """The columns of the observations and actions of a run.

    Scalars and vectors form ``observation.state``, what the robot measures of itself, and
    ``observation.environment_state``, all else; images are RGB; other arrays, such as depth, are columns of their own.

    Attributes:
        features: dtype, shape and names of each column.
        units: unit of each field of the contract by column, None without one.
    """

    def __init__(self, source: EpisodeReader, environment: Collection[str] | None = None) -> None:
        """Assign each field to a column; `environment`: keys of the environment state, None: by type of sensor.

        Raises UsageError for a key that is not that of a vector.
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
        self._arrays = {_array_column(key, leaf): key for key, leaf in leaves.items() if key not in vectors}
        self._fields = {} if source.has_wrappers else observed_fields(contract)
        self._action, self._applied = source.action, source.applied
        names = _names(vectors, self._fields)
        joints = None if source.has_wrappers else list(ActionLayout(contract).joints)
        self.features: dict[str, Feature] = {
            **{c: _vector(_joined({key: names[key] for key in group})) for c, group in self._vectors.items()},
            **{column: self._array(key, leaves[key]) for column, key in self._arrays.items()},
            "action": _vector(joints or _joined(_names(source.action, {}))),
            "applied_action": _vector(joints or _joined(_names(source.applied, {}))),
        }
        keys = {column: list(group) for column, group in self._vectors.items()}
        keys |= {column: [key] for column, key in self._arrays.items()}
        self.units = {column: {key: self._unit(key) for key in group} for column, group in keys.items()}

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
        return (self._fields[key].sensor.encoding or "") if key in self._fields else ""

    def _unit(self, key: str) -> str | Sequence[str] | None:
        return self._fields[key].spec.unit if key in self._fields else None


def _environment_keys(contract: Contract) -> set[str]:
    """Return the keys of the observation that do not measure the robot itself: other sensors, and reset options."""
    others = [name for name, sensor in contract.sensors.items() if sensor.type not in _ROBOT_SENSORS]
    fields = {f"{name}_{field}" for name in others for field in contract.sensors[name].fields}
    return fields | {f"{name}_valid" for name in others} | set(contract.reset_options)


def _names(group: Leaves, fields: Mapping[str, ObservedField]) -> dict[str, list[str]]:
    """Return names of components by key: their joints, with quantity or key where these are needed to differ."""
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
    """Return KEY.INDEX, or KEY.AXIS for a vector x, y, z or a quaternion x, y, z, w of a message."""
    parts = [str(index) for index in range(leaf.size)]
    if field is not None and field.spec.shape is None:
        shape = message_field(field.sensor, field.layout.field, field.spec).shape
        parts = list("xyzw"[: leaf.size]) if shape in ((3,), (4,)) else parts
    return [named(key or "value", part) for part in parts]


def _joined(names: Mapping[str, Sequence[str]]) -> list[str]:
    return [name for group in names.values() for name in group]


def _array_column(key: str, leaf: ArrayField) -> str:
    return named("observation.images" if leaf.is_image else "observation", key).replace("/", "_")


def _vector(names: Sequence[str]) -> Feature:
    """Return the feature of a vector: float32, as LeRobot's policies require."""
    return {"dtype": "float32", "shape": [len(names)], "names": list(names)}


def _flat(leaves: Leaves, arrays: Arrays) -> NDArray[Any]:
    flat = [arrays[key].reshape(-1) for key in leaves]
    return np.concatenate(flat).astype(np.float32) if flat else np.empty(0, np.float32)
