"""The Gazebo worlds match the MuJoCo models, and contain and bridge everything that the contracts name.

These tests read the files without Gazebo, and do not show how a server runs them.
"""

import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from functools import cache
from typing import Any

import mujoco
import numpy as np
import pytest
import yaml
from gazebo_files import FOLDER, ROOT, contract_of, each_world, model_of, plugin_with, profile_of, world_of, zeros_of
from sdf_world import named, number_of, numbers, pose_frame, text_of

from embodied_env.contract import Contract
from embodied_env.contract.sensor_schema import SensorSpec
from embodied_env.contract.urdf import parse_urdf

IN_OUR_MODEL = {"left_wheel": "wheel_left", "right_wheel": "wheel_right", "bolt_slide": "bolt"}
"""Links that have another name here: in an SDF no joint may have the name of a link."""

SYSTEMS = {
    "gz-sim-physics-system": "gz::sim::systems::Physics",
    "gz-sim-user-commands-system": "gz::sim::systems::UserCommands",
    "gz-sim-scene-broadcaster-system": "gz::sim::systems::SceneBroadcaster",
    "gz-sim-sensors-system": "gz::sim::systems::Sensors",
    "gz-sim-imu-system": "gz::sim::systems::Imu",
    "gz-sim-forcetorque-system": "gz::sim::systems::ForceTorque",
    "gz-sim-joint-state-publisher-system": "gz::sim::systems::JointStatePublisher",
    "gz-sim-pose-publisher-system": "gz::sim::systems::PosePublisher",
    "gz-sim-odometry-publisher-system": "gz::sim::systems::OdometryPublisher",
    "gz-sim-diff-drive-system": "gz::sim::systems::DiffDrive",
    "gz-sim-joint-trajectory-controller-system": "gz::sim::systems::JointTrajectoryController",
    "gz-sim-triggered-publisher-system": "gz::sim::systems::TriggeredPublisher",
    "gz-sim-velocity-control-system": "gz::sim::systems::VelocityControl",
    "gz_ros2_control-system": "gz_ros2_control::GazeboSimROS2ControlPlugin",
}
"""File of a plugin -> its class: the same in Harmonic, Ionic and Jetty."""

NEEDED = {"gpu_lidar": "sensors", "camera": "sensors", "depth_camera": "sensors", "imu": "imu"}
"""Type of a sensor -> the system of the world without which it is silent."""

PAIRS = {
    ("rosgraph_msgs/msg/Clock", "gz.msgs.Clock"),
    ("sensor_msgs/msg/JointState", "gz.msgs.Model"),
    ("sensor_msgs/msg/LaserScan", "gz.msgs.LaserScan"),
    ("sensor_msgs/msg/Imu", "gz.msgs.IMU"),
    ("sensor_msgs/msg/Image", "gz.msgs.Image"),
    ("geometry_msgs/msg/PoseStamped", "gz.msgs.Pose"),
    ("geometry_msgs/msg/TwistStamped", "gz.msgs.Twist"),
    ("geometry_msgs/msg/WrenchStamped", "gz.msgs.Wrench"),
    ("nav_msgs/msg/Odometry", "gz.msgs.Odometry"),
    ("trajectory_msgs/msg/JointTrajectory", "gz.msgs.JointTrajectory"),
}
"""Pairs of the table of ros_gz_bridge, of those that it has."""

PUBLISHED = {
    "gpu_lidar": "gz.msgs.LaserScan",
    "camera": "gz.msgs.Image",
    "depth_camera": "gz.msgs.Image",
    "imu": "gz.msgs.IMU",
    "force_torque": "gz.msgs.Wrench",
    "JointStatePublisher.topic": "gz.msgs.Model",
    "PosePublisher.topic": "gz.msgs.Pose",
    "OdometryPublisher.odom_topic": "gz.msgs.Odometry",
    "DiffDrive.odom_topic": "gz.msgs.Odometry",
}
SUBSCRIBED = {"DiffDrive.topic": "gz.msgs.Twist", "JointTrajectoryController.topic": "gz.msgs.JointTrajectory"}
RATES = (("update_rate", "topic"), ("update_frequency", "topic"), ("odom_publish_frequency", "odom_topic"))
RENDERED = ("gpu_lidar", "camera", "depth_camera")

Entries = list[dict[str, Any]]


@cache
def bridge_of(name: str) -> Entries:
    return yaml.safe_load((FOLDER / f"{name}.bridge.yaml").read_text())


def topics_of(name: str) -> dict[str, dict[str, Any]]:
    return {entry["ros_topic_name"]: entry for entry in bridge_of(name) if "ros_topic_name" in entry}


def in_world(name: str, positions: Mapping[str, float]) -> dict[str, float]:
    return {joint: value - zeros_of(name).get(joint, 0.0) for joint, value in positions.items()}


def angle_joints(contract: Contract) -> dict[str, Any]:
    """Return the joints commanded by name, with their limits, without the axes of a twist."""
    joints = [item for actuator in contract.actuators.values() for item in actuator.joints.items()]
    return {name: limits for name, limits in joints if "." not in name}


def pairs_of_links(name: str) -> list[tuple[str, str]]:
    """Return the links that are bodies of the MuJoCo model, each with the body's name, moving ones first."""
    bodies = {model_of(name).body(i).name for i in range(1, model_of(name).nbody)}
    links = [link for model in world_of(name).models.values() for link in model.links]
    return [(link, IN_OUR_MODEL.get(link, link)) for link in links if IN_OUR_MODEL.get(link, link) in bodies]


def has_inertia(model: mujoco.MjModel, body: str) -> bool:
    """Return whether the mass of a body of the MuJoCo model matters, which a body placed by a reset does not have."""
    return bool(model.body(body).mass[0] > 0 and model.body(body).mocapid[0] < 0)


# ---------------------------------------------------------------------------------------------------------------- world


@each_world
def test_name_and_physics_are_those_of_the_profile_without_a_real_time_limit(name):
    physics, profile = world_of(name).element.find("physics"), profile_of(name)
    assert world_of(name).name == profile["world"]
    assert number_of(physics, "max_step_size") == profile["step_s"]
    assert number_of(physics, "real_time_factor") == 0
    assert contract_of(name).control_period_ns % round(profile["step_s"] * 1e9) == 0


@each_world
def test_everything_a_reset_restores_is_in_the_world_file(name):
    assert [element.tag for element in world_of(name).element.iter() if element.tag in ("include", "population")] == []


@each_world
def test_systems_are_available_in_all_three_versions_and_serve_control_and_sensors(name):
    world = world_of(name).element
    for plugin in world.iter("plugin"):
        assert SYSTEMS[plugin.get("filename")] == plugin.get("name")
    systems = {plugin.get("filename") for plugin in world.findall("plugin")}
    kinds = {sensor.get("type") for sensor in world.iter("sensor")}
    needed = {"physics", "user-commands"} | {NEEDED.get(kind, "forcetorque") for kind in kinds}
    assert {f"gz-sim-{system}-system" for system in needed} <= systems


@each_world
def test_names_are_unique_within_a_scope(name):
    """Links, joints and models share the scope of a model, and libsdformat rejects duplicate names."""
    for scope in [world_of(name).element, *world_of(name).element.iter("model"), *world_of(name).element.iter("link")]:
        kinds = (("link", "joint", "model"), ("collision",), ("visual",), ("sensor",))
        for kind in kinds:
            names = [child.get("name") for child in scope if child.tag in kind]
            assert sorted(names) == sorted(set(names))


# ----------------------------------------------------------------------------------------- equality with the MuJoCo model


@each_world
def test_every_body_is_a_link(name):
    bodies = {model_of(name).body(i).name for i in range(1, model_of(name).nbody)}
    links = {body for _, body in pairs_of_links(name)}
    assert bodies - links == ({"obstacle"} if name == "cart_goal" else set())  # that is the model truck


@each_world
def test_link_frames_match_the_model_at_any_joint_positions(name):
    model, world = model_of(name), world_of(name)
    data = mujoco.MjData(model)
    joints = [model.joint(i) for i in range(model.njnt) if model.jnt_type[i] != mujoco.mjtJoint.mjJNT_FREE]
    assert joints
    rng = np.random.default_rng(7)
    for _ in range(10):
        mujoco.mj_resetData(model, data)
        positions = {joint.name: float(rng.uniform(-0.5, 0.5)) for joint in joints}
        for joint in joints:
            data.qpos[joint.qposadr[0]] = positions[joint.name]
        mujoco.mj_kinematics(model, data)
        for link, body in pairs_of_links(name):
            owner = world.model_with_link(link)
            root = next(iter(owner.links))  # a relocated model is compared relative to its first link
            at = np.eye(4)
            at[:3, :3] = data.body(IN_OUR_MODEL.get(root, root)).xmat.reshape(3, 3)
            at[:3, 3] = data.body(IN_OUR_MODEL.get(root, root)).xpos
            found = owner.link_frame(link, in_world(name, positions), at)
            np.testing.assert_allclose(found[:3, 3], data.body(body).xpos, atol=1e-8)
            np.testing.assert_allclose(found[:3, :3], data.body(body).xmat.reshape(3, 3), atol=1e-8)


@each_world
def test_masses_and_inertias_match_the_model(name):
    model, world = model_of(name), world_of(name)
    moved = [(link, body) for link, body in pairs_of_links(name) if has_inertia(model, body)]
    assert moved
    for link, body in moved:
        element, ours = world.model_with_link(link).links[link].find("inertial"), model.body(body)
        turn = np.zeros(9)
        mujoco.mju_quat2Mat(turn, ours.iquat)
        tensor = turn.reshape(3, 3) @ np.diag(ours.inertia) @ turn.reshape(3, 3).T
        found = [number_of(element, f"inertia/{key}") for key in ("ixx", "iyy", "izz", "ixy", "ixz", "iyz")]
        expected = [*np.diag(tensor), tensor[0, 1], tensor[0, 2], tensor[1, 2]]
        assert number_of(element, "mass") == pytest.approx(ours.mass[0])
        np.testing.assert_allclose(numbers(element.find("pose"))[:3], ours.ipos, atol=1e-9)
        np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-12)


@each_world
def test_gravity_matches_the_model(name):
    model, world = model_of(name), world_of(name)
    for link, body in pairs_of_links(name):
        if has_inertia(model, body):
            is_free = world.model_with_link(link).links[link].findtext("gravity") == "false"
            assert is_free == (model.body_gravcomp[model.body(body).id] == 1)


@each_world
def test_joint_ranges_match_the_model(name):
    model = model_of(name)
    for i in range(model.njnt):
        joint = model.joint(i)
        if joint.type[0] == mujoco.mjtJoint.mjJNT_FREE:
            continue
        limit = world_of(name).model_with_joint(joint.name).joints[joint.name].find("axis/limit")
        low, high = model.jnt_range[i] if model.jnt_limited[i] else (-1e16, 1e16)
        zero = zeros_of(name).get(joint.name, 0.0)
        found = (number_of(limit, "lower") + zero, number_of(limit, "upper") + zero)
        assert found == pytest.approx((low, high))


@each_world
def test_effort_limits_match_the_model(name):
    model = model_of(name)
    for i in range(model.nu):
        joint = model.joint(model.actuator_trnid[i, 0]).name
        limit = world_of(name).model_with_joint(joint).joints[joint].find("axis/limit")
        assert number_of(limit, "effort") == model.actuator_forcerange[i, 1]


@each_world
def test_no_limit_is_tighter_than_the_contracts(name):
    for joint, limits in angle_joints(contract_of(name)).items():
        limit = world_of(name).model_with_joint(joint).joints[joint].find("axis/limit")
        low, high = (end - zeros_of(name).get(joint, 0.0) for end in limits.position)
        assert number_of(limit, "lower") <= low < high <= number_of(limit, "upper")
        assert number_of(limit, "velocity") >= limits.velocity


def sizes(geometry: ET.Element) -> list[float]:
    """Return the size of a shape as in MuJoCo, in half lengths."""
    (shape,) = geometry
    if shape.tag == "box":
        return [*(numbers(shape.find("size")) / 2)]
    radius = number_of(shape, "radius")
    return [radius] if shape.tag == "sphere" else [radius, number_of(shape, "length") / 2]


@each_world
def test_collision_shapes_and_poses_match_the_model(name):
    model = model_of(name)
    kinds = {mujoco.mjtGeom.mjGEOM_ELLIPSOID: "cylinder"}  # the wheels
    compared = 0
    for link, body in [*pairs_of_links(name), *(("link", "world"),) * (name != "door_open"), ("truck", "obstacle")]:
        owners = [m for key, m in world_of(name).models.items() if link in m.links and key != "side_camera"]
        for geom in [g for g in range(model.ngeom) if model.body(model.geom_bodyid[g]).name == body]:
            kind = mujoco.mjtGeom(model.geom_type[geom])
            if not (model.geom_contype[geom] or model.geom_conaffinity[geom]) or kind == mujoco.mjtGeom.mjGEOM_PLANE:
                continue
            turn = np.zeros(9)
            mujoco.mju_quat2Mat(turn, model.geom_quat[geom])
            matching = [
                collision
                for owner in owners
                for fixed in (link, *owner.fixed_to(link))
                for collision in owner.links[fixed].findall("collision")
                if np.allclose(pose_frame(collision)[:3, 3], model.geom_pos[geom], atol=1e-8)
                and np.allclose(pose_frame(collision)[:3, 2], turn.reshape(3, 3)[:, 2], atol=1e-8)
            ]
            (shape,) = matching[0].find("geometry")
            assert shape.tag == kinds.get(kind, kind.name.removeprefix("mjGEOM_").lower())
            if shape.tag != "cylinder" or kind not in kinds:
                found = sizes(matching[0].find("geometry"))
                np.testing.assert_allclose(found, model.geom_size[geom][: len(found)], rtol=1e-8)
            compared += 1
    assert compared > 10


# --------------------------------------------------------------------------------------------- names in the contract


def matches_sensor(entry: dict[str, Any], sensor: SensorSpec) -> bool:
    return entry["ros_type_name"] == sensor.type and entry["direction"] == "GZ_TO_ROS"


@each_world
def test_every_state_and_sensor_is_bridged_with_its_type_or_has_a_source(name):
    sources, topics = profile_of(name).get("sources", {}), topics_of(name)
    for state in profile_of(name).get("states", {}).values():
        entry = topics[state["topic"]]
        assert (entry["ros_type_name"], entry["direction"]) == (state["type"], "GZ_TO_ROS")
    for sensor_name, sensor in contract_of(name).sensors.items():
        if sensor_name not in sources:
            assert matches_sensor(topics[sensor.topic], sensor), sensor_name


@each_world
def test_every_source_names_existing_entities(name):
    contract, profile = contract_of(name), profile_of(name)
    places = {*profile.get("states", {}), *profile["entities"]}
    for sensor, source in profile["sources"].items():
        assert sensor in contract.sensors
        named = [source[key] for key in ("entity", "relative_to") if key in source]
        assert set(named) <= places
        assert set(source.get("distance", ())) <= places | set(contract.sensors)
        if "force" in source:
            assert topics_of(name)[source["force"]]["ros_type_name"] == "geometry_msgs/msg/WrenchStamped"


@each_world
def test_commands_are_bridged_or_go_to_a_ros_controller(name):
    for actuator_name, actuator in contract_of(name).actuators.items():
        controllers = FOLDER / f"{name}.controllers.yaml"
        if controllers.exists():
            settings = yaml.safe_load(controllers.read_text())
            controller, _, command = actuator.topic.partition("/")
            kind = settings["controller_manager"]["ros__parameters"][controller]["type"]
            assert (kind, command) == ("forward_command_controller/ForwardCommandController", "commands")
            assert settings[controller]["ros__parameters"]["joints"] == list(actuator.joints), actuator_name
            continue
        entry = topics_of(name)[actuator.topic]
        assert (entry["ros_type_name"], entry["direction"]) == (actuator.type, "ROS_TO_GZ")


@each_world
def test_every_bridged_topic_has_a_supported_pair_of_types_and_an_endpoint_in_the_world(name):
    ends = list(world_of(name).topics())
    for ros_topic, entry in topics_of(name).items():
        assert (entry["ros_type_name"], entry["gz_type_name"]) in PAIRS
        if ros_topic == "/clock":
            continue
        table = PUBLISHED if entry["direction"] == "GZ_TO_ROS" else SUBSCRIBED
        (kind,) = [kind for topic, kind in ends if topic == entry["gz_topic_name"] and kind in table]
        assert table[kind] == entry["gz_type_name"]


@each_world
def test_the_clock_and_services_of_the_world_are_bridged(name):
    clock = topics_of(name)["/clock"]
    assert (clock["gz_topic_name"], clock["direction"]) == (f"/world/{name}/clock", "GZ_TO_ROS")
    services = {entry["service_name"]: entry for entry in bridge_of(name) if "service_name" in entry}
    types = {path: tuple(entry[k] for k in ("ros_type_name", "gz_req_type_name")) for path, entry in services.items()}
    assert types == {
        f"/world/{name}/control": ("ros_gz_interfaces/srv/ControlWorld", "gz.msgs.WorldControl"),
        f"/world/{name}/set_pose": ("ros_gz_interfaces/srv/SetEntityPose", "gz.msgs.Pose"),
    }
    assert {entry["gz_rep_type_name"] for entry in services.values()} == {"gz.msgs.Boolean"}


@each_world
def test_every_entity_placed_by_a_reset_is_a_movable_model_that_stays_there(name):
    profile, world = profile_of(name), world_of(name)
    drawn = [next(iter(draw.values())) for draw in profile["draws"].values()]
    placed = {*profile["entities"], *drawn}
    assert placed
    for entity in placed:
        model = world.models[entity]
        assert not model.is_static
        assert not any(joint.findtext("parent") == "world" for joint in model.joints.values())
    for entity in profile["entities"]:
        first = next(iter(world.models[entity].links.values()))
        assert first.findtext("gravity") == "false" or entity == "cart"


@each_world
def test_joint_states_name_the_joints_of_the_contract(name):
    plugins = list(world_of(name).element.iter("plugin"))
    for sensor in contract_of(name).sensors.values():
        if sensor.type != "sensor_msgs/msg/JointState":
            continue
        (plugin,) = [plugin for plugin in plugins if plugin.findtext("topic") == sensor.topic]
        joints = {joint for field in sensor.fields.values() for joint in field.joints}
        assert {joint.text for joint in plugin.findall("joint_name")} == joints


@each_world
def test_sensors_have_the_frames_of_the_contract(name):
    known = {topic for topic, kind in world_of(name).topics() if "." not in kind}
    for sensor in contract_of(name).sensors.values():
        if sensor.topic in known:
            found = world_of(name).sensor_on(sensor.topic)
            assert found.findtext("gz_frame_id") == sensor.frame
            assert found.findtext("camera/optical_frame_id", sensor.frame) == sensor.frame


def test_odometry_has_the_frames_of_the_contract():
    drive = plugin_with("cart_goal", "wheel_radius")
    sensor = contract_of("cart_goal").sensors["odom"]
    assert (drive.findtext("frame_id"), drive.findtext("child_frame_id")) == (sensor.frame, sensor.child_frame)


@each_world
def test_a_rendered_sensor_has_an_image_at_the_end_of_each_control_period(name):
    period_s = contract_of(name).control_period_s
    for sensor in world_of(name).element.iter("sensor"):
        if sensor.get("type") in RENDERED:
            frames = period_s * number_of(sensor, "update_rate")
            assert frames >= 1
            assert frames == pytest.approx(round(frames))


@each_world
def test_everything_that_is_bridged_is_published_once_per_control_period(name):
    rates = {
        element.findtext(topic): number_of(element, rate)
        for element in world_of(name).element.iter()
        for rate, topic in RATES
        if None not in (element.find(topic), element.find(rate))
    }
    forces = {source["force"] for source in profile_of(name).get("sources", {}).values() if "force" in source}
    for ros_topic, entry in topics_of(name).items():
        if entry["direction"] == "GZ_TO_ROS" and ros_topic != "/clock":
            per_period = rates[entry["gz_topic_name"]] * contract_of(name).control_period_s
            assert per_period == pytest.approx(5 if ros_topic in forces else 1)


def test_images_have_the_size_format_and_lens_of_contract_and_model():
    world, contract, model = world_of("door_open"), contract_of("door_open"), model_of("door_open")
    for sensor, camera, encoding in (("camera", "wrist", "R8G8B8"), ("depth", "side", "R_FLOAT32")):
        spec = contract.sensors[sensor]
        found = world.sensor_on(spec.topic)
        height, width, _ = spec.fields["image"].shape
        assert (number_of(found, "camera/image/width"), number_of(found, "camera/image/height")) == (width, height)
        assert text_of(found, "camera/image/format") == encoding
        fov_rad = np.deg2rad(model.cam_fovy[model.camera(camera).id])
        assert number_of(found, "camera/horizontal_fov") == pytest.approx(fov_rad)
        lens, ours = pose_frame(found), model.camera(camera)
        turn = np.zeros(9)
        mujoco.mju_quat2Mat(turn, model.cam_quat[ours.id])
        right, up, back = turn.reshape(3, 3).T
        np.testing.assert_allclose(lens[:3, :3], np.stack([-back, -right, up], axis=1), atol=1e-8)
        np.testing.assert_allclose(lens[:3, 3], model.cam_pos[ours.id], atol=1e-8)


def test_the_laser_scan_matches_the_model():
    rays = contract_of("cart_goal").backends["mujoco"]["sources"]["scan"]["rays"]
    laser = world_of("cart_goal").sensor_on("scan").find("lidar")
    sweep = laser.find("scan/horizontal")
    (samples,) = contract_of("cart_goal").sensors["scan"].fields["ranges"].shape
    assert number_of(sweep, "samples") == samples
    angles = (number_of(sweep, "min_angle"), number_of(sweep, "max_angle"))
    assert angles == (rays["angle_min_rad"], rays["angle_max_rad"])
    limits = (number_of(laser, "range/min"), number_of(laser, "range/max"))
    assert limits == (rays["range_min_m"], rays["range_max_m"])


def test_the_laser_does_not_detect_its_own_case_or_the_goal():
    """It detects visuals, so none are in its plane, 0.25 m above the floor."""
    world = world_of("cart_goal")
    drawn = [*world.models["cart"].links["base"].findall("visual"), *world.models["goal"].element.iter("visual")]
    for visual in drawn:
        (shape,) = visual.find("geometry")
        half = number_of(shape, "length") / 2 if shape.tag == "cylinder" else max(sizes(visual.find("geometry")))
        assert pose_frame(visual)[2, 3] + half < 0.25 or shape.tag == "box"
    boxes = [visual for visual in drawn if visual.find("geometry/box") is not None]
    assert all(pose_frame(box)[2, 3] + numbers(box.find("geometry/box/size"))[2] / 2 < 0.25 for box in boxes)


def test_the_drive_has_the_wheels_of_the_model():
    drive = contract_of("cart_goal").backends["mujoco"]["drives"]["base"]
    plugin = plugin_with("cart_goal", "wheel_radius")
    assert number_of(plugin, "wheel_radius") == drive["radius_m"]
    assert number_of(plugin, "wheel_separation") == drive["separation_m"]
    assert (plugin.findtext("left_joint"), plugin.findtext("right_joint")) == (drive["left"], drive["right"])


def test_the_sites_of_the_door_world_match_the_model():
    model, world = model_of("door_open"), world_of("door_open")
    for point, owner, link, site in (("tcp", "arm", "tool", "tcp"), ("lever_end", "door", "lever", "handle")):
        nested = named(world.models[owner].element, "model")[point]
        assert nested.find("pose").get("relative_to") == link
        np.testing.assert_allclose(numbers(nested.find("pose"))[:3], model.site(site).pos, atol=1e-9)


def test_the_bolt_holds_the_door_until_the_cam_has_retracted_it():
    """The cam's radius is the bolt's travel per radian in the model, and its tab is next to it."""
    model, door = model_of("door_open"), world_of("door_open").models["door"]
    ratio = model.equality("latch").data[1]
    cam = pose_frame(named(door.links["lever"], "collision")["cam"])[:3, 3]
    assert cam[2] == pytest.approx(ratio)
    tab = pose_frame(named(door.links["bolt_slide"], "collision")["tab"])[:3, 3]
    cam_m, tab_m = (door.link_frame(link, {})[:3, 3] + at for link, at in (("lever", cam), ("bolt_slide", tab)))
    radius_m, width_m = (
        number_of(named(door.links["lever"], "collision")["cam"], "geometry/sphere/radius"),
        numbers(named(door.links["bolt_slide"], "collision")["tab"].find("geometry/box/size"))[1],
    )
    assert tab_m[1] - cam_m[1] == pytest.approx(radius_m + width_m / 2)  # they touch when both are at rest


def bits(door: Any, link: str, shape: str) -> int:
    return int(number_of(named(door.links[link], "collision")[shape], "surface/contact/collide_bitmask"))


def test_the_bolt_collides_only_with_the_strike_and_the_cam_only_with_its_tab():
    door = world_of("door_open").models["door"]
    assert door.element.findtext("self_collide") == "true"
    shapes = [(link, shape) for link in door.links for shape in named(door.links[link], "collision")]

    def collide(link: str, shape: str) -> set[str]:
        own = bits(door, link, shape)
        return {other for owner, other in shapes if other != shape and bits(door, owner, other) & own}

    assert collide("bolt_slide", "bolt") == {"strike"}
    assert collide("bolt_slide", "tab") == {"cam"}


# ------------------------------------------------------------------------------------------------------ gz_ros2_control


def test_the_urdf_for_the_controllers_matches_the_arm_of_the_world():
    robot, world = parse_urdf((FOLDER / "arm_reach.urdf").read_bytes()), world_of("arm_reach").models["arm"]
    for joints_rad in np.random.default_rng(3).uniform(-3.0, 3.0, (20, len(robot.joints))):
        positions = dict(zip(robot.joints, joints_rad.tolist(), strict=True))
        for link in (f"link{k}" for k in range(1, 7)):
            expected = world.link_frame(link, positions)[:3, 3]
            np.testing.assert_allclose(robot.position_m(link, joints_rad), expected, atol=1e-8)


def test_the_urdf_has_the_limits_of_the_world():
    robot, world = parse_urdf((FOLDER / "arm_reach.urdf").read_bytes()), world_of("arm_reach").models["arm"]
    for joint in contract_of("arm_reach").actuators["arm"].joints:
        limit, ours = world.joints[joint].find("axis/limit"), robot.specs[joint]
        assert ours.position == pytest.approx((number_of(limit, "lower"), number_of(limit, "upper")))
        assert ours.velocity == pytest.approx(number_of(limit, "velocity"))


def test_the_controllers_start_at_home_and_each_reset_returns_there():
    root = ET.parse(FOLDER / "arm_reach.urdf").getroot()  # noqa: S314 - our own file
    control = {joint.get("name"): joint for joint in root.find("ros2_control").findall("joint")}
    begin = {name: number_of(joint, "state_interface[@name='position']/param") for name, joint in control.items()}
    assert begin == pytest.approx(profile_of("arm_reach")["home"])
    model = model_of("arm_reach")
    home = {joint: model.key("home").qpos[model.joint(joint).qposadr[0]] for joint in begin}
    assert begin == pytest.approx(home)


def test_controllers_run_at_each_physics_step_from_a_file_beside_the_world():
    plugin = plugin_with("arm_reach", "parameters")
    settings = yaml.safe_load((FOLDER / text_of(plugin, "parameters")).read_text())
    rate_hz = settings["controller_manager"]["ros__parameters"]["update_rate"]
    assert rate_hz * profile_of("arm_reach")["step_s"] == pytest.approx(1.0)


@each_world
def test_the_world_is_reset_only_where_the_controllers_support_it(name):
    has_controllers = any(p.get("filename", "").startswith("gz_ros2") for p in world_of(name).element.iter("plugin"))
    assert profile_of(name)["reset"] == ("soft" if has_controllers else "world")


def test_the_files_are_installed():
    script = "import distutils.core as core; print(core.run_setup('setup.py', stop_after='init').data_files)"
    done = subprocess.run(
        [sys.executable, "-c", f"import setuptools; {script}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    for file in FOLDER.iterdir():
        assert f"'config/gazebo/{file.name}'" in done.stdout
