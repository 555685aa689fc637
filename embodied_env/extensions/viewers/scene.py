"""Drawings of steps for viewers, such as curves, images, links and the tool's path.

A sensor is drawn by the column of its fields (`embodied_env.messages.declaration.Column`), so that a new type of sensor
needs no entry here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.fixed_sizes import target_angles
from embodied_env.contract.sensor_schema import FieldSpec
from embodied_env.contract.spaces import ActionLayout, FieldLayout, field_layouts, message_field
from embodied_env.core.code_types import Quality, Severity
from embodied_env.core.terminal import printable
from embodied_env.extensions.viewers.robot_geometry import FIXED_FRAME, Pose, RobotGeometry
from embodied_env.messages.declaration import AXES, Column
from embodied_env.messages.message_types import JOINT_SENSOR
from embodied_env.record.arrays import StoredApart, is_reference
from embodied_env.record.row_types import RecordedTransition, TransitionRow
from embodied_env.record.step_values import Joints, firings
from embodied_env.timing.clock import NS_PER_S

Path = tuple[str, ...]

ReadArray = Callable[[Mapping[str, Any]], NDArray[Any]]
"""Returns the array of a reference in a row."""

_MOST_CURVES = 400
_MOST_COMPONENTS = 32  # of a field that is drawn as curves
_MOST_POSITIONS = 500  # of the path of the tool
_LONGEST_TEXT = 200
_LONGEST_S = 1e9
_OF_READINGS = ("obs_age", "obs_skew")  # stages that the ages of the readings show
_NO_IMAGE = np.zeros((0, 0, 0))


class Image(NamedTuple):
    """An image of shape (height, width, channels), which is depth in metres if float32."""

    frame: str
    pixels: NDArray[Any]
    encoding: str


class Points(NamedTuple):
    """Points of a cloud or of a scan, (n, 3) m."""

    frame: str
    points_m: NDArray[np.float32]


@dataclass(slots=True, kw_only=True)
class Drawing:
    """The drawing of one step, whose time counts from the first step."""

    step: int
    time_s: float
    row: TransitionRow
    curves: dict[Path, float] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)  # of the log
    images: dict[str, Image] = field(default_factory=dict)  # those that changed, by camera
    poses: dict[str, Pose] = field(default_factory=dict)  # by sensor
    points: dict[str, Points] = field(default_factory=dict)  # by sensor
    joints: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)  # sensor -> joint -> field -> value
    root: str = FIXED_FRAME  # frame of the paths
    links: dict[str, Pose] = field(default_factory=dict)  # of the robot
    paths: dict[str, FloatArray] = field(default_factory=dict)  # "intended", "done": of the tool, (n, 3) m


class _Plan(NamedTuple):
    """Joint values of an action chunk, (n, n_joints), from the step on that applies it."""

    step_index: int
    values: FloatArray


class _Reading(NamedTuple):
    layout: FieldLayout
    column: Column
    is_hidden: bool
    is_state: bool  # of joints, at one instant
    frame: str
    components: tuple[str, ...]


class Scene:
    """The drawings of the steps of one contract, in order, from `start_ns` since 1970."""

    def __init__(self, contract: Contract, *, geometry: RobotGeometry | str, start_ns: int, pacing: str | None) -> None:
        """Start before the first step, with steps of one control period in lockstep."""
        self.contract, self.geometry, self.start_ns = contract, geometry, start_ns
        self._period_s = contract.control_period_s if pacing == "lockstep" else None
        self._joints = Joints(contract)
        self._readings = [reading for name in contract.sensors for reading in _readings(contract, name)]
        frames = {(reading.column, reading.layout.sensor): reading.frame for reading in self._readings}
        # encoding of images by camera, and frame of poses by sensor
        self.cameras = {name: str(contract.sensors[name].pixels) for column, name in frames if column == "image"}
        self.frames = {name: frame for (column, name), frame in frames.items() if column == "position"}
        self._shown: dict[str, NDArray[Any]] = {}
        self._names: set[Path] = set()
        self._gates: dict[str, int] = {}
        self._acting: list[str] = []
        self._layout = ActionLayout(contract)
        self._plan: _Plan | None = None
        self._done: list[FloatArray] = []
        self._ahead: FloatArray | None = None
        self._first_ns: int | None = None
        self._notes = [f"the robot is not drawn: {geometry}"] if isinstance(geometry, str) else []

    def draw(self, step: int, row: RecordedTransition, array: ReadArray | None = None) -> Drawing | None:
        """Return the drawing of step number `step`, None of one that an outer wrapper made.

        `row` is its row, or that of `row_of`. `array` reads the arrays of a recorded row.
        """
        if row["inner"] is None:
            return None
        inner, info = row["inner"], row["info"]
        entered_ns = inner["stamps_ns"]["entered"]
        self._first_ns = entered_ns if self._first_ns is None else self._first_ns
        passed_s = (entered_ns - self._first_ns) / NS_PER_S if self._period_s is None else step * self._period_s
        drawing = Drawing(step=step, time_s=min(max(passed_s, 0.0), _LONGEST_S), row=row, lines=self._notes)
        self._notes = []
        if info["step_index"] == 1:
            drawing.lines.append(f"episode {info['episode_index']} begins")
            self._done, self._plan, self._ahead = [], None, None
        self._add_curves(drawing, row)
        self._add_gates(drawing, row)
        for reading in self._readings:
            values = _values(inner, reading, array)
            if values is not None:
                self._add_reading(drawing, reading, values)
        self._add_plan(drawing, row, array)
        if not isinstance(self.geometry, str):
            self._add_robot(drawing, self.geometry)
        if info["end_reason"]:
            end = f"episode {info['episode_index']} ends after {info['step_index']} steps: {info['end_reason']}"
            drawing.lines.append(end)
        drawing.lines = [printable(line)[:_LONGEST_TEXT] for line in drawing.lines]
        return drawing

    def _add_curves(self, drawing: Drawing, row: TransitionRow) -> None:
        info = row["info"]
        self._point(drawing, ("reward", "reward"), row["inner"]["reward"])
        for name, value in info["task"].items():
            self._point(drawing, ("reward", name), value)
        for name, *values in self._joints.values(row):
            for kind, value in zip(("requested", "applied", "measured"), values, strict=True):
                self._point(drawing, ("joints", name, kind), value)
        latency: Mapping[str, Any] = info["latency"]
        for name, value in latency.items():
            if name.endswith("_s") and not name.startswith(_OF_READINGS) and latency["quality"].get(name) == Quality.OK:
                self._point(drawing, ("latency", name.removesuffix("_s")), value, 1e3)
        for name, reading in info["sensors"].items():
            self._point(drawing, ("age", name), reading["age_s"], 1e3)

    def _add_gates(self, drawing: Drawing, row: TransitionRow) -> None:
        found = [(gate, code, severity) for (gate, code, _), severity in firings(row) if severity > Severity.PASS]
        self._gates = dict.fromkeys(self._gates, 0)
        for gate, _, severity in found:
            self._gates[gate] = max(severity, self._gates.get(gate, 0))
        for gate, worst in self._gates.items():
            self._point(drawing, ("gates", gate), worst)
        acting = sorted({f"{gate}: {code} ({severity.name})" for gate, code, severity in found})
        if acting != self._acting:
            self._acting = acting
            drawing.lines.append("; ".join(acting) or "no gate acts")

    def _add_reading(self, drawing: Drawing, reading: _Reading, values: NDArray[Any]) -> None:
        layout, column, frame = reading.layout, reading.column, reading.frame
        name, numbers = layout.sensor, values.ravel().tolist() if values.size <= _MOST_COMPONENTS else []
        if column == "image" and not np.array_equal(self._shown.get(name, _NO_IMAGE), values):
            self._shown[name] = values
            drawing.images[name] = Image(frame, values, self.cameras[name])
        elif column == "position" and all(map(math.isfinite, numbers)):
            drawing.poses[name] = Pose(frame, tuple(numbers))
        elif column == "rotation" and all(map(math.isfinite, numbers)) and name in drawing.poses:
            drawing.poses[name] = drawing.poses[name]._replace(quaternion=tuple(numbers))
        elif column in ("points", "rays"):
            spec = self.contract.sensors[name].fields[layout.field]
            if (points_m := _returns(spec, column, values)) is not None:
                drawing.points[name] = Points(frame, points_m)
        elif column == "joints" and reading.is_state:
            joints = drawing.joints.setdefault(name, {})
            for joint, value in zip(reading.components, numbers, strict=False):
                if math.isfinite(value):
                    joints.setdefault(joint, {})[layout.field] = value
        components = reading.components or tuple(map(str, range(len(numbers))))
        for component, value in zip(components, numbers, strict=False):
            self._point(drawing, ("sensors", layout.key, component), value)

    def _add_plan(self, drawing: Drawing, row: TransitionRow, array: ReadArray | None) -> None:
        """Draw the action of the newest chunk for this step, in the units of the joints."""
        if (recorded := row["inner"]["external_inputs"].get("chunk")) is not None:
            self._plan, self._ahead = self._read_plan(recorded, row, array), None
        if self._plan is not None:
            index = row["info"]["step_index"] - self._plan.step_index
            for joint, value in zip(self._layout.joints, self._plan.values[index : index + 1].ravel(), strict=False):
                self._point(drawing, ("joints", joint, "intended"), value)

    def _add_robot(self, drawing: Drawing, geometry: RobotGeometry) -> None:
        """Draw the links, and the tool paths done in this episode and intended by the newest chunk."""
        states = [state for joints in drawing.joints.values() for state in joints.items()]
        positions = {joint: values["position"] for joint, values in states if "position" in values}
        drawing.links, drawing.root = geometry.place(positions, drawing.poses.get(geometry.base_sensor)), geometry.root
        self._done = [*self._done[1 - _MOST_POSITIONS :], geometry.tool_path([{}])[0]]
        if self._ahead is None:
            is_known = self._plan is not None and not self._layout.is_velocity.any()
            plan = self._plan.values if self._plan is not None and is_known else np.empty((0, self._layout.size))
            rows = plan[np.isfinite(plan).all(axis=1)][:_MOST_POSITIONS].tolist()
            self._ahead = geometry.tool_path(dict(zip(self._layout.joints, values, strict=True)) for values in rows)
        drawing.paths = {"done": np.array(self._done), "intended": self._ahead}

    def _read_plan(self, recorded: Mapping[str, Any], row: TransitionRow, array: ReadArray | None) -> _Plan | None:
        actions, origins = recorded["actions"], self._joints.origins(row)
        actions = actions.array if isinstance(actions, StoredApart) else array(actions) if array else np.empty(0)
        first = row["info"]["step_index"] - 1 - recorded["born"]
        is_plan = actions.shape[1:] == (self._layout.size,) == (len(origins),) and actions.dtype == np.float64
        if not is_plan or first < 0:
            return None
        return _Plan(row["info"]["step_index"], self._joints.plan(actions[first:], origins))

    def _point(self, drawing: Drawing, path: Path, value: Any, scale: float = 1.0) -> None:  # noqa: ANN401 - JSON types
        if path not in self._names and len(self._names) < _MOST_CURVES:
            self._names.add(path)
        if path in self._names and isinstance(value, (int, float, np.number)) and math.isfinite(value):
            drawing.curves[path] = scale * float(value)


def _readings(contract: Contract, name: str) -> list[_Reading]:
    sensor, found = contract.sensors[name], []
    for layout in field_layouts(name, sensor):
        spec = sensor.fields[layout.field]
        column = message_field(sensor, layout.field, spec).column
        components = tuple(spec.joints or AXES.get(column) or ())
        is_hidden, is_state = sensor.visibility == "evaluator", sensor.type == JOINT_SENSOR
        found.append(_Reading(layout, column, is_hidden, is_state, sensor.frame or FIXED_FRAME, components))
    return sorted(found, key=lambda reading: reading.column == "rotation")


def _returns(spec: FieldSpec, column: Column, values: NDArray[Any]) -> NDArray[np.float32] | None:
    """Return the points of a cloud, or of a scan at angles that the contract fixes."""
    measured = points_m = values
    if column == "rays":
        if spec.resample is None or spec.unit != "m":
            return None
        angles, _ = target_angles(spec.resample)
        measured = values[:, None]
        points_m = measured * np.stack([np.cos(angles), np.sin(angles), 0.0 * angles], axis=1)
    declared = (spec.no_return, spec.nan, None if spec.points is None else spec.points.pad)
    fillers = np.array([each for each in declared if each is not None], dtype=values.dtype)
    is_return = np.isfinite(measured).all(axis=1) & ~np.isin(measured, fillers).all(axis=1)
    found: NDArray[np.float32] = points_m[is_return].astype(np.float32)
    return found


def _values(inner: Mapping[str, Any], reading: _Reading, array: ReadArray | None) -> NDArray[Any] | None:
    """Return the newest reading of a field in a row of unchecked JSON, or None without one."""
    layout = reading.layout
    place, key = (
        (inner["evaluator"].get(layout.sensor), layout.field)
        if reading.is_hidden
        else (inner["observation"], layout.key)
    )
    value = place.get(key) if isinstance(place, Mapping) else None
    if array is not None and is_reference(value):
        value = array(value)
    try:
        values = np.asarray(value, dtype=None if isinstance(value, np.ndarray) else layout.dtype)
    except (TypeError, ValueError, OverflowError):
        return None
    if values.ndim == len(layout.shape) + 1 and len(values):
        values = values[-1]  # the newest of a history
    return values if values.shape == layout.shape and values.dtype == layout.dtype else None
