"""Readings in another frame: which sensors can be, when a message waits, and what is never handed out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs rclpy")

from geometry_msgs.msg import PoseStamped
from sensor_msgs.msg import JointState

import embodied_env
from embodied_env.core.clock import NS_PER_S
from embodied_env.errors import ContractError
from embodied_env.ros.message_fields import MalformedMessageError
from embodied_env.ros.receiver import ReceivedMessage
from embodied_env.ros.robot.backend_profile import check_frame, load_real_profile
from embodied_env.ros.robot.sensor_set import MessageFilter
from embodied_env.ros.sensor_readers import SensorReader
from embodied_env.ros.transforms import NoTransformError, Transform, TransformedReader

ARM = embodied_env.load_contract("arm_reach")
TCP = replace(ARM.sensors["tcp"], frame=None)
HALF = np.sqrt(0.5)


class SpyFrames:
    """Knows the frames up to a time: a metre up, and a quarter turn about z."""

    def __init__(self, *, known_until_ns=10**18, translation=(0.0, 0.0, 1.0)):
        self.known_until_ns = known_until_ns
        self.translation = translation
        self.asked = []

    def lookup(self, target, source, stamp_ns):
        self.asked.append((target, source, stamp_ns))
        if stamp_ns > self.known_until_ns:
            raise NoTransformError(f"nothing is known of {source} at {stamp_ns}")
        return Transform(translation=np.array(self.translation), rotation=np.array([0.0, 0.0, HALF, HALF]))


def pose(stamp_ns=NS_PER_S, frame="camera"):
    message = PoseStamped()
    message.header.frame_id = frame
    message.header.stamp.sec, message.header.stamp.nanosec = divmod(stamp_ns, NS_PER_S)
    message.pose.position.x = 1.0
    return message


def arrival(message, arrival_ns=0):
    return ReceivedMessage(key="tcp", message=message, info={}, arrival_ns=arrival_ns, arrival_system_ns=arrival_ns)


def reader(frames):
    return TransformedReader("tcp", TCP, "base", frames)


def test_a_reading_is_transformed_at_its_stamp():
    frames = SpyFrames()
    values = reader(frames).read(pose(5 * NS_PER_S))
    np.testing.assert_allclose(values["position"], [0.0, 1.0, 1.0], atol=1e-12)
    assert frames.asked == [("base", "camera", 5 * NS_PER_S)]


def test_a_reading_that_is_in_the_frame_already_is_as_it_comes():
    frames = SpyFrames()
    np.testing.assert_array_equal(reader(frames).read(pose(frame="base"))["position"], [1.0, 0.0, 0.0])
    assert frames.asked == []


@pytest.mark.parametrize(
    ("message", "frames", "problem"),
    [
        (pose(2 * NS_PER_S), SpyFrames(known_until_ns=NS_PER_S), "nothing is known of camera"),
        (pose(frame=""), SpyFrames(), "no frame"),
        (pose(0), SpyFrames(), "no stamp"),
        (pose(), SpyFrames(translation=(np.nan, 0.0, 0.0)), "not finite"),
    ],
)
def test_what_cannot_be_transformed_is_malformed_and_says_why(message, frames, problem):
    with pytest.raises(MalformedMessageError, match=problem):
        reader(frames).read(message)


# ------------------------------------------------------------------------------------------------------- waiting


@pytest.fixture
def bench():
    frames, handed = SpyFrames(known_until_ns=NS_PER_S), []
    return frames, MessageFilter(TCP, reader(frames), handed.append), handed


def test_a_message_waits_for_its_transform_and_keeps_its_arrival(bench):
    frames, intake, handed = bench
    late = arrival(pose(2 * NS_PER_S), arrival_ns=7)
    intake.on_message(late)
    assert handed == []
    frames.known_until_ns = 3 * NS_PER_S
    intake.flush(8)
    assert handed == [late]


def test_a_message_that_can_be_transformed_does_not_wait_for_one_that_cannot(bench):
    _, intake, handed = bench
    intake.on_message(arrival(pose(2 * NS_PER_S)))
    ready = arrival(pose(NS_PER_S))
    intake.on_message(ready)
    assert handed == [ready]


def test_a_message_waits_no_longer_than_a_reading_may_be_old(bench):
    _, intake, handed = bench
    intake.on_message(arrival(pose(2 * NS_PER_S)))
    patience_ns = round(TCP.max_age_s * NS_PER_S)
    intake.flush(patience_ns)
    assert handed == []
    intake.flush(patience_ns + 1)
    assert len(handed) == 1


def test_a_message_of_other_joints_is_passed_over_and_one_with_some_of_ours_is_not():
    joints, handed = ARM.sensors["joints"], []
    intake = MessageFilter(joints, SensorReader("joints", joints), handed.append)
    intake.on_message(arrival(JointState(name=["finger"], position=[0.1])))
    intake.on_message(arrival(JointState()))
    assert handed == []
    some = arrival(JointState(name=["finger", joints.fields["position"].joints[0]], position=[0.1, 0.2]))
    intake.on_message(some)
    assert handed == [some]


@pytest.mark.parametrize(("position", "velocity"), [([0.0] * 6, []), ([0.0] * 6, [0.0] * 5), ([0.0] * 7, [0.0] * 6)])
def test_arrays_of_another_length_than_the_names_are_malformed_where_they_are_read(position, velocity):
    joints = ARM.sensors["joints"]
    names = list(joints.fields["position"].joints)
    with pytest.raises(MalformedMessageError, match="values for 6 names"):
        SensorReader("joints", joints).read(JointState(name=names, position=position, velocity=velocity))
    alone = replace(joints, fields={"position": joints.fields["position"]})
    if len(position) == 6:  # nobody asked for velocities
        SensorReader("joints", alone).read(JointState(name=names, position=position, velocity=velocity))


# --------------------------------------------------------------------------------------------------- the profile


@pytest.mark.parametrize(
    ("sensor", "target", "problem"),
    [
        (ARM.sensors["joints"], "base", "JointState cannot be transformed"),
        (replace(TCP, timeline="receive"), "base", "allowed: timeline header"),
        (replace(TCP, frame="world"), "base", "expected world"),
        (TCP, "", "expected the name of a frame"),
        (
            replace(TCP, fields={"x": replace(TCP.fields["position"], path="pose.position.x")}),
            "base",
            "have a path of their own",
        ),
    ],
)
def test_a_sensor_that_cannot_be_transformed_is_refused(sensor, target, problem):
    with pytest.raises(ContractError, match=problem):
        check_frame("backends.real.tf.tcp", sensor, target)


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        ({"tf": {"nothing": "base"}}, "tf.nothing"),
        ({"tf": {"joints": "base"}}, "tf.joints"),
        ({"shared": ("tcp",)}, "shared"),
        ({"active": {"driver": {}}}, "active.driver"),
        ({"active": {"driver": {"node": "/arm", "nodes": "/arm"}}}, "active.driver.nodes"),
        ({"active": {"state": {"topic": "state", "path": "nothing"}}}, "active.state.path"),
        ({"active": {"state": {"topic": "state", "reason": "data"}}}, "active.state.reason"),
        ({"active": {"b": {"node": "/arm"}}, "estop": {"b": {"topic": "b"}}}, "active.b"),
    ],
)
def test_a_wrong_profile_is_refused_by_its_path(keys, path):
    with pytest.raises(ContractError) as caught:
        load_real_profile(replace(ARM, backends={"real": keys}))
    assert caught.value.path == f"backends.real.{path}"
