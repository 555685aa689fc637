"""Files of the view in Foxglove are read by MCAP and Google's protobuf, and the server by a client of its own."""

import json
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from mcap.reader import make_reader
from mcap_core import counts_of, read_with_core
from protobuf_messages import decode
from websockets.sync.client import connect

import embodied_env
from embodied_env.cli.main import main
from embodied_env.contract import load_contract
from embodied_env.errors import MissingDependencyError, UsageError
from embodied_env.extensions.viewers import live_view
from embodied_env.extensions.viewers.foxglove_viewer import FoxgloveViewer
from embodied_env.extensions.viewers.live_view import scene_of_run, view_run
from embodied_env.extensions.viewers.robot_geometry import find_geometry
from embodied_env.record import read_run

ROOT = Path(__file__).parents[3]
TOPICS = {
    "/camera": "foxglove.RawImage",
    "/depth": "foxglove.RawImage",
    "/handle": "foxglove.PoseInFrame",
    "/joints": "foxglove.JointStates",
    "/door_state": "foxglove.JointStates",
    "/latch_state": "foxglove.JointStates",
    "/robot/links": "foxglove.FrameTransforms",
    "/robot/shape": "foxglove.SceneUpdate",
    "/robot/paths": "foxglove.SceneUpdate",
    "/step/log": "foxglove.Log",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a run of door_open with a chunk."""
    folder = tmp_path_factory.mktemp("runs")
    with embodied_env.make("door_open", backend="mujoco", record=folder) as env:
        chunked = embodied_env.ActionChunks(env, 6)
        chunked.reset(seed=0)
        chunked.step(np.zeros((6, 6), dtype=np.float32))
    return read_run(env.path)


def messages_of(file):
    """Return topic -> the messages, decoded, each with its log time."""
    found = {}
    with file.open("rb") as opened:
        for schema, channel, message in make_reader(opened).iter_messages():
            is_json = channel.message_encoding == "json"
            content = json.loads(message.data) if is_json else decode(schema, message.data)
            found.setdefault(channel.topic, []).append((message.log_time, content))
    return found


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def application_at(port):
    with connect(f"ws://127.0.0.1:{port}", subprotocols=["foxglove.sdk.v1"], max_size=None) as opened:
        assert opened.subprotocol == "foxglove.sdk.v1"
        yield Application(opened)


class Application:
    """A client of the server that subscribes to every topic, as Foxglove does."""

    def __init__(self, opened):
        self.schemas, self.received = {}, []
        self._socket, self._topics = opened, {}
        self._renewed_s = time.monotonic()

    def receive_until(self, is_enough):
        end_s = time.monotonic() + 30
        while not is_enough(self.received):
            assert time.monotonic() < end_s, sorted({topic for topic, *_ in self.received})
            try:
                data = self._socket.recv(timeout=0.1)
            except TimeoutError:
                self._renew()
                continue
            if isinstance(data, str):
                self._subscribe(json.loads(data))
            else:
                opcode, subscription, ns = struct.unpack_from("<BIQ", data)
                assert opcode == 1
                self.received.append((self._topics[subscription], ns, data[13:]))

    def _renew(self):
        """Subscribe again to topics without a message, since a channel may be advertised before it can be subscribed."""
        if time.monotonic() < self._renewed_s + 1.0:
            return
        self._renewed_s = time.monotonic()
        received = {topic for topic, *_ in self.received}
        if silent := [number for number, topic in self._topics.items() if topic not in received]:
            self._socket.send(json.dumps({"op": "unsubscribe", "subscriptionIds": silent}))
            wanted = [{"id": number, "channelId": number} for number in silent]
            self._socket.send(json.dumps({"op": "subscribe", "subscriptions": wanted}))

    def _subscribe(self, message):
        channels = message.get("channels", ()) if message["op"] == "advertise" else ()
        for channel in channels:
            self._topics[channel["id"]] = channel["topic"]
            self.schemas[channel["topic"]] = channel["schemaName"]
        wanted = [{"id": each["id"], "channelId": each["id"]} for each in channels]
        if wanted:
            self._socket.send(json.dumps({"op": "subscribe", "subscriptions": wanted}))


def test_a_saved_run_has_the_well_known_schemas_and_its_values(run, tmp_path, capsys):
    file = tmp_path / "door.mcap"
    assert main(["view", str(run.path), "--save", str(file)]) == 0
    with file.open("rb") as opened:
        reader = make_reader(opened)
        summary = reader.get_summary()
    named = {channel.topic: summary.schemas[channel.schema_id].name for channel in summary.channels.values()}
    assert TOPICS.items() <= named.items()
    assert summary.chunk_indexes
    found, rows = messages_of(file), list(run.transitions())
    assert [json.loads(json.dumps(row)) for row in rows] == [row for _, row in found["transition"]]
    begin_ns = found["transition"][0][0]
    assert [ns - begin_ns for ns, _ in found["/robot/links"]] == [round(step * 0.05e9) for step in range(len(rows))]
    assert abs(begin_ns - time.time_ns()) < 600e9
    for key, (_, joints) in zip(rows, found["/joints"], strict=True):
        states = {state.name: (state.position, state.velocity) for state in joints.joints}
        read = key["inner"]["observation"]
        assert list(states.values()) == list(zip(read["joints_position"], read["joints_velocity"], strict=True))
    image = found["/camera"][0][1]
    assert (image.width, image.height, image.step, image.encoding, image.frame_id) == (
        *(96, 96, 288, "rgb8"),
        "wrist_camera_optical",
    )
    assert image.data == run.array(rows[0]["inner"]["observation"]["camera_image"]).tobytes()
    assert found["/depth"][0][1].encoding == "32FC1"
    assert found["/handle"][0][1].frame_id == "base"
    x, *_ = rows[0]["inner"]["observation"]["handle_position"]
    assert found["/handle"][0][1].pose.position.x == x


def test_the_layout_shows_topics_and_curves_of_the_view(run, tmp_path):
    layout = json.loads((ROOT / "config" / "foxglove_layout.json").read_text())
    assert layout.keys() == {"configById", "globalVariables", "userNodes", "playbackConfig", "layout"}

    def panels(node):
        return {node} if isinstance(node, str) else panels(node["first"]) | panels(node["second"])

    assert panels(layout["layout"]) == layout["configById"].keys()
    assert main(["view", str(run.path), "--save", str(tmp_path / "door.mcap")]) == 0
    found = messages_of(tmp_path / "door.mcap")
    for config in layout["configById"].values():
        shown = {config.get("imageMode", {}).get("imageTopic"), config.get("topicToRender"), *config.get("topics", ())}
        assert shown - {None} <= found.keys()
        for path in config.get("paths", ()):
            topic, *keys = path["value"].split(".")
            value = found[topic][0][1]
            for key in keys:
                value = value[key]
            assert isinstance(value, float)
            assert path["enabled"]


def test_shapes_are_stored_once_and_follow_the_frames_of_the_links(run, tmp_path):
    file = tmp_path / "door.mcap"
    scene = scene_of_run(run)
    view_run(run, scene, FoxgloveViewer(str(file), scene))
    found = messages_of(file)
    ((_, shape),) = found["/robot/shape"]
    links = {transform.child_frame_id: transform for transform in found["/robot/links"][-1][1].transforms}
    assert {transform.parent_frame_id for transform in links.values()} == {"world"}
    assert {entity.frame_id for entity in shape.entities} <= links.keys()
    assert all(entity.frame_locked and entity.triangles[0].points for entity in shape.entities)
    paths = {entity.id: entity for entity in found["/robot/paths"][-1][1].entities}
    assert (len(paths["done"].lines[0].points), len(paths["intended"].lines[0].points)) == (6, 6)
    end, tool = paths["done"].lines[0].points[-1], links["tcp"].translation
    assert (end.x, end.y, end.z) == pytest.approx((tool.x, tool.y, tool.z))
    curves = found["/step/curves"][2][1]["joints"]["j2"]
    assert curves.keys() == {"requested", "applied", "measured", "intended"}
    assert curves["intended"] == curves["requested"]


def test_an_application_that_connects_late_receives_the_newest_message_of_each_topic_and_what_follows(monkeypatch):
    monkeypatch.setattr(live_view, "DRAW_PERIOD_S", 0.02)
    monkeypatch.setattr(live_view, "SHARE_IN_LOCKSTEP", 1.0)
    logged = []
    monkeypatch.setattr(gymnasium.logger, "warn", lambda text, *values: logged.append(text % values))
    port = free_port()
    with embodied_env.make("door_open", backend="fake", view=f"foxglove:{port}") as env:
        env.reset(seed=0)
        env.step(env.action_space.sample())
        with application_at(port) as application:
            expected = {*TOPICS, "transition", "/step/curves"}
            application.receive_until(lambda found: {topic for topic, *_ in found} >= expected)
            assert TOPICS.items() <= application.schemas.items()
            env.reset()
            env.step(env.action_space.sample())
            application.receive_until(lambda found: b"episode 1 begins" in found[-1][2])
            application.receive_until(lambda found: found[-1][0] == "transition")
        rows = [json.loads(data) for topic, _, data in application.received if topic == "transition"]
        assert (rows[0]["info"]["episode_index"], rows[-1]["info"]["episode_index"]) == (0, 1)
        assert rows[0]["inner"]["observation"]["camera_image"] == {"dtype": "uint8", "shape": [96, 96, 3]}
    assert logged[0].startswith(f"view: connect Foxglove to ws://localhost:{port}, or open https://app.foxglove.dev?")
    embodied_env.make("arm_reach", backend="fake", view=f"foxglove:{port}").close()  # the first server has ended


def test_a_run_is_played_at_its_own_speed_to_an_application(run):
    scene, port = scene_of_run(run), free_port()
    viewer = FoxgloveViewer(f"foxglove:{port}", scene, plays=True)
    playing = threading.Thread(target=view_run, args=(run, scene, viewer), daemon=True)
    playing.start()
    with application_at(port) as application:
        arrivals = []
        while len(arrivals) < 6:
            seen = len(arrivals)
            application.receive_until(lambda found: [topic for topic, *_ in found].count("transition") > seen)  # noqa: B023 - called at once
            arrivals.append(time.monotonic())
    assert arrivals[-1] - arrivals[0] > 0.15  # of 0.25 s; messages may arrive together
    playing.join(10)
    assert not playing.is_alive()
    viewer._sink.stop()


def test_a_file_is_not_replaced_and_a_port_in_use_is_named(run, tmp_path, capsys):
    file = run.path / "transitions.mcap"
    before = file.read_bytes()
    assert main(["view", str(run.path), "--save", str(file)]) == 2
    assert "exists (expected a new file)" in capsys.readouterr().err
    assert file.read_bytes() == before
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        used.listen()
        with pytest.raises(UsageError, match=r"cannot open the view 'foxglove:\d+'"):
            embodied_env.make("arm_reach", backend="fake", view=f"foxglove:{used.getsockname()[1]}")


def test_a_contract_of_another_run_is_refused_and_its_own_one_is_trusted(run, tmp_path, capsys):
    assert main(["view", str(run.path), "--contract", "arm_reach", "--save", str(tmp_path / "a.mcap")]) == 2
    assert "is not the contract of" in capsys.readouterr().err
    assert scene_of_run(run, contract="door_open").contract.trusted
    assert isinstance(find_geometry(load_contract("door_open")), type(scene_of_run(run).geometry))


def test_the_missing_package_is_named_before_anything_starts(monkeypatch):
    monkeypatch.setitem(sys.modules, "foxglove", None)
    with pytest.raises(MissingDependencyError, match=r"Foxglove needs foxglove-sdk.*embodied_env\[foxglove\]"):
        embodied_env.make("arm_reach", backend="fake", view="foxglove")


@pytest.mark.long
def test_the_library_of_foxglove_finds_every_message(run, tmp_path):
    file = tmp_path / "door.mcap"
    assert main(["view", str(run.path), "--save", str(file)]) == 0
    done = read_with_core(file)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == counts_of(file)
    assert json.loads(done.stdout)["/robot/links"] == 6


@pytest.mark.long
def test_rerun_imports_images_poses_and_links(run, tmp_path):
    """Its importer of MCAP files supports the schemas."""
    pytest.importorskip("rerun")
    file, imported = tmp_path / "door.mcap", tmp_path / "door.rrd"
    assert main(["view", str(run.path), "--save", str(file)]) == 0
    rerun = [sys.executable, "-m", "rerun"]
    subprocess.run([*rerun, "mcap", "convert", file, "-o", imported], check=True, timeout=120)
    command = [*rerun, "rrd", "print", imported, "-v"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    for component in (
        *("/camera@Image:buffer", "/depth@Image:buffer", "/handle@InstancePoses3D:translations"),
        *("/robot/links@Transform3D", "/joints@foxglove.JointStates:message"),
    ):
        assert component in printed
