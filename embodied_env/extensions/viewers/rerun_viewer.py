"""Rerun as the viewer of steps: its program, its web page, a file, or one at an address."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence
from typing import Any, cast
from urllib.parse import quote

import gymnasium
from numpy.typing import NDArray

from embodied_env.contract import Contract
from embodied_env.core.optional_packages import import_optional
from embodied_env.errors import UsageError
from embodied_env.extensions.viewers.live_view import LiveView, Path, encodings_of
from embodied_env.record.step_values import Joints

_EXPECTED = "True, 'web', 'web:PORT', 'FILE.rrd' or 'rerun+http://HOST:PORT/proxy'"
_PORT = 9090
_MOST_PLOTS = 12  # of joints; the others can be selected
_COLORS = {"requested": (150, 150, 150), "applied": (230, 130, 30), "measured": (40, 110, 220)}
_CHANNELS = {"rgb8": "RGB", "bgr8": "BGR", "rgba8": "RGBA", "bgra8": "BGRA", "mono8": "L"}

_kept: list[Any] = []  # recordings that exist until the process ends: of a page, and those that rerun cannot drop


def checked_view(view: object) -> str:
    """Return the view as text, "spawn" or "web" for True; raises UsageError for a value that is none.

    True starts the viewer, or serves the web viewer if there is no display.
    """
    if view is True:
        return "spawn" if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") else f"web:{_PORT}"
    text = f"web:{_PORT}" if view == "web" else view
    if isinstance(text, str) and "\0" not in text:
        port = text.removeprefix("web:") if text.startswith("web:") else ""
        is_port = port.isascii() and port.isdigit() and 0 < int(port[:6]) < 2**16
        if is_port or text.endswith(".rrd") or text.startswith(("rerun://", "rerun+http://", "rerun+https://")):
            return text
    raise UsageError(f"invalid view={view!r} (expected {_EXPECTED})")


def open_view(view: object, contract: Contract, *, pacing: str) -> LiveView:
    """Return the observer that shows the steps of an environment.

    Raises the errors of `RerunViewer`.
    """
    return LiveView(contract, RerunViewer(view, contract), pacing=pacing)


class RerunViewer:
    """A recording of Rerun, with a layout for one contract."""

    def __init__(self, view: object, contract: Contract) -> None:
        """Open the viewer or the file.

        Raises:
            UsageError: for an invalid `view`, or one that cannot be opened.
            MissingDependencyError: if rerun is not installed.
        """
        where = checked_view(view)
        import_optional("rerun.blueprint", needed_for="a view")
        self._rerun = rerun = import_optional("rerun", needed_for="a view")
        self._recording = recording = rerun.RecordingStream(f"embodied_env {contract.name}")
        self._steps: Sequence[int] = ()
        self._times: list[Any] = []
        blueprint = _layout(rerun, contract)
        try:
            if where == "spawn":
                recording.spawn(default_blueprint=blueprint)
            elif where.startswith("web:"):
                self._serve(int(where.removeprefix("web:")), blueprint)
            elif where.endswith(".rrd"):
                recording.save(where, default_blueprint=blueprint)
            else:
                recording.connect_grpc(where, default_blueprint=blueprint)
        except (RuntimeError, OSError, ValueError) as error:
            raise UsageError(f"cannot open the view {where!r}: {error} (expected {_EXPECTED})") from None
        for name in Joints(contract).by_name:
            for kind, color in _COLORS.items():
                style = rerun.SeriesLines(colors=[color], names=[kind])
                recording.log(["joints", name, kind], style, static=True)

    def plot(self, path: Path, steps: Sequence[int], times_s: Sequence[float], values: Sequence[float]) -> None:
        """Add points to the series `path`."""
        rerun = self._rerun
        if steps != self._steps:  # most series have the same ones
            self._steps = steps
            self._times = [rerun.TimeColumn("step", sequence=steps), rerun.TimeColumn("time", duration=times_s)]
        columns = rerun.Scalars.columns(scalars=values)
        self._recording.send_columns(rerun.new_entity_path(list(path)), indexes=self._times, columns=columns)

    def show_image(self, name: str, image: NDArray[Any], encoding: str, step: int, time_s: float) -> None:
        """Show an image of a camera."""
        self._set_time(step, time_s)
        if image.dtype == "float32":
            shown = self._rerun.DepthImage(image[..., 0], meter=1.0)
        else:
            channels = _CHANNELS.get(encoding, "L")
            shown = self._rerun.Image(image if image.shape[-1] > 1 else image[..., 0], color_model=channels)
        self._recording.log(["cameras", name], shown)

    def log(self, text: str, step: int, time_s: float) -> None:
        """Add a line to the log."""
        self._set_time(step, time_s)
        self._recording.log("log", self._rerun.TextLog(text))

    def close(self) -> None:
        """Pass everything to the viewer; a page that is being served stays until the process ends."""
        self._recording.flush(timeout_sec=1.0)

    def abandon(self) -> None:
        """Let the program end although rerun has not sent everything."""
        self._rerun.unregister_shutdown()
        _kept.append(self._recording)

    def _set_time(self, step: int, time_s: float) -> None:
        self._recording.set_time("step", sequence=step)
        self._recording.set_time("time", duration=time_s)

    def _serve(self, port: int, blueprint: object) -> None:
        with socket.socket() as free, socket.socket() as page:
            page.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            page.bind(("127.0.0.1", port))  # rerun only logs that a port is in use
            free.bind(("127.0.0.1", 0))
            data_port = free.getsockname()[1]
        url = self._recording.serve_grpc(grpc_port=data_port, default_blueprint=blueprint)
        self._rerun.serve_web_viewer(web_port=port, open_browser=False, connect_to=url)
        _kept.append(self._recording)
        with contextlib.suppress(UserWarning):  # a warning turned into an error
            gymnasium.logger.warn(f"view: open http://localhost:{port}?url={quote(url, safe='')}")


def _layout(rerun: Any, contract: Contract) -> Any:  # noqa: ANN401 - untyped
    """Return a layout: images and the log on the left, joints in the middle, reward, gates and latency on the right."""
    plots = rerun.blueprint
    images = [plots.Spatial2DView(origin=f"cameras/{_part(rerun, name)}", name=name) for name in encodings_of(contract)]
    joints = [
        plots.TimeSeriesView(origin=f"joints/{_part(rerun, name)}", name=f"{name}, {joint.unit}")
        for name, joint in list(Joints(contract).by_name.items())[:_MOST_PLOTS]
    ]
    others = {"reward": "reward and its terms", "gates": "gates: severity", "latency": "latency, ms"}
    others["age"] = "age of the readings, ms"
    series = [plots.TimeSeriesView(origin=origin, name=name) for origin, name in others.items()]
    log = plots.TextLogView(origin="log", name="gates and episodes")
    parts = [plots.Vertical(*images, log), plots.Grid(*joints), plots.Vertical(*series)]
    return plots.Blueprint(
        plots.Horizontal(*parts, column_shares=[1, 2, 1]),
        plots.TimePanel(timeline="step", state="collapsed"),
        plots.SelectionPanel(state="hidden"),
        plots.BlueprintPanel(state="hidden"),
        auto_views=False,
    )


def _part(rerun: Any, name: str) -> str:  # noqa: ANN401 - untyped
    return cast("str", rerun.escape_entity_path_part(name))
