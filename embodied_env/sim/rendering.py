"""Offscreen rendering of a MuJoCo world by EGL or ``MUJOCO_GL``, and a viewer window.

Lights, shadows, reflections and anti-aliasing are those of the model (``<visual>``, ``reflectance``, ``castshadow``).
They dominate the cost of software rendering.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import importlib
import os
import threading
import warnings
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.errors import ClosedError, MissingDependencyError, UsageError
from embodied_env.sim.world_model import MjData, WorldModel
from embodied_env.timing.clock import Clock, SteadyClock

INSTALL_EGL = "apt install libegl1 libopengl0 libgl1-mesa-dri"
"""Installs EGL on Debian 12 and 13 and on Ubuntu 22.04 and 24.04."""

_REMEDIES = {  # by library
    "egl": f"{INSTALL_EGL} (Debian, Ubuntu), or set MUJOCO_GL=osmesa (apt install libosmesa6), or "
    "MUJOCO_GL=glfw where there is a display",
    "osmesa": "apt install libosmesa6 (Debian, Ubuntu), or unset MUJOCO_GL to use EGL",
    "glfw": "set DISPLAY to a running X server, or unset MUJOCO_GL to use EGL",
}
_FILES: dict[str, dict[str, str]] = {  # by library: part of PyOpenGL -> the files that it loads
    "egl": {"EGL": "libEGL", "GL": "libOpenGL, libGL or libGLESv2"},
    "osmesa": {"GL": "libOSMesa"},
}


def open_context(mujoco: Any, model: Any) -> tuple[str, Any, Any]:  # noqa: ANN401 - mujoco has no type stubs
    """Return a library's name, its current context, and an ``MjrContext`` in it.

    Raises:
        UsageError: for an unknown ``MUJOCO_GL``.
        MissingDependencyError: if the library does not work, with the cause and the packages to install.
    """
    library = os.environ.get("MUJOCO_GL", "").strip().lower() or "egl"
    if library not in _REMEDIES:
        raise UsageError(f"unknown MUJOCO_GL={library!r} (expected one of: {', '.join(_REMEDIES)}, or unset)")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", module="glfw")  # which warns of its errors
            if library == "glfw":
                importlib.import_module("glfw").init()
            else:
                _load_pyopengl(library)
            gl = importlib.import_module(f"mujoco.{library}").GLContext(1, 1)  # width and height of an unused window
            gl.make_current()
            return library, gl, mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
    except Exception as error:  # noqa: BLE001 - PyOpenGL and drivers raise anything
        cause = " ".join(str(error).split()) or type(error).__name__
        raise MissingDependencyError(
            f"a working {library.upper()} ({cause})", needed_for="rendering a camera", remedy=_REMEDIES[library]
        ) from None


def display_available() -> bool:
    """Return whether the environment names an X11 or Wayland display."""
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def _load_pyopengl(library: str) -> None:
    """Import PyOpenGL, bound to its first library, or raise ImportError with the cause."""
    os.environ["PYOPENGL_PLATFORM"] = library  # mujoco refuses another one
    platform = importlib.import_module("OpenGL.platform").PLATFORM
    if (bound := type(platform).__name__).lower() != f"{library}platform":
        raise ImportError(f"PyOpenGL was imported for {bound} before; set PYOPENGL_PLATFORM={library} earlier")
    for part, files in _FILES[library].items():  # without them PyOpenGL and mujoco fail with an AttributeError
        if getattr(platform, part) is None:
            raise ImportError(f"{files} not found")


FREE_CAMERA = -1
"""The index of MuJoCo's free camera, which frames the model by its ``<statistic>`` and ``<visual><global>``."""

_MAX_SHAPES = 10_000  # MuJoCo drops further shapes silently

_dropped: list[tuple[Any, Any, int]] = []  # arguments of `_free` for renderers that were not closed
_started_in: set[int] = set()  # ids of processes, this one and its fork ancestors, that have created a GL context


def render_camera(model: WorldModel, path: str) -> int:
    """Return the index of the rendered camera, or `FREE_CAMERA`, or raise ContractError."""
    camera = model.profile.render.camera
    if camera is None:
        return 0 if model.mj.ncam else FREE_CAMERA
    return FREE_CAMERA if camera == "free" else model.find("camera", camera, path)


class Renderer:
    """Renderer of the cameras of one model off screen, for one thread.

    The GL context is created at first use. Equal states give equal bytes, independent of earlier images and of other
    renderers of the same library.

    Attributes:
        render_ns: the time spent on all images so far.
    """

    def __init__(self, mujoco: Any, model: Any, clock: Clock | None = None) -> None:  # noqa: ANN401 - untyped mujoco
        """Open nothing yet and measure `render_ns` with `clock`, the steady clock by default."""
        self._mujoco = mujoco
        self._model = model
        self._clock = clock or SteadyClock()
        self.render_ns = 0
        self._library = ""  # "": no GL context yet
        self._drop: weakref.finalize[Any, Any] | None = None
        self._closed = False

    @property
    def library(self) -> str:
        """Name of the rendering library, "egl", "osmesa" or "glfw", with the errors of `rgb`."""
        self._open()
        return self._library

    def rgb(self, data: MjData, camera: int, height: int, width: int) -> NDArray[np.uint8]:
        """Return a color image as a new array of shape (height, width, 3), row 0 at the top.

        Args:
            data: a state with computed positions (``mj_forward`` or ``mj_step1``).
            camera: the index of a camera of the model, or `FREE_CAMERA`.
            height: in pixels.
            width: in pixels.

        Raises:
            ClosedError: after `close`.
            MissingDependencyError: if the OpenGL library does not work, see `open_context`.
            UsageError: for an unknown camera, an image too large for the library, or a fork of a rendering process.
        """
        rows = np.empty((height, width, 3), dtype=np.uint8)
        self._render(data, camera, rows)
        return np.ascontiguousarray(rows[::-1])

    def depth(self, data: MjData, camera: int, height: int, width: int) -> NDArray[np.float32]:
        """Return a depth image, m, of shape (height, width), top row first, +inf without a hit.

        Depth is measured along the optical axis, at the centre of each pixel, up to the model's far plane
        (``vis.map.zfar * stat.extent``). Transparent shapes count as solid. Arguments and errors are those of `rgb`,
        and `_metres` has the formula.
        """
        rows = np.empty((height, width), dtype=np.float32)
        eye = self._render(data, camera, rows)
        return _metres(rows[::-1], eye)

    def close(self) -> None:
        """Free the GL context (idempotent)."""
        self._closed = True
        if self._drop is not None and (dropped := self._drop.detach()):
            _, _, (arguments,), _ = dropped
            _free(*arguments)

    def _open(self) -> None:
        """Create the GL context at first use, freed by `close`, at exit or by a later image."""
        if self._closed:
            raise ClosedError("the renderer is closed")
        if _started_in - {os.getpid()}:  # a fork lacks the library's threads, and would hang
            raise UsageError('cannot render in a fork of a process that has rendered; use context="spawn"')
        _free_dropped()
        if self._library:
            return
        mujoco, model = self._mujoco, self._model
        library, self._gl, self._mjr = open_context(mujoco, model)
        _started_in.add(os.getpid())
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._mjr)
        self._mjr.readDepthMap = mujoco.mjtDepthMap.mjDEPTH_ZEROFAR  # float32 is most precise at 0, the far plane
        self._scene = mujoco.MjvScene(model, maxgeom=_MAX_SHAPES)
        self._option = mujoco.MjvOption()
        self._camera = mujoco.MjvCamera()
        # Geoms only, without the decoration that MuJoCo draws, as rays of rangefinders.
        self._things = int(mujoco.mjtCatBit.mjCAT_STATIC) | int(mujoco.mjtCatBit.mjCAT_DYNAMIC)
        # A renderer may be collected during `_render` of another one, whose context must stay current.
        self._drop = weakref.finalize(self, _dropped.append, (self._gl, self._mjr, os.getpid()))
        # mujoco.egl registered its shutdown of EGL when `self._gl` was created; these run before it, the second first.
        atexit.register(_free_dropped)
        atexit.register(self._drop)
        self._library = library

    def _render(self, data: MjData, camera: int, rows: NDArray[Any]) -> Any:  # noqa: ANN401 - an mjvGLCamera
        """Fill `rows` bottom-up with colors or z-buffer, and return the GL camera."""
        begun_ns = self._clock.now_ns()
        self._open()
        if not FREE_CAMERA <= camera < self._model.ncam:  # MuJoCo would abort
            raise UsageError(f"no such camera: {camera} (expected 0 to {self._model.ncam - 1})")
        mujoco, scene = self._mujoco, self._scene
        height, width = rows.shape[:2]
        rgb, depth = (rows, None) if rows.ndim == 3 else (None, rows)
        mujoco.mjv_defaultFreeCamera(self._model, self._camera)
        if camera != FREE_CAMERA:
            self._camera.type, self._camera.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, camera
        mujoco.mjv_updateScene(self._model, data, self._option, None, self._camera, self._things, scene)
        if scene.ngeom >= _MAX_SHAPES:
            raise UsageError(f"too many shapes in an image: {scene.ngeom} (expected fewer than {_MAX_SHAPES})")
        for flag in (mujoco.mjtRndFlag.mjRND_SEGMENT, mujoco.mjtRndFlag.mjRND_IDCOLOR):
            scene.flags[flag] = rgb is None  # for depth: one sample per pixel, at its centre, and no sky
        self._gl.make_current()
        mujoco.mjr_resizeOffscreen(width, height, self._mjr)  # independent of the model's offwidth and offheight
        area = mujoco.MjrRect(0, 0, width, height)
        mujoco.mjr_render(area, scene, self._mjr)
        mujoco.mjr_readPixels(rgb, depth, area, self._mjr)
        error = mujoco.mjr_getError()
        if error != 0:
            size = f"{width} x {height} pixels"
            raise UsageError(f"{self._library} cannot render an image of {size}: OpenGL error {error:#x}")
        self.render_ns += self._clock.now_ns() - begun_ns
        return scene.camera[0]


def _metres(z_buffer: NDArray[np.float32], eye: Any) -> NDArray[np.float32]:  # noqa: ANN401 - an mjvGLCamera
    """Return the distances along the optical axis for a z-buffer from 1 (near) to 0 (far).

    A distance d is stored as z = b / d - a with a = near / (far - near) and b = near far / (far - near), or as
    z = (far - d) / (far - near) for an orthographic camera: the matrices of glFrustum and glOrtho (OpenGL 2.1
    reference pages) after MuJoCo's map of [-1, 1] onto [1, 0] (render_gl3.c, setView). `a` is computed in float32 like
    OpenGL's matrix: as a small difference of large numbers, its exact value would be off by 1 mm at 40 m.
    """
    near, far, half = np.float32(eye.frustum_near), np.float32(eye.frustum_far), np.float32(0.5)
    z = z_buffer.astype(np.float64)
    if eye.orthographic:
        metres = far - z * (far - near)
    else:
        a = half * ((far + near) / (far - near)) - half
        b = far * near / (far - near)
        metres = b / (z + a)
    return np.where(z > 0.0, metres, np.inf).astype(np.float32)


def _free_dropped() -> None:
    while _dropped:
        _free(*_dropped.pop())


def _free(gl: Any, mjr: Any, pid: int) -> None:  # noqa: ANN401 - mujoco has no type stubs
    if os.getpid() == pid:  # the handles are invalid in a fork
        with contextlib.suppress(Exception):  # in use by another thread, which frees it
            gl.make_current()
            mjr.free()
        gl.free()


class ViewerWindow:
    """Viewer window, opened at the first `show`, with copies that users cannot change."""

    def __init__(self, mujoco: Any, model: Any) -> None:  # noqa: ANN401 - mujoco has no type stubs
        self._mujoco, self._model = mujoco, model
        self._data: Any = None
        self._window: Any = None
        self._threads: set[threading.Thread] = set()

    def show(self, data: MjData) -> None:
        """Show `data` until the window is closed, or raise MissingDependencyError."""
        if self._window is None:
            self._open()
        mujoco, kind = self._mujoco, int(self._mujoco.mjtState.mjSTATE_INTEGRATION)
        state = np.empty(mujoco.mj_stateSize(self._model, kind))
        mujoco.mj_getState(self._model, data, state, kind)
        with self._window.lock():
            mujoco.mj_setState(self._model, self._data, state, kind)
            mujoco.mj_forward(self._model, self._data)
        self._window.sync()

    def close(self) -> None:
        """Close the window and wait for its thread (idempotent)."""
        atexit.unregister(self.close)
        if self._window is not None:
            self._window.close()
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _open(self) -> None:
        import glfw  # noqa: PLC0415 - only a window needs it
        from mujoco.viewer import launch_passive  # noqa: PLC0415 - fails to import without GLFW

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", glfw.GLFWError)
            if not glfw.init():  # launch_passive would abort
                raise MissingDependencyError(
                    "a display", needed_for='render_mode "human"', remedy="set DISPLAY to a running X server"
                )
        self._model = copy.copy(self._model)
        self._data = self._mujoco.MjData(self._model)
        before = set(threading.enumerate())
        self._window = launch_passive(self._model, self._data, show_left_ui=False, show_right_ui=False)
        self._threads = set(threading.enumerate()) - before
        atexit.register(self.close)  # its thread must end before GLFW
