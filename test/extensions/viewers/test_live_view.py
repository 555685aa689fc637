"""The view of steps is the same from an environment and from its run, and never in the way of a step."""

import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest

import embodied_env
from embodied_env.cli.main import main
from embodied_env.contract import load_contract
from embodied_env.errors import MissingDependencyError, UsageError
from embodied_env.extensions.viewers import live_view, rerun_viewer
from embodied_env.extensions.viewers.live_view import LiveView, open_viewer, scene_of_run, view_run
from embodied_env.extensions.viewers.robot_geometry import find_geometry
from embodied_env.extensions.viewers.scene import Scene
from embodied_env.record import read_run


class Pages:
    """A viewer that keeps what it receives."""

    def __init__(self):
        self.drawings, self.is_closed = [], False

    def show(self, drawing):
        self.drawings.append(drawing)

    def flush(self):
        yield

    def close(self):
        self.is_closed = True

    def abandon(self):
        self.is_abandoned = True

    @property
    def lines(self):
        return [(drawing.step, line) for drawing in self.drawings for line in drawing.lines]


class Stuck(Pages):
    """A viewer that stops responding at the first step."""

    def __init__(self):
        super().__init__()
        self.resume = threading.Event()

    def show(self, drawing):
        self.resume.wait(60)


class Broken(Pages):
    """A viewer that fails."""

    def show(self, drawing):
        raise OSError("no connection to the viewer")


@pytest.fixture
def fast(monkeypatch):
    monkeypatch.setattr(live_view, "DRAW_PERIOD_S", 0.005)
    monkeypatch.setattr(live_view, "CLOSE_TIMEOUT_S", 30.0)


@pytest.fixture
def logged(monkeypatch):
    lines = []
    monkeypatch.setattr(gymnasium.logger, "warn", lambda text, *values: lines.append(text % values))
    return lines


def scene_of(contract):
    loaded = load_contract(contract)
    return Scene(loaded, geometry=find_geometry(loaded), start_ns=0, pacing="lockstep")


def steps_with(viewer, count, *, contract="door_open", pause_s=0.0, **options):
    view = LiveView(scene_of(contract), viewer, pacing="lockstep")
    env = embodied_env.make(contract, backend="fake", observers=[view], **options)
    try:
        ended = True
        for seed in range(count):
            if ended:
                env.reset(seed=seed)
            *_, terminated, truncated, _ = env.step(env.action_space.sample())
            ended = terminated or truncated
            time.sleep(pause_s)
    finally:
        env.close()
        view.close()
    return view, env


def test_an_environment_and_its_run_are_shown_alike(fast, tmp_path):
    live, recorded = Pages(), Pages()
    view, env = steps_with(live, 12, record=tmp_path)
    assert (view.steps, view.dropped) == (12, 0)
    run = read_run(env.path)
    assert view_run(run, scene_of_run(run), recorded) == 12
    assert live.lines[0] == (0, "episode 0 begins")
    assert any("joint_limits: acc.limit (LIMIT)" in line for _, line in live.lines)
    assert any("ends after 1 steps: success" in line for _, line in live.lines)
    for drawing, again in zip(live.drawings, recorded.drawings, strict=True):
        assert drawing.time_s == pytest.approx(drawing.step * 0.05)
        for key in ("step", "time_s", "curves", "lines", "poses", "joints", "links", "root"):
            assert getattr(drawing, key) == getattr(again, key), key
        assert drawing.images.keys() == again.images.keys()
        for name, image in drawing.images.items():
            assert image.encoding == again.images[name].encoding
            np.testing.assert_array_equal(image.pixels, again.images[name].pixels)
        assert drawing.paths.keys() == again.paths.keys() == {"done", "intended"}
        np.testing.assert_array_equal(drawing.paths["done"], again.paths["done"])
    assert live.is_closed
    assert recorded.is_closed


@pytest.mark.parametrize(("contract", "shown"), [("arm_reach", 3), ("door_open", 6)])
def test_a_full_queue_drops_steps_and_keeps_twice_as_many_ends(monkeypatch, logged, contract, shown):
    """With random actions on the fake backend no episode of arm_reach ends, and each of door_open does at once."""
    monkeypatch.setattr(live_view, "MOST_QUEUED", 3)
    monkeypatch.setattr(live_view, "DRAW_PERIOD_S", 60.0)
    viewer = Pages()
    view, _ = steps_with(viewer, 20, contract=contract)
    assert len(viewer.drawings) == shown
    assert view.dropped == 20 - shown
    assert logged == [f"view: {20 - shown} of 20 steps were not shown"]


def test_a_viewer_that_hangs_delays_neither_steps_nor_close(fast, monkeypatch, logged):
    monkeypatch.setattr(live_view, "MOST_QUEUED", 5)
    monkeypatch.setattr(live_view, "CLOSE_TIMEOUT_S", 0.3)
    viewer = Stuck()
    try:
        begin = time.monotonic()
        view, _ = steps_with(viewer, 60, pause_s=0.001)
        assert time.monotonic() - begin < 30
        assert view.dropped > 0
        assert logged == [f"view: {view.dropped} of 60 steps were not shown: the viewer does not respond"]
        assert viewer.is_abandoned
    finally:
        viewer.resume.set()
        view._thread.join(10)
    assert not view._thread.is_alive()


def test_a_viewer_that_fails_is_reported_and_the_robot_goes_on(fast, logged):
    view, _ = steps_with(Broken(), 30, pause_s=0.003)
    assert view.steps == 30
    assert view.dropped > 0
    assert "OSError: no connection to the viewer" in logged[0]


@pytest.mark.needs("evaluation")
def test_make_evaluate_and_view_open_one_viewer(fast, monkeypatch, tmp_path):
    opened = []

    def open_viewer(where, scene):
        opened.append((where, scene.contract.name, Pages()))
        return opened[-1][2]

    monkeypatch.setattr(rerun_viewer, "RerunViewer", open_viewer)
    embodied_env.evaluate("arm_reach", "hold", backend="fake", episodes=1, record=tmp_path, view="a.rrd")
    (run,) = tmp_path.iterdir()
    assert main(["view", str(run), "--save", "b.rrd"]) == 0
    assert [each[:2] for each in opened] == [("a.rrd", "arm_reach"), ("b.rrd", "arm_reach")]
    assert opened[0][2].is_closed
    assert ("reward", "reward") in opened[1][2].drawings[0].curves
    assert not [thread for thread in threading.enumerate() if thread.name == "embodied_env view"]


@pytest.mark.parametrize(
    "view", ["door.png", "web:0", "web:99999", "web:x", "foxglove:0", "foxglove:a", 3, "", "a\0.rrd"]
)
def test_an_invalid_view_is_refused(view):
    with pytest.raises(UsageError, match=r"invalid view=.*expected True, 'web'"):
        embodied_env.make("arm_reach", backend="fake", view=view)


@pytest.mark.parametrize("name", ["kept.rrd", "kept.mcap"])
def test_a_file_that_exists_is_not_replaced_by_a_view(tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(UsageError, match=f"{name} exists .expected a new file."):
        embodied_env.make("arm_reach", backend="fake", view=str(tmp_path / name))
    assert (tmp_path / name).read_text() == "mine"


def test_a_file_that_appears_before_the_view_opens_is_not_replaced(tmp_path):
    pytest.importorskip("rerun")
    file = tmp_path / "kept.rrd"
    file.write_text("mine")
    with pytest.raises(UsageError, match=r"cannot open the view .* File exists"):
        open_viewer(str(file), scene_of("arm_reach"))
    assert file.read_text() == "mine"


def test_the_missing_package_is_named_before_anything_starts(monkeypatch):
    monkeypatch.setitem(sys.modules, "rerun", None)
    monkeypatch.setitem(sys.modules, "rerun.blueprint", None)
    with pytest.raises(MissingDependencyError, match=r"a view needs rerun-sdk.*embodied_env\[view\]"):
        embodied_env.make("arm_reach", backend="fake", view="a.rrd")


def test_the_address_of_the_page_is_logged_and_the_page_stays(monkeypatch, logged):
    """An address has percent signs, which a logger may take for a format."""
    calls = []
    recording = SimpleNamespace(serve_grpc=lambda **_: "rerun+http://localhost:1/proxy", log=lambda *_, **__: None)
    rerun = SimpleNamespace(serve_web_viewer=lambda **given: calls.append(given))
    viewer = object.__new__(rerun_viewer.RerunViewer)
    viewer._rerun, viewer._recording = rerun, recording
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    viewer._serve(port, None)
    assert logged == [f"view: open http://localhost:{port}?url=rerun%2Bhttp%3A%2F%2Flocalhost%3A1%2Fproxy"]
    assert calls[0]["web_port"] == port


@pytest.mark.needs("evaluation", "vector")
def test_several_robots_are_refused():
    with pytest.raises(UsageError, match="view shows a single robot"):
        embodied_env.make_vec("arm_reach", num_envs=2, backend="fake", view=True)
    engine: Any = object()
    with pytest.raises(UsageError, match="view shows a single robot"):
        embodied_env.evaluate("arm_reach", "hold", backend="fake", view=True, engine=engine)


@pytest.mark.long
def test_rerun_reads_what_is_shown(tmp_path):
    pytest.importorskip("rerun")
    file, again = tmp_path / "live.rrd", tmp_path / "run.rrd"
    env = embodied_env.make("door_open", backend="fake", record=tmp_path / "runs", view=str(file))
    for _ in range(5):
        env.reset(seed=1)
        env.step(env.action_space.sample())
    env.close()
    assert main(["view", str(env.path), "--save", str(again)]) == 0
    for path in (file, again):
        command = [sys.executable, "-m", "rerun", "rrd", "print", str(path)]
        printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
        for entity in ("/joints/j1/requested", "/joints/j1/measured", "/cameras/camera", "/scene/tool/part_", "/log"):
            assert entity in printed


@pytest.mark.long
def test_a_stopped_viewer_does_not_keep_the_program_from_ending(tmp_path):
    """A viewer that is stopped by SIGSTOP accepts connections and never reads."""
    pytest.importorskip("rerun")
    code = (
        "import socket, sys, time, embodied_env\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "url = f'rerun+http://127.0.0.1:{server.getsockname()[1]}/proxy'\n"
        "env = embodied_env.make('door_open', backend='fake', view=url)\n"
        "for _ in range(200):\n"
        "    env.reset(seed=1); env.step(env.action_space.sample())\n"
        "begin = time.monotonic(); env.close(); print('closed', time.monotonic() - begin)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert float(done.stdout.split()[-1]) < 5
