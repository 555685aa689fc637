"""A robot's interface from plain values of a ROS graph: used and reported topics, and selection among robots."""

from __future__ import annotations

import math

import numpy as np
import pytest

from embodied_env.contract import parse_contract
from embodied_env.errors import ContractError
from embodied_env.extensions.contract_init.contract_draft import Draft, dump_draft, finish_draft
from embodied_env.extensions.contract_init.graph_topics import Endpoint, Graph, Topic, topics_of_robot
from embodied_env.extensions.contract_init.robot_graph import add_graph

JOINTS = ("j1", "j2")
ARRAY, TRAJECTORY = "std_msgs/msg/Float64MultiArray", "trajectory_msgs/msg/JointTrajectory"
LIMIT = '<limit lower="-1" upper="1" velocity="{velocity}" effort="1"/>'


def states(name="/joint_states", joints=JOINTS, *, positions=(), **sample):
    position = {j: p for j, p in zip(joints, positions or (0.0,) * len(joints), strict=True) if math.isfinite(p)}
    known = {"names": list(dict.fromkeys(joints)), "position": position, "velocity": dict(position)}
    known |= {"repeated": [], "not_finite": [j for j in joints if j not in position], **sample}
    return published(name, "sensor_msgs/msg/JointState", known)


def published(name, kind, sample=None, *, count=100, nodes=("/driver",)):
    sample = {"left_out": []} if sample is None else sample
    ends = tuple(Endpoint(node=node) for node in nodes)
    return Topic(name=name, type=kind, publishers=ends, count=count, rate_hz=50.0, stamp="sound", sample=sample)


def subscribed(name, kind=ARRAY, node="/driver"):
    return Topic(name=name, type=kind, subscribers=(Endpoint(node=node),))


def urdf(joints=JOINTS, *, velocity=2.0, kind="revolute", extra=""):
    body = "".join(
        f'<joint name="{j}" type="{kind}"><parent link="a"/><child link="{j}"/>{LIMIT.format(velocity=velocity)}</joint>'
        for j in joints
    )
    return {"/robot_description": f'<robot name="r">{body}{extra}</robot>'}


def described(*topics, namespace=None, **graph):
    """Return the contract of these topics, and the gaps."""
    draft, graph = Draft(name="robot"), Graph(topics=list(topics), listened_s=5.0, **graph)
    add_graph(draft, graph, topics_of_robot(draft, graph, namespace), namespace or "/")
    finish_draft(draft)
    return parse_contract(dump_draft(draft)), [f"{what} -> {where}" for what, where in draft.gaps]


def arm(root=""):
    return states(f"{root}/joint_states"), subscribed(f"{root}/arm_controller/commands", node=f"{root}/arm_controller")


def base(root=""):
    odometry = published(f"{root}/odom", "nav_msgs/msg/Odometry")
    return odometry, subscribed(f"{root}/cmd_vel", "geometry_msgs/msg/TwistStamped")


def test_what_no_sensor_saturates_and_no_limit_bounds_has_an_infinite_range():
    turret = '<joint name="turret" type="continuous"><parent link="j2"/><child link="turret"/></joint>'
    arm = states(joints=(*JOINTS, "turret")), subscribed("/arm/commands")
    found, _ = described(*arm, *base(), descriptions=urdf(extra=turret))
    unbounded = {key for key, box in found.observation_space.items() if np.isinf(box.low).any()}
    assert unbounded == {"joints_position", "joints_velocity", "odom_position", "odom_linear", "odom_angular"}
    assert found.observation_space["joints_position"].high.tolist() == [1.2, 1.2, np.inf]


# ------------------------------------------------------------------------------------------------ hostile values


@pytest.mark.parametrize("end", ["\n", "\r", "\x85", "\u2028", "\u202e", "\x1b[2J"])
def test_a_joint_name_with_control_characters_is_refused_by_name(end):
    joints = ("j1", f"j2{end}safety: {{mode: monitor, tracking: null}} #")
    with pytest.raises(ContractError, match=r"^joint j2\\u.*: invalid name"):
        described(states(joints=joints), subscribed("/arm/commands"))


def test_text_of_the_graph_never_becomes_a_key():
    hostile = "/driver\nsafety: {mode: monitor, tracking: null}\noverride_robot_limits: true #"
    found, gaps = described(states(), subscribed("/arm/commands", node=hostile))
    assert found == described(states(), subscribed("/arm/commands"))[0]
    assert not any("\n" in gap for gap in gaps)


def test_scoped_joint_names_are_kept():
    contract, _ = described(states(joints=("arm::j1", "1e5")), subscribed("/arm/commands"))
    assert list(contract.actuators["arm"].joints) == ["arm::j1", "1e5"]


@pytest.mark.parametrize(
    "joints", [("j1", ""), tuple(f"j{n}" for n in range(1001))], ids=["empty name", "1,001 joints"]
)
def test_joints_that_no_robot_has_are_refused(joints):
    with pytest.raises(ContractError, match=r"invalid name|1001 joints .expected at most 1000"):
        described(states(joints=joints), subscribed("/arm/commands"))


@pytest.mark.parametrize(
    "limit",
    ['lower="-1e308" upper="1e308" velocity="1"', 'lower="-1" upper="1" velocity="5e-324"', 'lower="0" upper="5e-324"'],
)
def test_a_limit_that_no_joint_has_is_refused_by_name(limit):
    joint = f'<joint name="j1" type="revolute"><parent link="a"/><child link="b"/><limit {limit}/></joint>'
    with pytest.raises(ContractError, match=r"^joint j1\.(position|velocity): "):
        described(*arm(), descriptions={"/robot_description": f'<robot name="r">{joint}</robot>'})


def test_a_position_that_no_joint_has_is_refused_by_name():
    with pytest.raises(ContractError, match=r"^joint j2\.measured position: 1e\+308"):
        described(states(positions=(0.0, 1e308)), subscribed("/arm/commands"))


def test_the_smallest_accepted_limits_are_valid():
    joint = '<joint name="{}" type="revolute"><parent link="a"/><child link="{}"/><limit {}/></joint>'
    small, large = 'lower="-5e-6" upper="5e-6" velocity="1e-5"', 'lower="-4e11" upper="4e11" velocity="1e12"'
    text = f'<robot name="r">{joint.format("j1", "b", small)}{joint.format("j2", "c", large)}</robot>'
    contract, _ = described(*arm(), descriptions={"/robot_description": text})
    assert contract.actuators["arm"].joints["j1"].velocity == 1e-5


# ------------------------------------------------------------------------------------------------ several robots


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


def test_a_namespace_selects_its_robot():
    contract, gaps = described(*arm("/left"), *arm("/right"), namespace="/left")
    assert contract.actuators["arm"].topic == "arm_controller/commands"
    assert not any("/right" in gap for gap in gaps)


def test_the_root_namespace_excludes_a_second_robot_with_the_same_joints():
    contract, gaps = described(*arm("/left"), *arm("/right"), namespace="/")
    assert [each.topic for each in contract.actuators.values()] == ["left/arm_controller/commands"]
    assert any("second robot, /right" in gap and "--namespace /right" in gap for gap in gaps)


def test_a_graph_without_a_robot_is_an_error():
    with pytest.raises(ContractError, match=r"no robot in / within 5 s \(expected publishers of sensors"):
        described(published("/rosout", "rcl_interfaces/msg/Log"))


# -------------------------------------------------------------------------------------------- joints and limits


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        ({}, "joint limits: no message on /robot_description in 5 s"),
        ({"descriptions": {"/robot_description": "<robot"}}, "/robot_description is no readable URDF: not well-formed"),
        ({"descriptions": urdf(velocity=0)}, "velocity, acceleration of all 2 joints of arm"),
        ({"descriptions": urdf(velocity=1000)}, "/robot_description has the placeholder 1000.0 in all joints"),
        ({"managers": ("/controller_manager",)}, "which controllers of /controller_manager are active"),
    ],
    ids=["no description", "broken", "no velocity", "placeholder", "unread manager"],
)
def test_missing_information_in_the_description_is_reported(graph, expected):
    contract, gaps = described(*arm(), **graph)
    assert list(contract.actuators["arm"].joints) == ["j1", "j2"]
    assert any(expected in gap for gap in gaps), gaps


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (states(positions=(0.0, math.nan)), "j2 without a finite position in /joint_states"),
        (states(repeated=["j1"]), "j1 named twice in /joint_states"),
        (states(positions=(57.0, 0.0)), "joint j1 is at 57, outside its limits [-1.0, 1.0]"),
    ],
    ids=["NaN", "duplicate", "degrees"],
)
def test_unusable_joint_states_are_reported(state, expected):
    _, gaps = described(state, subscribed("/arm_controller/commands"), descriptions=urdf())
    assert any(expected in gap for gap in gaps), gaps


def test_degrees_without_a_description():
    _, gaps = described(states(positions=(57.0, 0.0)), subscribed("/arm_controller/commands"))
    assert any("joint j1 is at 57 rad, more than two turns" in gap for gap in gaps)


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


# ------------------------------------------------------------------------------------------------------ commands


def controllers(**active):
    spec = {"manager": "/controller_manager", "joints": ["j2", "j1"], "interfaces": ["position"]}
    return {f"/{name}": {**spec, "is_active": is_active} for name, is_active in active.items()}


def test_the_active_controller_is_used():
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


def test_a_second_topic_of_the_arm_does_not_include_the_fingers():
    contract, gaps = described(
        states(joints=("j1", "finger")),
        subscribed("/arm_controller/commands"),
        subscribed("/commands/joint_trajectory", TRAJECTORY),
    )
    assert [list(each.joints) for each in contract.actuators.values()] == [["j1"]]
    assert any("/commands/joint_trajectory" in gap and "used instead: /arm_controller" in gap for gap in gaps)


def test_an_inactive_controller_is_reported():
    _, gaps = described(
        states(), subscribed("/renamed", node="/forward"), controllers=controllers(forward=False, other=True)
    )
    assert any("/forward is not active -> ros2 control switch_controllers" in gap for gap in gaps)


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
    contract, _ = described_by_two(state="ok", separate=2)
    assert contract.backends["real"]["shared"] == ("joints",)
    for shown in ({"state": "ok", "separate": 1}, {"state": "restarted: message number 1 after 9", "separate": 1}):
        contract, gaps = described_by_two(**shown)
        assert "shared" not in contract.backends["real"]
        assert any("which joints each publisher of /joint_states reports (/driver, /other)" in gap for gap in gaps)
    with pytest.raises(ContractError, match="conflicting publishers of /joint_states: /driver, /other"):
        described_by_two(state="contention: message number 1 after 9", separate=1)


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


@pytest.mark.parametrize(
    ("slowest", "found"),
    [(-0.2, (-0.2, 1.5)), (0.0, (0.0, 1.5)), (-1.5, 1.5), (-3.0, 1.5), (0.5, 1.5), (math.nan, 1.5)],
)
def test_a_base_that_may_not_reverse_as_fast(slowest, found):
    odometry, command = base()
    parameters = {command.subscribers[0].node: {"linear.x.max_velocity": 1.5, "linear.x.min_velocity": slowest}}
    contract, _ = described(odometry, command, parameters=parameters)
    assert contract.actuators["base"].joints["linear.x"].velocity == found


def test_a_topic_for_each_joint_is_matched_by_whole_names():
    names = ("joint_1", "joint_10", "x_axis", "shoulder_pan_joint")
    topics = ("/joint_10/cmd", "/joint_1/cmd", "/x_axis_controller/command", "/shoulder_pan_controller/command")
    kind = "std_msgs/msg/Float64"
    contract, gaps = described(states(joints=names), *(subscribed(topic, kind) for topic in topics))
    found = {actuator.topic: list(actuator.joints) for actuator in contract.actuators.values()}
    assert found == {
        topic[1:]: [joint] for topic, joint in zip(topics, ("joint_10", *names[::2], names[3]), strict=True)
    }
    assert contract.actuators["x_axis"].joints["x_axis"].unit == "m"
    (assumed,) = (gap for gap in gaps if gap.startswith("joints of /") and "assumed" in gap)
    assert "/shoulder_pan_controller/command: shoulder_pan_joint (names and order of the joint states" in assumed


# ------------------------------------------------------------------------------------------------------- sensors


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
        image("/odd/image_raw", "yuv422"),
    )
    assert contract.sensors["depth"].fields["image"].unit == "m"
    assert contract.sensors["depth"].fields["image"].shape == (6, 8, 1)
    assert contract.sensors["color"].encoding == "bgr8"
    assert [each.type for each in contract.sensors.values()].count(compressed) == 1
    assert any("/top/color/image_raw/compressed" in gap and "/odd/image_raw" in gap for gap in gaps)


def test_unused_topics_are_listed_by_name_and_type():
    _, gaps = described(
        *arm(),
        published("/cloud", "sensor_msgs/msg/PointCloud2"),
        published("/fix", "sensor_msgs/msg/NavSatFix"),
        published("/late/pose", "geometry_msgs/msg/PoseStamped", {}, count=0),
        subscribed("/hand/command", "hand_msgs/msg/Grasp"),
    )
    text = "\n".join(gaps)
    assert "not observed: /cloud (sensor_msgs/msg/PointCloud2), /fix (sensor_msgs/msg/NavSatFix) ->" in text
    assert "not commanded: /hand/command (hand_msgs/msg/Grasp) ->" in text
    assert "/late/pose (geometry_msgs/msg/PoseStamped): no message in 5 s, left out" in text


def test_measured_joints_are_read_not_desired_ones():
    desired = states("/broadcaster/desired_joint_states")
    desired.rate_hz = 1000.0
    contract, _ = described(*arm(), desired)
    assert contract.sensors["joints"].topic == "joint_states"


def test_the_action_of_a_gripper_is_listed_although_its_joint_states_are_named():
    action = published("/gripper/grasp/_action/status", "action_msgs/msg/GoalStatusArray")
    _, gaps = described(*arm(), states("/gripper/joint_states", ("finger",)), action)
    assert any("action /gripper/grasp is not used" in gap for gap in gaps), gaps


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


def test_a_safety_input_of_another_type_is_not_reported_as_missing():
    _, gaps = described(*arm(), published("/safety_mode", "std_msgs/msg/UInt8"))
    assert any("/safety_mode (std_msgs/msg/UInt8) looks like a safety input" in gap for gap in gaps)
    assert not any("no topic looks like one" in gap for gap in gaps)
