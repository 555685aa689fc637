"""Choice of the OpenGL library that renders off screen: EGL, OSMesa, or GLFW where there is a display.

Each is tried in a child process, which renders a pixel: a driver may crash, and PyOpenGL remains bound to the library
that it was first imported for.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from embodied_env.errors import MissingDependencyError, UsageError

INSTALL_GL = "apt install libegl1 libopengl0 libgl1-mesa-dri, or apt install libosmesa6"
"""Installs EGL or OSMesa on Debian 12 and 13 and on Ubuntu 22.04 and 24.04."""

_LIBRARIES = ("egl", "osmesa", "glfw")
_FOUND = "EMBODIED_ENV_GL"  # environment variable: the library that works, for this process and its children
_TIMEOUT_S = 60.0
_PROGRAM = Path(__file__).with_name("render_a_pixel.py")


def open_context() -> tuple[str, Any]:
    """Return the first library that works, and a context of it; raises like `find_library`."""
    library = find_library()
    if library != "glfw":
        os.environ["PYOPENGL_PLATFORM"] = library  # mujoco refuses another one
    try:
        context = importlib.import_module(f"mujoco.{library}").GLContext(1, 1)  # the size of a window that is not used
    except Exception as error:  # noqa: BLE001 - PyOpenGL and drivers raise anything
        raise _missing([f"{library}: {error}"]) from None
    return library, context


def find_library() -> str:
    """Return the first of EGL, OSMesa and GLFW that works; ``MUJOCO_GL`` allows one of them only.

    Raises:
        UsageError: for an unknown ``MUJOCO_GL``.
        MissingDependencyError: if none works, with the reasons and the packages to install.
    """
    wanted = os.environ.get("MUJOCO_GL", "").strip().lower()
    if wanted not in ("", *_LIBRARIES):
        raise UsageError(f"unknown MUJOCO_GL={wanted!r} (expected one of: {', '.join(_LIBRARIES)}, or unset)")
    allowed = [wanted] if wanted else sorted(_LIBRARIES, key=lambda each: each != os.environ.get("PYOPENGL_PLATFORM"))
    if (found := os.environ.get(_FOUND, "")) in allowed:
        return found
    failures = []
    for library in allowed:
        failure = _conflict(library) or _failure(library)
        if not failure:
            os.environ[_FOUND] = library
            return library
        failures.append(f"{library}: {failure}")
    raise _missing(failures)


def display_available() -> bool:
    """Return whether the environment names an X11 or Wayland display."""
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def _missing(failures: list[str]) -> MissingDependencyError:
    setting = os.environ.get("MUJOCO_GL")
    others = f", or unset MUJOCO_GL={setting} to allow other libraries" if setting else ""
    return MissingDependencyError(
        "a working EGL, OSMesa or GLFW",
        needed_for="rendering a camera",
        remedy=f"{INSTALL_GL}{others} ({'; '.join(failures)})",
    )


def _conflict(library: str) -> str:
    """Return why this process cannot use `library`, or ""."""
    if library == "glfw":
        return "" if display_available() else "no display"
    bound = getattr(sys.modules.get("OpenGL.platform"), "PLATFORM", None)
    if bound is not None and type(bound).__name__.lower() != f"{library}platform":
        return f"PyOpenGL is bound to {type(bound).__name__} in this process"
    return ""


def _failure(library: str) -> str:
    """Return why `library` cannot render in a child process, or ""."""
    environment = {name: value for name, value in os.environ.items() if name != "PYOPENGL_PLATFORM"}
    path = os.pathsep.join(map(str, sys.path))
    try:
        child = subprocess.run(  # noqa: S603 - no shell
            [sys.executable, "-P", str(_PROGRAM), library],
            env={**environment, "PYTHONPATH": path, "MUJOCO_GL": "disable"},  # importing mujoco opens no library
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no pixel within {_TIMEOUT_S:.0f} s"
    if child.returncode < 0:
        return f"crashed with {signal.Signals(-child.returncode).name}"
    return (child.stderr.strip().splitlines() or ["no reason"])[-1] if child.returncode else ""
