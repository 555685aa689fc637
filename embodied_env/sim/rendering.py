"""Pictures of a MuJoCo world, made off screen, and a window onto it for people.

Nothing here changes what a picture shows: lights, shadows, reflections and smoothing are those of the model
(``<visual>``, ``reflectance``, ``castshadow``). In software they are most of the cost of a picture.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import ctypes
import ctypes.util
import os
import threading
import warnings
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.errors import ClosedError, MissingDependencyError, UsageError
from embodied_env.sim.model import MjData

_MAX_SHAPES = 10_000  # a scene with room for so many leaves out the rest
_WINDOWS = "glfw"  # the value of MUJOCO_GL that is for windows
_REMEDY = "apt install libegl1 libegl-mesa0, or libosmesa6; MUJOCO_GL=egl or MUJOCO_GL=osmesa allows one of them only"

_started_in: set[int] = set()  # processes, this one or those it was forked from, that have made a GL context


def display_available() -> bool:
    """Return whether this process was told of a display, X11 or Wayland."""
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


class Renderer:
    """Renders the cameras of one model off screen. Makes a GL context when it is first needed, and for one thread.

    Equal states give equal bytes, whatever was rendered before, here or by another renderer of the same library.
    """

    def __init__(self, mujoco: Any, model: Any) -> None:  # noqa: ANN401 - mujoco has no type stubs
        """Take the module `mujoco` and an ``MjModel``; both may have been made in any way."""
        self._mujoco = mujoco
        self._model = model
        self._context: _Context | None = None
        self._closed = False

    @property
    def library(self) -> str:
        """Which library makes the pictures, "egl" or "osmesa"; raises as `rgb` does."""
        return self._open().library

    def rgb(self, data: MjData, camera: int, height: int, width: int) -> NDArray[np.uint8]:
        """Return what the camera with this index sees. A fresh array, row 0 at the top.

        Args:
            data: a state whose positions are computed (``mj_forward``, or ``mj_step1``).
            camera: index of a camera of the model.
            height: of the picture, in pixels.
            width: of the picture, in pixels.

        Returns:
            Red, green and blue, shape (height, width, 3).

        Raises:
            ClosedError: after `close`.
            MissingDependencyError: when neither EGL nor OSMesa works here.
            UsageError: for a camera that is not there, or a picture too large for the library; in a fork of a process
                that has made pictures.
        """
        rows = np.empty((height, width, 3), dtype=np.uint8)
        self._open().render(data, camera, rows)
        return np.ascontiguousarray(rows[::-1])

    def depth(self, data: MjData, camera: int, height: int, width: int) -> NDArray[np.float32]:
        """Return the distance of what each pixel shows from the camera's plane, in m; +inf where it shows nothing.

        It is measured along the optical axis, at the centre of the pixel, and seen up to the model's far plane
        (``vis.map.zfar * stat.extent``). See-through shapes count as solid. Arguments and errors are those of `rgb`.

        See `_metres` for how it is computed.

        Returns:
            Shape (height, width). A fresh array, row 0 at the top.
        """
        rows = np.empty((height, width), dtype=np.float32)
        eye = self._open().render(data, camera, rows)
        return _metres(rows[::-1], eye)

    def close(self) -> None:
        """Free the GL context. Idempotent."""
        self._closed = True
        if self._context is not None:
            self._context.free()

    def _open(self) -> _Context:
        if self._closed:
            raise ClosedError("the renderer is closed")
        if self._context is None:
            self._context = _Context(self._mujoco, self._model)
        return self._context


class _Context:
    """A GL context with one model in it.

    Attributes:
        library: what made it.
        free: frees it; does nothing the second time. Called at the latest when Python ends.
    """

    def __init__(self, mujoco: Any, model: Any) -> None:  # noqa: ANN401 - mujoco has no type stubs
        self._mujoco = mujoco
        self._model = model
        _refuse_fork()
        self.library, self._gl = _make_gl()
        _started_in.add(os.getpid())
        self._gl.make_current()
        self._mjr = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._mjr)
        self._mjr.readDepthMap = mujoco.mjtDepthMap.mjDEPTH_ZEROFAR  # float32 is finest at 0, where far things are
        self._scene = mujoco.MjvScene(model, maxgeom=_MAX_SHAPES)
        self._option = mujoco.MjvOption()
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        # Things only: no rays of rangefinders, or what else MuJoCo draws to explain a scene.
        self._things = int(mujoco.mjtCatBit.mjCAT_STATIC) | int(mujoco.mjtCatBit.mjCAT_DYNAMIC)
        self.free = weakref.finalize(self, _free, self._gl, self._mjr, os.getpid())
        # mujoco.egl shuts EGL down by atexit, which it asked for when `self._gl` was made: this one runs before it.
        atexit.register(self.free)

    def render(self, data: MjData, camera: int, rows: NDArray[Any]) -> Any:  # noqa: ANN401 - an mjvGLCamera
        """Fill `rows`, lowest first: colours, (height, width, 3), or the z-buffer, (height, width). Return the eye."""
        _refuse_fork()
        if not 0 <= camera < self._model.ncam:  # MuJoCo would end the process
            raise UsageError(f"there is no camera {camera}; allowed: 0 to {self._model.ncam - 1}")
        mujoco, scene = self._mujoco, self._scene
        height, width = rows.shape[:2]
        rgb, depth = (rows, None) if rows.ndim == 3 else (None, rows)
        self._camera.fixedcamid = camera
        mujoco.mjv_updateScene(self._model, data, self._option, None, self._camera, self._things, scene)
        if scene.ngeom >= _MAX_SHAPES:
            raise UsageError(f"the model has too many shapes for a picture; allowed: fewer than {_MAX_SHAPES}")
        for flag in (mujoco.mjtRndFlag.mjRND_SEGMENT, mujoco.mjtRndFlag.mjRND_IDCOLOR):
            scene.flags[flag] = rgb is None  # one sample per pixel, at its centre, and no sky
        self._gl.make_current()
        mujoco.mjr_resizeOffscreen(width, height, self._mjr)  # so the model's offwidth and offheight limit nothing
        area = mujoco.MjrRect(0, 0, width, height)
        mujoco.mjr_render(area, scene, self._mjr)
        mujoco.mjr_readPixels(rgb, depth, area, self._mjr)
        error = mujoco.mjr_getError()
        if error != 0:
            raise UsageError(
                f"{self.library} cannot make a picture of {width} x {height} pixels: OpenGL error {error:#x}"
            )
        return scene.camera[0]


def _metres(z_buffer: NDArray[np.float32], eye: Any) -> NDArray[np.float32]:  # noqa: ANN401 - an mjvGLCamera
    """Return the distances along the optical axis that a z-buffer of 1 (near plane) to 0 (far plane, nothing) means.

    A distance d is stored as z = b / d - a with a = near / (far - near) and b = near far / (far - near), or as
    z = (far - d) / (far - near) for an orthographic camera: the matrices of glFrustum and glOrtho (OpenGL 2.1
    reference pages) after MuJoCo's map of [-1, 1] onto [1, 0] (render_gl3.c, setView). OpenGL computes glFrustum's in
    float32, and so is `a` here: it is a small difference of large numbers, and its exact value misses by 1 mm at 40 m.
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


def _free(gl: Any, mjr: Any, pid: int) -> None:  # noqa: ANN401 - mujoco has no type stubs
    if os.getpid() == pid:  # a fork has a copy of the handles, and nothing behind them
        with contextlib.suppress(Exception):  # in use by another thread: it is freed when that one lets go of it
            gl.make_current()
            mjr.free()
        gl.free()


def _refuse_fork() -> None:
    """Raise in a fork of a process that has made pictures: the library's threads are missing, and it would hang."""
    if _started_in - {os.getpid()}:
        raise UsageError('pictures cannot be made in a fork of a process that has made some: use context="spawn"')


def _make_gl() -> tuple[str, Any]:
    """Return the first library that works, and a context made with it.

    PyOpenGL is bound to one library when it is first imported, so each is tried without it before.
    """
    wanted = os.environ.get("MUJOCO_GL", "").strip().lower()
    if wanted not in ("", *_LIBRARIES, _WINDOWS):
        allowed = ", ".join([*_LIBRARIES, f"{_WINDOWS} (windows only, as if it were not set)", "or not set"])
        raise UsageError(f"MUJOCO_GL={wanted!r} is not allowed where a picture is needed; allowed: {allowed}")
    failures = []
    for library, (probe, make) in _LIBRARIES.items():
        if wanted in _LIBRARIES and wanted != library:
            failures.append(f"{library} is not tried since MUJOCO_GL is {wanted}")
            continue
        try:
            probe()
            return library, make()
        except Exception as error:  # noqa: BLE001 - PyOpenGL and drivers raise whatever they like
            failures.append(f"{library}: {error}")
    raise MissingDependencyError(
        "a working EGL or OSMesa", needed_for="rendering a camera", remedy=f"{'; '.join(failures)}. Remedy: {_REMEDY}"
    )


def _probe_egl() -> None:
    """Raise OSError when there is no EGL, or no device for it: eglQueryDevicesEXT of EGL_EXT_device_enumeration."""
    egl = ctypes.CDLL("libEGL.so.1")
    egl.eglGetProcAddress.restype = ctypes.c_void_p
    address = egl.eglGetProcAddress(b"eglQueryDevicesEXT")
    if not address:
        raise OSError("libEGL.so.1 cannot list devices")
    query = ctypes.CFUNCTYPE(ctypes.c_uint, ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))(address)
    count = ctypes.c_int(0)
    if not query(0, None, ctypes.byref(count)) or count.value == 0:
        raise OSError("libEGL.so.1 finds no device")


def _probe_osmesa() -> None:
    """Raise OSError when there is no OSMesa."""
    ctypes.CDLL(ctypes.util.find_library("OSMesa") or "libOSMesa.so.8")


def _make_egl() -> Any:  # noqa: ANN401 - mujoco has no type stubs
    from mujoco.egl import GLContext  # noqa: PLC0415 - binds PyOpenGL to EGL

    return GLContext(1, 1)  # the size of a window that is not used


def _make_osmesa() -> Any:  # noqa: ANN401 - mujoco has no type stubs
    from mujoco.osmesa import GLContext  # noqa: PLC0415 - binds PyOpenGL to OSMesa

    return GLContext(1, 1)


_LIBRARIES = {"egl": (_probe_egl, _make_egl), "osmesa": (_probe_osmesa, _make_osmesa)}


class Viewer:
    """A window onto a world for people, opened at the first `show`. It looks at copies, so it reaches nothing.

    Needs a display, see `display_available`.
    """

    def __init__(self, mujoco: Any, model: Any) -> None:  # noqa: ANN401 - mujoco has no type stubs
        """Take the module `mujoco` and an ``MjModel``."""
        self._mujoco = mujoco
        self._model = copy.copy(model)
        self._data = mujoco.MjData(self._model)
        self._window: Any = None
        self._threads: set[threading.Thread] = set()

    def show(self, data: MjData) -> None:
        """Bring the window to the state `data`; does nothing once somebody has closed the window.

        Raises:
            MissingDependencyError: when there is no display to open a window on.
        """
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
        """Close the window and wait for its thread. Idempotent."""
        atexit.unregister(self.close)
        if self._window is not None:
            self._window.close()
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _open(self) -> None:
        import glfw  # noqa: PLC0415 - comes with mujoco; only a window needs it
        from mujoco.viewer import launch_passive  # noqa: PLC0415 - fails to import where there is no GLFW

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", glfw.GLFWError)
            if not glfw.init():  # launch_passive would end the process
                raise MissingDependencyError(
                    "a display", needed_for='render_mode "human"', remedy="set DISPLAY to one that answers"
                )
        before = set(threading.enumerate())
        self._window = launch_passive(self._model, self._data, show_left_ui=False, show_right_ui=False)
        self._threads = set(threading.enumerate()) - before
        atexit.register(self.close)  # before GLFW ends, which its thread would not survive
