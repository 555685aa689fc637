"""Find the topics of an SDF model, as declared or by default in gz-sim 8 to 10."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass, field

from embodied_env.contract.value_checks import allow
from embodied_env.extensions.contract_init.contract_draft import Document
from embodied_env.extensions.contract_init.graph_topics import IMAGE, ODOMETRY
from embodied_env.extensions.contract_init.sdf_world import SdfModel, SdfSensor, is_true, number, text_of
from embodied_env.messages.message_types import JOINT_SENSOR, TRAJECTORY

TWIST = "geometry_msgs/msg/Twist"

BRIDGED: Mapping[str, str] = {  # type of Gazebo -> the type of ROS 2 that ros_gz_bridge offers
    "gz.msgs.Twist": TWIST,
    "gz.msgs.Double": "std_msgs/msg/Float64",
    "gz.msgs.JointTrajectory": TRAJECTORY,
    "gz.msgs.Model": JOINT_SENSOR,
    "gz.msgs.Odometry": ODOMETRY,
    "gz.msgs.Pose": "geometry_msgs/msg/PoseStamped",
    "gz.msgs.Image": IMAGE,
    "gz.msgs.LaserScan": "sensor_msgs/msg/LaserScan",
    "gz.msgs.IMU": "sensor_msgs/msg/Imu",
    "gz.msgs.Wrench": "geometry_msgs/msg/WrenchStamped",
    "gz.msgs.NavSat": "sensor_msgs/msg/NavSatFix",
}
SENSORS: Mapping[str, tuple[str, str, str]] = {  # type -> its system, the end of its default topic, its message
    "camera": ("sensors", "/image", "gz.msgs.Image"),
    "depth_camera": ("sensors", "/depth_image", "gz.msgs.Image"),
    "rgbd_camera": ("sensors", "", "gz.msgs.Image"),
    "gpu_lidar": ("sensors", "/scan", "gz.msgs.LaserScan"),
    "imu": ("imu", "/imu", "gz.msgs.IMU"),
    "force_torque": ("forcetorque", "/forcetorque", "gz.msgs.Wrench"),
    "navsat": ("navsat", "/navsat", "gz.msgs.NavSat"),
    "gps": ("navsat", "/navsat", "gz.msgs.NavSat"),
}
SYSTEMS: Mapping[str, str] = {  # classes of the systems of a world by key
    "physics": "Physics",
    "usercommands": "UserCommands",
    "sensors": "Sensors",
    "imu": "Imu",
    "forcetorque": "ForceTorque",
    "navsat": "NavSat",
    "scenebroadcaster": "SceneBroadcaster",
    "contact": "Contact",
}
_FILES = {"UserCommands": "user-commands", "ForceTorque": "forcetorque", "NavSat": "navsat"}
_DRIVES = {"diffdrive": "DiffDrive", "mecanumdrive": "MecanumDrive", "ackermannsteering": "AckermannSteering"}
_CONTROL = re.compile(r"(gz|ign)_ros2_control")
_NAMESPACE = re.compile(r"(gz::sim|ignition::gazebo)::systems::(\w+)")
_SYSTEM_FILE = re.compile(r"(?:lib)?(?:gz-sim|ignition-gazebo)\d*-([a-z-]+)-system(?:\.so)?")
_ENCODINGS = {
    "R8G8B8": "rgb8",
    "RGB_INT8": "rgb8",
    "B8G8R8": "bgr8",
    "BGR_INT8": "bgr8",
    "L8": "mono8",
    "L_INT8": "mono8",
}
LEAST_HZ, MOST_HZ = 1e-3, 1e6  # rates of topics
_ODOMETRY_HZ = 50.0
_MOST_PARTS = 1000  # of one model
_WIDTH, _HEIGHT, _RAYS, _FAR_M = 320, 240, 640, 10.0  # defaults of sdformat


@dataclass(kw_only=True)
class SdfInterface:
    """A topic of a model, without `rate_hz` at every physics step, and what is `assumed` of it."""

    name: str  # name of the sensor or actuator in a contract
    origin: str  # plug-in or sensor, as in comments
    topic: str
    gz_type: str
    is_command: bool = False
    rate_hz: float | None = None
    assumed: list[str] = field(default_factory=list)
    joints: tuple[str, ...] = ()
    limits: dict[str, Document] = field(default_factory=dict)  # of the axes of a base
    moves_sideways: bool = False
    sample: Document = field(default_factory=dict)  # what a message would have, as for `sensor_keys`


@dataclass(kw_only=True)
class SdfInterfaces:
    """The topics of a model and its nested models, with gz_ros2_control in `control`."""

    found: list[SdfInterface] = field(default_factory=list)
    control: list[ET.Element] = field(default_factory=list)
    gaps: list[tuple[str, str]] = field(default_factory=list)


def system_of(plugin: ET.Element) -> str:
    """Return the key of a system of gz-sim, by class or library, or "" for a plug-in of others."""
    if found := _NAMESPACE.fullmatch(plugin.get("name", "")):
        return found[2].lower()
    library = _SYSTEM_FILE.fullmatch(plugin.get("filename", ""))
    return library[1].replace("-", "") if library and not plugin.get("name") else ""


def system_line(name: str) -> str:
    """Return the line that adds a system of gz-sim, given its class, to a world or model."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()
    return f'<plugin filename="gz-sim-{_FILES.get(name, words)}-system" name="gz::sim::systems::{name}"/>'


def find_interfaces(model: SdfModel) -> SdfInterfaces:
    """Return the topics of a model and of those nested in it."""
    interfaces = SdfInterfaces()
    parts = sum(len(each.plugins) + len(each.sensors) + len(each.joints) for each in model.tree())
    path, found = f"sdf.model[{model.name}]", f"{parts} joints, sensors and plug-ins"
    allow(parts <= _MOST_PARTS, path, found, f"at most {_MOST_PARTS}")
    for each in model.tree():
        for plugin in each.plugins:
            _add_plugin(interfaces, each, plugin)
        for sensor in each.sensors:
            _add_sensor(interfaces, sensor)
    return interfaces


def valid_topic(text: str) -> str:
    """Return a topic as Gazebo advertises it, with a slash at its beginning."""
    return "/" + re.sub(r"@|~|:=|//", "", text.replace(" ", "_")).strip("/")


def _add_plugin(interfaces: SdfInterfaces, model: SdfModel, plugin: ET.Element) -> None:
    system, where = system_of(plugin), f"of {model.name}"
    named = plugin.get("name") or plugin.get("filename") or ""
    if _CONTROL.match(named):
        interfaces.control.append(plugin)
    elif system in _DRIVES:
        _add_drive(interfaces, model, plugin, system)
    elif system == "jointpositioncontroller":
        _add_position(interfaces, model, plugin)
    elif system == "jointtrajectorycontroller":
        default = f"/model/{model.name}/joint_trajectory"
        made = _make("arm", f"JointTrajectoryController {where}", "gz.msgs.JointTrajectory", plugin, "topic", default)
        made.is_command, made.joints = True, _joints(model, plugin)
        interfaces.found.append(made)
    elif system == "jointstatepublisher":
        default = f"/{model.scope}/joint_state"
        made = _make("joints", f"JointStatePublisher {where}", "gz.msgs.Model", plugin, "topic", default)
        _set_rate(made, plugin, "update_rate", None)
        made.joints = _joints(model, plugin)
        interfaces.found.append(made)
    elif system == "odometrypublisher":
        default = f"/model/{model.name}/odometry"
        made = _make("odom", f"OdometryPublisher {where}", "gz.msgs.Odometry", plugin, "odom_topic", default)
        _set_rate(made, plugin, "odom_publish_frequency", _ODOMETRY_HZ)
        interfaces.found.append(made)
    elif system == "posepublisher":
        _add_pose(interfaces, model, plugin)
    elif system not in SYSTEMS:
        interfaces.gaps.append((f"the plug-in {named!r} {where}: unknown", "add its topics by hand, if it has any"))


def _make(name: str, origin: str, gz_type: str, element: ET.Element, key: str, default: str) -> SdfInterface:
    given = text_of(element, key)
    made = SdfInterface(name=name, origin=origin, topic=valid_topic(given or default), gz_type=gz_type)
    made.assumed += [] if given else ["topic"]
    return made


def _set_rate(made: SdfInterface, element: ET.Element, key: str, default: float | None) -> None:
    """Set the rate, of which 0 and less mean every physics step."""
    given = number(element, key, None, f"sdf[{made.origin}]")
    made.assumed += ["rate"] if given is None else []
    rate_hz = default if given is None else given
    if rate_hz is not None and 0.0 < rate_hz < math.inf:
        allow(LEAST_HZ <= rate_hz <= MOST_HZ, f"sdf[{made.origin}].{key}", rate_hz, f"{LEAST_HZ:g} to {MOST_HZ:g} Hz")
    made.rate_hz = rate_hz if rate_hz is not None and 0.0 < rate_hz < math.inf else None


def _joints(model: SdfModel, plugin: ET.Element) -> tuple[str, ...]:
    named = [(each.text or "").strip() for each in plugin.findall("joint_name")]
    return tuple(named or (name for name, joint in model.joints.items() if joint.moves))


def _add_drive(interfaces: SdfInterfaces, model: SdfModel, plugin: ET.Element, system: str) -> None:
    origin = f"{_DRIVES[system]} of {model.name}"
    if is_true(plugin, "steering_only", default=False) or is_true(plugin, "use_actuator_msg", default=False):
        what = f"{origin} takes steering angles or Actuators, left out"
        interfaces.gaps.append((what, "remove <steering_only> and <use_actuator_msg>: then it takes a Twist"))
        return
    base = f"/model/{model.name}"
    end = text_of(plugin, "sub_topic") if system == "ackermannsteering" else None
    command = _make("base", origin, "gz.msgs.Twist", plugin, "topic", f"{base}/{end or 'cmd_vel'}")
    command.is_command, command.moves_sideways = True, system == "mecanumdrive"
    axes = {"linear.x": "linear", "linear.y": "linear", "angular.z": "angular"}
    command.limits = {axis: _axis_limits(plugin, kind) for axis, kind in axes.items()}
    odometry = _make("odom", f"odometry of {origin}", "gz.msgs.Odometry", plugin, "odom_topic", f"{base}/odometry")
    _set_rate(odometry, plugin, "odom_publish_frequency", _ODOMETRY_HZ)
    interfaces.found += [command, odometry]


def _axis_limits(plugin: ET.Element, kind: str) -> Document:
    """Return the limits of the speed limiter, if any, for the linear or the angular axis."""
    found: Document = {}
    for quantity in ("velocity", "acceleration"):
        ends: dict[str, float] = {}
        for end in ("min", "max"):
            for key in (f"{end}_{quantity}", f"{end}_{kind}_{quantity}"):
                value = number(plugin, key, None, "sdf[drive]")
                if value is not None and math.isfinite(value):
                    ends[end] = value
        high, low = ends.get("max"), ends.get("min")
        if high is None or not 1e-3 <= high <= 1e3:
            continue
        if quantity == "acceleration":
            found[quantity] = high if low is None or not 1e-3 <= -low < high else -low
        elif low is not None and -high < low <= 0.0:
            found[quantity] = [low, high]
        else:
            found[quantity] = high
    return found


def _add_position(interfaces: SdfInterfaces, model: SdfModel, plugin: ET.Element) -> None:
    joints = [(each.text or "").strip() for each in plugin.findall("joint_name")]
    origin = f"JointPositionController of {', '.join(joints) or model.name}"
    if len(joints) != 1 or is_true(plugin, "use_actuator_msg", default=False):
        what = f"{origin} takes Actuators, or not one joint, left out"
        interfaces.gaps.append((what, "one plug-in with one <joint_name> per joint, without <use_actuator_msg>"))
        return
    index = text_of(plugin, "joint_index") or "0"
    sub_topic = text_of(plugin, "sub_topic") or f"joint/{joints[0]}/{index}/cmd_pos"
    made = _make(joints[0], origin, "gz.msgs.Double", plugin, "topic", f"/model/{model.name}/{sub_topic}")
    made.is_command, made.joints = True, tuple(joints)
    interfaces.found.append(made)


def _add_pose(interfaces: SdfInterfaces, model: SdfModel, plugin: ET.Element) -> None:
    """Add the pose of the model, if the plug-in publishes nothing else on its topic."""
    origin, topic = f"PosePublisher of {model.name}", text_of(plugin, "topic")
    nested = is_true(plugin, "publish_nested_model_pose", default=False)
    others = [f"publish_{each}_pose" for each in ("link", "visual", "collision", "sensor")]
    mixed = [key for key in others if is_true(plugin, key, default=key == others[0])]
    is_alone = not mixed and not (nested and model.nested)
    is_vector = is_true(plugin, "use_pose_vector_msg", default=False)
    if not (is_alone and topic and not is_vector and is_true(plugin, "publish_model_pose", default=nested)):
        where = (
            "<topic>, <publish_model_pose>true, <publish_link_pose>false and no <use_pose_vector_msg>; the default "
            "topic differs between gz-sim 8 and 9"
        )
        interfaces.gaps.append((f"{origin} does not publish the model's pose alone, on a topic of its own", where))
        return
    made = _make("pose", origin, "gz.msgs.Pose", plugin, "topic", "")
    _set_rate(made, plugin, "update_frequency", None)
    interfaces.found.append(made)


def _add_sensor(interfaces: SdfInterfaces, sensor: SdfSensor) -> None:
    element, origin = sensor.element, f"{sensor.kind} {sensor.name}"
    if sensor.kind == "contact":
        where = (
            "it is silent without contact, and after a world reset in gz-sim 8, 9, and 10 before 10.4; add a link on a "
            "fixed joint with <sensor type='force_torque'>, and sources: {NAME: {force: TOPIC, above_n: 0.5}}"
        )
        interfaces.gaps.append((f"{origin} is not observed", where))
        return
    if sensor.kind not in SENSORS:
        where = "use gpu_lidar" if sensor.kind in ("ray", "lidar") else "add its topic by hand"
        interfaces.gaps.append((f"{origin}: unknown", where))
        return
    _, suffix, gz_type = SENSORS[sensor.kind]
    given = text_of(element, "topic")
    parts = ("/image", "/depth_image") if sensor.kind == "rgbd_camera" else ("",)
    for part in parts:
        name = f"{sensor.name}{part}".replace("/", "_")
        made = _make(name, f"{origin}{part}", gz_type, element, "topic", f"/{sensor.scope}{suffix}")
        made.topic = valid_topic(f"{given or made.topic}{part}")
        _set_rate(made, element, "update_rate", None)
        made.sample = _sample(sensor, is_depth="depth" in (part or sensor.kind))
        interfaces.found.append(made)


def _sample(sensor: SdfSensor, *, is_depth: bool) -> Document:
    """Return the message properties of a camera or lidar by its description, else {}."""
    element, where = sensor.element, f"sdf.sensor[{sensor.name}]"

    def count(path: str, default: int) -> int:
        value = number(element, path, default, where)
        return default if value is None else int(min(max(value, 1), 2**15))

    if sensor.kind == "gpu_lidar":
        lidar = next((each for tag in ("lidar", "ray") if (each := element.find(tag)) is not None), None)
        samples = number(lidar, "scan/horizontal/samples", _RAYS, where) or _RAYS
        resolution = number(lidar, "scan/horizontal/resolution", 1.0, where) or 1.0
        angles = [number(lidar, f"scan/horizontal/{end}_angle", 0.0, where) or 0.0 for end in ("min", "max")]
        near, far = (number(lidar, f"range/{end}", default, where) for end, default in (("min", 0.0), ("max", _FAR_M)))
        size = int(min(max(samples * resolution, 1.0), 1e5))
        ends = {"angle_min": angles[0], "angle_max": angles[1], "range_min": near, "range_max": far}
        return {**ends, "size": size, "largest": size}
    if sensor.kind.endswith("camera"):
        encoding = "32FC1" if is_depth else _ENCODINGS.get(text_of(element, "camera/image/format") or "R8G8B8", "")
        return {
            "encoding": encoding,
            "width": count("camera/image/width", _WIDTH),
            "height": count("camera/image/height", _HEIGHT),
        }
    return {}
