"""Read the sensors of a simulated world, and cameras also in the background."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from operator import sub
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import FloatArray, SensorSpec
from embodied_env.contract.field_paths import wire_dtype
from embodied_env.contract.spaces import FieldLayout, field_layouts, message_field
from embodied_env.contract.value_checks import one_of
from embodied_env.errors import ClosedError
from embodied_env.messages.declaration import AXES, InvalidReadingError, fitted
from embodied_env.messages.message_types import JOINT_SENSOR
from embodied_env.messages.sensor_types import SENSOR_MESSAGES
from embodied_env.sim.rendering import Renderer
from embodied_env.sim.sensor_models import Bumper, Odometer, Scanner
from embodied_env.sim.world_model import MjData, WorldModel
from embodied_env.sim.world_profile import EXACT_RESAMPLING, KINDS, RENDERED, Contact, Rays, Source, WheelOdometry

Reader = Callable[[], Any]  # returns a number or a new array
FieldReader = Callable[[], NDArray[Any]]  # returns a new array of the contract's shape and precision
Values = dict[str, NDArray[Any]]

_XYZW = (1, 2, 3, 0)  # indices in MuJoCo's w, x, y, z
_DERIVED = ("rays", "points", "image")


class SensorOutput(NamedTuple):
    """Fields and other content (`Extras`) of a reading, or the `problem` of its values."""

    values: Values
    extras: Mapping[str, Any]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ArrayReader:
    """Reader of parts of one or several states, of which `formula` makes an array."""

    parts: tuple[NDArray[np.float64], ...]
    formula: Callable[..., NDArray[np.float64]]

    def __call__(self) -> NDArray[np.float64]:
        """Return the current value."""
        return self.formula(*self.parts)


@dataclass(frozen=True)
class _Binding:
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
        """Resolve all fields, with `whole_messages` undeclared ones too, or raise ContractError."""
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
                (layout, readers[field], wire_dtype(spec, spec.fields[field]))
                for field, layout in binding.layouts.items()
                if field in readers
            ]
            self.fields[name] = [(layout.field, _bind(layout, reader, wire)) for layout, reader, wire in measured]
            arrays = [
                (layout, reader)
                for layout, reader, wire in measured
                if isinstance(reader, ArrayReader) and layout.dtype.kind == "f" and wire in (None, layout.dtype)
            ]
            columns = [message_field(spec, field, declared).column for field, declared in spec.fields.items()]
            if len(arrays) == len(spec.fields) and not {*_DERIVED} & {*columns}:
                self._arrays[name] = arrays
        self.has_contacts = bool(self._bumpers)

    def begin(self, seed: int) -> None:
        """Begin an episode with odometers at zero and bumpers without contact."""
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
        """Return the current values of `sensor`, new, in the contract's shapes and precision."""
        extras = self.extras[sensor]()
        try:
            values = {field: read_field() for field, read_field in self.fields[sensor]}
        except InvalidReadingError as error:
            return SensorOutput(values={}, extras=extras, problem=str(error))
        return SensorOutput(values=values, extras=extras)

    def array_readers(self, sensor: str) -> Sequence[tuple[FieldLayout, ArrayReader]]:
        """Return the readers of a sensor's fields if worlds can be read together, else []."""
        return self._arrays.get(sensor, ())

    def measure(self, sensor: str) -> SensorOutput:
        """Return a reading like `read`, with odometry and contacts since the previous reading."""
        if sensor in self._odometers:
            self._odometers[sensor].advance()
        output = self.read(sensor)
        if sensor in self._bumpers:
            self._bumpers[sensor].forget()
        return output

    def _readers(self, binding: _Binding) -> dict[str, Reader]:
        source, type_name, require = binding.source, binding.spec.type, self._model.require
        given = [kind for kind in KINDS if getattr(source, kind) is not None]
        is_site = source.relative_to is None or source.site is not None
        require(is_site, f"{binding.path}.relative_to", "given without a site (expected with site only)")
        is_camera = source.render_size == "message" or source.camera is not None
        require(is_camera, f"{binding.path}.render_size", "given without a camera (expected with camera only)")
        if not given and type_name == JOINT_SENSOR:
            return self._joints(binding)
        known = SENSOR_MESSAGES.get(type_name)
        fitting = [*(() if known is None else known.sources), "sensors"]
        if len(given) != 1 or given[0] not in fitting:
            expected = " or ".join(["no source", *fitting] if type_name == JOINT_SENSOR else fitting)
            found = f"wrong source of a {type_name}: {' and '.join(given)}" if given else f"no source of a {type_name}"
            raise self._model.error(binding.path, f"{found} (expected {expected})")
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
        if binding.spec.type == "std_msgs/msg/Bool":
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
        encoding = str(binding.spec.encoding)
        problem = f"unsupported encoding of a rendered image: {encoding!r} (expected one of: {', '.join(RENDERED)})"
        self._model.require(encoding in RENDERED, f"sensors.{binding.name}.encoding", problem)
        if "image" not in binding.layouts:
            return {}
        (height, width, _), factor = binding.layouts["image"].raw_shape, self._reduction(binding)
        render = self._renderer.depth if encoding == "32FC1" else self._renderer.rgb
        picture = partial(render, self._data, camera, height // factor, width // factor)

        def draw() -> NDArray[Any]:
            pixels: NDArray[Any] = picture()
            pixels = pixels[..., ::-1] if encoding == "bgr8" else pixels
            return np.ascontiguousarray(pixels) if factor == 1 else pixels.repeat(factor, axis=0).repeat(factor, axis=1)

        return {"image": draw}

    def _reduction(self, binding: _Binding) -> int:
        """Return how many pixels of a message repeat one that is rendered, along each axis."""
        if binding.source.render_size == "message":
            return 1
        resize, (height, width, _) = binding.spec.fields["image"].resize, binding.layouts["image"].raw_shape
        factor, is_exact, given = 0, False, "no resize"
        if resize is not None:
            rows, columns = resize.size
            factor, given = height // rows, f"resize to {rows} x {columns} by {resize.resample}"
            is_exact = (rows * factor, columns * factor) == (height, width) and resize.resample in EXACT_RESAMPLING
        expected = f"expected resize of {height} x {width} by one whole factor, by {' or '.join(EXACT_RESAMPLING)}"
        problem = f"the size of the observation cannot be rendered: {given} ({expected})"
        self._model.require(is_exact, f"{binding.path}.render_size", problem)
        return factor

    def _odometry(self, binding: _Binding, odometry: WheelOdometry) -> dict[str, Reader]:
        odometer = self._odometers[binding.name] = Odometer(self._model, self._data, odometry, binding.path)
        self.extras[binding.name] = odometer.extras
        return {field: getattr(odometer, field) for field in ("position", "orientation", "linear", "angular")}

    def _contact(self, binding: _Binding, contact: Contact) -> dict[str, Reader]:
        bumper = self._bumpers[binding.name] = Bumper(self._model, self._data, contact, binding.path)
        return {"data": bumper.touched}


def _undeclared_vectors(binding: _Binding, readers: Mapping[str, Reader]) -> dict[str, Reader]:
    """Return the readers of a pose or twist of its message that the contract does not declare."""
    known = SENSOR_MESSAGES.get(binding.spec.type)
    vectors = {field for field, spec in known.fields.items() if spec.column in AXES} if known else set()
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


def _bind(layout: FieldLayout, reader: Reader, wire: np.dtype[Any] | None) -> FieldReader:
    """Return the reader of a field in the contract's form, by way of its message, `wire`."""
    read, field, dtype = reader, layout.field, layout.dtype
    if isinstance(reader, ArrayReader) and wire in (None, dtype):
        read = partial(reader.formula, *reader.parts)
        like = read()
        if like.shape == layout.raw_shape:
            return read if like.dtype == dtype else lambda: fitted(field, read(), dtype)

    def read_fitted() -> NDArray[Any]:
        numbers = np.asarray(read())
        if numbers.dtype == dtype and numbers.shape == layout.raw_shape and wire in (None, dtype):
            return numbers  # already a new array, see `Reader`
        if wire is not None:
            numbers = fitted(field, numbers, wire)
        return fitted(field, numbers, dtype).reshape(layout.raw_shape)

    return read_fitted


class AsyncCameras:
    """Renders the cameras of a world in the background, one image at a time.

    A request is dropped while the same camera is being rendered; while another one is, it waits, replacing an older
    request. Rendering releases the GIL. Errors of the thread are raised by `finished`.

    Attributes:
        sensors: the camera sensors.
    """

    def __init__(self, model: WorldModel) -> None:
        """Resolve the cameras, whose thread starts with the first request."""
        self.sensors = frozenset(name for name, source in model.profile.sources.items() if source.camera is not None)
        self._model = model
        self._data = model.new_data()
        self._renderer = Renderer(model.mujoco, model.mj)
        self._reader = SimulatedSensorReader(model, self._data, self._renderer)
        self._kind = int(model.mujoco.mjtState.mjSTATE_INTEGRATION)
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="cameras")
        self._images: list[tuple[str, int, Future[SensorOutput]]] = []  # sensor, taken, image
        self._is_closed = False

    @property
    def library(self) -> str:
        """The library that renders."""
        return self._renderer.library

    def begin(self) -> None:
        """Begin an episode and discard images of the previous one."""
        for *_, image in self._images:
            image.cancel()
        self._images = []

    def request(self, sensor: str, taken_ns: int, data: MjData) -> None:
        """Request an image of `data` for `finished`, or raise ClosedError after `close`."""
        if self._is_closed:
            raise ClosedError("the cameras are closed")
        for name, _, image in self._images:
            if name == sensor and not image.done() and not image.cancel():
                return  # it is being rendered
        self._images = [each for each in self._images if not each[2].cancelled()]
        state = np.empty(self._model.mujoco.mj_stateSize(self._model.mj, self._kind))
        self._model.mujoco.mj_getState(self._model.mj, data, state, self._kind)
        self._images.append((sensor, taken_ns, self._executor.submit(self._render, sensor, state)))

    def finished(self) -> list[tuple[str, int, SensorOutput]]:
        """Return sensor, acquisition time and output of new images, or raise as `Renderer.rgb`."""
        done = [each for each in self._images if each[2].done()]
        self._images = [each for each in self._images if each not in done]
        return [(sensor, taken_ns, image.result()) for sensor, taken_ns, image in done]

    def capture(self, sensor: str, data: MjData) -> SensorOutput:
        """Wait for an image of `data` and return it, right after `begin`, or raise as `finished`."""
        self.request(sensor, 0, data)
        *_, image = self._images.pop()
        return image.result()

    def close(self) -> None:
        """Stop the thread and free its renderer (idempotent)."""
        if self._is_closed:
            return
        self._is_closed = True
        self.begin()
        self._executor.submit(self._renderer.close)  # a GL context must be freed in its own thread
        self._executor.shutdown()

    def _render(self, sensor: str, state: NDArray[np.float64]) -> SensorOutput:
        mujoco = self._model.mujoco
        mujoco.mj_setState(self._model.mj, self._data, state, self._kind)
        mujoco.mj_forward(self._model.mj, self._data)
        return self._reader.read(sensor)
