"""Steps of an environment or of a run in a viewer: images, joints, gates, latency, reward and the end of episodes.

A viewer never delays a step: a background thread draws from a bounded queue, and while that is full, steps are dropped
and counted.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import gymnasium
import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract
from embodied_env.core.codes import Quality, Severity
from embodied_env.core.terminal import printable
from embodied_env.core.types import Transition
from embodied_env.processes.signals import close_at_exit
from embodied_env.record.arrays import is_reference
from embodied_env.record.run import Run
from embodied_env.record.step_values import Joints, firings
from embodied_env.timing.clock import NS_PER_S

Path = tuple[str, ...]

MOST_QUEUED = 100
"""Steps that wait for the viewer; those that end an episode may wait twice as many."""

DRAW_PERIOD_S = 0.2
CLOSE_TIMEOUT_S = 2.0
SHARE_IN_LOCKSTEP = 0.01
"""Share of the time in which the thread draws if every step would wait for it; in real time steps wait anyway."""

_MOST_BYTES = 64 * 2**20  # of the images of the queued steps
_MOST_SERIES = 400
_LONGEST_TEXT = 200
_STEPS_PER_BATCH = 256
_STACKED = 4  # dimensions of images with a history
_OF_READINGS = ("obs_age", "obs_skew")  # stages that the ages of the readings show
_NO_IMAGE = np.zeros((0, 0, 0))


class Viewer(Protocol):
    """A program or a file that shows steps. Its methods may raise, and may block."""

    def plot(self, path: Path, steps: Sequence[int], times_s: Sequence[float], values: Sequence[float]) -> None:
        """Add points to the series `path`."""

    def show_image(self, name: str, image: NDArray[Any], encoding: str, step: int, time_s: float) -> None:
        """Show an image of a camera, of shape (height, width, channels); float32 is depth in metres."""

    def log(self, text: str, step: int, time_s: float) -> None:
        """Add a line to the log."""

    def close(self) -> None:
        """Pass everything to the viewer; raises an error if it takes more than a second."""

    def abandon(self) -> None:
        """Let the program end without a viewer that does not respond."""


class StepView:
    """Draws the steps of one contract in a viewer, with what the environment itself requested, sent and read."""

    def __init__(self, contract: Contract, viewer: Viewer) -> None:
        self._viewer = viewer
        self._joints = Joints(contract)
        self._encodings = encodings_of(contract)
        self._shown: dict[str, NDArray[Any]] = {}
        self._series: dict[Path, list[tuple[int, float, float]]] = {}
        self._names: set[Path] = set()
        self._gates: dict[str, int] = {}
        self._acting: list[str] = []
        self._start_ns: int | None = None
        self._now = 0, 0.0

    def add(
        self, step: int, row: Mapping[str, Any], array: Callable[[Mapping[str, Any]], NDArray[Any]] | None = None
    ) -> None:
        """Add step number `step`: its row, or that of `row_of`; `array` returns the array of a reference."""
        inner, info = row["inner"], row["info"]
        if inner is None:  # of an outer wrapper
            return
        entered_ns = inner["stamps_ns"]["entered"]
        self._start_ns = entered_ns if self._start_ns is None else self._start_ns
        self._now = step, (entered_ns - self._start_ns) / NS_PER_S
        if info["step_index"] == 1:
            self._log(f"episode {info['episode_index']} begins")
        self._point(("reward", "reward"), inner["reward"])
        for name, value in info["task"].items():
            self._point(("reward", name), value)
        for name, *values in self._joints.values(row):
            for kind, value in zip(("requested", "applied", "measured"), values, strict=True):
                self._point(("joints", name, kind), value)
        latency = info["latency"]
        for name, value in latency.items():
            if name.endswith("_s") and not name.startswith(_OF_READINGS) and latency["quality"].get(name) == Quality.OK:
                self._point(("latency", name.removesuffix("_s")), value, 1e3)
        for name, reading in info["sensors"].items():
            self._point(("age", name), reading["age_s"], 1e3)
        self._add_gates(row)
        self._add_images(inner["observation"], array)
        if info["end_reason"]:
            self._log(f"episode {info['episode_index']} ends after {info['step_index']} steps: {info['end_reason']}")

    def send(self) -> Iterator[None]:
        """Pass the points so far to the viewer, one series at a time."""
        series, self._series = self._series, {}
        for path, points in series.items():
            steps, times_s, values = zip(*points, strict=True)
            self._viewer.plot(path, steps, times_s, values)
            yield

    def _add_gates(self, row: Mapping[str, Any]) -> None:
        found = [(gate, code, severity) for (gate, code, _), severity in firings(row) if severity > Severity.PASS]
        self._gates = dict.fromkeys(self._gates, 0)
        for gate, _, severity in found:
            self._gates[gate] = max(severity, self._gates.get(gate, 0))
        for gate, worst in self._gates.items():
            self._point(("gates", gate), worst)
        acting = sorted({f"{gate}: {code} ({severity.name})" for gate, code, severity in found})
        if acting != self._acting:
            self._acting = acting
            self._log("; ".join(acting) or "no gate acts")

    def _add_images(self, observation: object, array: Callable[[Mapping[str, Any]], NDArray[Any]] | None) -> None:
        for name, encoding in self._encodings.items():
            image = observation.get(f"{name}_image") if isinstance(observation, Mapping) else None
            if array is not None and is_reference(image):
                image = array(image)
            if not isinstance(image, np.ndarray) or not image.size:
                continue
            image = image[-1] if image.ndim == _STACKED else image  # the newest of a history
            if image.ndim == _STACKED - 1 and not np.array_equal(self._shown.get(name, _NO_IMAGE), image):
                self._shown[name] = image
                self._viewer.show_image(name, image, encoding, *self._now)

    def _point(self, path: Path, value: Any, scale: float = 1.0) -> None:  # noqa: ANN401 - JSON types
        if path not in self._names and len(self._names) < _MOST_SERIES:
            self._names.add(path)
        if path in self._names and isinstance(value, (int, float, np.number)) and math.isfinite(value):
            self._series.setdefault(path, []).append((*self._now, scale * float(value)))

    def _log(self, text: str) -> None:
        self._viewer.log(printable(text)[:_LONGEST_TEXT], *self._now)


class LiveView:
    """An observer of an environment that draws its steps in a background thread.

    Attributes:
        steps: the steps so far.
        dropped: those that are not shown, since the viewer was slower than the environment or has failed.
    """

    def __init__(self, contract: Contract, viewer: Viewer, *, pacing: str) -> None:
        """Start with no steps; the thread starts with the first."""
        self._share = SHARE_IN_LOCKSTEP if pacing == "lockstep" else 1.0
        self.steps = self.dropped = 0
        self._viewer, self._view = viewer, StepView(contract, viewer)
        sizes = [
            math.prod(space.shape) * space.dtype.itemsize
            for space in contract.observation_space.values()
            if space.shape is not None and space.dtype is not None
        ]
        self._most_queued = min(MOST_QUEUED, max(2, _MOST_BYTES // max(1, sum(sizes))))
        self._queue: deque[tuple[int, Transition]] = deque()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="embodied_env view", daemon=True)
        self._problem = ""
        self._is_reported = False

    def observe(self, transition: Transition) -> None:
        """Queue a step, or drop it; after `close` nothing is shown."""
        if self._closing.is_set():
            return
        if not self.steps:
            close_at_exit(self, aside=True)
            self._thread.start()
        is_end = transition.terminated or transition.truncated
        if not self._problem and len(self._queue) < self._most_queued * (1 + is_end):
            self._queue.append((self.steps, transition))
        else:
            self.dropped += 1
        self.steps += 1

    def stop(self) -> None:
        """Let the thread end after the queued steps. Never blocks."""
        self._closing.set()

    def close(self) -> None:
        """Wait, not longer than `CLOSE_TIMEOUT_S`, until the steps are shown, and report dropped ones; idempotent."""
        self.stop()
        if not self.steps:
            self._run()
        elif threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_TIMEOUT_S)
        if not self._is_reported:
            self._is_reported = True
            if self._thread.is_alive():
                self._problem = "the viewer does not respond"
            if self._problem:
                self._viewer.abandon()
            if self._problem or self.dropped:
                reason = f": {self._problem}" if self._problem else ""
                with contextlib.suppress(UserWarning):  # a warning turned into an error
                    gymnasium.logger.warn(f"view: {self.dropped} of {self.steps} steps were not shown{reason}")

    def _run(self) -> None:
        try:
            is_last, pause_s = False, DRAW_PERIOD_S
            while not is_last:
                is_last = self._closing.wait(pause_s)
                start_s = time.thread_time()
                for _ in range(len(self._queue)):
                    number, transition = self._queue.popleft()
                    self._view.add(number, row_of(transition))
                    self._let_steps_run()
                for _ in self._view.send():
                    self._let_steps_run()
                pause_s = max(DRAW_PERIOD_S, (time.thread_time() - start_s) / self._share)
            self._viewer.close()
        except Exception as error:  # noqa: BLE001 - of the viewer; the robot goes on
            self._problem = f"{type(error).__name__}: {error}"
            self.dropped += len(self._queue)
            self._queue.clear()

    def _let_steps_run(self) -> None:
        """Release the GIL: a step must not wait for the switch interval."""
        self._closing.wait(1e-4)


def view_run(run: Run, contract: Contract, viewer: Viewer, progress: Callable[[int], None] = lambda _: None) -> int:
    """Draw the steps of a run, and return their number.

    Raises:
        RecordError: for a row or an array that is damaged.
    """
    view, count = StepView(contract, viewer), 0
    try:
        for count, row in enumerate(run.transitions(), start=1):
            view.add(count - 1, row, run.array)
            if count % _STEPS_PER_BATCH == 0:
                deque(view.send())
                progress(count)
        deque(view.send())
    finally:
        viewer.close()
    return count


def row_of(transition: Transition) -> dict[str, Any]:
    """Return what a `StepView` draws of a transition, in the form of its row."""
    findings = (
        {"gate": found.gate, "code": found.code, "severity": found.severity.name, "joints": found.joints}
        for found in transition.report.findings
    )
    inner = {
        "observation": transition.observation,
        "reward": transition.reward,
        "stamps_ns": transition.stamps_ns,
        "findings": list(findings),
    }
    return {"info": transition.info, "inner": inner}


def encodings_of(contract: Contract) -> dict[str, str]:
    """Return camera -> encoding of its images; the cameras of the evaluator are not among them."""
    return {
        name: spec.encoding
        for name, spec in contract.sensors.items()
        if spec.visibility == "agent" and "image" in spec.fields and spec.encoding is not None
    }
