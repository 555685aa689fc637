"""The systems of Gazebo do with the world files what the contracts and the MuJoCo models need, also after a reset.

The systems are stand-ins that follow their sources (`gazebo_systems`).
"""

import xml.etree.ElementTree as ET

import mujoco
import numpy as np
import pytest
import yaml
from gazebo_files import FOLDER, contract_of, each_world, model_of, plugin_with, profile_of, world_of, zeros_of
from gazebo_systems import (
    DEEPEST_MATCH,
    SILENT_AFTER_RESET,
    FieldTooDeepError,
    PositionServo,
    Truck,
    measured_force,
    triggers,
)
from sdf_world import named, number_of, numbers, pose_frame


@each_world
def test_no_system_is_silent_after_a_reset_of_the_world(name):
    assert not {plugin.get("name") for plugin in world_of(name).element.iter("plugin")} & set(SILENT_AFTER_RESET)
    assert not [sensor for sensor in world_of(name).element.iter("sensor") if sensor.get("type") == "contact"]


@each_world
def test_every_trigger_reads_a_field_that_it_can_reach(name):
    for match in world_of(name).element.iter("match"):
        assert len(match.get("field").split(".")) <= DEEPEST_MATCH


def test_the_truck_moves_like_that_of_the_model():
    mover = contract_of("cart_goal").backends["mujoco"]["movers"]["truck"]
    step_s, (x, south, _), north = profile_of("cart_goal")["step_s"], mover["from_m"], mover["to_m"][1]
    truck = Truck(world_of("cart_goal").models["truck"].element, step_s=step_s)
    assert truck.position.tolist() == pytest.approx(mover["from_m"])
    lap_s = 2 * (north - south) / mover["speed_m_per_s"]
    path = []
    for _ in range(round(1.5 * lap_s / step_s)):
        truck.step()
        path.append(truck.position)
    assert np.ptp(np.array(path)[:, 0]) == 0.0
    assert path[0][0] == x
    y = np.array(path)[:, 1]
    half = round(lap_s / 2 / step_s)
    assert [y.min(), y.max(), *y[half - 1 :: half]] == pytest.approx([south, north, north, south, north], abs=0.05)
    assert np.abs(np.diff(y)) == pytest.approx(mover["speed_m_per_s"] * step_s)


def test_a_trigger_on_the_position_in_an_odometry_raises():
    """protobuf raises in the server, too, for each message, so the truck did not turn."""
    plugin = ET.fromstring('<plugin><input><match field="pose.position.y">2.2</match></input></plugin>')  # noqa: S314
    with pytest.raises(FieldTooDeepError, match=r"pose\.position\.y"):
        triggers(plugin, {"pose": {"position": {"y": 2.2}}})


def test_only_the_shell_of_the_cart_touches_obstacles_and_its_force_is_a_collision():
    """The guards contain the wheels, and nothing of the shell touches the floor, whose force would be a collision."""
    cart = world_of("cart_goal").models["cart"]
    joint = cart.joint_of("shell")
    (sensor,) = joint.findall("sensor")
    source = profile_of("cart_goal")["sources"]["collision"]
    assert (joint.get("type"), sensor.get("type"), sensor.findtext("topic")) == (
        "fixed",
        "force_torque",
        source["force"],
    )
    assert number_of(cart.links["shell"], "inertial/mass") * 9.81 < 0.1 * source["above_n"]
    shell, base = (named(cart.links[link], "collision") for link in ("shell", "base"))
    assert set(base) == {"caster_front", "caster_rear"}
    for side in ("left", "right"):
        guard, wheel = shell.pop(f"guard_{side}"), cart.link_frame(f"{side}_wheel", {}, np.eye(4))
        (shape,) = named(cart.links[f"{side}_wheel"], "collision")[f"wheel_{side}"].find("geometry")
        radius, width = number_of(shape, "radius"), number_of(shape, "length")
        half, at = numbers(guard.find("geometry/box/size")) / 2, pose_frame(guard)[:3, 3]
        assert np.all(at[:2] + half[:2] >= wheel[:2, 3] + [radius, width / 2])
        assert np.all(at[:2] - half[:2] <= wheel[:2, 3] - [radius, width / 2])
        assert at[2] - half[2] > 0.01
    assert set(shell) == {"chassis", "bumper", "deck"}
    assert all(pose_frame(box)[2, 3] - numbers(box.find("geometry/box/size"))[2] / 2 > 0.01 for box in shell.values())


def test_the_arm_of_the_door_world_starts_at_home_and_the_door_in_its_place():
    """A reset of the world puts every joint at 0, so it needs no time for homing."""
    controller, model = plugin_with("door_open", "position_p_gain"), model_of("door_open")
    joints = [joint.text for joint in controller.findall("joint_name")]
    assert joints == list(contract_of("door_open").actuators["arm"].joints)
    assert {float(place.text) for place in controller.findall("initial_position")} == {0.0}
    home = {joint: model.key("home").qpos[model.joint(joint).qposadr[0]] for joint in joints}
    assert {joint: zeros_of("door_open").get(joint, 0.0) for joint in joints} == pytest.approx(home, abs=1e-9)
    place = pose_frame(world_of("door_open").models["door"].element)[:3, 3]
    assert tuple(place) == profile_of("door_open")["entities"]["door"]["position"]
    assert profile_of("door_open")["settle_steps"] <= 200


def test_the_force_at_the_wrist_has_the_frame_and_sign_of_the_model():
    """At home and at rest it is the weight of the tool, as the parent carries it."""
    model, world = model_of("door_open"), world_of("door_open")
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, model.key("home").id)
    mujoco.mj_forward(model, data)
    data.qacc[:] = 0.0
    mujoco.mj_inverse(model, data)
    mujoco.mj_rnePostConstraint(model, data)
    mujoco.mj_sensorAcc(model, data)
    sensor = model.sensor("wrist_force")
    expected = data.sensordata[sensor.adr[0] : sensor.adr[0] + 3]
    arm = world.models["arm"]
    joint, tool = arm.joint_of("tool"), arm.link_frame("tool", {})
    weight_n = tool[:3, :3].T @ [0.0, 0.0, 9.81] * number_of(arm.links["tool"], "inertial/mass")
    found = measured_force(joint, world.sensor_on("wrist/wrench"), weight_n)
    np.testing.assert_allclose(found, expected, atol=0.05)


def test_the_controllers_leave_as_much_velocity_at_the_end_of_a_period_as_the_model():
    """At constant speed with a command per control period, the joints of both still move at the end of each period."""
    model, period_s = model_of("arm_reach"), contract_of("arm_reach").control_period_s
    settings = yaml.safe_load((FOLDER / "arm_reach.controllers.yaml").read_text())
    rate_hz = settings["controller_manager"]["ros__parameters"]["update_rate"]
    plugin, step_s = plugin_with("arm_reach", "parameters"), profile_of("arm_reach")["step_s"]
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, model.key("home").id)
    home, speed_rad_per_s, periods = data.qpos[:6].copy(), 0.5, 12
    data.ctrl[:] = home
    servo = PositionServo(plugin, update_rate_hz=rate_hz, step_s=step_s)
    for k in range(1, periods + 1):
        target = speed_rad_per_s * period_s * k
        data.ctrl[:] = home + target
        mujoco.mj_step(model, data, round(period_s / model.opt.timestep))
        servo.move(target, period_s)
    assert servo.velocity == pytest.approx(data.qvel[:6], abs=0.15 * speed_rad_per_s)
    assert servo.velocity > 0.25 * speed_rad_per_s
