"""Equal seeds and commands give equal bytes."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ideal_readings import sense

from embodied_env.contract import Contract, load_contract, parse_contract
from embodied_env.core.types import Sample
from embodied_env.errors import BackendLostError, ContractError, ResetNeededError, UsageError
from embodied_env.sim.world import World
from embodied_env.sim.world_profile import (
    Contact,
    Draw,
    Mover,
    Rays,
    Render,
    Source,
    WheelOdometry,
    WorldProfile,
    load_profile,
)

PERIOD_NS = 50_000_000
ARM = load_contract("arm_reach")
ARM_PROFILE = load_profile(ARM, "mujoco")
HOME = np.array([0.0, -1.5707963, 1.6755161, -1.6755161, -1.5707963, 0.0])

CART = """
contract: embodied_env/1
name: cart
version: 1
control_period_s: 0.05
episode: {horizon_steps: 10}
sensors:
  joints:
    topic: joint_states
    type: sensor_msgs/msg/JointState
    fields:
      position: {joints: [rail, free], unit: m, low: -10, high: 10}
      velocity: {joints: [rail, free], unit: m/s, low: -10, high: 10}
      effort: {joints: [rail], unit: N, low: -10, high: 10}
    max_age_s: 1.0
  a: {topic: a, type: geometry_msgs/msg/PointStamped, fields: {position: {unit: m, low: -9, high: 9}}, max_age_s: 1.0}
  b: {topic: b, type: geometry_msgs/msg/PointStamped, fields: {position: {unit: m, low: -9, high: 9}}, max_age_s: 1.0}
actuators:
  cart:
    topic: commands
    type: std_msgs/msg/Float64MultiArray
    command: position
    joints: {rail: {position: [-1.0, 1.0], velocity: 1.0, acceleration: 1.0, unit: m}}
reset_options:
  a: {type: vector, low: [0.0, 0.0, 0.0], high: [1.0, 1.0, 1.0]}
  b: {type: vector, low: [2.0, 2.0, 2.0], high: [3.0, 3.0, 3.0]}
task: {type: nowhere:Nothing}
backends: {mujoco: {model: cart.xml, keyframe: start}}
"""

CART_MODEL = """
<mujoco>
  <option timestep="0.005" gravity="0 0 0"/>
  <worldbody>
    <body name="cart"><joint name="rail" type="slide" axis="1 0 0"/><geom size="0.1" mass="1000000"/></body>
    <body name="puck" pos="0 0 1"><joint name="free" type="slide" axis="1 0 0"/><geom size="0.1" mass="1"/></body>
    <body name="ball" pos="0 5 1"><joint name="ball" type="ball"/><geom size="0.1" mass="1"/></body>
    <body name="a" mocap="true"><site name="a"/></body>
    <body name="b" mocap="true"><site name="b"/></body>
  </worldbody>
  <actuator>
    <position name="rail" joint="rail" kp="KP"/>
    <position name="free" joint="rail"/>
    <general name="ball" joint="ball"/>
  </actuator>
  <keyframe><key name="start" qvel="0 1 0 0 0"/></keyframe>
</mujoco>
"""
KP_N_PER_M = 100.0
CART_PROFILE = WorldProfile(
    model="cart.xml",
    keyframe="start",
    sources={"a": Source(site="a"), "b": Source(site="b")},
    draws={"a": Draw(mocap="a"), "b": Draw(mocap="b")},
)


def arm_world(contract: Contract = ARM, profile: WorldProfile = ARM_PROFILE) -> World:
    return World(contract, profile)


def with_sensor(name: str, **changes: Any) -> Contract:
    return replace(ARM, sensors={**ARM.sensors, name: replace(ARM.sensors[name], **changes)})


def cart_contract(folder: Path, kp: float = KP_N_PER_M) -> Contract:
    (folder / "cart.xml").write_text(CART_MODEL.replace("KP", str(kp)))
    return parse_contract(CART, source=str(folder / "cart.yaml"))


def values(world: World) -> dict[str, Mapping[str, np.ndarray]]:
    return {name: reading.values for name, reading in world.read().items()}


def as_bytes(readings: Mapping[str, Sample], origin_ns: int) -> list[tuple[Any, ...]]:
    return [
        (name, field, reading.stamp_ns - origin_ns, value.dtype.str, value.tobytes())
        for name, reading in readings.items()
        for field, value in reading.values.items()
    ]


def episode(world: World, seed: int, steps: int = 30) -> list[list[tuple[Any, ...]]]:
    """Reset, follow a fixed random walk of commands, and return all bytes read."""
    rng = np.random.default_rng(7)
    world.reset(seed, {})
    origin_ns = world.now_ns
    target = sense(world, "joints")["position"]
    rows = [as_bytes(world.read(), origin_ns)]
    for _ in range(steps):
        target = target + rng.uniform(-0.1, 0.1, 6)
        world.command(target)
        world.step()
        rows.append(as_bytes(world.read(), origin_ns))
    return rows


# ---------------------------------------------------------------------------------------------------- readings


def test_an_orientation_is_x_y_z_w() -> None:
    pose = replace(ARM.sensors["tcp"].fields["position"], unit="1", low=-1.0, high=1.0)
    contract = with_sensor("tcp", fields={**ARM.sensors["tcp"].fields, "orientation": pose})
    world = arm_world(contract)
    world.reset(0, {})
    x, y, z, w = sense(world, "tcp")["orientation"]
    tool = np.array([2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y)])  # the rotated z axis
    np.testing.assert_allclose(tool, [0.0, 0.0, -1.0], atol=1e-6)
    undeclared = arm_world()
    undeclared.reset(0, {})
    assert undeclared.channels["tcp"].extras["orientation"].tolist() == [x, y, z, w]


def test_a_distance_is_that_of_the_two_sites() -> None:
    world = arm_world()
    world.reset(3, {})
    read = values(world)
    expected = np.linalg.norm(read["tcp"]["position"] - read["target"]["position"])
    assert read["true_distance"]["range"][0] == pytest.approx(expected, rel=1e-6)


def test_efforts_stay_within_the_torque_limits_of_the_arm() -> None:
    effort = replace(ARM.sensors["joints"].fields["position"], unit="N*m", low=-200.0, high=200.0)
    world = arm_world(with_sensor("joints", fields={**ARM.sensors["joints"].fields, "effort": effort}))
    world.reset(0, {})
    world.command(HOME + 3.0)
    world.step()
    np.testing.assert_allclose(sense(world, "joints")["effort"], [150, 150, 150, 28, 28, 28])


def test_a_slow_sensor_is_read_at_its_due_times_and_held_between_them() -> None:
    world = arm_world(with_sensor("tcp", rate_hz=8.0))
    world.reset(0, {})
    origin_ns = world.now_ns
    held: dict[int, bytes] = {}
    for k in range(1, 11):
        world.command(HOME + 0.02 * k)
        world.step()
        reading = world.read()["tcp"]
        due_ns = k * PERIOD_NS // 125_000_000 * 125_000_000  # 8 Hz: also during a control period
        assert reading.stamp_ns == origin_ns + due_ns
        assert held.setdefault(due_ns, reading.values["position"].tobytes()) == reading.values["position"].tobytes()
    assert len(set(held.values())) == len(held) == 5


# -------------------------------------------------------------------------------------------- time and commands


def test_a_step_takes_exactly_one_control_period(tmp_path: Path) -> None:
    world = World(cart_contract(tmp_path), CART_PROFILE)
    world.reset(0, {})
    world.step()
    assert sense(world, "joints")["position"][1] == pytest.approx(0.05, rel=1e-12)  # the free puck moves at 1 m/s


def test_time_advances_by_one_period_per_step_and_reset() -> None:
    world = arm_world()
    times = [world.now_ns]
    for move in (lambda: world.reset(0, {}), world.step, world.step, lambda: world.reset(0, {}), world.step):
        move()
        times.append(world.now_ns)
    np.testing.assert_array_equal(np.diff(times), PERIOD_NS)


def test_a_servo_target_moves_linearly_to_the_command(tmp_path: Path) -> None:
    world = World(cart_contract(tmp_path), CART_PROFILE)
    world.reset(0, {})
    world.command(np.array([1.0]))
    world.step()
    substeps, timestep_s, mass_kg = 10, 0.005, 1e6  # so heavy that the force is kp times the target
    targets_m = np.arange(1, substeps + 1) / substeps
    speed = KP_N_PER_M / mass_kg * timestep_s * targets_m.sum()
    assert sense(world, "joints")["velocity"][0] == pytest.approx(speed, rel=1e-5)


def test_a_step_before_the_first_reset_is_rejected() -> None:
    with pytest.raises(ResetNeededError, match="reset"):
        arm_world().step()


# ------------------------------------------------------------------------------------------------- determinism


def test_an_episode_reads_equal_bytes_after_other_episodes() -> None:
    world = arm_world()
    first = episode(world, seed=5)
    episode(world, seed=6, steps=17)
    world.command(np.full(6, np.nan))
    with pytest.raises(BackendLostError):
        world.step()
    assert episode(world, seed=5) == first


# ------------------------------------------------------------------------------------------------------- draws


def test_a_drawn_value_is_within_its_bounds_and_places_the_target() -> None:
    world = arm_world()
    option = ARM.reset_options["target"]
    for seed in range(50):
        drawn = world.reset(seed, {})["target"]
        assert ((option.low_array <= drawn) & (drawn <= option.high_array)).all()
        np.testing.assert_array_equal(sense(world, "target")["position"], drawn)


# ---------------------------------------------------------------------------------------- a world with every sensor

YARD = """
contract: embodied_env/1
name: yard
version: 1
control_period_s: 0.1
episode: {horizon_steps: 10}
sensors: {SENSORS}
actuators:
  paddle:
    topic: commands
    type: std_msgs/msg/Float64MultiArray
    command: velocity
    joints: {paddle: {position: null, velocity: 9.0, acceleration: 9.0}}
reset_options:
  flat: {type: vector, low: [-1.0, 2.0], high: [1.0, 3.0]}
  goal: {type: vector, low: [4.0, 4.0, 1.0], high: [5.0, 5.0, 2.0]}
  start: {type: vector, low: [0.3, 0.0, -3.0], high: [0.5, 0.2, 3.0]}
  phase: {type: scalar, low: 0.0, high: 1.0}
task: {type: nowhere:Nothing}
backends: {mujoco: {model: yard.xml}}
"""
YARD_MODEL = """
<mujoco>
  <option timestep="0.01"/>
  <worldbody>
    <geom name="floor" type="plane" size="9 9 1"/>
    <camera name="above" pos="0 0 9"/>
    <body name="paddle" pos="0 0 0.2">
      <joint name="paddle" axis="0 0 1"/><geom type="box" size="0.6 0.05 0.1" mass="5"/>
    </body>
    <body name="box" pos="9 9 0.4">
      <freejoint name="box"/><geom name="box" type="box" size="0.1 0.1 0.1"/><site name="box" pos="0.2 0 0"/>
    </body>
    <body name="ball" pos="0.3 -0.3 0.5"><freejoint/><geom size="0.1"/></body>
    <body name="flat" mocap="true" pos="0 0 0.7"><site name="flat"/></body>
    <body name="goal" mocap="true"><site name="goal"/></body>
    <body name="truck" mocap="true"><geom name="truck" type="box" size="0.1 0.1 0.3"/><site name="truck"/></body>
  </worldbody>
  <actuator><velocity name="paddle" joint="paddle" kv="5"/></actuator>
  <sensor><accelerometer name="felt" site="box"/></sensor>
</mujoco>
"""
POINT = "type: geometry_msgs/msg/PointStamped, fields: {position: {unit: m, low: -9, high: 9}}, max_age_s: 1.0"
FELT = "fields: {linear_acceleration: {unit: m/s^2, low: -9, high: 9}}, max_age_s: 1.0"
SEEN = {
    "box": f"{{topic: box, {POINT}}}",
    "truck": f"{{topic: truck, {POINT}}}",
    "goal": f"{{topic: goal, {POINT}}}",
    "flat": f"{{topic: flat, {POINT}}}",
    "slow": f"{{topic: slow, {POINT}, rate_hz: 3}}",
    "fast": f"{{topic: fast, {POINT}, rate_hz: 70}}",
    "felt": f"{{topic: felt, type: sensor_msgs/msg/Imu, {FELT}, rate_hz: 40}}",
    "scan": "{topic: scan, type: sensor_msgs/msg/LaserScan, rate_hz: 25, max_age_s: 1.0, "
    "fields: {ranges: {unit: m, shape: [9], low: 0, high: 9}}}",
    "bump": "{topic: bump, type: std_msgs/msg/Bool, timeline: receive, max_age_s: 1.0, "
    "fields: {data: {unit: '1', low: 0, high: 1}}}",
    "odom": "{topic: odom, type: nav_msgs/msg/Odometry, rate_hz: 12, max_age_s: 1.0, "
    "fields: {position: {unit: m, low: -9, high: 9}}}",
}
SEEN["twin"] = SEEN["odom"].replace("topic: odom", "topic: twin")
MOVER = Mover(mocap="truck", from_m=(-1.0, 1.0, 0.3), to_m=(1.0, 1.0, 0.3), speed_m_per_s=0.5)  # 8 s there and back
NOISE = {"position": 0.1}
YARD_SOURCES = {
    "box": Source(site="box", noise=NOISE),
    "truck": Source(site="truck"),
    "goal": Source(site="goal"),
    "flat": Source(site="flat"),
    "slow": Source(site="box", noise=NOISE, delay_s=0.25),
    "fast": Source(site="box", noise=NOISE, dropout=0.3),
    "felt": Source(sensors={"linear_acceleration": "felt"}),
    "scan": Source(rays=Rays(site="box", angle_min_rad=-3, angle_max_rad=3, range_min_m=0.05, range_max_m=8)),
    "bump": Source(contact=Contact(body="box", ignore=("floor",))),
    "odom": Source(odometry=WheelOdometry(site="box", noise_per_m=0.1, noise_per_rad=0.1)),
}
TRUE_ODOMETRY = Source(odometry=WheelOdometry(site="box"))
YARD_SOURCES["twin"] = YARD_SOURCES["odom"]
YARD_DRAWS = {
    "flat": Draw(mocap="flat"),
    "goal": Draw(mocap="goal"),
    "start": Draw(pose="box"),
    "phase": Draw(mover="truck"),
}


NEAR = "low: [0.3, 0.0, -3.0], high: [0.5, 0.2, 3.0]"  # the paddle
ANYWHERE = "low: [-9.0, -9.0, -4.0], high: [9.0, 9.0, 4.0]"


def yard(folder: Path, *sensors: str, start: str = NEAR, **changes: Any) -> World:
    (folder / "yard.xml").write_text(YARD_MODEL)
    names = sensors or tuple(SEEN)
    seen = ", ".join(f"{name}: {changes.pop(name, SEEN[name])}" for name in names)
    text = YARD.replace("SENSORS", seen).replace(NEAR, start)
    contract = parse_contract(text, source=str(folder / "yard.yaml"))
    given = {name: YARD_SOURCES[name] for name in names}
    profile = WorldProfile(model="yard.xml", sources=given, draws=YARD_DRAWS, movers={"truck": MOVER})
    return World(contract, replace(profile, **changes))


def spin(world: World, steps: int, speed: float = 4.0) -> list[dict[str, Sample]]:
    rows = []
    for _ in range(steps):
        world.command(np.array([speed]))
        world.step()
        rows.append(world.read())
    return rows


def trace(world: World, steps: int = 40, look: Any = lambda: None) -> list[bytes]:
    """Return the exact positions and velocities after each step of an episode."""
    world.reset(1, {})
    states = []
    for _ in range(steps):
        spin(world, 1)
        look()
        states.append(world._data.qpos.tobytes() + world._data.qvel.tobytes())
    return states


def sensor_bytes(world: World, *sensors: str, steps: int = 30) -> dict[str, list[Any]]:
    world.reset(1, {})
    origin_ns = world.now_ns
    rows = [world.read(), *spin(world, steps)]
    return {name: [as_bytes({name: row[name]}, origin_ns) for row in rows] for name in sensors}


# --------------------------------------------------------------------------- independence of the motion from sensing


def test_motion_does_not_depend_on_the_sensors(tmp_path: Path) -> None:
    assert trace(yard(tmp_path)) == trace(yard(tmp_path, "slow"))


def test_motion_does_not_depend_on_rendering(tmp_path: Path) -> None:
    world = yard(tmp_path, "slow", render=Render(width=16, height=16))
    assert trace(world, 5, look=world.render) == trace(yard(tmp_path, "slow"), 5)
    world.close()


def test_a_reading_does_not_depend_on_other_sensors_and_their_order(tmp_path: Path) -> None:
    forwards, backwards = (sensor_bytes(yard(tmp_path, *names), *SEEN) for names in (SEEN, reversed(SEEN)))
    assert forwards == backwards
    for sensor in SEEN:
        assert sensor_bytes(yard(tmp_path, sensor), sensor)[sensor] == forwards[sensor]


def test_two_odometers_have_independent_errors(tmp_path: Path) -> None:
    world = yard(tmp_path)
    world.reset(1, {})
    row = spin(world, 20)[-1]
    assert (row["odom"].values["position"][:2] != row["twin"].values["position"][:2]).all()


def test_odometry_follows_the_motion(tmp_path: Path) -> None:
    world = yard(tmp_path, "odom", odom=SEEN["odom"].replace("rate_hz: 12, ", ""), sources={"odom": TRUE_ODOMETRY})
    world.reset(1, {"start": np.array([0.5, 0.1, 0.0])})
    start = place_of_box(world)
    row = spin(world, 20)[-1]["odom"]
    way = place_of_box(world) - start
    assert abs(way[0]) > 0.1
    np.testing.assert_allclose(row.values["position"][:2], way[:2], atol=1e-9)


def test_a_reading_does_not_depend_on_earlier_reads(tmp_path: Path) -> None:
    world = yard(tmp_path)
    world.reset(1, {})
    rows = []
    for _ in range(30):
        spin(world, 1)
        for name in SEEN:
            sense(world, name)
        world.read()
        rows.append(world.read())
    quiet = yard(tmp_path)
    quiet.reset(1, {})
    for asked, unasked in zip(rows, spin(quiet, 30), strict=True):
        assert as_bytes(asked, 0) == as_bytes(unasked, 0)


def place_of_box(world: World) -> np.ndarray:
    """Return the position of the site `box`, from the state of its joint alone."""
    state, matrix = world._data.joint("box").qpos, np.empty(9)
    world._model.mujoco.mju_quat2Mat(matrix, state[3:])
    return np.array(state[:3] + matrix.reshape(3, 3) @ [0.2, 0.0, 0.0])


def test_a_reading_shows_the_state_at_its_stamp(tmp_path: Path) -> None:
    world = yard(tmp_path, "box", sources={"box": Source(site="box")})
    world.reset(0, {})
    for _ in range(5):
        row = spin(world, 1)[0]["box"]
        np.testing.assert_allclose(row.values["position"], place_of_box(world), atol=1e-12)


def test_a_mover_has_its_position_at_the_stamp(tmp_path: Path) -> None:
    world = yard(tmp_path, "truck")
    world.reset(0, {"phase": np.array(0.0)})
    origin_ns = world.now_ns
    for row in spin(world, 5):
        passed_s = (row["truck"].stamp_ns - origin_ns) / 1e9
        assert row["truck"].values["position"][0] == pytest.approx(-1.0 + 0.5 * passed_s)


# ------------------------------------------------------------------------------------------- consecutive episodes


def test_every_sensor_has_a_reading_of_the_reset(tmp_path: Path) -> None:
    world = yard(tmp_path)
    world.reset(0, {})
    assert {name: reading.stamp_ns for name, reading in world.read().items()} == dict.fromkeys(SEEN, world.now_ns)


def test_an_episode_reads_equal_values_after_another_one(tmp_path: Path) -> None:
    world, fresh = yard(tmp_path), yard(tmp_path)
    world.reset(5, {})
    spin(world, 13, speed=-6.0)
    rows = []
    for each in (world, fresh):
        each.reset(3, {})
        origin_ns = each.now_ns
        rows.append([as_bytes(row, origin_ns) for row in (each.read(), *spin(each, 20))])
    assert rows[0] == rows[1]


def test_a_contact_of_the_previous_episode_is_cleared(tmp_path: Path) -> None:
    slow = SEEN["bump"].replace("topic: bump", "topic: bump, rate_hz: 0.5")
    world = yard(tmp_path, "bump", start=ANYWHERE, bump=slow)
    far = {"start": np.array([5.0, -5.0, 0.0])}
    world.reset(0, {"start": np.array([0.5, 0.1, 0.0])})
    spin(world, 10)
    assert world._sensors._bumpers["bump"].touched()  # since the last reading
    world.reset(0, far)
    assert not any(row["bump"].values["data"][0] for row in [world.read(), *spin(world, 5)])


def test_a_contact_within_a_control_period_is_reported_once(tmp_path: Path) -> None:
    passing = Mover(mocap="truck", from_m=(-0.5, 1.0, 0.3), to_m=(5.5, 1.0, 0.3), speed_m_per_s=30.0)
    world = yard(tmp_path, "bump", start=ANYWHERE, movers={"truck": passing})
    world.reset(0, {"start": np.array([0.0, 1.0, 0.0]), "phase": np.array(0.0)})
    touches = [row["bump"].values["data"][0] for row in [world.read(), *spin(world, 2)]]
    assert touches == [0, 1, 0]


def test_a_rejected_reset_does_not_change_the_episode(tmp_path: Path) -> None:
    world = yard(tmp_path)
    world.reset(0, {})
    before = as_bytes(world.read(), 0)
    with pytest.raises(UsageError):
        world.reset(1, {"phase": np.array(math.nan)})
    assert as_bytes(world.read(), 0) == before
    world.step()


# ------------------------------------------------------------------------------------------------ draws and movers


def test_a_draw_is_the_whole_position_or_keeps_the_height_of_its_body(tmp_path: Path) -> None:
    world = yard(tmp_path, "flat", "goal")
    world.reset(0, {"flat": np.array([0.4, 2.2]), "goal": np.array([4.1, 4.2, 1.3])})
    np.testing.assert_array_equal(sense(world, "flat")["position"], [0.4, 2.2, 0.7])
    np.testing.assert_array_equal(sense(world, "goal")["position"], [4.1, 4.2, 1.3])


def test_a_pose_is_drawn_as_x_y_and_heading_at_the_height_of_the_model(tmp_path: Path) -> None:
    world = yard(tmp_path, "box", start=ANYWHERE)
    world.reset(0, {"start": np.array([3.0, 4.0, math.pi / 2])})
    np.testing.assert_allclose(world._data.joint("box").qpos, [3, 4, 0.4, math.sqrt(0.5), 0, 0, math.sqrt(0.5)])
    np.testing.assert_allclose(sense(world, "box")["position"], [3.0, 4.2, 0.4], atol=1e-12)


def truck_x(folder: Path, phase: float, steps: int, speed: float = 0.5) -> float:
    world = yard(folder, "truck", movers={"truck": replace(MOVER, speed_m_per_s=speed)})
    world.reset(0, {"phase": np.array(phase)})
    spin(world, steps)
    x, y, z = sense(world, "truck")["position"]
    assert (y, z) == (1.0, 0.3)
    return float(x)


@pytest.mark.parametrize(
    ("phase", "steps", "x"),
    [
        (0.0, 0, -1.0),
        (0.5, 0, 1.0),
        (0.0, 10, -0.5),
        (0.4, 10, 0.9),  # it reverses on the way: 0.4 m to the end, 0.1 m back
        (0.9, 10, -0.9),
        (0.3, 80, 0.2),
    ],
)
def test_a_mover_moves_back_and_forth(tmp_path: Path, phase: float, steps: int, x: float) -> None:
    assert truck_x(tmp_path, phase, steps) == pytest.approx(x, abs=1e-9)


WRONG_DRAWS = {
    "a pose of a joint that is not free": (
        {"start": Draw(pose="paddle")},
        "start.pose",
        "'paddle' .*expected a free joint",
    ),
    "a mover that is not there": ({"phase": Draw(mover="trck")}, "phase.mover", r"no such mover: 'trck'.*'truck'"),
    "two keys": ({"goal": Draw(mocap="goal", mover="truck")}, "goal", "mocap and mover given"),
    "no key": ({"goal": Draw()}, "goal", "none given"),
    "a pose for two numbers": ({"flat": Draw(pose="box")}, "flat", r"reset option: \(2,\) \(expected \(3,\)"),
    "a phase of three numbers": ({"goal": Draw(mover="truck")}, "goal", r"\(3,\) \(expected \(\)"),
}


@pytest.mark.parametrize(("draws", "path", "problem"), WRONG_DRAWS.values(), ids=WRONG_DRAWS.keys())
def test_an_invalid_draw_is_rejected(tmp_path: Path, draws: dict[str, Draw], path: str, problem: str) -> None:
    with pytest.raises(ContractError, match=problem) as caught:
        yard(tmp_path, draws={**YARD_DRAWS, **draws})
    assert caught.value.path == f"backends.mujoco.draws.{path}"


def test_a_mover_of_a_body_without_mocap_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=r"'box' .*expected a mocap body") as caught:
        yard(tmp_path, movers={"truck": replace(MOVER, mocap="box")})
    assert caught.value.path == "backends.mujoco.movers.truck.mocap"


# ------------------------------------------------------------------------------------------------------- rendering


def test_the_world_is_rendered_as_declared_in_the_profile(tmp_path: Path) -> None:
    world = yard(tmp_path, "slow", render=Render(camera="above", width=20, height=10))
    world.reset(0, {})
    picture = world.render()
    world.close()
    assert (picture.shape, picture.dtype) == ((10, 20, 3), np.uint8)
    assert picture.any()


def test_an_unknown_camera_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=r"no such camera in yard.xml: 'abve'") as caught:
        yard(tmp_path, render=Render(camera="abve"))
    assert caught.value.path == "backends.mujoco.render.camera"


def test_no_rendering_library_is_loaded_without_cameras(tmp_path: Path) -> None:
    world = yard(tmp_path, "slow")
    world.reset(0, {})
    assert world.renderer_library == ""


def test_closing_a_world_is_idempotent(tmp_path: Path) -> None:
    world = yard(tmp_path, "slow")
    world.close()
    world.close()


# --------------------------------------------------------------------------------------------------- stability


def test_a_diverging_simulation_loses_the_world(tmp_path: Path) -> None:
    world = World(cart_contract(tmp_path, kp=1e20), CART_PROFILE)
    world.reset(0, {})
    world.command(np.ones(1))
    with pytest.raises(BackendLostError, match="mjWARN_BADQ"):
        world.step()


def test_a_single_physics_step_that_diverges_loses_the_world() -> None:
    world = arm_world()
    world.reset(0, {})
    with pytest.raises(BackendLostError, match="mjWARN_BADCTRL"):
        world.physics.step(np.full((1, 6), np.nan), {})


def test_a_position_that_overflows_in_the_last_physics_step_loses_the_world() -> None:
    """MuJoCo warns of it at the start of the next one."""
    world = arm_world()
    world.reset(0, {})

    class Overflow:
        def rollout(self, models: object, datas: list[Any], *_: object, **__: object) -> None:
            datas[0].qpos[0] = np.inf

    world.physics._rollout = Overflow()
    with pytest.raises(BackendLostError, match="a position is not finite"):
        world.step()


def test_a_lost_world_stays_lost_until_a_reset_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    world = arm_world()
    world.reset(0, {})
    for command in (np.full(6, np.nan), HOME, HOME):
        world.command(command)
        with pytest.raises(BackendLostError, match="mjWARN_BADCTRL") as caught:
            world.step()
        assert caught.value.why == "sim_unstable"
    world.reset(0, {})
    world.step()
    assert list(tmp_path.iterdir()) == []


# -------------------------------------------------------------------------------------------------------- errors


def arm_profile(**changes: Any) -> WorldProfile:
    return replace(ARM_PROFILE, **changes)


def sources(**changes: Source | None) -> WorldProfile:
    merged = {**ARM_PROFILE.sources, **changes}
    return arm_profile(sources={name: source for name, source in merged.items() if source is not None})


WRONG_PROFILES = {
    "no such file": (arm_profile(model="arm7.xml"), "model", "'arm7.xml'.*arm6.xml"),
    "no such keyframe": (arm_profile(keyframe="hom"), "keyframe", "no such keyframe.*'hom'.*expected one of: home"),
    "no such site": (sources(tcp=Source(site="tpc")), "sources.tcp.site", "'tpc'.*expected one of: target, tcp"),
    "no source": (sources(tcp=None), "sources.tcp", "no source of a .*PoseStamped .expected site"),
    "a source for joints": (sources(joints=Source(site="tcp")), "sources.joints", "site .*expected no source"),
    "a source of no sensor": (sources(tpc=Source(site="tcp")), "sources.tpc", "no such sensor: 'tpc'.*'tcp'"),
    "an option that nothing uses": (arm_profile(draws={}), "draws", "reset option 'target'"),
    "no such body": (arm_profile(draws={"target": Draw(mocap="targt")}), "draws.target.mocap", "no such body.*'targt'"),
}


@pytest.mark.parametrize(("profile", "path", "problem"), WRONG_PROFILES.values(), ids=WRONG_PROFILES.keys())
def test_an_invalid_profile_is_rejected(profile: WorldProfile, path: str, problem: str) -> None:
    with pytest.raises(ContractError, match=problem) as caught:
        World(ARM, profile, path="backends.elsewhere")
    assert caught.value.path == f"backends.elsewhere.{path}"
    assert caught.value.source == ARM.source


def test_a_file_that_is_not_a_model_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "broken.xml").write_text("<mujoco><worldbody><geom/></worldbody></mujoco>")
    with pytest.raises(ContractError, match=r"broken.xml") as caught:
        World(ARM, arm_profile(model=str(tmp_path / "broken.xml")))
    assert caught.value.path == "backends.mujoco.model"


def test_a_period_that_is_not_a_whole_number_of_timesteps_is_rejected() -> None:
    with pytest.raises(ContractError, match=r"0\.051 s .*0\.0025 s") as caught:
        World(replace(ARM, control_period_s=0.051), ARM_PROFILE)
    assert caught.value.path == "control_period_s"


def renamed_joint(contract: Contract, new: str) -> Contract:
    """Return the cart's contract with the joint `rail` renamed to `new` in sensors and actuators."""
    return parse_contract(contract.text.replace("rail", new), source=contract.source)


def test_a_sensor_of_an_unknown_joint_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=r"no such joint in cart.xml: 'rial'.*'rail'") as caught:
        World(renamed_joint(cart_contract(tmp_path), "rial"), CART_PROFILE)
    assert caught.value.path == "sensors.joints.fields.position.joints"


def test_a_joint_with_several_actuators_none_of_its_name_is_rejected(tmp_path: Path) -> None:
    contract = cart_contract(tmp_path)
    model = tmp_path / "cart.xml"
    model.write_text(model.read_text().replace('<position name="rail"', '<position name="motor"'))
    problem = r"several actuators drive the joint 'rail' in cart.xml: motor, free .*mujoco.actuators: {rail: motor}"
    with pytest.raises(ContractError, match=problem) as caught:
        World(contract, CART_PROFILE)
    assert caught.value.path == "actuators.cart.joints.rail"


def test_a_joint_without_an_actuator_is_rejected(tmp_path: Path) -> None:
    contract = cart_contract(tmp_path)
    swapped = contract.text.replace("[rail, free]", "[free]").replace("rail", "free")
    with pytest.raises(ContractError, match=r"no actuator drives the joint 'free' in cart.xml"):
        World(parse_contract(swapped, source=contract.source), CART_PROFILE)


def test_a_drawn_option_that_is_not_a_position_is_rejected(tmp_path: Path) -> None:
    contract = cart_contract(tmp_path)
    flat = contract.text.replace("low: [2.0, 2.0, 2.0], high: [3.0, 3.0, 3.0]", "low: [2.0], high: [3.0]")
    with pytest.raises(ContractError, match=r"reset option: \(1,\) \(expected \(2,\) or \(3,\)") as caught:
        World(parse_contract(flat, source=contract.source), CART_PROFILE)
    assert caught.value.path == "backends.mujoco.draws.b"


# ----------------------------------------------------------------------------------------------------- profiles


def profile_of(profile: dict[str, Any]) -> WorldProfile:
    return load_profile(replace(ARM, backends={"mujoco": profile}), "mujoco")


def source_text(**keys: Any) -> dict[str, Any]:
    return {"model": "arm6.xml", "sources": {"tcp": keys}}


def rays_text(**keys: Any) -> dict[str, Any]:
    rays = {"site": "tcp", "angle_min_rad": -1.0, "angle_max_rad": 1.0, "range_min_m": 0.1, "range_max_m": 8.0}
    return source_text(rays={**rays, **keys})


def mover_text(**keys: Any) -> dict[str, Any]:
    mover = {"mocap": "target", "from_m": [0.0, 0.0, 0.0], "to_m": [1.0, 0.0, 0.0], "speed_m_per_s": 1.0}
    return {"model": "arm6.xml", "movers": {"truck": {**mover, **keys}}}


WRONG_KEYS = {
    "an unknown key": ({"model": "arm6.xml", "keyfame": "home"}, "keyfame", "did you mean 'keyframe'"),
    "rays from left to right": (
        rays_text(angle_min_rad=1.0, angle_max_rad=-1.0),
        "sources.tcp.rays",
        r"\(1.0, -1.0\) .*angle_min_rad < angle_max_rad",
    ),
    "a range that is empty": (
        rays_text(range_min_m=8.0),
        "sources.tcp.rays",
        r"\(8.0, 8.0\) .*range_min_m < range_max_m",
    ),
    "a mover that goes nowhere": (mover_text(to_m=[0.0, 0.0, 0.0]), "movers.truck", "other than from_m"),
}


@pytest.mark.parametrize(("profile", "path", "problem"), WRONG_KEYS.values(), ids=WRONG_KEYS.keys())
def test_an_invalid_profile_text_is_rejected(profile: dict[str, Any], path: str, problem: str) -> None:
    with pytest.raises(ContractError, match=problem) as caught:
        profile_of(profile)
    assert caught.value.path.startswith(f"backends.mujoco.{path}")


# ------------------------------------------------------------------------------------------------ free running

ARM_TICK_NS = 10_000_000  # 4 of 20 physics steps


def free_running_arm() -> World:
    world = World(ARM, ARM_PROFILE, free_running=True)
    world.reset(0, {})
    return world


def controls_of(world: World, ticks: int) -> list[float]:
    """Step, and return the control of the first joint after each tick."""
    controls = []
    for _ in range(ticks):
        world.step()
        controls.append(float(world._data.ctrl[0]))
    return controls


@pytest.mark.parametrize(
    ("period_s", "tick_ns"), [(0.0025, 2_500_000), (0.005, 2_500_000), (0.02, 5_000_000), (0.05, ARM_TICK_NS)]
)
def test_a_tick_is_at_least_one_physics_step_and_a_whole_number_of_them(period_s: float, tick_ns: int) -> None:
    world = World(replace(ARM, control_period_s=period_s), ARM_PROFILE, free_running=True)
    world.reset(0, {})
    before_ns = world.now_ns
    world.step()
    assert world.now_ns - before_ns == world.tick_ns == tick_ns


def test_a_sensor_without_a_rate_is_due_at_every_tick() -> None:
    world = free_running_arm()
    for _ in range(7):
        world.step()
        assert {reading.stamp_ns for reading in world.read().values()} == {world.now_ns}


def test_a_sensor_with_a_rate_is_due_by_its_rate_at_ticks() -> None:
    world = World(with_sensor("tcp", rate_hz=20.0), ARM_PROFILE, free_running=True)
    world.reset(0, {})
    origin_ns, stamps = world.now_ns, []
    for _ in range(10):
        world.step()
        stamps.append(world.read()["tcp"].stamp_ns - origin_ns)
    assert stamps == [0] * 4 + [50_000_000] * 5 + [100_000_000]


def test_a_command_is_reached_one_control_period_later_and_then_held() -> None:
    world = free_running_arm()
    world.command(HOME + np.array([0.1, 0, 0, 0, 0, 0]))
    np.testing.assert_allclose(controls_of(world, 7), [0.02, 0.04, 0.06, 0.08, 0.1, 0.1, 0.1], rtol=1e-12)


def test_ticks_are_bit_identical_to_a_control_period() -> None:
    """With one command per control period the physics equal those of lockstep."""
    ticking, stepping = free_running_arm(), arm_world()
    stepping.reset(0, {})
    for k in range(4):
        for world, steps in ((ticking, 5), (stepping, 1)):
            world.command(HOME + 0.05 * np.sin(k + np.arange(6.0)))
            for _ in range(steps):
                world.step()
        for field in ("position", "velocity"):
            np.testing.assert_array_equal(sense(ticking, "joints")[field], sense(stepping, "joints")[field])


# ------------------------------------------------------------------------------------------------------ imports
