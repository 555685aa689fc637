"""Grippers of a graph have an action server on each side, two fingers as one, or trajectories without a topic."""

import pytest
from plain_graphs import TRAJECTORY, arm, described, states, subscribed, urdf

from embodied_env.contract.driver_units import DriverUnits
from embodied_env.errors import ContractError, UsageError
from embodied_env.extensions.contract_init.driver_answers import Answers, parse_units
from embodied_env.extensions.contract_init.graph_topics import Endpoint, Topic

GRIPPER, PARALLEL = "control_msgs/action/GripperCommand", "control_msgs/action/ParallelGripperCommand"
FOLLOW = "control_msgs/action/FollowJointTrajectory"


def action(name, kind=GRIPPER, node="/gripper_controller"):
    ends = (Endpoint(node=node),)
    feedback = Topic(name=f"{name}/_action/feedback", type=f"{kind}_FeedbackMessage", publishers=ends)
    return feedback, Topic(name=f"{name}/_action/status", type="action_msgs/msg/GoalStatusArray", publishers=ends)


@pytest.mark.parametrize("kind", [GRIPPER, PARALLEL])
def test_an_action_server_becomes_a_gripper_whose_ends_and_unit_are_unknown(kind):
    topics = states(joints=("j1", "j2", "finger")), subscribed("/arm_controller/commands"), *action("/hand/cmd", kind)
    parameters = {"/gripper_controller": {"joint": "finger"}, "/driver": {"joints": ["j1", "j2"]}}
    found, gaps = described(*topics, descriptions=urdf(("j1", "j2", "finger")), parameters=parameters)
    gripper = found.actuators["gripper"]
    assert (gripper.topic, gripper.type, gripper.scale) == ("hand/cmd", kind, "binary")
    assert list(gripper.joints) == ["finger"]
    assert (gripper.gripper.open, gripper.gripper.closed) == (1.0, -1.0)
    assert gripper.joints["finger"].acceleration is None
    assert list(found.actuators["arm"].joints) == ["j1", "j2"]
    assert found.unknown.keys() == {"actuators.gripper.gripper", "actuators.gripper.joints.finger.driver"}
    assert any("which end of finger is open" in gap for gap in gaps)
    assert not any("/hand/cmd is not used" in gap for gap in gaps)


def test_two_arms_have_names_that_differ_in_their_side_only():
    joints = [f"{side}_{each}" for side in ("left", "right") for each in ("j1", "j2", "finger")]
    topics = [states(joints=joints)]
    parameters = {}
    for side in ("left", "right"):
        node = f"/{side}_arm_controller"
        topics += [
            subscribed(f"{node}/joint_trajectory", TRAJECTORY, node),
            *action(f"/{side}_gripper/cmd", node=f"/{side}"),
        ]
        parameters[node] = {"joints": [f"{side}_j1", f"{side}_j2"]}
    found, _ = described(*topics, descriptions=urdf(joints), parameters=parameters)
    assert {name: list(each.joints) for name, each in found.actuators.items()} == {
        "left_arm": ["left_j1", "left_j2"],
        "right_arm": ["right_j1", "right_j2"],
        "left_gripper": ["left_finger"],
        "right_gripper": ["right_finger"],
    }
    found, _ = described(states(), subscribed("/left_arm_controller/commands"))
    assert list(found.actuators) == ["arm"]  # without the other side


def test_an_action_whose_joint_a_topic_commands_is_left_out():
    topics = states(joints=("j1", "finger")), subscribed("/arm_controller/commands"), *action("/hand/cmd")
    parameters = {"/gripper_controller": {"joint": "finger"}, "/driver": {"joints": ["j1", "finger"]}}
    found, gaps = described(*topics, parameters=parameters)
    assert list(found.actuators) == ["arm"]
    assert any("joint of /hand/cmd" in gap and "/arm_controller/commands" in gap for gap in gaps)


@pytest.mark.parametrize(
    ("right", "position", "mimic"),
    [("0", 0.02, 1.0), ("-0.04", -0.02, -1.0), ("0", 0.0, None), ("-0.01", 0.02, None)],
    ids=["together", "mirrored", "apart", "other limits"],
)
def test_two_fingers_that_move_alike_are_one_gripper(right, position, mimic):
    limit = '<limit lower="{}" upper="{}" velocity="0.1" effort="1"/>'
    body = "".join(
        f'<joint name="{name}" type="prismatic"><parent link="a"/><child link="{name}"/>{limit.format(low, high)}</joint>'
        for name, low, high in (("left_finger", "0", "0.04"), ("right_finger", right, "0.04" if right == "0" else "0"))
    )
    text = {"/robot_description": f'<robot name="r">{body}</robot>'}
    fingers = states(joints=("left_finger", "right_finger"), positions=(0.02, position))
    topic = subscribed("/gripper_controller/joint_trajectory", TRAJECTORY)
    found, gaps = described(fingers, topic, descriptions=text)
    gripper = found.actuators["gripper"]
    if mimic is None:
        assert gripper.gripper is None
        assert len(gripper.joints) == 2
        return
    assert (gripper.scale, list(gripper.joints), gripper.gripper.open) == ("binary", ["left_finger"], 0.04)
    assert dict(gripper.mimic) == {"right_finger": mimic}
    assert found.sensors["joints"].fields["position"].joints == ("left_finger", "right_finger")
    assert found.unknown.keys() == {"actuators.gripper.gripper", "actuators.gripper.joints.left_finger.driver"}
    assert any("right_finger moves with left_finger" in gap for gap in gaps)


def test_trajectories_without_a_topic_are_refused_with_the_controller_to_load():
    follow = action("/arm_controller/follow_joint_trajectory", FOLLOW, "/arm_controller")
    with pytest.raises(ContractError, match=r"only interface of j1, j2.*JointGroupPositionController") as caught:
        described(states(), *follow, parameters={"/arm_controller": {"joints": ["j1", "j2"]}})
    assert "ros2 control load_controller" in str(caught.value)


def test_trajectories_without_a_topic_are_left_out_beside_other_commands():
    follow = action("/other_controller/follow_joint_trajectory", FOLLOW)
    _, gaps = described(*arm(), *follow)
    assert any("/other_controller/follow_joint_trajectory" in gap and "left out" in gap for gap in gaps)
    _, gaps = described(
        states(), subscribed("/arm_controller/joint_trajectory", TRAJECTORY), *action("/arm_controller/f", FOLLOW)
    )
    assert not any("only interface" in gap for gap in gaps)


@pytest.mark.parametrize("finger", ["finger", "grip", "left_carriage_joint"])
def test_the_unit_of_the_commands_of_a_finger_is_unknown(finger):
    found, gaps = described(states(joints=("j1", finger)), subscribed("/forward_position_controller/commands"))
    path = f"actuators.arm.joints.{finger}.driver"
    assert found.unknown[path] == f"unit of the commands of {finger}"
    assert any("docs/howto/grippers.md" in gap and f"--known {path}" in gap for gap in gaps)


def test_a_given_unit_of_a_finger_is_in_its_draft():
    topics = states(joints=("j1", "finger")), subscribed("/forward_position_controller/commands")
    answers = Answers(commands=parse_units("--unit", ["arm/finger=percent:0.04"]), known=("actuators.arm.joints",))
    found, _ = described(*topics, answers=answers)
    assert found.actuators["arm"].joints["finger"].driver == DriverUnits(unit="percent", scale=0.04)
    assert found.actuators["arm"].joints["j1"].driver is None
    assert not found.unknown


def test_an_arm_in_degrees_is_drafted_in_rad():
    given = parse_units("--unit", ["*=deg"])
    topics = states(positions=(30.0, -90.0)), subscribed("/arm_controller/commands")
    found, gaps = described(*topics, descriptions=urdf(), answers=Answers(commands=given, readings=given))
    assert [each.driver for each in found.actuators["arm"].joints.values()] == [DriverUnits(unit="deg")] * 2
    fields = found.sensors["joints"].fields
    assert fields["position"].driver == fields["velocity"].driver == (DriverUnits(unit="deg"),) * 2
    assert any("j2 is at -1.571, outside" in gap for gap in gaps)
    assert not any("j1 is at" in gap for gap in gaps)


@pytest.mark.parametrize(
    ("text", "driver"),
    [
        ("g=si", {}),
        ("g=percent:0.04", {"unit": "percent", "scale": 0.04}),
        ("g=percent:1", {"unit": "percent", "scale": 1.0}),
        ("g=si:-0.1/200:0.1", {"scale": 0.0005, "sign": -1, "offset": 0.1}),
        ("g=deg", {"unit": "deg"}),
    ],
)
def test_units_are_the_driver_of_a_contract(text, driver):
    assert parse_units("--unit", [text]) == {"g": driver}
    DriverUnits(**driver)


@pytest.mark.parametrize("text", ["g", "=deg", "g=mm", "g=deg:0", "g=si:nan", "g=si:1/0", "g=si:1:2:3", "g=si:x"])
def test_wrong_units_are_refused(text):
    with pytest.raises(UsageError, match=r"invalid --unit .* \(expected NAME=si\|deg\|percent"):
        parse_units("--unit", [text])


@pytest.mark.parametrize("answer", [{"commands": {"hand": {}}}, {"readings": {"j9": {}}}, {"known": ("sensors",)}])
def test_an_answer_to_no_question_is_refused(answer):
    answers = Answers(**answer)
    described(*arm(), answers=answers)
    with pytest.raises(UsageError, match=r"no match for --(unit hand|state-unit j9|known sensors)"):
        answers.check_used(["actuators.arm.joints"])


def test_the_joints_of_a_message_without_names_are_unknown():
    topics = states(), subscribed("/arm_controller/commands")
    found, _ = described(*topics)
    assert "actuators.arm.joints" in found.unknown
    known, _ = described(*topics, answers=Answers(known=("actuators.arm.joints",)))
    assert not known.unknown
    named, _ = described(states(), subscribed("/arm_controller/joint_trajectory", TRAJECTORY))
    assert not named.unknown
    assert "actuators.arm.joints" in named.unconfirmed
