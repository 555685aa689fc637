"""The keys of a contract's sensors and their fields, as frozen dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from annotated_types import Interval, MinLen

from embodied_env.contract.driver_units import Conversion, DriverUnits, conversion_of, line_of
from embodied_env.contract.frozen_dict import FrozenFields
from embodied_env.contract.key_types import Count, Name, Positive, Such, Text, Topic, like
from embodied_env.contract.qos_schema import Qos
from embodied_env.contract.tightening_rules import (
    AtMost,
    Free,
    OnceSet,
    fields_as_tight,
    tighten,
    towards,
)
from embodied_env.messages.images import ENCODINGS

MAX_VALUES = 100_000_000  # maximum number of values of one field, which an image of 7680 x 4320 x 3 does not reach
INFINITIES: Mapping[str, float] = {".inf": np.inf, "-.inf": -np.inf}  # by their text in YAML and JSON
AGES = "_age_s"  # ends the observation key of the ages of a field's history


@dataclass(frozen=True, kw_only=True)
class AngleRange:
    """Evenly spaced angles, both ends included."""

    min_rad: float  # angle of the first value, in the frame of the scan
    max_rad: float  # angle of the last value, above `min_rad`
    count: Annotated[int, Interval(ge=2, le=MAX_VALUES)]  # number of values


@dataclass(frozen=True, kw_only=True)
class ResampleSpec:
    """Fixed angles for a LaserScan, from the angles that each message declares."""

    # fixed angles of the observation: a number of them all around, from 0 (ahead) counter-clockwise, or a range
    angles: Annotated[int, Interval(ge=1, le=MAX_VALUES)] | AngleRange
    # `nearest` ray, NaN where none is within an increment; `min`: smallest return within half a step, conservative
    method: Literal["nearest", "min"] = "nearest"


@dataclass(frozen=True, kw_only=True)
class ResizeSpec:
    """The size of an image in the observation, bit for bit as Pillow resizes."""

    size: tuple[Count, Count]  # height and width in the observation
    # `letterbox` pads with 0 (depth: NaN), `crop` cuts the longer side off, `stretch` changes the aspect ratio
    method: Literal["letterbox", "stretch", "crop"] = "letterbox"
    # filter of Pillow; `area` is its BOX. Depth images: `nearest`
    resample: Literal["nearest", "bilinear", "bicubic", "lanczos", "area"] = "bilinear"


@dataclass(frozen=True, kw_only=True)
class PointsSpec:
    """A fixed number of the measured points of a PointCloud2."""

    count: Annotated[int, Interval(ge=1, le=MAX_VALUES // 3)]  # number of points in the observation
    # x, y and z of missing points, at the end: `low` or `high` of the field. A cloud with such a point is invalid, so
    # that padding is known by its value; `info` counts it. A cloud without a point is invalid too
    pad: float
    # `first`: in the order of the message; `voxel`: the first point of each voxel, and of too many evenly spread ones
    method: Literal["first", "voxel"] = "first"
    voxel_m: Annotated[float, Interval(ge=1e-4, le=1e3)] | None = None  # edge of a voxel, for `voxel` only


class _MayBeInfinite:
    """Let a number be infinite, in JSON by its text in YAML (`INFINITIES`)."""

    def change(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return the schema of a number that may be infinite."""
        read = {"type": "no-info", "function": lambda x: INFINITIES.get(x, x) if isinstance(x, str) else x}
        return {"type": "function-before", "function": read, "schema": {**schema, "allow_inf_nan": True}}


_Bound: TypeAlias = Annotated[float, _MayBeInfinite()]
Rate: TypeAlias = Annotated[
    float, Interval(ge=0, le=1e12), Such(expected="0, or at least 1e-9", holds=lambda rate: not 0 < rate < 1e-9)
]


@dataclass(frozen=True, kw_only=True)
class FieldSpec:
    """One field of a sensor message, with `low` and `high` in `unit`, for all or by component."""

    unit: str | tuple[str, ...]  # unit of values and bounds; one per joint for mixed joints: `[rad, m]`
    # lower bound of the space; a list has one number per component. `-.inf` where nothing bounds the value, which no
    # distance, pixel, integer or field that saturates may have. A reading outside keeps its value and is OUT_OF_RANGE;
    # simulated forces, torques, angular velocities and accelerations of an IMU saturate, as real ones do
    low: _Bound | tuple[_Bound, ...]
    high: _Bound | tuple[_Bound, ...]  # upper bound, above `low`, or `.inf`
    # joints to read by name, in this order; required by fields with one value per joint
    joints: tuple[Text, ...] | None = None
    # array lengths, where the message type does not fix them; before `resize`; with `resample`: the rays of a simulator
    shape: tuple[Count, ...] | None = None
    # place in the message, such as `pose.pose.position.x` or `points[0].positions`
    path: (
        Annotated[
            str,
            like(
                r"[a-z][a-z0-9_]*(\[[0-9]+\])?(\.[a-z][a-z0-9_]*(\[[0-9]+\])?)*",
                "a field path such as pose.position.x or data[0]",
            ),
        ]
        | None
    ) = None
    # precision of a field with a `path`, that of its message type; null: float64, which has the same numbers unless it
    # is int64
    dtype: str | None = None
    no_return: float | None = None  # replaces +inf, a ray without a return; null: +inf makes the reading invalid
    nan: float | None = None  # replaces NaN, a ray without a measurement; null: NaN makes the reading invalid
    resample: ResampleSpec | None = None  # fixed angles for a LaserScan of any number of rays
    resize: ResizeSpec | None = None  # size of an image in the observation; null: as published
    points: PointsSpec | None = None  # number of points in the observation, for a PointCloud2 with any number of points
    # readings of the last control steps in the observation, along a first axis, oldest first, with their ages
    # in `<sensor>_<field>_age_s`; a reset repeats its reading. null: the newest reading, without that axis
    history: Annotated[int, Interval(ge=1, le=1000)] | None = None
    # the driver's values, where they are not in `unit`: for all components, or a list with one entry for each
    driver: DriverUnits | tuple[DriverUnits, ...] | None = None

    @cached_property
    def conversion(self) -> Conversion | None:
        """The conversion of the values in a message, by rows, or None without one."""
        return conversion_of(self.driver if isinstance(self.driver, tuple) else (self.driver,))

    @property
    def lines(self) -> dict[str, tuple[float, float]]:
        """Offset and factor of the driver's value by joint or component, or by `*` for all."""
        names = self.joints or (map(str, range(len(self.driver))) if isinstance(self.driver, tuple) else ("*",))
        units = self.driver if isinstance(self.driver, tuple) else (self.driver,) * len(self.joints or "*")
        return {name: line_of(each) for name, each in zip(names, units, strict=False)}

    def units_by_joint(self) -> dict[str, str]:
        """Return the unit of each joint, "" if there is not one for each."""
        joints = self.joints or ()
        units = self.unit if isinstance(self.unit, tuple) else (self.unit,) * len(joints)
        return dict(zip(joints, units, strict=True)) if len(units) == len(joints) else dict.fromkeys(joints, "")


@dataclass(frozen=True, kw_only=True)
class SensorSpec(FrozenFields):
    """One sensor with its topic, its fields, and the response to a late reading."""

    topic: Free[Topic]  # of this sensor alone; joint states of different joints may share one
    type: Free[str]  # message type, see [messages](#messages)
    # each becomes the observation `<sensor>_<field>`
    fields: Annotated[Mapping[Name, FieldSpec], MinLen(1), tighten(fields_as_tight)]
    max_age_s: AtMost[Positive]  # maximum age of a valid reading
    rate_hz: Free[Rate] = 0.0  # 0: due at every step; else at multiples of 1/rate of simulated time since the reset
    # `hold` keeps the last valid reading; `stop` also ends the episode with `sensor_gap`
    on_gap: Annotated[Literal["hold", "stop"], towards("stop")] = "hold"
    # acquisition time: the header stamp, or the time of reception
    timeline: Annotated[Literal["header", "receive"], towards("header")] = "header"
    # `evaluator`: never in the observation
    visibility: Annotated[Literal["agent", "evaluator"], towards("agent")] = "agent"
    mask: Free[bool] = False  # adds `<sensor>_valid` (int8) to the observation
    frame: OnceSet[str | None] = None  # required `header.frame_id`; null: any
    child_frame: OnceSet[str | None] = None  # required `child_frame_id` of an Odometry; null: any
    encoding: Free[str | None] = None  # pixel encoding, required for images, see [images](#images)
    # confidence: probability that the true position is within this radius
    confidence_radius_m: Free[Positive] = 0.1
    qos: Free[Qos] = None  # QoS of the subscription, see [QoS](#qos); null: best effort, depth 10

    @property
    def pixels(self) -> str | None:
        """The encoding of an image in the observation, rgb8 for one that is converted."""
        return "rgb8" if self.encoding and ENCODINGS[self.encoding].to_rgb else self.encoding
