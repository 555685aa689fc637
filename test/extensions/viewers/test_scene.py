"""A drawing has every sensor by the column of its fields, and the newest action chunk next to the applied actions."""

from typing import Any

import numpy as np
import pytest
from mcap.reader import make_reader
from protobuf_messages import decode
from shipped_contracts import changed_contract

import embodied_env
from embodied_env.contract import load_contract
from embodied_env.contract.spaces import ActionLayout, field_layouts, message_field
from embodied_env.extensions.viewers.foxglove_viewer import FoxgloveViewer
from embodied_env.extensions.viewers.live_view import row_of, scene_of_run
from embodied_env.extensions.viewers.robot_geometry import find_geometry
from embodied_env.extensions.viewers.scene import Scene
from embodied_env.messages.declaration import AXES
from embodied_env.record import read_run
from embodied_env.sim.mujoco_kinematics import MujocoKinematics
from embodied_env.sim.world_profile import load_profile


class Seen:
    """An observer that keeps the transitions."""

    def __init__(self):
        self.transitions = []

    def observe(self, transition):
        self.transitions.append(transition)


def scene_with(contract, *, pacing="lockstep"):
    return Scene(contract, geometry=find_geometry(contract), start_ns=0, pacing=pacing)


def drawn(scene, transitions):
    hidden = [name for name, spec in scene.contract.sensors.items() if spec.visibility == "evaluator"]
    return [scene.draw(step, row_of(transition, hidden)) for step, transition in enumerate(transitions)]


def one_step(name):
    seen = Seen()
    with embodied_env.make(name, backend="fake", observers=[seen]) as env:
        env.reset(seed=0)
        env.step(env.action_space.sample())
    return seen.transitions


@pytest.mark.parametrize("name", ["door_open", "cart_goal", "turtlebot4_goal"])
def test_every_sensor_is_drawn_by_the_columns_of_its_fields(name):
    contract = load_contract(name)
    (drawing,) = drawn(scene_with(contract), one_step(name))
    for sensor, spec in contract.sensors.items():
        for layout in field_layouts(sensor, spec):
            field = spec.fields[layout.field]
            column, size = message_field(spec, layout.field, field).column, int(np.prod(layout.shape))
            curves = {path[2] for path in drawing.curves if path[:2] == ("sensors", layout.key)}
            names = field.joints or AXES.get(column) or [str(index) for index in range(size)]
            assert curves == (set(names) if size <= 32 else set())
            assert (sensor in drawing.images) == ("image" in spec.fields)
            assert (sensor in drawing.poses) == ("position" in spec.fields and not field.joints)
            if column == "joints":
                assert all(layout.field in drawing.joints[sensor][joint] for joint in field.joints)


def test_the_time_of_a_step_is_that_of_the_simulation_in_lockstep_and_of_the_clock_in_real_time():
    transitions = one_step("arm_reach") * 3
    assert [each.time_s for each in drawn(scene_with(load_contract("arm_reach")), transitions)] == [0.0, 0.05, 0.1]
    real = drawn(scene_with(load_contract("arm_reach"), pacing="realtime"), [*transitions, *one_step("arm_reach")])
    assert [each.time_s for each in real[:3]] == [0.0, 0.0, 0.0]
    assert real[3].time_s > 0


def test_a_cloud_and_a_scan_at_fixed_angles_are_points_without_those_that_stand_for_nothing(tmp_path):
    ranges = {
        "shape": [90],
        "unit": "m",
        "low": 0.0,
        "high": 10.0,
        "no_return": 10.0,
        "nan": 0.0,
        "resample": {"angles": 4},
    }
    points = {"unit": "m", "low": -9.0, "high": 9.0, "points": {"count": 3, "pad": 9.0}}
    scan = {
        "topic": "scan",
        "type": "sensor_msgs/msg/LaserScan",
        "frame": "laser",
        "fields": {"ranges": ranges},
        "max_age_s": 1.0,
    }
    cloud = {"topic": "cloud", "type": "sensor_msgs/msg/PointCloud2", "fields": {"points": points}, "max_age_s": 1.0}
    contract = changed_contract("arm_reach", {"sensors.scan": scan, "sensors.cloud": cloud})
    row = row_of(one_step("arm_reach")[0], ())
    seen = {"scan_ranges": [1.0, 2.0, 10.0, 0.0], "cloud_points": [[1.0, 2.0, 3.0], [9.0, 1.0, 1.0], [9.0, 9.0, 9.0]]}
    row = {**row, "inner": {**row["inner"], "observation": {**row["inner"]["observation"], **seen}}}
    scene = Scene(contract, geometry="unknown", start_ns=0, pacing="lockstep")
    drawing, file = scene.draw(0, row), tmp_path / "points.mcap"
    assert drawing.points.keys() == {"scan", "cloud"}
    assert drawing.points["scan"].frame == "laser"
    np.testing.assert_allclose(drawing.points["scan"].points_m, [[1, 0, 0], [0, 2, 0]], atol=1e-6)
    np.testing.assert_array_equal(drawing.points["cloud"].points_m, [[1, 2, 3], [9, 1, 1]])
    viewer = FoxgloveViewer(str(file), scene)
    viewer.show(drawing)
    viewer.close()
    with file.open("rb") as opened:
        ((schema, _, message),) = make_reader(opened).iter_messages(topics=["/cloud"])
    decoded = decode(schema, message.data)
    assert (schema.name, decoded.frame_id, decoded.point_stride) == ("foxglove.PointCloud", "world", 12)
    assert [(field.name, field.offset, field.type) for field in decoded.fields] == [
        ("x", 0, 7),
        ("y", 4, 7),
        ("z", 8, 7),
    ]
    np.testing.assert_array_equal(np.frombuffer(decoded.data, "<f4").reshape(-1, 3), [[1, 2, 3], [9, 1, 1]])


@pytest.mark.parametrize(
    "observation", [None, 3, {"joints_position": "x", "target_position": [[1, 2], 3]}, {"tcp_position": []}]
)
def test_readings_of_a_wrong_form_are_not_drawn(observation):
    scene = scene_with(load_contract("arm_reach"))
    row = row_of(one_step("arm_reach")[0], ())
    row = {**row, "inner": {**row["inner"], "observation": observation}}
    drawing = scene.draw(0, row)
    assert not drawing.poses
    assert not [path for path in drawing.curves if path[0] == "sensors"]


def chunked_run(name, folder, chunks):
    with embodied_env.make(name, backend="mujoco", record=folder) as env:
        wrapped = embodied_env.ActionChunks(env, len(chunks[0]))
        wrapped.reset(seed=0)
        for chunk in chunks:
            wrapped.step(np.array(chunk, dtype=np.float32))
    return read_run(env.path)


def test_a_chunk_of_positions_is_drawn_as_curves_and_as_the_path_of_the_tool(tmp_path):
    contract = changed_contract("arm_reach", {"actuators.arm.command": "position"})
    chunks = np.random.default_rng(3).uniform(-0.5, 0.5, (2, 4, 6)).astype(np.float32)
    run = chunked_run(contract, tmp_path, chunks.tolist())
    scene, kinematics = scene_of_run(run), MujocoKinematics(contract, load_profile(contract, "mujoco"))
    drawings = [scene.draw(step, row, run.array) for step, row in enumerate(run.transitions())]
    assert len(drawings) == 8
    for step, drawing in enumerate(drawings):
        chunk = [ActionLayout(contract).scale.to_si(action) for action in chunks[step // 4].astype(float)]
        intended = [drawing.curves["joints", joint, "intended"] for joint in kinematics.joints]
        np.testing.assert_allclose(intended, chunk[step % 4], rtol=1e-6)
        path = [kinematics.position_m("tcp", positions) for positions in chunk]
        np.testing.assert_allclose(drawing.paths["intended"], path, atol=1e-6)
        assert len(drawing.paths["done"]) == step + 1
        measured = np.array([drawing.curves["joints", joint, "measured"] for joint in kinematics.joints])
        assert drawing.paths["done"][-1] == pytest.approx(kinematics.position_m("tcp", measured), abs=1e-6)


def test_a_chunk_of_displacements_is_added_up_from_where_it_took_effect(tmp_path):
    chunks = [[[0.2, 0, 0, 0, 0, 0]] * 3, [[-0.1, 0, 0, 0, 0, 0]] * 3]
    run = chunked_run("arm_reach", tmp_path, chunks)
    scene = scene_of_run(run)
    curves = [scene.draw(step, row, run.array).curves for step, row in enumerate(run.transitions())]
    intended = np.array([each["joints", "j1", "intended"] for each in curves])
    applied = np.array([each["joints", "j1", "applied"] for each in curves])
    displacement = np.diff(intended)
    assert displacement[0] == pytest.approx(displacement[1])
    assert displacement[3] == pytest.approx(-displacement[0] / 2)
    assert intended[3] == pytest.approx(applied[2] - displacement[0] / 2)
    assert curves[3]["joints", "j1", "requested"] == pytest.approx(intended[3])


def test_a_plan_ends_with_its_episode(tmp_path):
    run = chunked_run("arm_reach", tmp_path, [[[0.1] * 6] * 3])
    rows = list(run.transitions())
    scene = scene_of_run(run)
    assert len([scene.draw(step, row, run.array) for step, row in enumerate(rows)][-1].paths["intended"]) == 3
    first: Any = rows[0]
    first["inner"]["external_inputs"]["chunk"] = None
    again = scene.draw(3, first, run.array)
    assert len(again.paths["intended"]) == 0
    assert len(again.paths["done"]) == 1
    assert ("joints", "j1", "intended") not in again.curves
