"""Off-screen rendering. Tests that need an OpenGL library are skipped without one."""

import ctypes
import functools
import os
import re
import sys
import types

import numpy as np
import pytest
from forked_programs import forked_programs
from x_server import display  # noqa: F401 - a fixture

from embodied_env.errors import ClosedError, MissingDependencyError, UsageError
from embodied_env.sim.rendering import Renderer, display_available, open_context
from embodied_env.sim.world_model import import_mujoco

pytest.importorskip("mujoco", reason="needs mujoco: install the extra sim")
mujoco = import_mujoco()  # whose warnings go to the log, not to a file

AHEAD, TILTED, UP, FLAT = range(4)  # the cameras
SKY, FLOOR = 0, -1  # rows of an image taken AHEAD
ROOM = """
<mujoco>
  <statistic extent="1"/>
  <visual><map znear="0.01" zfar="50"/><quality shadowsize="512"/></visual>
  <worldbody>
    <light pos="0 0 5"/>
    <camera name="ahead" pos="0 0 1" xyaxes="0 -1 0 0 0 1" fovy="90"/>
    <camera name="tilted" pos="0 0 1" xyaxes="0 -1 0 0.6 0 0.8" fovy="40"/>
    <camera name="up" pos="0 0 1" xyaxes="1 0 0 0 -1 0"/>
    <camera name="flat" pos="0 0 1" xyaxes="0 -1 0 0 0 1" {orthographic} fovy="1"/>
    <geom type="plane" size="0 0 1" rgba="0 0.6 0 1"/>
    <body name="wall" mocap="true" pos="100 0 1">
      <geom type="box" pos="1 0 0" size="1 4 4" rgba="0.8 0 0 1"/>
    </body>
  </worldbody>
</mujoco>
"""
IMPORTS = "import hashlib, os, sys, mujoco; from embodied_env.sim.rendering import Renderer"
CHILD = """
model = mujoco.MjModel.from_xml_string({xml!r})
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
renderer = Renderer(mujoco, model)
"""


@functools.cache
def room_xml():
    newer, older = (ROOM.format(orthographic=text) for text in ('projection="orthographic"', 'orthographic="true"'))
    try:
        mujoco.MjModel.from_xml_string(newer)
    except ValueError:
        return older
    return newer


@pytest.fixture
def model():
    return mujoco.MjModel.from_xml_string(room_xml())


@pytest.fixture
def data(model):
    """The scene with its wall out of sight."""
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    return data


@pytest.fixture
def new_renderer(model, close_later):
    return lambda of=model: close_later(Renderer(mujoco, of))


@pytest.fixture(scope="module")
def has_library():
    renderer = Renderer(mujoco, mujoco.MjModel.from_xml_string("<mujoco/>"))
    try:
        return renderer.library
    except MissingDependencyError as missing:
        pytest.skip(str(missing))
    finally:
        renderer.close()


needs_renderer = pytest.mark.usefixtures("has_library")


def wall_at(model, data, distance_m):
    data.mocap_pos[0] = [distance_m, 0.0, 1.0]
    mujoco.mj_forward(model, data)


@pytest.fixture(scope="module")
def run_child():
    """Return a function that runs a program in another process, with the room and a renderer."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MUJOCO_GL", "PYOPENGL_PLATFORM"):
            patch.delenv(name, raising=False)
        with forked_programs(IMPORTS) as programs:
            yield lambda script, **environ: programs.run(CHILD.format(xml=room_xml()) + script, environ)


@needs_renderer
def test_an_image_has_the_requested_size_and_precision(new_renderer, data):
    renderer = new_renderer()
    picture, depth = renderer.rgb(data, AHEAD, 33, 47), renderer.depth(data, AHEAD, 33, 47)
    assert (picture.shape, picture.dtype) == ((33, 47, 3), np.uint8)
    assert (depth.shape, depth.dtype) == ((33, 47), np.float32)


@needs_renderer
def test_row_zero_is_the_top(new_renderer, data):
    renderer = new_renderer()
    picture, depth = renderer.rgb(data, AHEAD, 40, 40), renderer.depth(data, AHEAD, 40, 40)
    assert not picture[SKY].any()
    assert (picture[FLOOR, :, 1] > 0).all()
    assert np.isinf(depth[SKY]).all()
    assert np.isfinite(depth[FLOOR]).all()


@needs_renderer
def test_column_zero_is_the_left(model, new_renderer, data):
    data.mocap_pos[0] = [2.0, 5.5, 1.0]  # the camera looks along x, so y is to the left
    mujoco.mj_forward(model, data)
    red = new_renderer().rgb(data, AHEAD, 40, 40)[..., 0] > 0
    assert red[:, :20].any()
    assert not red[:, 20:].any()


@needs_renderer
@pytest.mark.parametrize("camera", [-2, 4])
def test_an_unknown_camera_raises(new_renderer, data, camera):
    with pytest.raises(UsageError, match=rf"camera: {camera} \(expected 0 to 3\)"):
        new_renderer().rgb(data, camera, 8, 8)


@needs_renderer
@pytest.mark.parametrize("distance_m", [0.02, 0.3, 1.0, 7.5, 49.0])
def test_depth_of_a_wall_is_its_distance_in_every_pixel(model, new_renderer, data, distance_m):
    wall_at(model, data, distance_m)
    depth = new_renderer().depth(data, AHEAD, 200, 200)
    assert np.allclose(depth[95:100, 95:105], distance_m, rtol=2e-6, atol=0.0)  # above the horizon of the floor


@needs_renderer
def test_depth_is_measured_along_the_optical_axis(new_renderer, data):
    """A camera 1 m above the floor with an axis slope of 0.6 sees the floor at 1 / 0.6 m in its centre."""
    depth = new_renderer().depth(data, TILTED, 101, 101)
    assert depth[50, 50] == pytest.approx(1.0 / 0.6, rel=1e-5)


@needs_renderer
def test_an_orthographic_camera_measures_depth_along_its_axis(model, new_renderer, data):
    wall_at(model, data, 2.5)
    assert np.allclose(new_renderer().depth(data, FLAT, 20, 20)[5:15, 5:15], 2.5, atol=1e-5)


@needs_renderer
@pytest.mark.parametrize("camera", [UP, FLAT])
def test_depth_of_empty_space_is_infinite(new_renderer, data, camera):
    assert (new_renderer().depth(data, camera, 16, 16) == np.inf).all()


@needs_renderer
def test_depth_beyond_the_far_plane_is_infinite(model, new_renderer, data):
    wall_at(model, data, 50.5)
    assert np.isinf(new_renderer().depth(data, AHEAD, 400, 400)[199, 199])


@needs_renderer
def test_images_of_different_sizes_and_kinds_are_independent(model, new_renderer, data):
    wall_at(model, data, 2.0)
    renderer = new_renderer()
    alone = renderer.rgb(data, AHEAD, 48, 64)
    renderer.rgb(data, TILTED, 480, 640)
    renderer.depth(data, AHEAD, 31, 17)
    assert np.array_equal(renderer.rgb(data, AHEAD, 48, 64), alone)


@needs_renderer
def test_an_image_too_large_for_the_library_is_an_error(new_renderer, data):
    renderer = new_renderer()
    with pytest.raises(UsageError, match="cannot render an image of 1 x 1000000 pixels"):
        renderer.rgb(data, AHEAD, 1_000_000, 1)
    assert renderer.rgb(data, AHEAD, 8, 8).any()


@needs_renderer
def test_a_renderer_continues_when_another_is_closed(new_renderer, data):
    one, other = new_renderer(), new_renderer()
    before = one.rgb(data, TILTED, 20, 20)
    other.rgb(data, TILTED, 20, 20)
    other.close()
    assert np.array_equal(one.rgb(data, TILTED, 20, 20), before)


class CollectingContext:
    """A GL context whose owner loses its unclosed renderers right after it becomes current, as a collection may."""

    def __init__(self, gl, unclosed):
        self._gl, self._unclosed, self.free = gl, unclosed, gl.free

    def make_current(self):
        self._gl.make_current()
        self._unclosed.clear()


@needs_renderer
def test_a_renderer_that_is_collected_during_an_image_of_another_does_not_change_it(new_renderer, model, data):
    one, unclosed = new_renderer(), [Renderer(mujoco, model)]
    before = one.rgb(data, TILTED, 20, 20)
    unclosed[0].rgb(data, TILTED, 20, 20)
    one._gl = CollectingContext(one._gl, unclosed)
    assert np.array_equal(one.rgb(data, TILTED, 20, 20), before)


@needs_renderer
def test_rays_of_rangefinders_are_not_rendered(new_renderer):
    xml = room_xml().replace("</worldbody>", '<site name="beam" pos="0.5 -0.3 1.2" zaxis="0.3 1 0"/></worldbody>')
    sensor = '<sensor><rangefinder site="beam"/></sensor></mujoco>'
    pictures = []
    for text in (xml, xml.replace("</mujoco>", sensor)):
        model = mujoco.MjModel.from_xml_string(text)
        data = mujoco.MjData(model)
        mujoco.mj_forward(model, data)
        pictures.append(new_renderer(model).rgb(data, AHEAD, 64, 64))
    assert np.array_equal(*pictures)


@needs_renderer
def test_too_many_geoms_for_an_image_are_an_error(new_renderer):
    sites = '<replicate count="101" offset="0 0.001 0"><site/></replicate>'
    sites = f'<replicate count="100" offset="0.001 0 0">{sites}</replicate></worldbody>'
    model = mujoco.MjModel.from_xml_string(room_xml().replace("</worldbody>", sites))
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    with pytest.raises(UsageError, match="expected fewer than 10000"):
        new_renderer(model).rgb(data, AHEAD, 8, 8)


def test_an_unused_renderer_does_not_use_gl(run_child):
    child = run_child(
        "renderer.close()\n"
        "print([name for name in sys.modules if name.split('.')[0] == 'OpenGL' or name.startswith('mujoco.egl')])"
    )
    assert (child.returncode, child.stdout.strip(), child.stderr) == (0, "[]", "")


def test_rendering_after_close_is_rejected(new_renderer, data):
    renderer = new_renderer()
    renderer.close()
    renderer.close()
    with pytest.raises(ClosedError):
        renderer.rgb(data, AHEAD, 8, 8)


@needs_renderer
@pytest.mark.parametrize(
    "forgotten",
    [
        pytest.param("", marks=pytest.mark.long),
        pytest.param("del renderer", marks=pytest.mark.long),
        "renderer.itself = renderer; other = Renderer(mujoco, model); other.depth(data, 0, 8, 8)",
    ],
)
def test_process_without_close_ends_without_output(run_child, forgotten):
    child = run_child(f"renderer.rgb(data, 0, 8, 8)\n{forgotten}\nprint('done')")
    assert (child.returncode, child.stdout.strip(), child.stderr) == (0, "done", "")


@needs_renderer
@pytest.mark.parametrize("whose", ["renderer", pytest.param("Renderer(mujoco, model)", marks=pytest.mark.long)])
def test_rendering_in_a_fork_of_a_rendering_process_raises_without_blocking(run_child, whose):
    child = run_child(
        "import warnings\nwarnings.simplefilter('ignore', DeprecationWarning)\n"  # Python 3.12 warns of forks and threads
        "renderer.rgb(data, 0, 8, 8)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    try:\n"
        f"        {whose}.rgb(data, 0, 8, 8)\n"
        "    except Exception as error:\n"
        "        print(error)\n"
        "    renderer.close()\n"
        "    sys.stdout.flush()\n"
        "    os._exit(0)\n"  # the way multiprocessing ends a fork; OSMesa crashes at the normal end of Python
        "else:\n"
        "    print(os.waitpid(pid, 0)[1])\n"
    )
    assert (child.returncode, child.stderr) == (0, "")
    assert child.stdout.splitlines()[-1] == "0"
    assert 'use context="spawn"' in child.stdout


ASKED = """
try:
    print(renderer.library)
except ImportError as error:
    print(type(error).__name__, error)
"""


def test_egl_is_used_without_a_setting_also_where_pyopengl_has_another(run_child):
    found = run_child(ASKED, PYOPENGL_PLATFORM="glx", DISPLAY=":0").stdout.strip()
    assert found == "egl" or found.startswith("MissingDependencyError rendering a camera needs a working EGL (")


@pytest.mark.parametrize("choice", ["nonsense", "disable"])
def test_an_unknown_library_raises(monkeypatch, model, choice):
    monkeypatch.setenv("MUJOCO_GL", choice)
    with pytest.raises(
        UsageError, match=f"^unknown MUJOCO_GL='{choice}' .expected one of: egl, osmesa, glfw, or unset"
    ):
        open_context(mujoco, model)


def test_egl_without_a_device_is_reported(run_child, tmp_path):
    """The EGL loader (libglvnd) gets an empty folder of drivers."""
    try:
        ctypes.CDLL("libEGL.so.1")
    except OSError:
        pytest.skip("needs libEGL.so.1")
    found = run_child(ASKED, __EGL_VENDOR_LIBRARY_DIRS=str(tmp_path)).stdout
    assert re.search(
        r"a working EGL \(.+\), .* apt install libegl1 libopengl0 libgl1-mesa-dri .*MUJOCO_GL=osmesa", found
    )


@pytest.fixture
def libraries(monkeypatch):
    """Install stand-ins for mujoco's modules of the libraries and for PyOpenGL.

    Return the parts of PyOpenGL, to be changed, too.
    """
    monkeypatch.setenv("PYOPENGL_PLATFORM", "")  # restored at the end
    parts = types.SimpleNamespace(EGL=object(), GL=object())
    for name in ("egl", "osmesa", "glfw"):
        context = types.SimpleNamespace(name=name, make_current=lambda: None)
        module = types.SimpleNamespace(GLContext=lambda *_, context=context: context)
        monkeypatch.setitem(sys.modules, f"mujoco.{name}", module)
    monkeypatch.setitem(sys.modules, "glfw", types.SimpleNamespace(init=lambda: True))
    monkeypatch.setitem(sys.modules, "OpenGL.platform", types.SimpleNamespace(PLATFORM=parts))

    def choose(setting, *, bound=None):
        monkeypatch.setenv("MUJOCO_GL", setting)
        kind = type(f"{bound or setting or 'egl'}Platform", (types.SimpleNamespace,), {})
        monkeypatch.setattr(sys.modules["OpenGL.platform"], "PLATFORM", kind(**vars(parts)))
        return open_context(types.SimpleNamespace(MjrContext=parts.mjr, mjtFontScale=mujoco.mjtFontScale), None)

    parts.mjr = lambda *_: "drawn"
    return parts, choose


@pytest.mark.parametrize(
    ("setting", "library"), [("", "egl"), ("EGL", "egl"), (" osmesa ", "osmesa"), ("glfw", "glfw")]
)
def test_mujoco_gl_chooses_the_library(libraries, setting, library):
    _, choose = libraries
    found, context, drawn = choose(setting, bound=library)
    assert (found, context.name, drawn) == (library, library, "drawn")
    assert os.environ["PYOPENGL_PLATFORM"] == ("" if library == "glfw" else library)


def fail(*_):
    raise mujoco.FatalError("gladLoadGL\n error")


@pytest.mark.parametrize(
    ("setting", "parts", "bound", "error"),
    [
        ("", {"EGL": None}, None, r"EGL \(libEGL not found\), .* apt install libegl1 libopengl0 .*MUJOCO_GL=osmesa"),
        ("egl", {"GL": None}, None, r"EGL \(libOpenGL, libGL or libGLESv2 not found\), .*MUJOCO_GL=glfw"),
        ("osmesa", {"GL": None}, None, r"OSMESA \(libOSMesa not found\), .* apt install libosmesa6 .*unset MUJOCO_GL"),
        ("", {}, "GLX", r"EGL \(PyOpenGL was imported for GLXPlatform before; set PYOPENGL_PLATFORM=egl earlier\)"),
        ("", {"mjr": fail}, None, r"EGL \(gladLoadGL error\)"),
        ("glfw", {"mjr": fail}, None, r"GLFW \(gladLoadGL error\), .* set DISPLAY"),
    ],
)
def test_a_library_that_does_not_work_is_an_error_with_cause_and_remedy(libraries, setting, parts, bound, error):
    stand_in, choose = libraries
    vars(stand_in).update(parts)
    with pytest.raises(MissingDependencyError, match=f"^rendering a camera needs a working {error}"):
        choose(setting, bound=bound)


@pytest.mark.parametrize("variable", ["DISPLAY", "WAYLAND_DISPLAY"])
def test_a_display_is_available_when_one_is_named(monkeypatch, variable):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert not display_available()
    monkeypatch.setenv(variable, ":0")
    assert display_available()


def test_a_window_without_a_display_is_an_error_that_does_not_end_the_process(run_child):
    script = (
        "from embodied_env.sim.rendering import ViewerWindow\n"
        "viewer = ViewerWindow(mujoco, model)\n"
        "try:\n"
        "    viewer.show(data)\n"
        "except ImportError as error:\n"
        "    print(type(error).__name__)\n"
        "viewer.close()"
    )
    child = run_child(script, DISPLAY="", WAYLAND_DISPLAY="")
    assert (child.returncode, child.stdout.strip(), child.stderr) == (0, "MissingDependencyError", "")


@needs_renderer
@pytest.mark.parametrize("end", ["viewer.close(); viewer.close()", ""])
def test_a_window_does_not_change_images_state_or_threads(run_child, display, end):  # noqa: F811 - the fixture
    script = (
        "import threading\n"
        "from embodied_env.sim.rendering import ViewerWindow\n"
        "before = renderer.rgb(data, 1, 20, 20)\n"
        "viewer = ViewerWindow(mujoco, model)\n"
        "viewer.show(data)\n"
        "viewer.show(data)\n"
        "assert (renderer.rgb(data, 1, 20, 20) == before).all()\n"
        f"{end}\n"
        "print(threading.active_count())"
    )
    child = run_child(script, DISPLAY=display)
    assert (child.returncode, child.stdout.strip(), child.stderr) == (0, "1" if end else "2", "")
