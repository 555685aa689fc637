"""Show the steps of an environment or a run in Rerun or Foxglove.

A viewer never delays a step: a background thread draws from a bounded queue, and while that is full, steps are dropped
and counted.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from datetime import datetime
from typing import Protocol, cast

import gymnasium

from embodied_env.contract import Contract, load_contract
from embodied_env.core.types import Transition
from embodied_env.errors import UsageError
from embodied_env.extensions.viewers.robot_geometry import find_geometry
from embodied_env.extensions.viewers.scene import Drawing, Scene
from embodied_env.processes.signals import close_at_exit
from embodied_env.record.manifest import contract_of_manifest
from embodied_env.record.row_types import TRANSITION, TransitionRow
from embodied_env.record.rows import step_account
from embodied_env.record.run import Run
from embodied_env.timing.clock import NS_PER_S

EXPECTED = (
    "True, 'web', 'web:PORT', 'FILE.rrd', 'rerun+http://HOST:PORT/proxy', 'foxglove', 'foxglove:PORT' or 'FILE.mcap'"
)
FILES = (".rrd", ".mcap")
_PORTS = {"web": 9090, "foxglove": 8765}
_LATEST_S = 2.0**31  # of a run: beyond, a time stamp of ROS or Foxglove overflows
_ADDRESSES = ("rerun://", "rerun+http://", "rerun+https://")

MOST_QUEUED = 100
"""Steps that wait for the viewer, of which those that end an episode may be twice as many."""

DRAW_PERIOD_S = 0.2
CLOSE_TIMEOUT_S = 2.0
SHARE_IN_LOCKSTEP = 0.01
"""Share of the time in which the thread draws where every step would wait for it."""

_MOST_BYTES = 64 * 2**20  # of the images of the queued steps
_STEPS_PER_BATCH = 256


class Viewer(Protocol):
    """A program or a file that shows steps, with methods that may raise, and may block."""

    def show(self, drawing: Drawing) -> None:
        """Show a step, of which the curves may wait for `flush`."""

    def flush(self) -> Iterator[None]:
        """Show the curves so far, and yield where a step may run."""

    def close(self) -> None:
        """Pass everything to the viewer, or raise an error if it takes more than a second."""

    def abandon(self) -> None:
        """Let the program end without a viewer that does not respond."""


class LiveView:
    """An observer of an environment that draws its steps in a background thread."""

    def __init__(self, scene: Scene, viewer: Viewer, *, pacing: str) -> None:
        """Start with no steps and without the thread, which the first step starts."""
        self._share = SHARE_IN_LOCKSTEP if pacing == "lockstep" else 1.0
        self.steps = self.dropped = 0  # of these are not shown, since the viewer was slower, or has failed
        self._viewer, self._scene = viewer, scene
        self._hidden = [name for name, spec in scene.contract.sensors.items() if spec.visibility == "evaluator"]
        sizes = [
            math.prod(space.shape) * space.dtype.itemsize
            for space in scene.contract.observation_space.values()
            if space.shape is not None and space.dtype is not None
        ]
        self._most_queued = min(MOST_QUEUED, max(2, _MOST_BYTES // max(1, sum(sizes))))
        self._queue: deque[tuple[int, Transition]] = deque()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="embodied_env view", daemon=True)
        self._problem = ""
        self._is_reported = False

    def observe(self, transition: Transition) -> None:
        """Queue a step, or drop it, and show nothing after `close`."""
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
        """Let the thread end after the queued steps, without blocking."""
        self._closing.set()

    def close(self) -> None:
        """Wait at most `CLOSE_TIMEOUT_S` for the queued steps, and log dropped ones. Idempotent."""
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
                    gymnasium.logger.warn("view: %d of %d steps were not shown%s", self.dropped, self.steps, reason)

    def _run(self) -> None:
        try:
            is_last, pause_s = False, DRAW_PERIOD_S
            while not is_last:
                is_last = self._closing.wait(pause_s)
                start_s = time.thread_time()
                for _ in range(len(self._queue)):
                    number, transition = self._queue.popleft()
                    if drawing := self._scene.draw(number, row_of(transition, self._hidden)):
                        self._viewer.show(drawing)
                    self._let_steps_run()
                for _ in self._viewer.flush():
                    self._let_steps_run()
                pause_s = max(DRAW_PERIOD_S, (time.thread_time() - start_s) / self._share)
            self._viewer.close()
        except Exception as error:  # noqa: BLE001 - of the viewer; the robot goes on
            self._problem = f"{type(error).__name__}: {error}"
            self.dropped += len(self._queue)
            self._queue.clear()

    def _let_steps_run(self) -> None:
        """Release the GIL, because a step must not wait for the switch interval."""
        self._closing.wait(1e-4)


def view_run(run: Run, scene: Scene, viewer: Viewer, progress: Callable[[int], None] = lambda _: None) -> int:
    """Draw the steps of a run, and return their number, or raise RecordError for a damaged row."""
    count = 0
    try:
        for count, row in enumerate(run.transitions(), start=1):
            if drawing := scene.draw(count - 1, row, run.array):
                viewer.show(drawing)
            if count % _STEPS_PER_BATCH == 0:
                deque(viewer.flush())
                progress(count)
        deque(viewer.flush())
    finally:
        viewer.close()
    return count


def row_of(transition: Transition, hidden: Collection[str]) -> TransitionRow:
    """Return what is drawn of a transition as a row, without the sensors `hidden`.

    Those are visible to the evaluator only. Actions are those of the report: the object that the agent passed may have
    changed.
    """
    inner = step_account(transition, None, hidden)
    row = {"schema": TRANSITION, "reward": transition.reward, "info": transition.info, "inner": inner}
    return cast("TransitionRow", row)


def checked_view(view: object) -> str:
    """Return the view as text, with a port, or raise UsageError.

    It is refused if it is a file that exists.

    True starts the viewer of Rerun, "spawn", or serves its web viewer if there is no display.
    """
    if view is True:
        view = "spawn" if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") else "web"
        if view == "spawn":
            return view
    if isinstance(view, str) and "\0" not in view:
        text = f"{view}:{_PORTS[view]}" if view in _PORTS else view
        kind, _, port = text.partition(":")
        is_port = kind in _PORTS and port.isascii() and port.isdigit() and 0 < int(port[:6]) < 2**16
        if text.endswith(FILES) and os.path.lexists(text):
            raise UsageError(f"{text} exists (expected a new file); choose another one")
        if is_port or text.endswith(FILES) or text.startswith(_ADDRESSES):
            return text
    raise UsageError(f"invalid view={view!r} (expected {EXPECTED})")


def open_viewer(where: str, scene: Scene, *, plays: bool = False) -> Viewer:
    """Open the viewer at a checked view.

    With `plays` a server shows the steps of a run at their own speed.

    Raises:
        UsageError: if it cannot be opened.
        MissingDependencyError: if its package is not installed.
    """
    from embodied_env.extensions.viewers.foxglove_viewer import FoxgloveViewer
    from embodied_env.extensions.viewers.rerun_viewer import RerunViewer

    try:
        if where.startswith("foxglove:") or where.endswith(".mcap"):
            return FoxgloveViewer(where, scene, plays=plays)
        return RerunViewer(where, scene)
    except (RuntimeError, OSError, ValueError) as error:
        raise UsageError(f"cannot open the view {where!r}: {error} (expected {EXPECTED})") from None


def open_view(view: object, contract: Contract, *, pacing: str) -> LiveView:
    """Return the observer that shows the steps of an environment, or raise like `open_viewer`."""
    where = checked_view(view)
    scene = Scene(contract, geometry=find_geometry(contract), start_ns=time.time_ns(), pacing=pacing)
    return LiveView(scene, open_viewer(where, scene), pacing=pacing)


def scene_of_run(run: Run, *, contract: str | None = None, urdf: str | None = None) -> Scene:
    """Return the scene of a run, without opening a file that the run names.

    `contract` is the name or path of its contract, whose files may be opened. `urdf` is a file with the robot.

    Raises:
        RecordError or ContractError: for a contract that cannot be read.
        UsageError: for a contract that is not that of the run, or a URDF that cannot be read.
    """
    own = contract_of_manifest(run.manifest)
    if contract is not None:
        given, recorded = load_contract(contract), own.fingerprint
        if given.fingerprint != recorded:
            found = f"fingerprint {given.fingerprint[:12]} (expected {recorded[:12]})"
            raise UsageError(f"{contract} is not the contract of {run.path}: {found}")
        own = given
    start_s = 0.0
    with contextlib.suppress(ValueError):  # of a run of another origin
        start_s = datetime.fromisoformat(run.manifest["started_utc"]).timestamp()
    start_ns = round(start_s * NS_PER_S) if 0.0 <= start_s < _LATEST_S else 0
    return Scene(own, geometry=find_geometry(own, urdf), start_ns=start_ns, pacing=run.manifest.get("pacing"))
