"""The OpenGL library that renders off screen: EGL, or the one that ``MUJOCO_GL`` names."""

from __future__ import annotations

import importlib
import os
import warnings
from typing import Any

from embodied_env.errors import MissingDependencyError, UsageError

INSTALL_EGL = "apt install libegl1 libopengl0 libgl1-mesa-dri"
"""Installs EGL on Debian 12 and 13 and on Ubuntu 22.04 and 24.04."""

_REMEDIES = {  # of each library
    "egl": f"{INSTALL_EGL} (Debian, Ubuntu), or set MUJOCO_GL=osmesa (apt install libosmesa6), or "
    "MUJOCO_GL=glfw where there is a display",
    "osmesa": "apt install libosmesa6 (Debian, Ubuntu), or unset MUJOCO_GL to use EGL",
    "glfw": "set DISPLAY to a running X server, or unset MUJOCO_GL to use EGL",
}
_FILES: dict[str, dict[str, str]] = {  # of each library: part of PyOpenGL -> the files that it loads
    "egl": {"EGL": "libEGL", "GL": "libOpenGL, libGL or libGLESv2"},
    "osmesa": {"GL": "libOSMesa"},
}


def open_context(mujoco: Any, model: Any) -> tuple[str, Any, Any]:  # noqa: ANN401 - mujoco has no type stubs
    """Return the name of the library, a context of it that is current, and the ``MjrContext`` of an ``MjModel`` in it.

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
            gl = importlib.import_module(f"mujoco.{library}").GLContext(1, 1)  # the size of a window that is not used
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
    """Import PyOpenGL, which remains bound to the library of its first import; raises ImportError with the cause."""
    os.environ["PYOPENGL_PLATFORM"] = library  # mujoco refuses another one
    platform = importlib.import_module("OpenGL.platform").PLATFORM
    if (bound := type(platform).__name__).lower() != f"{library}platform":
        raise ImportError(f"PyOpenGL was imported for {bound} before; set PYOPENGL_PLATFORM={library} earlier")
    for part, files in _FILES[library].items():  # without them PyOpenGL and mujoco fail with an AttributeError
        if getattr(platform, part) is None:
            raise ImportError(f"{files} not found")
