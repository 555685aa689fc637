"""Background rendering: a thread renders the cameras of a world from copies of its state."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from embodied_env.errors import ClosedError
from embodied_env.sim.rendering import Renderer
from embodied_env.sim.sensor_reader import SensorOutput, SimulatedSensorReader
from embodied_env.sim.world_model import MjData, WorldModel


class AsyncCameras:
    """Renders the cameras of a world in the background, one image at a time.

    A request is dropped while the same camera is being rendered; while another one is, it waits, replacing an older
    request. Rendering releases the GIL. Errors of the thread are raised by `finished`.

    Attributes:
        sensors: the camera sensors.
    """

    def __init__(self, model: WorldModel) -> None:
        """Resolve the cameras; the thread starts with the first request."""
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
        """Request an image of the current `data`, returned later by `finished`; raises ClosedError after `close`."""
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
        """Return the new images: sensor, acquisition time, output; raises like `Renderer.rgb`."""
        done = [each for each in self._images if each[2].done()]
        self._images = [each for each in self._images if each not in done]
        return [(sensor, taken_ns, image.result()) for sensor, taken_ns, image in done]

    def capture(self, sensor: str, data: MjData) -> SensorOutput:
        """Return an image of the current `data`, waiting for it. Only right after `begin`; raises like `finished`."""
        self.request(sensor, 0, data)
        *_, image = self._images.pop()
        return image.result()

    def close(self) -> None:
        """Stop the thread and free its renderer. Idempotent."""
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
