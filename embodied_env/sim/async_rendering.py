"""Background rendering: a thread renders the cameras of a world from copies of its state."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from embodied_env.contract import Contract
from embodied_env.errors import ClosedError
from embodied_env.sim.backend_profile import WorldProfile
from embodied_env.sim.model import MjData, Model
from embodied_env.sim.rendering import Renderer
from embodied_env.sim.sensor_reader import SensorOutput, SensorReader


class AsyncCameras:
    """Renders the cameras of a world in the background, one image at a time.

    A request is dropped while the same camera is being rendered; while another one is, it waits, replacing an older
    request. Rendering releases the GIL. Errors of the thread are raised by `finished`.

    Attributes:
        sensors: the camera sensors.
    """

    def __init__(self, contract: Contract, profile: WorldProfile, model: Model) -> None:
        """Resolve the cameras; the thread starts with the first request."""
        self.sensors = frozenset(name for name, source in profile.sources.items() if source.camera is not None)
        self._model = model
        self._data = model.new_data()
        self._renderer = Renderer(model.mujoco, model.mj)
        self._reader = SensorReader(contract, profile, model, self._data, self._renderer)
        self._kind = int(model.mujoco.mjtState.mjSTATE_INTEGRATION)
        self._changed = threading.Condition()
        self._wanted: dict[str, tuple[int, Any]] = {}  # sensor -> taken, state
        self._done: list[tuple[str, int, SensorOutput | Exception]] = []
        self._active: tuple[str, int] | None = None  # sensor, episode
        self._episode = 0
        self._is_closed = False
        self._thread: threading.Thread | None = None

    @property
    def library(self) -> str:
        """The library that renders."""
        return self._renderer.library

    def begin(self) -> None:
        """Begin an episode and discard images of the previous one."""
        with self._changed:
            self._episode += 1
            self._wanted.clear()
            self._done.clear()

    def request(self, sensor: str, taken_ns: int, data: MjData) -> None:
        """Request an image of the current `data`, returned later by `finished`; raises ClosedError after `close`."""
        if self._is_closed:
            raise ClosedError("the cameras are closed")
        state = np.empty(self._model.mujoco.mj_stateSize(self._model.mj, self._kind))
        self._model.mujoco.mj_getState(self._model.mj, data, state, self._kind)
        with self._changed:
            if self._active != (sensor, self._episode):
                self._wanted[sensor] = taken_ns, state
                self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="cameras", daemon=True)
            self._thread.start()

    def finished(self) -> list[tuple[str, int, SensorOutput]]:
        """Return the new images: sensor, acquisition time, output; raises like `Renderer.rgb`."""
        with self._changed:
            done, self._done = self._done, []
        images = []
        for sensor, taken_ns, outcome in done:
            if isinstance(outcome, Exception):
                raise outcome
            images.append((sensor, taken_ns, outcome))
        return images

    def capture(self, sensor: str, data: MjData) -> SensorOutput:
        """Return an image of the current `data`, waiting for it. Only right after `begin`; raises like `finished`."""
        self.request(sensor, 0, data)
        with self._changed:
            self._changed.wait_for(lambda: self._done)
        ((_, _, output),) = self.finished()
        return output

    def close(self) -> None:
        """Stop the thread and free its renderer. Idempotent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._wanted or self._is_closed)
                    if self._is_closed:
                        return
                    sensor, episode = next(iter(self._wanted)), self._episode
                    taken_ns, state = self._wanted.pop(sensor)
                    self._active = sensor, episode
                outcome = self._render(sensor, state)
                with self._changed:
                    self._active = None
                    if episode == self._episode:
                        self._done.append((sensor, taken_ns, outcome))
                        self._changed.notify_all()
        finally:
            self._renderer.close()  # a GL context must be freed in its own thread

    def _render(self, sensor: str, state: Any) -> SensorOutput | Exception:  # noqa: ANN401 - an array
        mujoco = self._model.mujoco
        try:
            mujoco.mj_setState(self._model.mj, self._data, state, self._kind)
            mujoco.mj_forward(self._model.mj, self._data)
            return self._reader.read(sensor)
        except Exception as error:  # noqa: BLE001 - raised by `finished`
            return error
