from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs rclpy")

from geometry_msgs.msg import PoseStamped
from sensor_msgs.msg import JointState

import embodied_env
from embodied_env.errors import ContractError
from embodied_env.messages.declaration import InvalidReadingError
from embodied_env.ros.robot.robot_profile import check_frame, load_real_profile
from embodied_env.ros.robot.sensor_set import MessageFilter
from embodied_env.ros.transport.receiver import ReceivedMessage
from embodied_env.ros.wire.sensor_buffer import SensorReader
from embodied_env.ros.wire.transforms import NoTransformError, Transform, TransformedReader
from embodied_env.timing.clock import NS_PER_S

ARM = embodied_env.load_contract("arm_reach")
TCP = replace(ARM.sensors["tcp"], frame=None)
HALF = np.sqrt(0.5)


class SpyFrames:
    """Transforms up to a time, which are 1 m up and a quarter turn about z."""

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


def test_a_reading_in_the_target_frame_is_unchanged():
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
def test_a_reading_without_a_transform_is_malformed_with_a_reason(message, frames, problem):
    with pytest.raises(InvalidReadingError, match=problem):
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


def test_a_transformable_message_does_not_wait_for_another(bench):
    _, intake, handed = bench
    intake.on_message(arrival(pose(2 * NS_PER_S)))
    ready = arrival(pose(NS_PER_S))
    intake.on_message(ready)
    assert handed == [ready]


def test_a_message_waits_at_most_max_age(bench):
    _, intake, handed = bench
    intake.on_message(arrival(pose(2 * NS_PER_S)))
    patience_ns = round(TCP.max_age_s * NS_PER_S)
    intake.flush(patience_ns)
    assert handed == []
    intake.flush(patience_ns + 1)
    assert len(handed) == 1


def test_only_messages_without_declared_joints_are_skipped():
    joints, handed = ARM.sensors["joints"], []
    intake = MessageFilter(joints, SensorReader("joints", joints), handed.append)
    intake.on_message(arrival(JointState(name=["finger"], position=[0.1])))
    intake.on_message(arrival(JointState()))
    assert handed == []
    some = arrival(JointState(name=["finger", joints.fields["position"].joints[0]], position=[0.1, 0.2]))
    intake.on_message(some)
    assert handed == [some]


@pytest.mark.parametrize(("position", "velocity"), [([0.0] * 6, []), ([0.0] * 6, [0.0] * 5), ([0.0] * 7, [0.0] * 6)])
def test_arrays_shorter_than_the_names_are_malformed(position, velocity):
    joints = ARM.sensors["joints"]
    names = list(joints.fields["position"].joints)
    with pytest.raises(InvalidReadingError, match="values for 6 names"):
        SensorReader("joints", joints).read(JointState(name=names, position=position, velocity=velocity))
    alone = replace(joints, fields={"position": joints.fields["position"]})
    if len(position) == 6:  # velocities are not required
        SensorReader("joints", alone).read(JointState(name=names, position=position, velocity=velocity))


# --------------------------------------------------------------------------------------------------- the profile


@pytest.mark.parametrize(
    ("sensor", "target", "problem"),
    [
        (ARM.sensors["joints"], "base", "JointState cannot be transformed"),
        (replace(TCP, timeline="receive"), "base", "timeline receive"),
        (replace(TCP, frame="world"), "base", "world"),
        (TCP, "", "name of a frame"),
        (
            replace(TCP, fields={"x": replace(TCP.fields["position"], path="pose.position.x")}),
            "base",
            "fields with a path",
        ),
    ],
)
def test_a_sensor_that_cannot_be_transformed_is_rejected(sensor, target, problem):
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
def test_an_invalid_profile_is_rejected_with_its_path(keys, path):
    with pytest.raises(ContractError) as caught:
        load_real_profile(replace(ARM, backends={"real": keys}))
    assert caught.value.path == f"backends.real.{path}"
