"""The view of steps: the same from an environment and from its run, and never in the way of a step."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import embodied_env
from embodied_env.cli.main import main
from embodied_env.contract import load_contract
from embodied_env.errors import MissingDependencyError, UsageError
from embodied_env.extensions.viewers import live_view, rerun_viewer
from embodied_env.extensions.viewers.live_view import LiveView, view_run
from embodied_env.record import read_run

ROOT = Path(__file__).parents[3]


class Pages:
    """A viewer that keeps what it receives."""

    def __init__(self):
        self.series, self.images, self.lines, self.is_closed = {}, {}, [], False

    def plot(self, path, steps, times_s, values):
        self.series.setdefault(path, []).extend(zip(steps, times_s, values, strict=True))

    def show_image(self, name, image, encoding, step, time_s):
        self.images.setdefault(name, []).append((step, encoding, image.copy()))

    def log(self, text, step, time_s):
        self.lines.append((step, text))

    def close(self):
        self.is_closed = True

    def abandon(self):
        self.is_abandoned = True


class Stuck(Pages):
    """A viewer that stops responding at the first series."""

    def __init__(self):
        super().__init__()
        self.resume = threading.Event()

    def plot(self, *_):
        self.resume.wait(30)


class Broken(Pages):
    """A viewer that fails."""

    def plot(self, *_):
        raise OSError("no connection to the viewer")


@pytest.fixture
def fast(monkeypatch):
    monkeypatch.setattr(live_view, "DRAW_PERIOD_S", 0.005)
    monkeypatch.setattr(live_view, "CLOSE_TIMEOUT_S", 0.3)


@pytest.fixture
def logged(monkeypatch):
    lines = []
    monkeypatch.setattr(gymnasium.logger, "warn", lines.append)
    return lines


def steps_with(viewer, count, *, contract="door_open", pause_s=0.0, **options):
    view = LiveView(load_contract(contract), viewer, pacing="lockstep")
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
    assert view_run(read_run(env.path), load_contract("door_open"), recorded) == 12
    assert recorded.series == live.series
    assert recorded.lines == live.lines
    assert live.lines[0] == (0, "episode 0 begins")
    assert any("joint_limits: acc.limit (LIMIT)" in line for _, line in live.lines)
    assert any("ends after 1 steps: success" in line for _, line in live.lines)
    assert {("joints", "j1", kind) for kind in ("requested", "applied", "measured")} <= live.series.keys()
    assert {
        ("reward", "reward"),
        ("latency", "gate"),
        ("age", "joints"),
        ("gates", "joint_limits"),
    } <= live.series.keys()
    assert live.images.keys() == recorded.images.keys() == {"camera", "depth"}
    for name, images in live.images.items():
        for (step, encoding, image), again in zip(images, recorded.images[name], strict=True):
            assert (step, encoding) == again[:2]
            np.testing.assert_array_equal(image, again[2])
    assert live.is_closed
    assert recorded.is_closed


@pytest.mark.parametrize(("contract", "shown"), [("arm_reach", 3), ("door_open", 6)])
def test_a_full_queue_drops_steps_and_keeps_twice_as_many_ends(monkeypatch, logged, contract, shown):
    """With random actions on the fake backend no episode of arm_reach ends, and each of door_open does at once."""
    monkeypatch.setattr(live_view, "MOST_QUEUED", 3)
    monkeypatch.setattr(live_view, "DRAW_PERIOD_S", 60.0)
    viewer = Pages()
    view, _ = steps_with(viewer, 20, contract=contract)
    assert len(viewer.series["reward", "reward"]) == shown
    assert view.dropped == 20 - shown
    assert logged == [f"view: {20 - shown} of 20 steps were not shown"]


def test_a_viewer_that_hangs_delays_neither_steps_nor_close(fast, monkeypatch, logged):
    monkeypatch.setattr(live_view, "MOST_QUEUED", 5)
    viewer = Stuck()
    try:
        begin = time.monotonic()
        view, _ = steps_with(viewer, 60, pause_s=0.001)
        assert time.monotonic() - begin < 20
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

    def open_viewer(view, contract):
        opened.append((rerun_viewer.checked_view(view), contract.name, Pages()))
        return opened[-1][2]

    monkeypatch.setattr(rerun_viewer, "RerunViewer", open_viewer)
    embodied_env.evaluate("arm_reach", "hold", backend="fake", episodes=1, record=tmp_path, view="a.rrd")
    (run,) = tmp_path.iterdir()
    assert main(["view", str(run), "--save", "b.rrd"]) == 0
    assert [each[:2] for each in opened] == [("a.rrd", "arm_reach"), ("b.rrd", "arm_reach")]
    assert opened[0][2].is_closed
    assert opened[1][2].series["reward", "reward"]
    assert not [thread for thread in threading.enumerate() if thread.name == "embodied_env view"]


@pytest.mark.parametrize("view", ["door.png", "web:0", "web:99999", "web:x", 3, "", "a\0.rrd"])
def test_an_invalid_view_is_refused(view):
    with pytest.raises(UsageError, match=r"invalid view=.*expected True, 'web'"):
        embodied_env.make("arm_reach", backend="fake", view=view)


def test_the_missing_package_is_named_before_anything_starts(monkeypatch):
    monkeypatch.setitem(sys.modules, "rerun", None)
    monkeypatch.setitem(sys.modules, "rerun.blueprint", None)
    with pytest.raises(MissingDependencyError, match=r"a view needs rerun-sdk.*embodied_env\[view\]"):
        embodied_env.make("arm_reach", backend="fake", view="a.rrd")


@pytest.mark.needs("evaluation", "vector")
def test_several_robots_are_refused():
    with pytest.raises(UsageError, match="view shows a single robot"):
        embodied_env.make_vec("arm_reach", num_envs=2, backend="fake", view=True)
    with pytest.raises(UsageError, match="view shows a single robot"):
        embodied_env.evaluate("arm_reach", "hold", backend="fake", view=True, engine=object())


def test_the_foxglove_layout_shows_channels_of_the_record():
    layout = json.loads((ROOT / "config" / "foxglove_layout.json").read_text())
    assert layout.keys() == {"configById", "globalVariables", "userNodes", "playbackConfig", "layout"}

    def panels(node):
        return {node} if isinstance(node, str) else panels(node["first"]) | panels(node["second"])

    assert panels(layout["layout"]) == layout["configById"].keys()
    contract = load_contract("door_open")
    for name, config in layout["configById"].items():
        if name.startswith("Image!"):
            assert config["imageMode"]["imageTopic"].removeprefix("/") in contract.sensors
        for path in config.get("paths", ()):
            topic = path["value"].partition(".")[0].removeprefix("/")
            assert topic in {"transition", *contract.sensors}
            assert path["enabled"]


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
        for entity in ("/joints/j1/requested", "/joints/j1/measured", "/cameras/camera", "/reward/reward", "/log"):
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
