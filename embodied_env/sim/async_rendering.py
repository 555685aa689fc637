"""Pictures that a world does not wait for: its cameras look at copies of the state, in a thread of their own."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from embodied_env.contract import Contract
from embodied_env.errors import ClosedError
from embodied_env.sim.model import MjData, Model
from embodied_env.sim.profile import WorldProfile
from embodied_env.sim.rendering import Renderer
from embodied_env.sim.sensors import SensorModels, SensorOutput


class AsyncCameras:
    """Takes the pictures of a world's cameras, one after the other, as fast as this machine can.

    A picture that is asked for while the same camera is at work is left out; while another one is, it waits, and
    replaces an older one that waits. Rendering gives up the GIL. What fails in the thread is raised by who asks for the
    pictures.

    Attributes:
        sensors: the sensors that are cameras.
    """

    def __init__(self, contract: Contract, profile: WorldProfile, model: Model) -> None:
        """Resolve the cameras; the thread starts with the first picture."""
        self.sensors = frozenset(name for name, source in profile.sources.items() if source.camera is not None)
        self._model = model
        self._data = model.new_data()
        self._renderer = Renderer(model.mujoco, model.mj)
        self._senses = SensorModels(contract, profile, model, self._data, self._renderer)
        self._kind = int(model.mujoco.mjtState.mjSTATE_INTEGRATION)
        self._changed = threading.Condition()
        self._wanted: dict[str, tuple[int, Any]] = {}  # sensor -> taken, state
        self._done: list[tuple[str, int, SensorOutput | Exception]] = []
        self._at_work: tuple[str, int] | None = None  # sensor, episode
        self._episode = 0
        self._is_closed = False
        self._thread: threading.Thread | None = None

    @property
    def library(self) -> str:
        """Which library renders, once a picture was taken."""
        return self._renderer.library

    def begin(self) -> None:
        """Begin an episode: pictures of the last one are never there."""
        with self._changed:
            self._episode += 1
            self._wanted.clear()
            self._done.clear()

    def request(self, sensor: str, taken_ns: int, data: MjData) -> None:
        """Ask for a picture of `data` as it is now; unless it is left out it is there later, see `developed`.

        Raises:
            ClosedError: after `close`.
        """
        if self._is_closed:
            raise ClosedError("the cameras are closed")
        state = np.empty(self._model.mujoco.mj_stateSize(self._model.mj, self._kind))
        self._model.mujoco.mj_getState(self._model.mj, data, state, self._kind)
        with self._changed:
            if self._at_work != (sensor, self._episode):
                self._wanted[sensor] = taken_ns, state
                self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="cameras", daemon=True)
            self._thread.start()

    def finished(self) -> list[tuple[str, int, SensorOutput]]:
        """Return the pictures that are there and were not returned before: sensor, when it was taken, what it shows.

        Raises:
            MissingDependencyError: when neither EGL nor OSMesa works here.
            UsageError: for a picture too large for the library.
        """
        with self._changed:
            done, self._done = self._done, []
        pictures = []
        for sensor, taken_ns, outcome in done:
            if isinstance(outcome, Exception):
                raise outcome
            pictures.append((sensor, taken_ns, outcome))
        return pictures

    def capture(self, sensor: str, data: MjData) -> SensorOutput:
        """Return a picture of `data` as it is now: waits for it. Right after `begin` only; raises as `developed`."""
        self.request(sensor, 0, data)
        with self._changed:
            self._changed.wait_for(lambda: self._done)
        ((_, _, measured),) = self.finished()
        return measured

    def close(self) -> None:
        """End the thread and free what it renders with. Idempotent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            while (work := self._next()) is not None:
                sensor, taken_ns, state, episode = work
                outcome = self._look(sensor, state)
                with self._changed:
                    self._at_work = None
                    if episode == self._episode:
                        self._done.append((sensor, taken_ns, outcome))
                        self._changed.notify_all()
        finally:
            self._renderer.close()  # a GL context is freed where it was used

    def _next(self) -> tuple[str, int, Any, int] | None:
        """Wait for the next picture to take: sensor, when, state, episode; None: no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._wanted or self._is_closed)
            if self._is_closed:
                return None
            sensor = next(iter(self._wanted))
            self._at_work = sensor, self._episode
            return sensor, *self._wanted.pop(sensor), self._episode

    def _look(self, sensor: str, state: Any) -> SensorOutput | Exception:  # noqa: ANN401 - an array
        mujoco = self._model.mujoco
        try:
            mujoco.mj_setState(self._model.mj, self._data, state, self._kind)
            mujoco.mj_forward(self._model.mj, self._data)
            return self._senses.read(sensor)
        except Exception as error:  # noqa: BLE001 - it is for another thread to raise
            return error
