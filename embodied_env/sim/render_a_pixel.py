"""Render one pixel with an OpenGL library, in a process of its own: `embodied_env.sim.gl_libraries` runs this file."""

import importlib
import os
import sys

_FILES: dict[str, dict[str, str]] = {  # of each library: part of PyOpenGL -> the files that it loads
    "egl": {"EGL": "libEGL", "GL": "libOpenGL, libGL or libGLESv2"},
    "osmesa": {"GL": "libOSMesa"},
    "glfw": {},
}


def render_a_pixel(library: str) -> None:
    """Raise an error unless a pixel that was rendered with `library`, as the renderer would, is read back."""
    os.environ["PYOPENGL_PLATFORM"] = library
    for part, files in _FILES[library].items():  # PyOpenGL and mujoco would fail with an AttributeError
        if getattr(importlib.import_module("OpenGL.platform").PLATFORM, part) is None:
            raise ImportError(f"{files} not found")
    if library == "glfw":
        vars(importlib.import_module("glfw"))["ERROR_REPORTING"] = "exception"  # instead of warnings
    mujoco, np = importlib.import_module("mujoco"), importlib.import_module("numpy")
    context = importlib.import_module(f"mujoco.{library}").GLContext(1, 1)
    context.make_current()
    renderer = mujoco.MjrContext(mujoco.MjModel.from_xml_string("<mujoco/>"), mujoco.mjtFontScale.mjFONTSCALE_100)
    mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, renderer)
    area = mujoco.MjrRect(0, 0, 1, 1)
    pixel = np.zeros((1, 1, 3), dtype=np.uint8)
    mujoco.mjr_rectangle(area, 0.0, 1.0, 0.0, 1.0)  # green
    mujoco.mjr_readPixels(pixel, None, area, renderer)
    if pixel.ravel().tolist() != [0, 255, 0]:
        raise RuntimeError(f"a green pixel is {pixel.ravel().tolist()}")


if __name__ == "__main__":
    try:
        render_a_pixel(sys.argv[-1])
    except Exception as error:  # noqa: BLE001 - PyOpenGL and drivers raise anything
        reason = " ".join(f"{error}".split()) or type(error).__name__
    else:
        reason = ""
    sys.stderr.write(reason)
    sys.stderr.flush()
    os._exit(bool(reason))  # OSMesa crashes at the normal end of Python
