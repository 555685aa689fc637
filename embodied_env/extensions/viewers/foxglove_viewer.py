"""Show steps in Foxglove by a server or an MCAP file, with well-known schemas.

The page docs/howto/viewers.md lists the topics.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium
from numpy.typing import NDArray

from embodied_env.core.plugin_loading import import_optional
from embodied_env.extensions.viewers.robot_geometry import Color, Part, Pose
from embodied_env.extensions.viewers.scene import Drawing, Image, Path, Points, Scene
from embodied_env.record.row_log import channel_schema
from embodied_env.record.row_types import TRANSITION
from embodied_env.record.rows import encode_row
from embodied_env.timing.clock import NS_PER_S

_HOST = "127.0.0.1"
_PATHS: dict[str, Color] = {"intended": (0.6, 0.25, 0.75, 1.0), "done": (0.15, 0.45, 0.85, 1.0)}
_PATH_PIXELS = 3.0
_SETTLE_S = 0.5  # from the first subscription of an application to its last
_Message = Any  # of the SDK, which is optional


class FoxgloveViewer:
    """A sink of Foxglove's SDK, which sends the newest message of a topic to later connections."""

    def __init__(self, where: str, scene: Scene, *, plays: bool = False) -> None:
        """Open the server or the file.

        With `plays` a server shows each step at its time, from the first subscription of an application, and stays.

        Raises:
            RuntimeError or OSError: if it cannot be opened; a file that exists is not replaced.
            MissingDependencyError: if foxglove-sdk is not installed.
        """
        self._sdk = sdk = import_optional("foxglove", needed_for="a view in Foxglove")
        self._schemas = import_optional("foxglove.channels", needed_for="a view in Foxglove")
        self._types = types = import_optional("foxglove.messages", needed_for="a view in Foxglove")
        self._scene, self._context = scene, sdk.Context()
        self._origin = types.Pose(position=types.Vector3(), orientation=types.Quaternion(w=1.0))
        self._channels = {
            "/step/curves": sdk.Channel("/step/curves", message_encoding="json", context=self._context),
            "transition": sdk.Channel("transition", schema=channel_schema(TRANSITION), context=self._context),
        }
        self._newest: dict[str, tuple[_Message, int]] = {}
        self._is_used = threading.Event()
        self._begin_s = math.nan
        self._is_server = not where.endswith(".mcap")
        self._plays = plays and self._is_server
        self._sink = self._serve(where) if self._is_server else sdk.open_mcap(where, context=self._context)
        if not isinstance(scene.geometry, str):
            self._log("/robot/shape", "SceneUpdate", self._shape(scene.geometry.parts), scene.start_ns)

    def show(self, drawing: Drawing) -> None:
        """Log everything of a step with its time."""
        if self._plays:
            self._wait_for(drawing.time_s)
        ns, types = self._scene.start_ns + round(drawing.time_s * NS_PER_S), self._types
        stamp = types.Timestamp(*divmod(ns, NS_PER_S))
        for name, image in drawing.images.items():
            self._log(f"/{name}", "RawImage", self._image(image, stamp), ns)
        for name, pose in drawing.poses.items():
            position, orientation = self._place(pose)
            placed = types.Pose(position=position, orientation=orientation)
            self._log(
                f"/{name}", "PoseInFrame", types.PoseInFrame(timestamp=stamp, frame_id=pose.frame, pose=placed), ns
            )
        for name, cloud in drawing.points.items():
            self._log(f"/{name}", "PointCloud", self._cloud(cloud, stamp), ns)
        for name, joints in drawing.joints.items():
            states = [types.JointState(name=joint, **values) for joint, values in joints.items()]
            self._log(f"/{name}", "JointStates", types.JointStates(timestamp=stamp, joints=states), ns)
        if drawing.links:
            self._log("/robot/links", "FrameTransforms", self._transforms(drawing, stamp), ns)
            self._log("/robot/paths", "SceneUpdate", self._paths(drawing), ns)
        for text in drawing.lines:
            message = types.Log(timestamp=stamp, level=types.LogLevel.Info, message=text, name="embodied_env")
            self._log("/step/log", "Log", message, ns)
        self._log("/step/curves", "", encode_row(_nested(drawing.curves)), ns)
        row = encode_row(dict(drawing.row), lambda image: {"dtype": image.dtype.name, "shape": [*image.shape]})
        self._log("transition", "", row, ns)  # images have topics of their own

    def flush(self) -> Iterator[None]:
        """Do nothing, since curves are logged with their step."""
        return iter(())

    def close(self) -> None:
        """Complete the file, or stop the server, unless it plays a run until the process ends."""
        if not self._is_server:
            self._sink.close()
        elif not self._plays:
            self._sink.stop()

    def abandon(self) -> None:
        """Do nothing, since the SDK drops what an application does not receive in time."""

    def _serve(self, where: str) -> Any:  # noqa: ANN401 - untyped
        port, resend = int(where.partition(":")[2]), self._resend

        class Listener(self._sdk.ServerListener):  # type: ignore[misc, name-defined] # untyped
            def on_subscribe(self, _client: object, channel: Any) -> None:  # noqa: ANN401 - untyped
                resend(channel.topic)

        options = {"host": _HOST, "port": port, "server_listener": Listener(), "context": self._context}
        server = self._sdk.start_server(name=f"embodied_env {self._scene.contract.name}", **options)
        with contextlib.suppress(UserWarning):  # a warning turned into an error
            gymnasium.logger.warn("view: connect Foxglove to ws://localhost:%d, or open %s", port, server.app_url())
        return server

    def _resend(self, topic: str) -> None:
        """Send the newest message of a topic again, to an application that subscribes to it."""
        if (newest := self._newest.get(topic)) is not None:
            message, ns = newest
            self._channels[topic].log(message, log_time=ns)
        self._is_used.set()

    def _wait_for(self, time_s: float) -> None:
        """Sleep until a step of a run is due, or at the first one until an application connects."""
        if math.isnan(self._begin_s):
            while not self._is_used.wait(_SETTLE_S):  # so that Ctrl-C ends it
                pass
            self._begin_s = time.monotonic() + _SETTLE_S - time_s
        threading.Event().wait(max(0.0, self._begin_s + time_s - time.monotonic()))

    def _log(self, topic: str, schema: str, message: _Message, ns: int) -> None:
        if topic not in self._channels:
            self._channels[topic] = getattr(self._schemas, f"{schema}Channel")(topic, context=self._context)
        if self._is_server:
            self._newest[topic] = message, ns
        self._channels[topic].log(message, log_time=ns)

    def _image(self, image: Image, stamp: object) -> _Message:
        pixels = image.pixels
        height, width, channels = pixels.shape
        named = "32FC1" if pixels.dtype == "float32" else image.encoding
        size = {"height": height, "width": width, "step": width * channels * pixels.itemsize}
        return self._types.RawImage(
            timestamp=stamp, frame_id=image.frame, encoding=named, data=pixels.tobytes(), **size
        )

    def _cloud(self, cloud: Points, stamp: object) -> _Message:
        types = self._types
        kind, axes = types.PackedElementFieldNumericType.Float32, {"x": 0, "y": 4, "z": 8}
        fields = [types.PackedElementField(name=axis, offset=offset, type=kind) for axis, offset in axes.items()]
        content = {"point_stride": 12, "fields": fields, "data": cloud.points_m.astype("<f4").tobytes()}
        return types.PointCloud(timestamp=stamp, frame_id=cloud.frame, pose=self._origin, **content)

    def _transforms(self, drawing: Drawing, stamp: object) -> _Message:
        found = []
        for link, pose in drawing.links.items():
            if link != pose.frame:
                translation, rotation = self._place(pose)
                frames = {"parent_frame_id": pose.frame, "child_frame_id": link}
                placed = {"translation": translation, "rotation": rotation}
                found.append(self._types.FrameTransform(timestamp=stamp, **frames, **placed))
        return self._types.FrameTransforms(transforms=found)

    def _shape(self, parts: Sequence[Part]) -> _Message:
        """Return an entity for each part, which moves with the frame of its link."""
        types, entities = self._types, []
        for number, part in enumerate(parts):
            content = {"points": self._points(part.vertices), "indices": part.triangles.ravel().tolist()}
            triangles = types.TriangleListPrimitive(pose=self._origin, color=self._color(part.color), **content)
            name = f"{part.link}/{number}"
            entities.append(types.SceneEntity(frame_id=part.link, id=name, frame_locked=True, triangles=[triangles]))
        return types.SceneUpdate(entities=entities)

    def _paths(self, drawing: Drawing) -> _Message:
        types, entities = self._types, []
        style = {"type": types.LinePrimitiveLineType.LineStrip, "thickness": _PATH_PIXELS, "scale_invariant": True}
        for name, path in drawing.paths.items():
            content = {"points": self._points(path), "color": self._color(_PATHS[name])}
            line = types.LinePrimitive(pose=self._origin, **style, **content)
            entities.append(types.SceneEntity(frame_id=drawing.root, id=name, lines=[line]))
        return types.SceneUpdate(entities=entities)

    def _place(self, pose: Pose) -> tuple[_Message, _Message]:
        (px, py, pz), (x, y, z, w) = pose.position, pose.quaternion
        return self._types.Vector3(x=px, y=py, z=pz), self._types.Quaternion(x=x, y=y, z=z, w=w)

    def _points(self, points: NDArray[Any]) -> list[_Message]:
        point = self._types.Point3
        return [point(x=x, y=y, z=z) for x, y, z in points.tolist()]

    def _color(self, color: Color) -> _Message:
        r, g, b, a = color
        return self._types.Color(r=r, g=g, b=b, a=a)


def _nested(curves: Mapping[Path, float]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path, value in curves.items():
        place = found
        for part in path[:-1]:
            place = place.setdefault(part, {})
        place[path[-1]] = value
    return found
