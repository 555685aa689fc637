"""Sensor models of the simulated world, and the sources of their readings, against geometry computed by hand."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
from ideal_readings import sense

from embodied_env.contract import Contract, load_contract, parse_contract
from embodied_env.core.reading_conversion import ReadingRules
from embodied_env.errors import ContractError
from embodied_env.sim.sensor_models import Bumper, Odometer, Scanner
from embodied_env.sim.sensor_reader import SensorOutput
from embodied_env.sim.world import World
from embodied_env.sim.world_model import WorldModel
from embodied_env.sim.world_profile import Contact, Rays, Source, WheelOdometry, WorldProfile

ARM = load_contract("arm_reach")


def model_of(folder: Path, worldbody: str, rest: str = "", **sources: Source) -> WorldModel:
    (folder / "model.xml").write_text(
        f'<mujoco><option gravity="0 0 0" timestep="0.01"/><worldbody>{worldbody}</worldbody>{rest}</mujoco>'
    )
    profile = WorldProfile(model="model.xml", sources=sources)
    return WorldModel(replace(ARM, source=str(folder / "x.yaml")), profile, "backends.mujoco")


def state_of(model: WorldModel) -> Any:
    data = model.new_data()
    mujoco.mj_forward(model.mj, data)
    return data


# ------------------------------------------------------------------------------------------------------- scanner

ROBOT = """
<body name="robot" pos="0 0 0.5" euler="EULER">
  <geom name="shell" size="0.3"/>
  <site name="laser" euler="MOUNT"/>
  <body><geom name="mast" type="box" size="0.05 0.05 0.05" pos="0 -0.6 0"/></body>
</body>
<geom name="front" type="box" size="0.1 20 5" pos="2.1 0 0"/>
"""


def scan(folder: Path, worldbody: str = ROBOT, *, beams: int = 5, euler: str = "0 0 0", mount: str = "0 0 0") -> Any:
    """Scan from -60 to 60 degrees, from 0.5 to 8 m, with the wall in front 2 m away."""
    model = model_of(folder, worldbody.replace("EULER", euler).replace("MOUNT", mount))
    rays = Rays(site="laser", angle_min_rad=-math.pi / 3, angle_max_rad=math.pi / 3, range_min_m=0.5, range_max_m=8.0)
    return Scanner(model, state_of(model), rays, beams, "x").ranges()


def test_the_distance_to_a_wall_ahead_is_d_over_the_cosine_of_the_angle(tmp_path: Path) -> None:
    angles = np.linspace(-math.pi / 3, math.pi / 3, 5)
    np.testing.assert_allclose(scan(tmp_path), 2.0 / np.cos(angles), rtol=1e-9)


def test_beams_rotate_with_the_robot(tmp_path: Path) -> None:
    angles = np.linspace(-math.pi / 3, math.pi / 3, 5) + math.radians(10)
    np.testing.assert_allclose(scan(tmp_path, euler="0 0 10"), 2.0 / np.cos(angles), rtol=1e-9)


def test_a_tilted_mount_tilts_the_plane_of_the_beams(tmp_path: Path) -> None:
    # pitched down by 30 degrees: straight ahead is 2 m / cos 30, at any height, since the wall is high
    assert scan(tmp_path, mount="0 30 0")[2] == pytest.approx(2.0 / math.cos(math.radians(30)))


def test_the_first_beam_is_the_rightmost(tmp_path: Path) -> None:
    worldbody = ROBOT + '<geom type="box" size="0.1 0.1 5" pos="1 -1.7320508 0"/>'  # at -60 degrees, 2 m
    ranges = scan(tmp_path, worldbody)
    assert ranges[0] < 2.0
    assert ranges[-1] == pytest.approx(4.0)


@pytest.mark.parametrize(("wall_m", "range_m"), [(8.2, np.inf), (8.09, 7.99), (0.5, -np.inf)])
def test_an_obstacle_beyond_or_below_the_range_is_infinite(tmp_path: Path, wall_m: float, range_m: float) -> None:
    assert scan(tmp_path, ROBOT.replace("2.1 0 0", f"{wall_m} 0 0"))[2] == pytest.approx(range_m)


def test_a_scanner_ignores_its_own_body_but_not_attached_ones(tmp_path: Path) -> None:
    mast = ROBOT.replace("0 -0.6 0", "1 -1.7320508 0")
    ranges = scan(tmp_path, mast)
    assert ranges[0] == pytest.approx(2.0, abs=0.1)
    assert ranges[2] == pytest.approx(2.0)  # the shell around it does not block it


@pytest.mark.parametrize(("group", "seen"), [(0, True), (1, True), (2, True), (3, False), (4, False), (5, False)])
def test_geoms_invisible_to_cameras_are_invisible_to_the_scanner(tmp_path: Path, group: int, seen: bool) -> None:
    ranges = scan(tmp_path, ROBOT.replace('name="front"', f'name="front" group="{group}"'))
    assert (ranges[2] == pytest.approx(2.0)) == seen


# ------------------------------------------------------------------------------------------------------ odometer

CART = """
<body name="cart" pos="0 0 0.2"><freejoint name="cart"/><geom size="0.1"/><site name="base" pos="0.1 0 0"/></body>
"""


class Drive:
    """Moves a cart and reads its odometry."""

    def __init__(self, folder: Path, **errors: float) -> None:
        self.model = model_of(folder, CART)
        self.data = state_of(self.model)
        self.odometer = Odometer(self.model, self.data, WheelOdometry(site="base", **errors), "x")
        self.odometer.begin([0])

    def put(self, x: float, y: float, heading: float) -> None:
        self.data.qpos[:] = x, y, 0.2, math.cos(heading / 2), 0, 0, math.sin(heading / 2)
        mujoco.mj_forward(self.model.mj, self.data)

    def go(self, *pose: float) -> None:
        self.put(*pose)
        self.odometer.advance()

    def pose(self) -> np.ndarray:
        x, y, z, w = self.odometer.orientation()
        assert (x, y) == (0.0, 0.0)
        return np.array([*self.odometer.position()[:2], 2.0 * math.atan2(z, w)])


def place_of_base(x: float, y: float, heading: float) -> np.ndarray:
    return np.array([x + 0.1 * math.cos(heading), y + 0.1 * math.sin(heading), heading])


def seen_from(frame: np.ndarray, pose: np.ndarray) -> np.ndarray:
    cos, sin = math.cos(frame[2]), math.sin(frame[2])
    x, y = pose[:2] - frame[:2]
    return np.array([cos * x + sin * y, -sin * x + cos * y, math.remainder(pose[2] - frame[2], math.tau)])


WAY = [(0.5, -0.2, 0.3), (1.0, 0.4, 1.4), (0.2, 1.5, 2.9), (-1.0, 1.0, -2.9), (-1.0, 1.0, -1.0), (0.0, -2.0, 0.0)]


def test_odometry_without_errors_is_the_motion_since_the_reset(tmp_path: Path) -> None:
    drive = Drive(tmp_path)
    drive.put(2.0, 1.0, 0.7)
    drive.odometer.begin([0])
    for pose in WAY:
        drive.go(*pose)
        expected = seen_from(place_of_base(2.0, 1.0, 0.7), place_of_base(*pose))
        np.testing.assert_allclose(drive.pose(), expected, atol=1e-13)


def test_odometry_starts_at_zero_at_each_reset(tmp_path: Path) -> None:
    drive = Drive(tmp_path, noise_per_m=0.1, noise_per_rad=0.1)
    drive.go(1.0, 2.0, 0.5)
    drive.odometer.begin([0])
    drive.odometer.advance()
    np.testing.assert_array_equal(drive.pose(), np.zeros(3))
    np.testing.assert_array_equal(drive.odometer.extras()["covariance"], np.zeros(36))


def test_the_heading_of_odometry_wraps(tmp_path: Path) -> None:
    drive = Drive(tmp_path)
    for heading in np.arange(0.0, 3.5 * math.pi, 0.4):
        drive.go(0.0, 0.0, heading)
        assert drive.pose()[2] == pytest.approx(math.remainder(heading, math.tau), abs=1e-12)


def test_a_cart_at_rest_accumulates_no_error(tmp_path: Path) -> None:
    drive = Drive(tmp_path, noise_per_m=1.0, noise_per_rad=1.0)
    for _ in range(100):
        drive.odometer.advance()
    np.testing.assert_array_equal(drive.pose(), np.zeros(3))
    np.testing.assert_array_equal(drive.odometer.extras()["covariance"], np.zeros(36))


def test_velocities_are_in_the_frame_of_the_site(tmp_path: Path) -> None:
    drive = Drive(tmp_path)
    drive.put(0.0, 0.0, math.pi / 2)
    drive.data.qvel[:] = 0.0, 0.5, 0.0, 0.0, 0.0, 2.0  # it drives north, which is ahead, and turns left
    mujoco.mj_forward(drive.model.mj, drive.data)
    np.testing.assert_allclose(drive.odometer.linear(), [0.5, 0.2, 0.0], atol=1e-12)  # the site is 0.1 m ahead
    np.testing.assert_allclose(drive.odometer.angular(), [0.0, 0.0, 2.0], atol=1e-12)


def test_the_errors_of_odometry_have_its_covariance(tmp_path: Path) -> None:
    drive = Drive(tmp_path, noise_per_m=0.05, noise_per_rad=0.05)
    ways = 800
    ends = np.empty((ways, 3))
    covariance = np.zeros((6, 6))
    for seed in range(ways):
        drive.put(0.0, 0.0, 0.0)
        drive.odometer.begin([seed])
        for pose in WAY:
            drive.go(*pose)
        ends[seed] = drive.pose()
        covariance += drive.odometer.extras()["covariance"].reshape(6, 6) / ways
    true = seen_from(place_of_base(0.0, 0.0, 0.0), place_of_base(*WAY[-1]))
    errors = ends - true
    errors[:, 2] = [math.remainder(error, math.tau) for error in errors[:, 2]]
    place = np.ix_((0, 1, 5), (0, 1, 5))
    declared, found = covariance[place], errors.T @ errors / ways
    scale = np.sqrt(np.outer(np.diag(declared), np.diag(declared)))
    np.testing.assert_allclose(found / scale, declared / scale, atol=0.15)
    assert not covariance[2:5].any()  # z, roll and pitch have no error
    assert not covariance[:, 2:5].any()


def test_a_turn_across_pi_is_measured_as_the_shorter_angle(tmp_path: Path) -> None:
    drive = Drive(tmp_path, noise_per_rad=0.1)
    drive.put(0.0, 0.0, 3.0)
    drive.odometer.begin([0])
    drive.go(0.0, 0.0, -3.0)
    variance = drive.odometer.extras()["covariance"].reshape(6, 6)[5, 5]
    assert variance == pytest.approx(0.1**2 * (math.tau - 6.0))


def test_equal_seeds_and_paths_give_equal_odometry(tmp_path: Path) -> None:
    ends = []
    for seed in (3, 4, 3):
        drive = Drive(tmp_path, noise_per_m=0.1, noise_per_rad=0.1)
        drive.odometer.begin([seed])
        for pose in WAY:
            drive.go(*pose)
        ends.append(drive.pose().tobytes())
    assert ends[0] == ends[2] != ends[1]


# ------------------------------------------------------------------------------------------------ contact sensor

BOXES = """
<geom name="floor" type="plane" size="9 9 1"/>
<geom name="wall" type="box" size="0.1 1 1" pos="2 0 1"/>
<body name="base" pos="0 0 0.5"><freejoint/><geom name="hull" type="box" size="0.2 0.2 0.2"/>
  <body name="bumper" pos="0.15 0 0"><joint axis="1 0 0" type="slide"/>
    <geom name="rim" type="box" size="0.2 0.2 0.2"/>
    <body pos="0.05 0 0"><joint axis="1 0 0" type="slide"/><geom name="tip" type="box" size="0.2 0.2 0.2"/></body>
  </body>
</body>
<body name="ball" pos="0 5 0.5"><freejoint/><geom name="ball" size="0.1"/></body>
"""
CLEAR, AT_WALL, ON_FLOOR = (0.0, 0.5), (1.6, 0.5), (0.0, 0.15)


class Bump:
    """Moves a body and reads its contact sensor."""

    def __init__(self, folder: Path, body: str = "base", ignore: tuple[str, ...] = ()) -> None:
        contact = Contact(body=body, ignore=ignore)
        self.model = model_of(folder, BOXES, bump=Source(contact=contact))
        self.data = state_of(self.model)
        self.bumper = Bumper(self.model, self.data, contact, "backends.mujoco.sources.bump")
        self.bumper.begin()

    def put(self, place: tuple[float, float]) -> None:
        self.data.qpos[0], self.data.qpos[2] = place
        mujoco.mj_forward(self.model.mj, self.data)

    def step(self, place: tuple[float, float]) -> None:
        """Run a physics step from this position."""
        self.put(place)
        self.bumper.update(self.data.sensordata[np.newaxis])

    def reading(self, place: tuple[float, float] = CLEAR) -> bool:
        self.put(place)
        touched = self.bumper.touched()
        self.bumper.forget()
        return touched


def test_a_contact_between_two_readings_is_reported_once(tmp_path: Path) -> None:
    bump = Bump(tmp_path)
    for place in (CLEAR, AT_WALL, CLEAR):
        bump.step(place)
    assert [bump.reading(), bump.reading()] == [True, False]


@pytest.mark.parametrize(("place", "touched"), [(AT_WALL, True), (CLEAR, False)])
def test_a_contact_at_the_time_of_a_reading_is_reported_again_only_if_it_lasts(
    tmp_path: Path, place: tuple[float, float], touched: bool
) -> None:
    bump = Bump(tmp_path)
    assert bump.reading(AT_WALL)
    bump.step(AT_WALL)  # the next physics step continues from there
    bump.step(place)
    assert bump.reading(CLEAR) == touched


def test_a_reset_clears_a_contact(tmp_path: Path) -> None:
    bump = Bump(tmp_path)
    bump.step(AT_WALL)
    bump.bumper.begin()
    assert not bump.reading(CLEAR)


def test_contacts_within_the_body_do_not_count(tmp_path: Path) -> None:
    bump = Bump(tmp_path)
    names = {frozenset(bump.model.mj.geom(g).name for g in pair) for pair in bump.data.contact.geom}
    assert frozenset({"hull", "tip"}) in names  # they do touch: MuJoCo excludes only parent and child
    assert not bump.reading(CLEAR)


@pytest.mark.parametrize(
    ("body", "ignore", "place", "touched"),
    [
        ("base", (), (1.55, 0.5), True),  # only rim and tip, of attached bodies, reach the wall
        ("bumper", (), CLEAR, True),  # its tip touches the hull, which is not its own
        ("base", (), ON_FLOOR, True),
        ("base", ("wall",), ON_FLOOR, True),
        ("base", ("floor",), ON_FLOOR, False),
        ("base", ("floor",), (1.6, 0.15), True),
        ("base", ("rim", "tip", "tip"), CLEAR, False),
        ("base", ("rim", "tip", "tip"), AT_WALL, True),
    ],
)
def test_contacts_of_the_body_with_geoms_that_are_not_ignored_count(tmp_path, body, ignore, place, touched) -> None:
    assert Bump(tmp_path, body, ignore).reading(place) == touched


def test_contacts_of_a_model_without_sensors_are_rejected(tmp_path: Path) -> None:
    contact = Contact(body="arm")
    model = model_of(
        tmp_path,
        '<body name="arm"><geom size="1"/></body>',
        rest='<option><flag sensor="disable"/></option>',
        bump=Source(contact=contact),
    )
    with pytest.raises(ContractError, match="the model disables sensors"):
        Bumper(model, state_of(model), contact, "backends.mujoco.sources.bump")


@pytest.mark.parametrize(
    ("keys", "path", "problem"),
    [({"ignore": ("wall", "flor")}, "ignore[1]", "geom .*'flor'.*'floor'"), ({"body": "bse"}, "body", "body .*'bse'")],
)
def test_a_contact_of_an_unknown_name_is_rejected(
    tmp_path: Path, keys: dict[str, Any], path: str, problem: str
) -> None:
    with pytest.raises(ContractError, match=f"no such {problem}") as caught:
        Bump(tmp_path, **keys)
    assert caught.value.path == f"backends.mujoco.sources.bump.contact.{path}"


# ------------------------------------------------------------------------------------------------------- sources

HEAD = """
contract: embodied_env/1
name: lab
version: 1
control_period_s: 0.05
episode: {horizon_steps: 10}
actuators:
  arm:
    topic: commands
    type: std_msgs/msg/Float64MultiArray
    command: velocity
    joints: {turn: {position: null, velocity: 1.0, acceleration: 1.0}}
task: {type: nowhere:Nothing}
backends: {mujoco: {model: lab.xml}}
sensors:
"""
LAB = """
<mujoco><option timestep="0.01"/>
  <worldbody>
    <site name="base" pos="1 2 3" euler="0 0 90"/>
    <geom name="floor" type="plane" size="9 9 1"/>
    <camera name="eye" pos="0 0 9"/>
    <body name="arm" pos="4 4 4" euler="30 40 50">
      <joint name="turn" axis="0 0 1"/><geom size="0.1" mass="2" pos="0.3 0 0"/><site name="tip" pos="0.5 0 0"/>
    </body>
  </worldbody>
  <actuator><velocity name="turn" joint="turn" kv="10"/></actuator>
  <sensor>
    <framequat name="attitude" objtype="site" objname="tip"/>
    <framepos name="place" objtype="site" objname="tip"/>
    <force name="force" site="tip"/>
    <touch name="touch" site="base"/>
    <rangefinder name="up" site="base"/>
    <user name="seven" dim="7"/>
    <clock name="clock"/>
  </sensor>
</mujoco>
"""
POSE = "geometry_msgs/msg/PoseStamped"
FIELD = "{unit: m, low: -9, high: 9}"
UNITS = {"position": "m", "orientation": '"1"', "covariance": '"1"', "range": "m", "force": "N", "torque": "N*m"}


def lab(folder: Path, kind: str, *fields: str, keys: str = "") -> Contract:
    (folder / "lab.xml").write_text(LAB)
    written = ", ".join(
        field if ":" in field else f"{field}: {{unit: {UNITS[field]}, low: -90, high: 90}}" for field in fields
    )
    sensor = f"  it: {{topic: it, type: {kind}, max_age_s: 1.0, fields: {{{written}}}{keys}}}\n"
    return parse_contract(HEAD + sensor, source=str(folder / "lab.yaml"))


def lab_world(contract: Contract, **source: Any) -> World:
    world = World(contract, WorldProfile(model="lab.xml", sources={"it": Source(**source)}))
    world.reset(0, {})
    return world


def rotation(xyzw: np.ndarray) -> np.ndarray:
    matrix = np.empty(9)
    mujoco.mju_quat2Mat(matrix, np.roll(xyzw, 1))
    return matrix.reshape(3, 3)


def test_a_model_sensor_is_read_by_its_name(tmp_path: Path) -> None:
    world = lab_world(lab(tmp_path, POSE, "position"), sensors={"position": "place"})
    np.testing.assert_array_equal(sense(world, "it")["position"], world._data.sensor("place").data)


def test_a_quaternion_of_the_model_is_converted_to_x_y_z_w(tmp_path: Path) -> None:
    world = lab_world(lab(tmp_path, POSE, "orientation"), sensors={"orientation": "attitude"})
    w, x, y, z = world._data.sensor("attitude").data
    np.testing.assert_array_equal(sense(world, "it")["orientation"], [x, y, z, w])


def test_a_relative_pose_is_in_the_frame_of_the_other_site(tmp_path: Path) -> None:
    world = lab_world(lab(tmp_path, POSE, "position", "orientation"), site="tip", relative_to="base")
    read, data = sense(world, "it"), world._data
    x, y, z = data.site("tip").xpos - [1, 2, 3]
    np.testing.assert_allclose(read["position"], [y, -x, z], atol=1e-12)  # base is rotated left by 90 degrees
    tip, base = (data.site(name).xmat.reshape(3, 3) for name in ("tip", "base"))
    np.testing.assert_allclose(rotation(read["orientation"]), base.T @ tip, atol=1e-12)


def test_a_touch_sensor_as_a_bool_is_true_in_contact(tmp_path: Path) -> None:
    contract = lab(tmp_path, "std_msgs/msg/Bool", 'data: {unit: "1", low: 0, high: 1}', keys=", timeline: receive")
    world = lab_world(contract, sensors={"data": "touch"})
    world._data.sensordata[world._model.mj.sensor("touch").adr] = 300.7  # N
    assert world._sensors.read("it").values["data"] == [1]
    assert world._sensors.read("it").values["data"].dtype == np.int8


def test_a_rangefinder_without_a_hit_is_infinite(tmp_path: Path) -> None:
    world = lab_world(lab(tmp_path, "sensor_msgs/msg/Range", "range"), sensors={"range": "up"})
    assert world._data.sensor("up").data == [-1]
    assert sense(world, "it")["range"] == [np.inf]


def test_a_field_with_a_path_is_read_from_a_model_sensor(tmp_path: Path) -> None:
    contract = lab(tmp_path, "any/msg/Any", "seven: {unit: m, path: a.b, shape: [7], low: -9, high: 9, dtype: float32}")
    values = sense(lab_world(contract, sensors={"seven": "seven"}), "it")["seven"]
    assert (values.shape, values.dtype) == ((7,), np.float32)


def integer_reading(
    folder: Path, value: float, dtype: str = "uint8", kind: str = "any/msg/Any", path: str = "data"
) -> SensorOutput:
    """Return a reading of an integer field with a path, from a model sensor that measured `value`."""
    field = f"seven: {{unit: m, path: {path}, low: 0, high: 1, dtype: {dtype}}}"
    world = lab_world(lab(folder, kind, field, keys=", timeline: receive"), sensors={"seven": "clock"})
    world._data.sensordata[world._model.mj.sensor("clock").adr] = value
    return world._sensors.read("it")


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0, 256.0, 0.5])
def test_a_value_that_an_integer_cannot_represent_is_a_problem_without_a_value(tmp_path: Path, value: float) -> None:
    measured = integer_reading(tmp_path, value)
    problem = f"1 of 1 values of seven do not fit into uint8; the first is {value}"
    assert (measured.values, measured.problem) == ({}, problem)


def test_a_value_that_an_integer_can_represent_is_read(tmp_path: Path) -> None:
    measured = integer_reading(tmp_path, 255.0)
    assert (measured.values["seven"].tolist(), measured.problem) == ([255], "")


@pytest.mark.ros
def test_a_field_without_a_dtype_has_the_precision_of_its_message(tmp_path: Path) -> None:
    pytest.importorskip("std_msgs")
    found = integer_reading(tmp_path, 0.1, "null", "std_msgs/msg/Float32").values["seven"]
    assert (found.dtype, found.tolist()) == (np.float64, [float(np.float32(0.1))])


def test_a_value_beyond_the_floats_of_a_field_is_infinite(tmp_path: Path) -> None:
    assert integer_reading(tmp_path, 1e300, "float32").values["seven"] == [np.inf]


@pytest.mark.ros
@pytest.mark.parametrize(("value", "fits"), [(0.0, True), (1.0, True), (5.0, False)])
def test_a_boolean_of_a_known_message_is_0_or_1(tmp_path: Path, value: float, fits: bool) -> None:
    pytest.importorskip("sensor_msgs")
    assert (integer_reading(tmp_path, value, "int8", "sensor_msgs/msg/BatteryState", "present").problem == "") is fits


def error_of(contract: Contract, **source: Any) -> ContractError:
    with pytest.raises(ContractError) as caught:
        lab_world(contract, **source)
    return caught.value


JOINTS = "position: {joints: [turn], unit: rad, low: -9, high: 9}"
PATH = f"extra: {FIELD[:-1]}, path: header.x}}"
IMAGE, BOOL = "sensor_msgs/msg/Image", 'data: {unit: "1", low: 0, high: 1}'
WITH_COVARIANCE = "geometry_msgs/msg/PoseWithCovarianceStamped"
IT, ITS = "backends.mujoco.sources.it", "sensors.it"
WRONG_SOURCES: dict = {  # type, fields, keys of the sensor, source, path of the error, part of the problem
    "another size": (POSE, ["position"], "", {"sensors": {"position": "seven"}}, f"{IT}.sensors.position", "'seven': 7 values (expected 3"),
    "no field": (POSE, ["position"], "", {"sensors": {"positon": "place"}}, f"{IT}.sensors.positon", "did you mean 'position'?"),
    "not provided": ("geometry_msgs/msg/WrenchStamped", ["force", "torque"], "", {"sensors": {"force": "force"}}, f"{ITS}.fields.torque", ""),
    "path beside joints": ("sensor_msgs/msg/JointState", [JOINTS, PATH], "", {}, f"{ITS}.fields.extra", ""),
    "noise of no field": (POSE, ["position"], "", {"site": "tip", "noise": {"orientation": 0.1}}, f"{IT}.noise.orientation", "'orientation' (expected"),
    "noise of an integer": ("std_msgs/msg/Bool", [BOOL], ", timeline: receive", {"contact": Contact(body="arm"), "noise": {"data": 0.1}}, f"{IT}.noise.data", "floating-point"),
    "noise of a covariance": (WITH_COVARIANCE, ["position", "covariance"], "", {"site": "tip", "noise": {"covariance": 0.1}}, f"{IT}.noise.covariance", ""),
    "camera of a pose": (POSE, ["position"], "", {"camera": "eye"}, IT, f"{POSE}: camera (expected site or sensors)"),
    "site of a range": ("sensor_msgs/msg/Range", ["range"], "", {"site": "tip"}, IT, "site (expected distance or sensors)"),
    "no source": ("any/msg/Any", [f"x: {FIELD[:-1]}, path: x}}"], "", {}, IT, "no source of a any/msg/Any (expected sensors)"),
    "frame of a model sensor": (POSE, ["position"], "", {"sensors": {"position": "place"}, "relative_to": "base"}, f"{IT}.relative_to", ""),
    "no frame": (POSE, ["position"], "", {"site": "tip", "relative_to": "bsae"}, f"{IT}.relative_to", "no such site in lab.xml: 'bsae'"),
    "size without a camera": (POSE, ["position"], "", {"site": "tip", "render_size": "observation"}, f"{IT}.render_size", ""),
    **{
        f"not rendered: {encoding}": (IMAGE, [f"image: {{unit: {unit}, shape: [4, 6, {channels}], low: 0, high: 255}}"], f", encoding: {encoding}", {"camera": "eye"}, f"{ITS}.encoding", f"'{encoding}' (expected one of: rgb8, bgr8, 32FC1)")
        for encoding, channels, unit in (("bgra8", 4, '"1"'), ("mono8", 1, '"1"'), ("16UC1", 1, "m"))
    },
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG_SOURCES)
def test_a_wrong_source_is_rejected_with_its_path(tmp_path: Path, wrong: str) -> None:
    kind, fields, keys, source, path, problem = WRONG_SOURCES[wrong]
    error = error_of(lab(tmp_path, kind, *fields, keys=keys), **source)
    assert error.path == path
    assert problem in error.problem


def test_a_camera_with_swapped_colours_sees_the_same(tmp_path: Path) -> None:
    image, seen = "image: {unit: '1', shape: [4, 6, 3], low: 0, high: 255}", []
    for encoding in ("rgb8", "bgr8"):
        world = lab_world(lab(tmp_path, "sensor_msgs/msg/Image", image, keys=f", encoding: {encoding}"), camera="eye")
        seen.append(world.read()["it"].values["image"])
    np.testing.assert_array_equal(seen[0], seen[1][..., ::-1])


@pytest.mark.parametrize(
    ("encoding", "unit", "channels", "resample"),
    [
        ("rgb8", "1", 3, "nearest"),
        ("rgb8", "1", 3, "area"),
        ("bgr8", "1", 3, "nearest"),
        ("bgr8", "1", 3, "area"),
        ("32FC1", "m", 1, "nearest"),  # depth is resized by nearest only
    ],
)
def test_an_image_drawn_in_the_size_of_the_observation_is_exactly_observed(
    tmp_path: Path, encoding: str, unit: str, channels: int, resample: str
) -> None:
    bounds = "low: 0, high: 255" if encoding != "32FC1" else "low: 0, high: 50, no_return: 50"

    def image(size: str, more: str = "") -> Contract:
        field = f"image: {{unit: '{unit}', shape: {size}, {bounds}{more}}}"
        return lab(tmp_path, "sensor_msgs/msg/Image", field, keys=f", encoding: {encoding}")

    small = lab_world(image(f"[4, 6, {channels}]"), camera="eye").read()["it"].values["image"]
    resize = f", resize: {{size: [4, 6], resample: {resample}}}"
    contract = image(f"[20, 30, {channels}]", resize)
    world = lab_world(contract, camera="eye", render_size="observation")
    raw = world.read()["it"].values["image"]
    np.testing.assert_array_equal(raw, small.repeat(5, axis=0).repeat(5, axis=1))
    if encoding != "32FC1":
        _, field = ReadingRules("it", contract.sensors["it"]).fields["image"]
        np.testing.assert_array_equal(field.resize(raw, padding=0), small)
    assert world.render_ns > 0


@pytest.mark.parametrize("resize", ["", ", resize: {size: [4, 6]}", ", resize: {size: [3, 6], resample: area}"])
def test_a_size_that_would_not_be_observed_exactly_is_not_drawn(tmp_path: Path, resize: str) -> None:
    field = f"image: {{unit: '1', shape: [20, 30, 3], low: 0, high: 255{resize}}}"
    contract = lab(tmp_path, "sensor_msgs/msg/Image", field, keys=", encoding: rgb8")
    assert error_of(contract, camera="eye", render_size="observation").path == f"{IT}.render_size"


def test_a_depth_camera_returns_metres(tmp_path: Path) -> None:
    image = "image: {unit: m, shape: [4, 6, 1], low: 0, high: 255}"
    world = lab_world(lab(tmp_path, "sensor_msgs/msg/Image", image, keys=", encoding: 32FC1"), camera="eye")
    picture = world.read()["it"].values["image"]
    world.close()
    assert (picture.shape, picture.dtype) == ((4, 6, 1), np.float32)
    assert picture[0, 0, 0] == pytest.approx(9.0, abs=0.01)  # the floor, seen from above
