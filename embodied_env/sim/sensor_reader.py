"""Read the sensors of a simulated world, without delay and noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from operator import sub
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import FloatArray, SensorSpec
from embodied_env.contract.field_paths import is_boolean
from embodied_env.contract.reading_values import InvalidReadingError, fitted
from embodied_env.contract.spaces import FieldLayout, field_layouts, message_field
from embodied_env.contract.value_checks import one_of
from embodied_env.messages.message_types import JOINT_SENSOR, SENSOR_MESSAGES
from embodied_env.sim.rendering import Renderer
from embodied_env.sim.sensor_models import Bumper, Odometer, Scanner
from embodied_env.sim.world_model import MjData, WorldModel
from embodied_env.sim.world_profile import KINDS, Contact, Rays, Source, WheelOdometry

Reader = Callable[[], Any]  # returns a number or a new array
FieldReader = Callable[[], NDArray[Any]]  # returns a new array of the contract's shape and precision
Values = dict[str, NDArray[Any]]

_BOOL = "std_msgs/msg/Bool"
_XYZW = (1, 2, 3, 0)  # of MuJoCo's w, x, y, z
_DERIVED = ("sensor_msgs/msg/LaserScan", "sensor_msgs/msg/PointCloud2", "sensor_msgs/msg/Image")
_POSES = (
    "geometry_msgs/msg/PoseStamped",
    "geometry_msgs/msg/PointStamped",
    "geometry_msgs/msg/PoseWithCovarianceStamped",
)
_FITS: Mapping[str, tuple[str, ...]] = {  # kind of source -> message types it can fill; "sensors" fills any
    "site": _POSES,
    "distance": ("sensor_msgs/msg/Range",),
    "rays": ("sensor_msgs/msg/LaserScan",),
    "camera": ("sensor_msgs/msg/Image",),
    "odometry": ("nav_msgs/msg/Odometry",),
    "contact": (_BOOL,),
}


class SensorOutput(NamedTuple):
    """The fields of one reading, and the other content of its message (`ros.embedded_sim.sensor_messages`).

    `problem` is the reason for missing values, when they do not fit into the message.
    """

    values: Values
    extras: Mapping[str, Any]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ArrayReader:
    """A reader of parts of a state: views with one dimension, of which `formula` makes a new array.

    The formula takes the parts of one world or, in rows, those of several, with equal results.
    """

    parts: tuple[NDArray[np.float64], ...]
    formula: Callable[..., NDArray[np.float64]]

    def __call__(self) -> NDArray[np.float64]:
        """Return the current value."""
        return self.formula(*self.parts)


@dataclass(frozen=True)
class _Binding:
    """A sensor of the contract, its source, and the path of the source in the contract."""

    name: str
    spec: SensorSpec
    source: Source
    path: str

    @cached_property
    def layouts(self) -> dict[str, FieldLayout]:
        return {layout.field: layout for layout in field_layouts(self.name, self.spec)}


class SimulatedSensorReader:
    """Reads the sensors of a contract from one MuJoCo state.

    Attributes:
        fields: the readers of the fields of each sensor.
        extras: the reader of the other content of its message.
        has_contacts: whether `update_contacts` is needed.
    """

    def __init__(self, model: WorldModel, data: MjData, renderer: Renderer, *, whole_messages: bool = True) -> None:
        """Resolve every field; raises ContractError for an unsuitable or unused source, or an unknown name.

        `whole_messages`: `SensorOutput.extras` also have poses and twists that the contract does not declare.
        """
        self._model = model
        self._data = data
        self._renderer = renderer
        self._odometers: dict[str, Odometer] = {}
        self._bumpers: dict[str, Bumper] = {}
        self.extras: dict[str, Callable[[], Mapping[str, Any]]] = dict.fromkeys(model.contract.sensors, dict)
        sensors, sources = model.contract.sensors, model.profile.sources
        for name in sources:
            model.require(name in sensors, f"{model.path}.sources.{name}", f"no such sensor: {one_of(name, sensors)}")
        self.fields: dict[str, list[tuple[str, FieldReader]]] = {}
        self._arrays: dict[str, list[tuple[FieldLayout, ArrayReader]]] = {}  # of the sensors that only have such fields
        for name, spec in sensors.items():
            binding = _Binding(name, spec, sources.get(name, Source()), f"{model.path}.sources.{name}")
            readers = self._readers(binding)
            self._check_fields(binding, readers)
            if whole_messages and (vectors := _undeclared_vectors(binding, readers)):
                self.extras[name] = partial(_extras_of, self.extras[name], vectors)
            measured = [
                (layout, readers[field], is_boolean(spec, spec.fields[field]))
                for field, layout in binding.layouts.items()
                if field in readers
            ]
            self.fields[name] = [(layout.field, _bind(layout, reader, flag)) for layout, reader, flag in measured]
            arrays = [
                (layout, reader)
                for layout, reader, flag in measured
                if isinstance(reader, ArrayReader) and layout.dtype.kind == "f" and not flag
            ]
            if len(arrays) == len(spec.fields) and spec.type not in _DERIVED:
                self._arrays[name] = arrays
        self.has_contacts = bool(self._bumpers)

    def begin(self, seed: int) -> None:
        """Begin an episode: odometers at zero, bumpers without contact."""
        for name, odometer in self._odometers.items():
            odometer.begin([seed, *f"{name}.odometry".encode()])  # differs from the seed of its channel
        for bumper in self._bumpers.values():
            bumper.begin()

    def save(self) -> dict[str, Any]:
        """Return the state of each odometer and bumper, which later readings do not change."""
        return {name: each.save() for name, each in self._with_state()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        for name, each in self._with_state():
            each.load(state[name])

    def _with_state(self) -> Iterator[tuple[str, Odometer | Bumper]]:
        yield from self._odometers.items()
        yield from self._bumpers.items()

    def update_contacts(self, sensed: FloatArray) -> None:
        """Record the contacts at the start of physics steps, from a row of ``sensordata`` of each."""
        for bumper in self._bumpers.values():
            bumper.update(sensed)

    def read(self, sensor: str) -> SensorOutput:
        """Return the current values of `sensor` as new arrays, in the contract's shapes and precision."""
        extras = self.extras[sensor]()
        try:
            values = {field: read_field() for field, read_field in self.fields[sensor]}
        except InvalidReadingError as error:
            return SensorOutput(values={}, extras=extras, problem=str(error))
        return SensorOutput(values=values, extras=extras)

    def array_readers(self, sensor: str) -> Sequence[tuple[FieldLayout, ArrayReader]]:
        """Return the readers of the fields of `sensor`, if several worlds can read all of them together, else []."""
        return self._arrays.get(sensor, ())

    def measure(self, sensor: str) -> SensorOutput:
        """Return a reading like `read`, with odometry and contacts accumulated since the previous reading."""
        if sensor in self._odometers:
            self._odometers[sensor].advance()
        output = self.read(sensor)
        if sensor in self._bumpers:
            self._bumpers[sensor].forget()
        return output

    def _readers(self, binding: _Binding) -> dict[str, Reader]:
        """Return the readers of the source by field."""
        source, type_name = binding.source, binding.spec.type
        given = [kind for kind in KINDS if getattr(source, kind) is not None]
        is_site = source.relative_to is None or source.site is not None
        self._model.require(is_site, f"{binding.path}.relative_to", "given without a site (expected with site only)")
        if not given and type_name == JOINT_SENSOR:
            return self._joints(binding)
        fitting = [kind for kind, types in _FITS.items() if type_name in types] + ["sensors"]
        if len(given) != 1 or given[0] not in fitting:
            expected = " or ".join(["no source", *fitting] if type_name == JOINT_SENSOR else fitting)
            found = " and ".join(given) or "none"
            raise self._model.error(binding.path, f"wrong source of a {type_name}: {found} (expected {expected})")
        build: Callable[[_Binding, Any], dict[str, Reader]] = getattr(self, f"_{given[0]}")
        return build(binding, getattr(source, given[0]))

    def _check_fields(self, binding: _Binding, readers: Mapping[str, Reader]) -> None:
        known = SENSOR_MESSAGES.get(binding.spec.type)
        derived = ("covariance",) if known is not None and known.covariance else ()  # from the noise
        require = self._model.require
        for field in binding.spec.fields:
            path = f"sensors.{binding.name}.fields.{field}"
            require(field in readers or field in derived, path, "not provided by its source in the simulated world")
        for field in binding.source.noise:
            path, layouts = f"{binding.path}.noise.{field}", binding.layouts
            require(field in layouts, path, f"no such field: {one_of(field, layouts)}")
            is_measured = field in readers and layouts[field].dtype.kind == "f"
            require(is_measured, path, "no noise for this field (expected a measured floating-point field)")

    def _joints(self, binding: _Binding) -> dict[str, Reader]:
        data = self._data
        readers: dict[str, Reader] = {}
        for field, spec in binding.spec.fields.items():
            if spec.joints is None:
                continue
            path = f"sensors.{binding.name}.fields.{field}.joints"
            qpos, qvel = self._model.joint_addresses((joint, path) for joint in spec.joints)
            vector, index = {
                "position": (data.qpos, qpos),
                "velocity": (data.qvel, qvel),
                "effort": (data.qfrc_actuator, qvel),  # of the servos, without gravity compensation
            }[field]
            if np.array_equal(index, np.arange(index[0], index[0] + len(index))):
                readers[field] = ArrayReader((vector[index[0] : index[-1] + 1],), np.array)
            else:
                readers[field] = ArrayReader((vector,), partial(np.ndarray.take, indices=index, axis=-1))
        return readers

    def _site(self, binding: _Binding, site: str) -> dict[str, Reader]:
        """Read the position, m, and the orientation as quaternion x, y, z, w."""
        data, model, frame = self._data, self._model, binding.source.relative_to
        index = model.find("site", site, f"{binding.path}.site")
        base = None if frame is None else model.find("site", frame, f"{binding.path}.relative_to")

        if base is None:
            parts = data.site_xpos[index], data.site_xmat[index]
            rotated = partial(_orientations, model.mujoco.mju_mat2Quat)
            return {"position": ArrayReader(parts[:1], np.array), "orientation": ArrayReader(parts[1:], rotated)}

        def position() -> NDArray[np.float64]:
            offset = data.site_xpos[index] - data.site_xpos[base]
            return np.array(data.site_xmat[base].reshape(3, 3).T @ offset)

        def orientation() -> NDArray[np.float64]:
            matrix = data.site_xmat[base].reshape(3, 3).T @ data.site_xmat[index].reshape(3, 3)
            return _orientations(model.mujoco.mju_mat2Quat, matrix.ravel())

        return {"position": position, "orientation": orientation}

    def _distance(self, binding: _Binding, sites: tuple[str, str]) -> dict[str, Reader]:
        places = (self._model.find("site", site, f"{binding.path}.distance[{i}]") for i, site in enumerate(sites))
        a, b = (self._data.site_xpos[place] for place in places)
        if "range" not in binding.layouts:
            return {}
        return {"range": ArrayReader((a, b), partial(_distances, dtype=binding.layouts["range"].dtype))}

    def _sensors(self, binding: _Binding, sensors: Mapping[str, str]) -> dict[str, Reader]:
        return {field: self._sensor(binding, field, sensor) for field, sensor in sensors.items()}

    def _sensor(self, binding: _Binding, field: str, sensor: str) -> Reader:
        mj, data, mujoco = self._model.mj, self._data, self._model.mujoco
        path = f"{binding.path}.sensors.{field}"
        self._model.require(field in binding.layouts, path, f"no such field: {one_of(field, binding.layouts)}")
        index = self._model.find("sensor", sensor, path)
        start, size = int(mj.sensor_adr[index]), int(mj.sensor_dim[index])
        shape = binding.layouts[field].raw_shape
        problem = f"wrong size of {sensor!r}: {size} values (expected {math.prod(shape)}, shape {shape})"
        self._model.require(size == math.prod(shape), path, problem)
        values = data.sensordata[start : start + size]
        if mj.sensor_datatype[index] == int(mujoco.mjtDataType.mjDATATYPE_QUATERNION):
            return ArrayReader((values,), partial(np.ndarray.take, indices=_XYZW, axis=-1))
        if binding.spec.type == _BOOL:
            return lambda: np.where(np.isnan(values), np.nan, values != 0.0)
        if mj.sensor_type[index] == int(mujoco.mjtSensor.mjSENS_RANGEFINDER):
            return ArrayReader((values,), lambda ranges: np.where(ranges < 0.0, np.inf, ranges))  # -1: no hit
        if message_field(binding.spec, field, binding.spec.fields[field]).saturates:
            layout = binding.layouts[field]
            return ArrayReader((values,), partial(np.clip, a_min=layout.low, a_max=layout.high))
        return ArrayReader((values,), np.array)

    def _rays(self, binding: _Binding, rays: Rays) -> dict[str, Reader]:
        if "ranges" not in binding.layouts:
            return {}
        scanner = Scanner(self._model, self._data, rays, binding.layouts["ranges"].raw_shape[0], binding.path)
        self.extras[binding.name] = scanner.extras
        return {"ranges": scanner.ranges}

    def _camera(self, binding: _Binding, name: str) -> dict[str, Reader]:
        camera = self._model.find("camera", name, f"{binding.path}.camera")
        renderers = {"rgb8": self._renderer.rgb, "32FC1": self._renderer.depth}
        encoding = str(binding.spec.encoding)
        problem = f"unsupported encoding of a rendered image: {encoding!r} (expected one of: {', '.join(renderers)})"
        self._model.require(encoding in renderers, f"sensors.{binding.name}.encoding", problem)
        if "image" not in binding.layouts:
            return {}
        height, width, _ = binding.layouts["image"].raw_shape
        return {"image": partial(renderers[encoding], self._data, camera, height, width)}

    def _odometry(self, binding: _Binding, odometry: WheelOdometry) -> dict[str, Reader]:
        odometer = self._odometers[binding.name] = Odometer(self._model, self._data, odometry, binding.path)
        self.extras[binding.name] = odometer.extras
        return {field: getattr(odometer, field) for field in ("position", "orientation", "linear", "angular")}

    def _contact(self, binding: _Binding, contact: Contact) -> dict[str, Reader]:
        bumper = self._bumpers[binding.name] = Bumper(self._model, self._data, contact, binding.path)
        return {"data": bumper.touched}


def _undeclared_vectors(binding: _Binding, readers: Mapping[str, Reader]) -> dict[str, Reader]:
    """Return the readers of a pose or twist that its message has and the contract does not declare."""
    known = SENSOR_MESSAGES.get(binding.spec.type)
    vectors = {field for field, spec in known.fields.items() if spec.shape in ((3,), (4,))} if known else set()
    return {field: reader for field, reader in readers.items() if field in vectors - set(binding.layouts)}


def _extras_of(others: Callable[[], Mapping[str, Any]], vectors: Mapping[str, Reader]) -> dict[str, Any]:
    return {**others(), **{field: reader() for field, reader in vectors.items()}}


def _distances(a: NDArray[np.float64], b: NDArray[np.float64], *, dtype: np.dtype[Any]) -> NDArray[Any]:
    if a.ndim == 1:  # floats are faster than arrays of numbers
        x, y, z = map(sub, a.tolist(), b.tolist())
        return np.array([math.sqrt(x * x + y * y + z * z)], dtype)
    x, y, z = (a - b).T
    return np.asarray(np.sqrt(x * x + y * y + z * z), dtype)[..., np.newaxis]


def _orientations(mat_to_quat: Callable[..., None], matrices: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the quaternions x, y, z, w of matrices given by rows, shape (..., 9)."""
    wxyz = np.empty((*matrices.shape[:-1], 4))
    for out, matrix in zip(wxyz.reshape(-1, 4), matrices.reshape(-1, 9), strict=True):
        mat_to_quat(out, matrix)
    return wxyz.take(_XYZW, axis=-1)


def _bind(layout: FieldLayout, reader: Reader, is_flag: bool) -> FieldReader:  # noqa: FBT001 - private, called once
    """Return the reader of a field in the contract's shape and precision, which many formulas have already."""
    read, field, dtype = reader, layout.field, layout.dtype
    if isinstance(reader, ArrayReader) and not is_flag:
        read = partial(reader.formula, *reader.parts)
        like = read()
        if like.shape == layout.raw_shape:
            return read if like.dtype == dtype else lambda: fitted(field, read(), dtype)

    def read_fitted() -> NDArray[Any]:
        numbers = np.asarray(read())
        if numbers.dtype == dtype and numbers.shape == layout.raw_shape:
            return numbers  # already a new array, see `Reader`
        if is_flag:
            numbers = fitted(field, numbers, np.dtype(bool))
        return fitted(field, numbers, dtype).reshape(layout.raw_shape)

    return read_fitted
