"""A robot's interface follows from plain values of a ROS graph."""

import math
from dataclasses import replace

import numpy as np
import pytest
from plain_graphs import ARRAY, JOINTS, TRAJECTORY, arm, base, described, published, states, subscribed, urdf

from embodied_env.core.safety_input_state import INPUT_OK, InputState, InputStatus
from embodied_env.errors import ContractError
from embodied_env.extensions.contract_init.graph_topics import Endpoint
from embodied_env.sim.world import World
from embodied_env.sim.world_profile import load_profile


def test_what_no_sensor_saturates_and_no_limit_bounds_has_an_infinite_range():
    turret = '<joint name="turret" type="continuous"><parent link="j2"/><child link="turret"/></joint>'
    arm = states(joints=(*JOINTS, "turret")), subscribed("/arm/commands")
    found, _ = described(*arm, *base(), descriptions=urdf(extra=turret))
    unbounded = {key for key, box in found.observation_space.items() if np.isinf(box.low).any()}
    assert unbounded == {"joints_position", "joints_velocity", "odom_position", "odom_linear", "odom_angular"}
    assert found.observation_space["joints_position"].high.tolist() == [1.2, 1.2, np.inf]


def test_text_of_the_graph_never_becomes_a_key():
    hostile = "/driver\nsafety: {mode: monitor, tracking: null}\noverride_robot_limits: true #"
    found, gaps = described(states(), subscribed("/arm/commands", node=hostile))
    assert found == described(states(), subscribed("/arm/commands"))[0]
    assert not any("\n" in gap for gap in gaps)


def limited(limit):
    return f'<joint name="j1" type="revolute"><parent link="a"/><child link="b"/><limit {limit}/></joint>'


@pytest.mark.parametrize(
    ("values", "limit", "problem"),
    [
        *(({"joints": ("j1", f"j2{end}safety: {{}} #")}, None, r"joint j2\\u.*: invalid name") for end in "\n\x85\u2028\u202e\x1b"),
        ({"joints": ("j1", "")}, None, "joint : invalid name"),
        ({"joints": tuple(f"j{n}" for n in range(1001))}, None, "actuators.*1001 joints .expected at most 1000"),
        ({"positions": (0.0, 1e308)}, None, r"joint j2\.measured position: 1e\+308"),
        ({}, 'lower="-1e308" upper="1e308" velocity="1"', r"joint j1\.position: "),
        ({}, 'lower="-1" upper="1" velocity="5e-324"', r"joint j1\.velocity: "),
        ({}, 'lower="0" upper="5e-324"', r"joint j1\.position: "),
    ],
)  # fmt: skip
def test_names_and_numbers_that_no_joint_has_are_refused_by_name(values, limit, problem):
    text = {} if limit is None else {"/robot_description": f'<robot name="r">{limited(limit)}</robot>'}
    with pytest.raises(ContractError, match=f"^{problem}"):
        described(states(**values), subscribed("/arm/commands"), descriptions=text)


def test_the_smallest_accepted_limits_are_valid():
    small, large = 'lower="-5e-6" upper="5e-6" velocity="1e-5"', 'lower="-4e11" upper="4e11" velocity="1e12"'
    text = f'<robot name="r">{limited(small)}{limited(large).replace("j1", "j2")}</robot>'
    contract, _ = described(*arm(), descriptions={"/robot_description": text})
    assert contract.actuators["arm"].joints["j1"].velocity == 1e-5


@pytest.mark.parametrize(
    "topics",
    [
        (*arm("/left"), *arm("/right")),
        (*arm(), *arm("/right")),
        (*arm("/fleet/left"), *arm("/fleet/right")),
        (*base("/left"), *base("/right")),
        (*base("/left"), *arm("/right")),
    ],
    ids=["arms", "one at the root", "fleet", "bases", "different robots"],
)
def test_several_robots_are_listed_and_never_mixed(topics):
    with pytest.raises(
        ContractError, match=r"several robots: .*/right.* \(expected one\); choose one with --namespace"
    ):
        described(*topics)


@pytest.mark.parametrize(
    "topics",
    [
        (*arm(), states("/gripper/joint_states", ("finger",)), subscribed("/gripper/commands")),
        (*base(), states(joints=("wheel",)), subscribed("/odom_controller/cmd_vel", "geometry_msgs/msg/Twist")),
        (*arm("/arm"), states(joints=("j1", "j2", "finger"))),
        (*base("/r1/platform"), subscribed("/r1/cmd_vel", "geometry_msgs/msg/Twist")),
    ],
    ids=["gripper in a namespace", "base", "merged joint states", "base behind a multiplexer"],
)
def test_parts_of_one_robot_are_combined(topics):
    contract, _ = described(*topics)
    assert contract.actuators


def test_a_namespace_selects_its_robot_and_the_root_excludes_a_second_one_with_the_same_joints():
    contract, gaps = described(*arm("/left"), *arm("/right"), namespace="/left")
    assert contract.actuators["arm"].topic == "arm_controller/commands"
    assert not any("/right" in gap for gap in gaps)
    contract, gaps = described(*arm("/left"), *arm("/right"), namespace="/")
    assert [each.topic for each in contract.actuators.values()] == ["left/arm_controller/commands"]
    assert any("second robot, /right" in gap and "--namespace /right" in gap for gap in gaps)


def test_a_graph_without_a_robot_is_an_error():
    with pytest.raises(ContractError, match=r"no robot in / within 5 s \(expected publishers of sensors"):
        described(published("/rosout", "rcl_interfaces/msg/Log"))


CLOUD = "sensor_msgs/msg/PointCloud2"
GAPS: dict = {  # topics, further values of the graph, and reports
    "no description": (arm(), {}, ["joint limits: no message on /robot_description in 5 s", "e-stop: no topic looks like one"]),
    "broken": (arm(), {"descriptions": {"/robot_description": "<robot"}}, ["/robot_description is no readable URDF: not well-formed"]),
    "no velocity": (arm(), {"descriptions": urdf(velocity=0)}, ["velocity, acceleration of all 2 joints of arm"]),
    "placeholder": (arm(), {"descriptions": urdf(velocity=1000)}, ["/robot_description has the placeholder 1000.0 in all joints"]),
    "unread manager": (arm(), {"managers": ("/controller_manager",)}, ["which controllers of /controller_manager are active"]),
    "NaN": ((states(positions=(0.0, math.nan)), arm()[1]), {}, ["j2 without a finite position in /joint_states"]),
    "named twice": ((states(repeated=["j1"]), arm()[1]), {}, ["j1 named twice in /joint_states"]),
    "degrees": ((states(positions=(57.0, 0.0)), arm()[1]), {"descriptions": urdf()}, ["joint j1 is at 57, outside its limits [-1.0, 1.0]"]),
    "degrees without a description": ((states(positions=(57.0, 0.0)), arm()[1]), {}, ["joint j1 is at 57 rad, more than two turns"]),
    "no velocities": ((states(velocity={}), arm()[1]), {}, ["velocities of the joints of /joint_states"]),
    "unused": (
        (*arm(), published("/cloud", CLOUD), published("/fix", "sensor_msgs/msg/NavSatFix"), subscribed("/hand", "hand_msgs/msg/Grasp")),
        {},
        ["not observed: /cloud (sensor_msgs/msg/PointCloud2), /fix (sensor_msgs/msg/NavSatFix) ->", "not commanded: /hand (hand_msgs/msg/Grasp) ->"],
    ),
    "late": (
        (*arm(), published("/late/pose", "geometry_msgs/msg/PoseStamped", {}, count=0)),
        {},
        ["/late/pose (geometry_msgs/msg/PoseStamped): no message in 5 s, left out"],
    ),
    "an action whose joint states are named": (
        (*arm(), states("/hand/joint_states", ("finger",)), published("/hand/grasp/_action/status", "action_msgs/msg/GoalStatusArray")),
        {},
        ["action /hand/grasp is not used"],
    ),
    "a safety input of another type": ((*arm(), published("/safety_mode", "std_msgs/msg/UInt8")), {}, ["/safety_mode (std_msgs/msg/UInt8) looks like a safety input"]),
    "battery": ((*arm(), published("/battery", "sensor_msgs/msg/BatteryState")), {}, ["/battery (BatteryState) is not observed"]),
    "least velocity": (base(), {"parameters": {"/driver": {"linear.x.max_velocity": 1.5, "linear.x.min_velocity": 0.1}}}, ["linear.x.min_velocity of /cmd_vel is 0.1"]),
}  # fmt: skip


@pytest.mark.parametrize("name", GAPS)
def test_missing_and_unused_information_is_reported_once(name):
    topics, graph, expected = GAPS[name]
    contract, gaps = described(*topics, **graph)
    for text in expected:
        assert any(text in gap for gap in gaps), gaps
    assert len(contract.actuators) == 1
    assert any("e-stop: no topic" in gap for gap in gaps) is ("safety input" not in name)
    assert not any("/battery (sensor_msgs" in gap for gap in gaps)


@pytest.mark.parametrize(("durability", "is_asked"), [("volatile", True), ("transient_local", False)])
def test_the_age_of_a_sensor_without_a_rate_is_an_assumption_unless_it_is_latched(durability, is_asked):
    wrench = published("/tool/wrench", "geometry_msgs/msg/WrenchStamped", count=1)
    wrench.rate_hz, wrench.publishers = None, (Endpoint(node="/driver", durability=durability),)
    contract, gaps = described(*arm(), wrench)
    assert ("sensors.tool.max_age_s" in contract.unconfirmed) is is_asked
    assert any("rate of /tool/wrench: 1 message(s) in 5 s" in gap for gap in gaps) is is_asked


@pytest.mark.parametrize(
    ("height", "reliability", "is_reported"),
    [(360, "best_effort", True), (360, "reliable", False), (120, "best_effort", False)],
    ids=["large", "reliable", "small"],
)
def test_large_images_that_may_be_lost_are_reported(height, reliability, is_reported):
    camera = published("/camera", "sensor_msgs/msg/Image", {"height": height, "width": 640, "encoding": "bgr8"})
    camera.publishers = (Endpoint(node="/driver", reliability=reliability),)
    _, gaps = described(*arm(), camera)
    assert any("images of /camera that were lost: 50 Hz" in gap for gap in gaps) is is_reported


def test_units_and_ranges_follow_the_description():
    extra = (
        '<joint name="rail" type="prismatic"><parent link="a"/><child link="b"/>'
        '<limit lower="0" upper="0.5" velocity="0.2" effort="1"/></joint>'
        '<joint name="turn" type="continuous"><parent link="a"/><child link="c"/></joint>'
        '<joint name="tip" type="revolute"><parent link="a"/><child link="d"/>'
        '<limit lower="0" upper="1" velocity="1" effort="1"/><mimic joint="j1"/></joint>'
    )
    names = ("turn", "tip", "j2", "rail", "j1")
    contract, gaps = described(
        states(joints=names, positions=(0.0, 0.0, 0.0, 0.2, 0.0)),
        subscribed("/arm_controller/commands"),
        descriptions=urdf(extra=extra),
    )
    joints = contract.actuators["arm"].joints
    assert list(joints) == ["j1", "j2", "rail", "turn"]
    assert [limits.unit for limits in joints.values()] == ["rad", "rad", "m", "rad"]
    assert joints["turn"].position is None
    assert any("joints of /joint_states without a command, not observed: tip" in gap for gap in gaps)


def controllers(**active):
    spec = {"manager": "/controller_manager", "type": "", "joints": ["j2", "j1"], "interfaces": ["position"]}
    return {f"/{name}": {**spec, "is_active": is_active} for name, is_active in active.items()}


def test_the_active_controller_is_used_and_an_inactive_one_is_reported():
    contract, gaps = described(
        states(),
        subscribed("/forward/commands", node="/forward"),
        subscribed("/scaled/joint_trajectory", TRAJECTORY, node="/scaled"),
        controllers=controllers(forward=False, scaled=True),
    )
    assert contract.actuators["arm"].type == TRAJECTORY
    assert list(contract.actuators["arm"].joints) == ["j2", "j1"]
    assert contract.backends["real"]["active"]["arm"] == {"controller": "scaled", "manager": "/controller_manager"}
    assert any("/forward/commands" in gap and "used instead: /scaled/joint_trajectory" in gap for gap in gaps)
    _, gaps = described(states(), subscribed("/renamed", node="/forward"), controllers=controllers(forward=False))
    assert any("/forward is not active -> ros2 control switch_controllers" in gap for gap in gaps)


def test_the_controller_of_a_base_behind_a_multiplexer_must_be_active():
    odometry, command = base()
    mux, drive = (Endpoint(node="/twist_mux"),), (Endpoint(node="/drive"),)
    topics = (
        replace(command, subscribers=mux),
        replace(command, name="/drive/cmd_vel", publishers=mux, subscribers=drive),
    )
    contract, _ = described(odometry, *topics, controllers=controllers(drive=True))
    assert contract.actuators["base"].topic == "cmd_vel"
    assert contract.backends["real"]["active"]["base"] == {"controller": "drive", "manager": "/controller_manager"}


def test_a_second_topic_of_the_arm_does_not_include_the_fingers():
    contract, gaps = described(
        states(joints=("j1", "finger")),
        subscribed("/arm_controller/commands"),
        subscribed("/commands/joint_trajectory", TRAJECTORY),
    )
    assert [list(each.joints) for each in contract.actuators.values()] == [["j1"]]
    assert any("/commands/joint_trajectory" in gap and "used instead: /arm_controller" in gap for gap in gaps)


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("/forward_velocity_controller/commands", "velocity"),
        ("/end_effector_controller/commands", "position_delta"),
        ("/velodyne_mount/commands", "position_delta"),
    ],
)
def test_command_types_are_inferred_from_topic_names(name, command):
    contract, _ = described(states(), subscribed(name))
    assert contract.actuators["arm"].command == command


def test_a_topic_of_efforts_is_never_drafted_as_positions():
    contract, gaps = described(*arm(), subscribed("/effort_controller/commands", node="/effort_controller"))
    assert [each.topic for each in contract.actuators.values()] == ["arm_controller/commands"]
    assert any("/effort_controller/commands takes efforts, left out" in gap for gap in gaps)


def test_arrays_subscribed_by_a_logger_are_not_commands():
    tactile = published("/tactile", ARRAY)
    tactile.subscribers = (Endpoint(node="/logger"),)
    contract, gaps = described(*arm(), tactile)
    assert [each.topic for each in contract.actuators.values()] == ["arm_controller/commands"]
    assert any("not observed: /tactile" in gap for gap in gaps)


def described_by_two(**shown):
    joints, command = arm()
    joints.publishers, joints.sample = (Endpoint(node="/driver"), Endpoint(node="/other")), {**joints.sample, **shown}
    return described(joints, command)


def test_publishers_share_joint_states_only_as_their_messages_prove():
    contract, _ = described_by_two(state=INPUT_OK, separate=2)
    assert contract.backends["real"]["shared"] == ("joints",)
    for shown in ({"state": INPUT_OK, "separate": 1}, {"state": InputState(InputStatus.RESTARTED), "separate": 1}):
        contract, gaps = described_by_two(**shown)
        assert "shared" not in contract.backends["real"]
        assert any("which joints each publisher of /joint_states reports (/driver, /other)" in gap for gap in gaps)
    with pytest.raises(ContractError, match="conflicting publishers of /joint_states: /driver, /other"):
        described_by_two(state=InputState(InputStatus.CONTENTION), separate=1)


@pytest.mark.parametrize("timeout", ["cmd_vel_timeout", "reference_timeout"])
def test_limits_and_timeout_of_the_controller_behind_a_multiplexer(timeout):
    odometry, command = base()
    parameters = {"/diff_drive": {timeout: 0.25, "linear.x.max_velocity": 1.5}}
    behind = subscribed("/platform/cmd_vel", "geometry_msgs/msg/TwistStamped", node="/diff_drive")
    contract, gaps = described(odometry, command, behind, parameters=parameters)
    assert contract.actuators["base"].topic == "cmd_vel"
    assert contract.actuators["base"].joints["linear.x"].velocity == 1.5
    assert contract.backends["real"]["downstream_timeout_s"] == 0.25
    assert any("/platform/cmd_vel" in gap and "used instead: /cmd_vel" in gap for gap in gaps)


@pytest.mark.parametrize("timeouts_s", [(0.2, 2.0), (2.0, 0.2)])
def test_of_two_timeouts_the_smaller_is_written_and_has_to_be_confirmed(timeouts_s):
    odometry, command = base()
    arm_s, base_s = timeouts_s
    parameters = {
        "/velocity_controller": {"cmd_timeout": arm_s, "joints": list(JOINTS)},
        command.subscribers[0].node: {"cmd_vel_timeout": base_s},
    }
    fast = subscribed("/velocity_controller/commands", node="/velocity_controller")
    contract, _ = described(states(), fast, odometry, command, parameters=parameters)
    assert contract.backends["real"]["downstream_timeout_s"] == 0.2
    assert "backends.real.downstream_timeout_s" in contract.unconfirmed


@pytest.mark.parametrize(
    ("parameters", "limits"),
    [
        *(({"max_velocity": 1.5, "min_velocity": low}, {"velocity": (low, 1.5)}) for low in (-0.2, 0.0)),
        *(({"max_velocity": 1.5, "min_velocity": low}, {"velocity": 1.5}) for low in (-1.5, -3.0, 0.5, math.nan)),
        ({"max_acceleration": 2.5, "max_deceleration": -0.5}, {"acceleration": 2.5, "deceleration": 0.5}),
        ({"max_acceleration": 2.5, "min_acceleration": -0.5}, {"acceleration": 2.5, "deceleration": 0.5}),
        ({"max_deceleration": -2.0, "max_deceleration_reverse": 0.5}, {"deceleration": 0.5}),
        ({"max_acceleration": 2.5, "max_acceleration_reverse": -1.0}, {"acceleration": 1.0, "deceleration": None}),
        ({"max_acceleration": 2.5, "max_deceleration": math.nan}, {"acceleration": 2.5, "deceleration": None}),
    ],
)
def test_the_smallest_limits_of_the_controller_of_a_base_are_those_of_its_axis(parameters, limits):
    odometry, command = base()
    named = {f"linear.x.{name}": value for name, value in parameters.items()}
    contract, _ = described(odometry, command, parameters={command.subscribers[0].node: named})
    found = contract.actuators["base"].joints["linear.x"]
    assert {key: getattr(found, key) for key in limits} == limits


def test_a_limit_of_the_description_is_never_rounded_up_and_a_scoped_name_is_kept():
    topics = states(joints=("arm::j1", "1e5")), subscribed("/arm/commands")
    contract, _ = described(*topics, descriptions=urdf(("arm::j1", "1e5"), velocity=2.6179938))
    assert {name: each.velocity for name, each in contract.actuators["arm"].joints.items()} == {
        "arm::j1": 2.617993,
        "1e5": 2.617993,
    }


def test_a_topic_for_each_joint_is_matched_by_whole_names():
    names = ("joint_1", "joint_10", "x_axis", "shoulder_pan_joint")
    topics = ("/joint_10/cmd", "/joint_1/cmd", "/x_axis_controller/command", "/shoulder_pan_controller/command")
    kind = "std_msgs/msg/Float64"
    contract, gaps = described(states(joints=names), *(subscribed(topic, kind) for topic in topics))
    found = {actuator.topic: list(actuator.joints) for actuator in contract.actuators.values()}
    assert found == {topic[1:]: [joint] for topic, joint in zip(topics[:3], ("joint_10", *names[::2]), strict=True)}
    assert contract.actuators["x_axis"].joints["x_axis"].unit == "m"
    assert any(
        gap.startswith("joints of /shoulder_pan_controller/command (std_msgs/msg/Float64), left out") for gap in gaps
    )


def test_joints_in_separate_messages_of_one_topic_are_left_out():
    state = states(joints=("finger", *JOINTS), messages={JOINTS: 80, ("finger",): 20})
    contract, gaps = described(state, subscribed("/arm_controller/commands"), subscribed("/gripper/commands"))
    assert [list(actuator.joints) for actuator in contract.actuators.values()] == [list(JOINTS)]
    assert contract.sensors["joints"].fields["position"].joints == JOINTS
    assert any("/gripper/commands" in gap and "has finger in separate messages -> remap" in gap for gap in gaps), gaps


def test_the_delay_of_a_camera_is_part_of_its_age():
    camera = image("/top/color/image_raw", "rgb8")
    camera.age_s = 0.4
    contract, _ = described(*arm(), camera)
    assert contract.sensors["color"].max_age_s == 0.46


def image(name, encoding, kind="sensor_msgs/msg/Image"):
    return published(name, kind, {"frame": "camera", "width": 8, "height": 6, "encoding": encoding})


def test_cameras():
    compressed = "sensor_msgs/msg/CompressedImage"
    contract, gaps = described(
        *arm(),
        image("/wrist/depth/image_raw", "32FC1"),
        image("/top/color/image_raw", "bgr8"),
        image("/top/color/image_raw/compressed", "rgb8", compressed),
        image("/side/color/image_raw/compressed", "rgb8", compressed),
        image("/odd/image_raw", "nv24"),
    )
    assert contract.sensors["depth"].fields["image"].unit == "m"
    assert contract.sensors["depth"].fields["image"].shape == (6, 8, 1)
    assert contract.sensors["color"].encoding == "bgr8"
    assert [each.type for each in contract.sensors.values()].count(compressed) == 1
    assert any("/top/color/image_raw/compressed" in gap and "/odd/image_raw" in gap for gap in gaps)


def test_measured_joints_are_read_not_desired_ones():
    desired = states("/broadcaster/desired_joint_states")
    desired.rate_hz = 1000.0
    contract, _ = described(*arm(), desired)
    assert contract.sensors["joints"].topic == "joint_states"


def test_the_joint_states_of_an_arm_with_an_unknown_command_are_observed():
    command = subscribed("/wx/commands/joint_group", "maker_msgs/msg/JointGroupCommand")
    contract, gaps = described(states("/wx/joint_states"), command, descriptions=urdf())
    assert contract.sensors["joints"].topic == "wx/joint_states"
    assert any("command topic (forward_position_controller/commands written)" in gap for gap in gaps)


def test_wheels_of_a_base_have_no_velocity_limits_to_find():
    wheels = urdf(("left_wheel", "right_wheel"), velocity=20.0, kind="continuous")
    contract, gaps = described(*base(), states(joints=("left_wheel", "right_wheel")), descriptions=wheels)
    assert list(contract.actuators) == ["base"]
    assert not any("placeholder" in gap for gap in gaps)


def test_a_joint_at_its_end_or_with_a_small_range_changes_nothing_for_the_others():
    finger = '<joint name="finger" type="prismatic"><parent link="j2"/><child link="f"/>{}</joint>'
    limit = '<limit lower="0" upper="0.04" velocity="0.1" effort="1"/>'
    topics = states(joints=(*JOINTS, "finger"), positions=(0.5, 0.5, 0.0)), subscribed("/commands")
    contract, _ = described(*topics, descriptions=urdf(extra=finger.format(limit)))
    assert contract.backends["real"]["start_outside"] == {"finger": "inward"}
    limits = contract.actuators["arm"].limits(contract.safety.margins, "arm")
    assert limits.position_high.tolist() == pytest.approx([0.98, 0.98, 0.038])


def test_the_draft_lists_the_sensors_that_stop_the_robot():
    scan = published("/scan", "sensor_msgs/msg/LaserScan", {"range_max": 8.0, "size": 4})
    contract, _ = described(*base(), scan)
    assert contract.safety.observation.required == ("odom",)
    assert contract.sensors["scan"].on_gap == "stop"
    contract, _ = described(*arm())
    assert contract.safety.observation.required == ("joints",)


@pytest.mark.parametrize(
    ("increment", "last"), [(math.tau / 720, 452 * math.tau / 720), (6.2831 / 459, 6.2831), (6.2831 / 461, 6.2831)]
)
def test_a_scan_whose_increment_ends_before_its_last_angle_has_the_angles_of_its_rays(increment, last):
    sample = {"range_max": 8.0, "size": 453, "largest": 460, "angle_min": 0.0, "angle_max": 6.2831, "range_min": 0.02}
    scan = published("/scan", "sensor_msgs/msg/LaserScan", {**sample, "angle_increment": increment})
    contract, gaps = described(*base(), scan)
    assert contract.observation_space["scan_ranges"].shape == (453,)
    assert contract.sensors["scan"].fields["ranges"].resample.angles.max_rad == pytest.approx(last, abs=1e-6)
    rays = contract.backends["mujoco"]["sources"]["scan"]["rays"]
    assert rays["angle_max_rad"] == pytest.approx(last, abs=1e-6)
    assert any("angles of /scan: the last of 453 rays" in gap for gap in gaps) is (last < 6.0)


def test_a_cloud_has_a_number_of_points():
    cloud = published("/points", "sensor_msgs/msg/PointCloud2", {"frame": "lidar", "cloud": True})
    contract, gaps = described(*arm(), cloud, published("/odd", "sensor_msgs/msg/PointCloud2", {"cloud": False}))
    assert contract.observation_space["sensor_points"].shape == (1024, 3)
    assert any("points of /points that the policy needs" in gap for gap in gaps)
    assert any("not observed: /odd" in gap for gap in gaps)


LEGS = [f"{leg}_{part}_joint" for leg in ("FL", "FR", "RL", "RR") for part in ("hip", "thigh", "calf")]
OMNI = {"/driver": {"manager": "/m", "type": "omni_wheel_drive_controller/X", "joints": [], "interfaces": []}}


@pytest.mark.parametrize(
    ("topics", "graph", "is_sideways"),
    [
        ((states(joints=LEGS),), {}, True),
        ((states(joints=LEGS[:9]),), {}, False),
        ((), {"parameters": {"/driver": {"linear.y.max_velocity": 0.3}}}, True),
        ((), {"controllers": {name: {**spec, "is_active": True} for name, spec in OMNI.items()}}, True),
        ((), {"controllers": {name: {**spec, "is_active": False} for name, spec in OMNI.items()}}, False),
    ],
    ids=["legs", "three legs", "parameter", "controller", "inactive controller"],
)
def test_a_base_that_moves_sideways_has_the_axis_and_a_world(topics, graph, is_sideways):
    contract, gaps = described(*base(), *topics, **graph)
    axes = list(contract.actuators["base"].joints)
    assert axes == (["linear.x", "linear.y", "angular.z"] if is_sideways else ["linear.x", "angular.z"])
    assert any("sideways" in gap for gap in gaps) is not is_sideways
    assert ("active" in contract.backends["real"]) is ("controllers" in graph)
    World(contract, load_profile(contract, "mujoco")).close()


def test_a_base_has_a_world_with_every_sensor_that_can_be_simulated():
    camera = published("/camera", "sensor_msgs/msg/Image", {"height": 4, "width": 6, "encoding": "bgr8"})
    sample = {"range_max": 8.0, "size": 5, "angle_min": -1.0, "angle_max": 1.0, "range_min": 0.1}
    scan, imu = published("/scan", "sensor_msgs/msg/LaserScan", sample), published("/imu", "sensor_msgs/msg/Imu")
    contract, gaps = described(*base(), camera, scan, imu)
    world = World(contract, load_profile(contract, "mujoco"))
    world.reset(0, {})
    assert world.read()["scan"].values["ranges"].shape == (5,)
    world.close()
    assert not any("simulated" in gap for gap in gaps)
    contract, gaps = described(*base(), published("/p", "sensor_msgs/msg/Range", {"range_max": 8.0}))
    assert "mujoco" not in contract.backends
    assert any("a simulated p (sensor_msgs/msg/Range)" in gap for gap in gaps)


def test_parts_with_equal_topics_are_named_by_their_namespaces_and_a_second_arm_by_its_controller():
    twins = [
        part
        for space in ("left", "right")
        for part in (
            states(f"/{space}/joint_states", joints=(f"{space}_j1", f"{space}_j2")),
            subscribed(f"/{space}/arm_controller/commands", node=f"/{space}/arm_controller"),
        )
    ]
    contract, _ = described(*twins, namespace="/")
    assert sorted(contract.actuators) == ["left_arm", "right_arm"]
    assert sorted(contract.sensors) == ["left_joints", "right_joints"]
    topics = states(), subscribed("/arm_controller/commands"), subscribed("/torso_controller/commands")
    parameters = {"/arm_controller": {"joints": ["j1"]}, "/torso_controller": {"joints": ["j2"]}}
    contract, _ = described(*topics, parameters=parameters)
    assert {name: list(spec.joints) for name, spec in contract.actuators.items()} == {
        "arm": ["j1"],
        "torso_arm": ["j2"],
    }


@pytest.mark.parametrize(
    ("stamp", "timeline", "is_simulated"),
    [("simulated", "header", True), ("sound", "header", False), ("zero", "receive", False)],
)
def test_sensors_use_simulated_stamps_but_no_missing_ones(stamp, timeline, is_simulated):
    topics = arm()
    topics[0].stamp = stamp
    contract, _ = described(*topics)
    assert contract.backends["real"].get("use_sim_time", False) is is_simulated
    assert contract.sensors["joints"].timeline == timeline
