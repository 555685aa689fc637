"""Show steps in Rerun by its program, its web page, a file, or the viewer at an address.

Links of the robot and sensors are below the entity ``scene``. A frame that is no link is drawn at its origin.
"""

from __future__ import annotations

import contextlib
import pathlib
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast
from urllib.parse import quote

import gymnasium
import numpy as np

from embodied_env.core.plugin_loading import import_optional
from embodied_env.extensions.viewers.scene import Drawing, Image, Path, Scene
from embodied_env.record.step_values import Joints

_MOST_PLOTS = 12  # of joints, while the others can be selected
_COLORS = {
    "requested": (150, 150, 150),
    "applied": (230, 130, 30),
    "measured": (40, 110, 220),
    "intended": (150, 60, 190),
}
_PATHS = {"intended": _COLORS["intended"], "done": _COLORS["measured"]}
_AXES_M = 0.1
_CHANNELS = {"rgb8": "RGB", "bgr8": "BGR", "rgba8": "RGBA", "bgra8": "BGRA", "mono8": "L"}

_kept: list[Any] = []  # recordings that exist until the process ends, of a page or such as rerun cannot drop


class RerunViewer:
    """A recording of Rerun, with a layout for one contract."""

    def __init__(self, where: str, scene: Scene) -> None:
        """Open the viewer or the file.

        Raises:
            RuntimeError, OSError or ValueError: if it cannot be opened.
            MissingDependencyError: if rerun is not installed.
        """
        import_optional("rerun.blueprint", needed_for="a view")
        self._rerun = rerun = import_optional("rerun", needed_for="a view")
        self._recording = recording = rerun.RecordingStream(f"embodied_env {scene.contract.name}")
        self._kept: dict[tuple[str, Path], list[tuple[int, float, Any]]] = {}
        blueprint = _layout(rerun, scene)
        if where == "spawn":
            recording.spawn(default_blueprint=blueprint)
        elif where.startswith("web:"):
            self._serve(int(where.removeprefix("web:")), blueprint)
        elif where.endswith(".rrd"):
            pathlib.Path(where).touch(exist_ok=False)  # `save` replaces a file
            recording.save(where, default_blueprint=blueprint)
        else:
            recording.connect_grpc(where, default_blueprint=blueprint)
        for name in Joints(scene.contract).by_name:
            for kind, color in _COLORS.items():
                style = rerun.SeriesLines(colors=[color], names=[kind])
                recording.log(["joints", name, kind], style, static=True)
        for number, part in enumerate([] if isinstance(scene.geometry, str) else scene.geometry.parts):
            colors = np.tile(np.round(255 * np.array(part.color)).astype(np.uint8), (len(part.vertices), 1))
            mesh = rerun.Mesh3D(vertex_positions=part.vertices, triangle_indices=part.triangles, vertex_colors=colors)
            recording.log(["scene", part.link, f"part_{number}"], mesh, static=True)
        for name, frame in scene.frames.items():
            axes = rerun.Arrows3D(vectors=_AXES_M * np.eye(3), colors=255 * np.eye(3))
            recording.log(["scene", frame, name], axes, static=True)
        for name, color in _PATHS.items():
            recording.log(["scene", name], rerun.LineStrips3D.from_fields(colors=[color]), static=True)

    def show(self, drawing: Drawing) -> None:
        """Show a step, except numbers, poses and paths, which wait for `flush`."""
        rerun, log = self._rerun, self._recording.log
        self._recording.set_time("step", sequence=drawing.step)
        self._recording.set_time("time", duration=drawing.time_s)
        for text in drawing.lines:
            log("log", rerun.TextLog(text))
        for name, image in drawing.images.items():
            log(["cameras", name], self._image(image))
        for name, cloud in drawing.points.items():
            log(["scene", cloud.frame, name], rerun.Points3D(cloud.points_m))
        kept: list[tuple[str, Path, Any]] = [("number", path, value) for path, value in drawing.curves.items()]
        kept += [("pose", ("scene", link), pose) for link, pose in drawing.links.items()]
        kept += [("pose", ("scene", pose.frame, name), pose) for name, pose in drawing.poses.items()]
        kept += [("path", ("scene", name), positions) for name, positions in drawing.paths.items()]
        for kind, entity, value in kept:
            self._kept.setdefault((kind, entity), []).append((drawing.step, drawing.time_s, value))

    def flush(self) -> Iterator[None]:
        """Show what waits, one entity after the other."""
        rerun = self._rerun
        make_columns: dict[str, Callable[[Any], Any]] = {
            "number": lambda values: rerun.Scalars.columns(scalars=values),
            "pose": lambda poses: rerun.Transform3D.columns(
                translation=[pose.position for pose in poses], quaternion=[pose.quaternion for pose in poses]
            ),
            "path": lambda paths: rerun.LineStrips3D.columns(strips=paths),
        }
        kept, self._kept = self._kept, {}
        shown: Sequence[int] = ()
        for (kind, entity), points in kept.items():
            steps, times_s, values = zip(*points, strict=True)
            if steps != shown:  # most entities have the same ones
                shown = steps
                times = [rerun.TimeColumn("step", sequence=steps), rerun.TimeColumn("time", duration=times_s)]
            path = rerun.new_entity_path(list(entity))
            self._recording.send_columns(path, indexes=times, columns=make_columns[kind](values))
            yield

    def close(self) -> None:
        """Pass everything to the viewer, and keep a served page until the process ends."""
        self._recording.flush(timeout_sec=1.0)

    def abandon(self) -> None:
        """Let the program end although rerun has not sent everything."""
        self._rerun.unregister_shutdown()
        _kept.append(self._recording)

    def _image(self, image: Image) -> Any:  # noqa: ANN401 - untyped
        pixels = image.pixels
        if pixels.dtype == "float32":
            return self._rerun.DepthImage(pixels[..., 0], meter=1.0)
        channels = _CHANNELS.get(image.encoding, "L")
        return self._rerun.Image(pixels if pixels.shape[-1] > 1 else pixels[..., 0], color_model=channels)

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
            gymnasium.logger.warn("view: open http://localhost:%d?url=%s", port, quote(url, safe=""))


def _layout(rerun: Any, scene: Scene) -> Any:  # noqa: ANN401 - untyped
    """Return a layout with scene, images and log left, joints in the middle, other plots right."""
    plots = rerun.blueprint
    images = [plots.Spatial3DView(origin="scene", name="robot and sensors")]
    images += [plots.Spatial2DView(origin=f"cameras/{_part(rerun, name)}", name=name) for name in scene.cameras]
    joints = [
        plots.TimeSeriesView(origin=f"joints/{_part(rerun, name)}", name=f"{name}, {joint.unit}")
        for name, joint in list(Joints(scene.contract).by_name.items())[:_MOST_PLOTS]
    ]
    others = {"reward": "reward and its terms", "gates": "gates: severity", "latency": "latency, ms"}
    others |= {"age": "age of the readings, ms", "sensors": "readings"}
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
