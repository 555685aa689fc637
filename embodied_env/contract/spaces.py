"""Gymnasium spaces and the layout of actions, from the contract alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from embodied_env.contract.actuator_schema import ActuatorSpec, EffectiveLimits, FloatArray
from embodied_env.contract.contract_schema import APPLIED_ACTIONS, TIME_REMAINING, ContractFields
from embodied_env.contract.driver_units import conversion_of
from embodied_env.contract.sensor_schema import AGES, FieldSpec, SensorSpec
from embodied_env.messages.any_message import PathField
from embodied_env.messages.declaration import MessageField
from embodied_env.messages.images import with_encoding
from embodied_env.messages.sensor_types import SENSOR_MESSAGES


@dataclass(frozen=True, kw_only=True)
class FieldLayout:
    """A field's key, shape, precision and bounds, with its shape before `resample` or `resize`."""

    sensor: str
    field: str
    key: str
    shape: tuple[int, ...]
    raw_shape: tuple[int, ...]
    history: int | None
    dtype: np.dtype[Any]
    low: NDArray[Any]
    high: NDArray[Any]


def field_layouts(name: str, sensor: SensorSpec) -> tuple[FieldLayout, ...]:
    """Resolve the fields of the sensor `name`."""
    layouts = []
    for field, spec in sensor.fields.items():
        known = message_field(sensor, field, spec)
        raw = (len(spec.joints or ()),) if known.shape is None else tuple(size or 0 for size in known.shape)
        shape = derived_shape(spec, raw)
        dtype = reading_dtype(spec, known)
        low, high = _spread(spec.low, dtype, shape), _spread(spec.high, dtype, shape)
        key = f"{name}_{field}"
        layouts.append(
            FieldLayout(
                sensor=name,
                field=field,
                key=key,
                shape=shape,
                raw_shape=raw,
                history=spec.history,
                dtype=dtype,
                low=low,
                high=high,
            )
        )
    return tuple(layouts)


def _spread(bound: float | tuple[float, ...], dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return a bound in the field's shape, from one number or one per component by rows."""
    array = np.asarray(bound, dtype=dtype)
    return array.reshape(shape) if array.ndim else np.full(shape, array)


def observation_space(contract: ContractFields) -> spaces.Dict:
    """Return the Dict of Boxes that the agent receives."""
    boxes: dict[str, spaces.Space[Any]] = {}
    for name, sensor in contract.sensors.items():
        if sensor.visibility == "evaluator":
            continue
        for layout in field_layouts(name, sensor):
            low, high, length = layout.low, layout.high, layout.history
            if length is not None:
                low, high = np.stack([low] * length), np.stack([high] * length)
                boxes[f"{layout.key}{AGES}"] = spaces.Box(-np.inf, np.inf, (length,), np.float64)
            boxes[layout.key] = spaces.Box(low, high, low.shape, layout.dtype.type)
        if sensor.mask:
            boxes[f"{name}_valid"] = spaces.Box(0, 1, (1,), np.int8)
    for name, option in contract.reset_options.items():
        if option.observed:
            low, high = np.atleast_1d(option.low_array), np.atleast_1d(option.high_array)
            boxes[name] = spaces.Box(low, high, low.shape, np.float64)
    if contract.applied_actions:
        size = contract.applied_actions * ActionLayout(contract).size
        boxes[APPLIED_ACTIONS] = spaces.Box(-np.inf, np.inf, (size,), np.float64)  # see docs/reference/contract.md
    if contract.episode.kind == "finite_horizon":
        boxes[TIME_REMAINING] = spaces.Box(0.0, 1.0, (1,), np.float64)
    return spaces.Dict(boxes)


@dataclass(frozen=True, kw_only=True)
class ActionScale:
    """The map ``si = offset + span * action`` between an actuator's action and SI units.

    For ``position_delta`` the SI value is a displacement per control period, for velocities and twists a velocity.
    Below an action of 0 the span is `span_below`, which differs where the velocity limits differ by direction.
    `low` and `high` bound the action, `si_low` and `si_high` its SI value. Bounds map onto bounds bit for bit, and
    rounding never exceeds them. With a `threshold` (else NaN) an action below it maps onto `si_low`, any other onto
    `si_high`, which may be the smaller one.
    """

    offset: FloatArray
    span: FloatArray
    span_below: FloatArray
    low: FloatArray
    high: FloatArray
    si_low: FloatArray
    si_high: FloatArray
    threshold: FloatArray

    def to_si(self, action: FloatArray) -> FloatArray:
        """Map an action to SI units, shape (n_joints,)."""
        return np.array(self.each_to_si(action.tolist()))

    def from_si(self, si: FloatArray) -> FloatArray:
        """Map SI units back to the action, shape (n_joints,)."""
        return np.array(self.each_from_si(si.tolist()))

    def each_to_si(self, action: list[float]) -> list[float]:
        """Map an action to SI units joint by joint, in floats, which are faster for so few."""
        mapped = []
        rows = zip(action, self._joints, strict=True)
        for x, (offset, span, span_below, low, high, si_low, si_high, threshold) in rows:
            if not math.isnan(threshold):
                x = low if x < threshold else high  # noqa: PLW2901 - one of two actions
            y = offset + (span if x >= 0.0 else span_below) * x
            if not (low < x < high and si_low <= y <= si_high):
                y = _snapped(x, low, high, y, si_low, si_high)
            mapped.append(y)
        return mapped

    def each_from_si(self, si: list[float]) -> list[float]:
        """Map SI units back to the action, joint by joint."""
        mapped = []
        for x, (offset, span, span_below, low, high, si_low, si_high, _) in zip(si, self._joints, strict=True):
            y = (x - offset) / (span if x >= offset else span_below)
            if not (si_low < x < si_high and low <= y <= high):
                y = _snapped(x, si_low, si_high, y, low, high)
            mapped.append(y)
        return mapped

    @cached_property
    def _joints(self) -> list[list[float]]:
        ends = self.low, self.high, self.si_low, self.si_high
        columns = (self.offset, self.span, self.span_below, *ends, self.threshold)
        return np.transpose(np.array(columns, dtype=np.float64)).tolist()  # type: ignore[no-any-return] # numpy's


def _snapped(x: float, x_low: float, x_high: float, y: float, y_low: float, y_high: float) -> float:
    """Correct y for rounding, so that bounds map onto bounds and values inside stay inside."""
    if x_low < x < x_high:
        return min(max(y, y_low), y_high)
    return y_high if x == x_high and x != x_low else y_low if x == x_low else y


def action_scale(actuator: ActuatorSpec, limits: EffectiveLimits, control_period_s: float) -> ActionScale:
    """Return the map and the bounds of an actuator's action, from the limits after margins.

    A normalised action of +-1 is the limit itself, so the limit does not clip an action at the edge of its space. That
    of a displacement or velocity is linear on both sides of 0, which is rest. A joint that moves in one direction has
    [0, 1] or [-1, 0].
    """
    if actuator.command == "position_delta":
        low, high = limits.velocity_low * control_period_s, limits.velocity_high * control_period_s
    elif actuator.is_velocity:
        low, high = limits.velocity_low, limits.velocity_high
    else:
        low, high = limits.position_low, limits.position_high
    ones = np.ones_like(low)
    threshold = np.nan * ones
    if actuator.scale == "physical":
        ends = {"si_low": low, "si_high": high, "threshold": threshold}
        return ActionScale(offset=0 * ones, span=ones, span_below=ones, low=low, high=high, **ends)
    if actuator.scale == "binary" and (gripper := actuator.gripper) is not None:
        low, high, threshold = gripper.closed * ones, gripper.open * ones, gripper.threshold * ones
    ends = {"si_low": low, "si_high": high, "threshold": threshold}
    if actuator.command == "position":
        span = (high - low) / 2
        return ActionScale(offset=(low + high) / 2, span=span, span_below=span, low=-ones, high=ones, **ends)
    spans = {"span": np.where(high > 0.0, high, -low), "span_below": np.where(low < 0.0, -low, high)}
    low, high = np.where(low < 0.0, -1.0, 0.0), np.where(high > 0.0, 1.0, 0.0)
    return ActionScale(offset=0 * ones, low=low, high=high, **spans, **ends)


def action_space(contract: ContractFields) -> spaces.Box | spaces.Dict:
    """Return a Box, or a Dict of Boxes by actuator, with bounds of float32 rounded inwards."""
    layout = ActionLayout(contract)
    boxes = {
        name: spaces.Box(layout.low[part], layout.high[part], dtype=layout.dtype.type)
        for name, part in layout.slices.items()
    }
    return next(iter(boxes.values())) if len(boxes) == 1 else spaces.Dict({**boxes})


class ActionLayout:
    """The layout of an action as one flat vector over all joints, in contract order.

    `joints`, `size`, `limits` and `scale` cover all joints. With `is_delta`, shape (size,), the action is a
    displacement per period. With `is_velocity` actions and commands are velocities, and with `is_goal` commands are
    goals of an action server. With `turns` the joint turns without limits, so that a reading may differ by whole
    turns. `closing` is the way of a gripper from open to closed, else 0. `conversion` converts between commands and
    the driver's values, and is None if they are equal. `slices` are the parts of the actuators, by name.
    `as_action` returns a flat vector, or rows of them, as a new array, or with several actuators as `split` does.
    `low` and `high` are the bounds of `scale` in the precision `dtype` of the action space, rounded inwards.
    """

    def __init__(self, contract: ContractFields) -> None:
        """Resolve the actuators of `contract`."""
        actuators = contract.actuators
        limits = [actuator.limits(contract.safety.margins, name) for name, actuator in actuators.items()]
        scales = [
            action_scale(actuator, limit, contract.control_period_s)
            for actuator, limit in zip(actuators.values(), limits, strict=True)
        ]

        def joined(parts: Sequence[EffectiveLimits | ActionScale]) -> dict[str, Any]:
            names = [field.name for field in fields(parts[0]) if field.name != "joints"]
            return {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}

        self.joints: tuple[str, ...] = tuple(joint for limit in limits for joint in limit.joints)
        self.size = len(self.joints)
        self.limits = EffectiveLimits(joints=self.joints, **joined(limits))
        self.scale = ActionScale(**joined(scales))
        kinds = [actuator for actuator in actuators.values() for _ in actuator.joints]
        self.is_delta = np.array([actuator.command == "position_delta" for actuator in kinds])
        self.is_velocity = np.array([actuator.is_velocity for actuator in kinds])
        self.is_goal = self.limits.is_goal
        turns = [actuator.turns(joint) for actuator in actuators.values() for joint in actuator.joints]
        self.turns = np.array(turns, dtype=np.bool_)
        grippers = [actuator.gripper for actuator in kinds]
        units = [limits.driver for actuator in actuators.values() for limits in actuator.joints.values()]
        self.in_driver_units = tuple(name for name, each in zip(self.joints, units, strict=True) if each is not None)
        self.conversion = conversion_of(units, [centre for each in actuators.values() for centre in each.centres])
        self.closing = np.array([0.0 if each is None else each.closed - each.open for each in grippers])
        self.slices: dict[str, slice] = {}
        start = 0
        for name, actuator in actuators.items():
            self.slices[name] = slice(start, start + len(actuator.joints))
            start += len(actuator.joints)
        self.as_action: Callable[[FloatArray], Any] = np.ndarray.copy if len(self.slices) == 1 else self.split

        self.dtype: np.dtype[Any] = np.dtype(contract.action.dtype)
        self.low, self.high = self.scale.low.astype(self.dtype), self.scale.high.astype(self.dtype)
        up, down = np.nextafter(self.low, self.dtype.type(np.inf)), np.nextafter(self.high, self.dtype.type(-np.inf))
        self.low = np.where(self.low < self.scale.low, up, self.low)
        self.high = np.where(self.high > self.scale.high, down, self.high)

    def driver_values(self, si: FloatArray) -> dict[str, Any]:
        """Return commands (..., n_joints) by joint, of those with driver units."""
        values = si if self.conversion is None else self.conversion.to_driver(si)
        rows = values.T if values.ndim > 1 else values.tolist()
        return {name: each for name, each in zip(self.joints, rows, strict=True) if name in self.in_driver_units}

    def split(self, vector: FloatArray) -> dict[str, FloatArray]:
        """Split a flat vector, or rows of them, into one new array per actuator."""
        return {name: vector[..., part].copy() for name, part in self.slices.items()}

    def to_space(self, vector: FloatArray) -> Any:  # noqa: ANN401 - an element of the action space
        """Return the element of the action space nearest to a flat vector."""
        return self.as_action(np.clip(vector.astype(self.dtype), self.low, self.high))


def reading_dtype(spec: FieldSpec, known: MessageField) -> np.dtype[Any]:
    """Return the precision of a reading, that of the message unless it converts integers."""
    dtype = np.dtype(known.dtype)
    return np.dtype(np.float64) if spec.driver is not None and dtype.kind in "iu" else dtype


def message_field(sensor: SensorSpec, name: str, spec: FieldSpec) -> MessageField:
    """Return the valid field `name` of `sensor` with the lengths of the contract."""
    known = field_of_type(sensor, name, spec)
    shape = spec.shape if spec.points is None else (spec.points.count, 3)
    return known if shape is None else replace(known, shape=shape)


def field_of_type(sensor: SensorSpec, name: str, spec: FieldSpec) -> MessageField:
    """Return the field `name` by message type and encoding of `sensor` alone."""
    if spec.path is not None:
        shape, dtype = (None,) * len(spec.shape or ()) or (1,), spec.dtype or "float64"
        return PathField(shape=shape, units=None, dtype=dtype, place=spec.path, is_sequence=spec.shape is not None)
    known = SENSOR_MESSAGES[sensor.type].fields[name]
    return known if sensor.encoding is None else with_encoding(known, sensor.encoding)


def derived_shape(spec: FieldSpec, raw: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a reading from that of its message, after `resample` or `resize`."""
    if spec.resample is not None:
        angles = spec.resample.angles
        return (angles if isinstance(angles, int) else angles.count,)
    return raw if spec.resize is None else (*spec.resize.size, *raw[2:])
