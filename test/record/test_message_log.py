"""The file ``messages.mcap`` of a run has the bytes of the wire and self-contained definitions."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs rclpy")
pytest.importorskip("mcap.reader", reason="needs mcap")

from mcap.reader import make_reader
from rclpy.serialization import deserialize_message, serialize_message

import embodied_env
from embodied_env.core.message_tap import TappedMessage
from embodied_env.messages.commands import COMMAND_MESSAGES
from embodied_env.messages.message_types import message_class
from embodied_env.messages.sensor_types import SENSOR_MESSAGES
from embodied_env.record.mcap_file import McapRecords
from embodied_env.record.message_log import MessageLog, message_definition, problem_of_messages, read_messages
from embodied_env.ros.transport.byte_layout import to_cdr
from embodied_env.ros.transport.node import RosNode
from embodied_env.ros.transport.tapped_node import qos_text
from embodied_env.timing.clock import SteadyClock

MESSAGES = sorted({*SENSOR_MESSAGES, *COMMAND_MESSAGES})

STEPS = 3
JOINT_STATE = "sensor_msgs/msg/JointState"


# --------------------------------------------------------------------------------------------------------- definitions


def test_a_definition_includes_its_dependencies():
    first, *others = message_definition("geometry_msgs/msg/PoseStamped").split("=" * 80 + "\n")
    assert first == "std_msgs/Header header\ngeometry_msgs/Pose pose\n\n"
    assert [other.splitlines()[0] for other in others] == [
        "MSG: std_msgs/Header", "MSG: geometry_msgs/Pose", "MSG: builtin_interfaces/Time", "MSG: geometry_msgs/Point",
        "MSG: geometry_msgs/Quaternion",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("geometry_msgs/msg/PoseWithCovariance", "float64[36] covariance"),
        ("sensor_msgs/msg/JointState", "float64[] position"),
        ("sensor_msgs/msg/JointState", "string[] name"),
        ("sensor_msgs/msg/Image", "uint8[] data"),
        ("std_msgs/msg/Bool", "bool data"),
        ("std_msgs/msg/Byte", "byte data"),
        ("diagnostic_msgs/msg/DiagnosticStatus", "byte level"),
        ("trajectory_msgs/msg/JointTrajectory", "trajectory_msgs/JointTrajectoryPoint[] points"),
        ("shape_msgs/msg/SolidPrimitive", "float64[<=3] dimensions"),
        ("sensor_msgs/msg/BatteryState", "int32 POWER_SUPPLY_STATUS_FULL=4"),
    ],
)
def test_types_are_written_as_in_msg_files(name, line):
    assert line in message_definition(name).splitlines()


def test_an_installed_definition_is_used_verbatim(tmp_path, monkeypatch):
    file = tmp_path / "share" / "geometry_msgs" / "msg" / "Point.msg"
    file.parent.mkdir(parents=True)
    file.write_text("# as installed\nfloat64 x\nfloat64 y\nfloat64 z\n")
    monkeypatch.setenv("AMENT_PREFIX_PATH", str(tmp_path))
    assert message_definition.__wrapped__("geometry_msgs/msg/Point").startswith("# as installed\n")


# ------------------------------------------------------------------------------------------------------------ the file


def wire(name, *, topic="/a", log_ns=5, is_ours=True, message=None):
    return TappedMessage(
        topic=topic,
        type=name,
        message=message_class(name)() if message is None else message,
        serialize=to_cdr,
        log_ns=log_ns,
        publish_ns=log_ns - 1,
        is_ours=is_ours,
        qos=qos_text(10),
    )


@pytest.fixture
def log(tmp_path):
    """Yield a log with one message of every contract type, and one with some sequences empty."""
    writer = MessageLog(tmp_path / "messages.mcap")
    for number, name in enumerate(MESSAGES):
        writer.write(wire(name, topic=f"/topic_{number}", log_ns=1000 + number))
    halves = message_class(JOINT_STATE)(name=["a", "bc"], position=[1.0, 2.0], effort=[3.0])
    halves.header.frame_id = "b\u00e4se"
    writer.write(wire(JOINT_STATE, topic="/halves", message=halves, log_ns=2000))
    writer.close()
    return SimpleNamespace(path=tmp_path / "messages.mcap", names=[*MESSAGES, JOINT_STATE], halves=halves)


def test_every_contract_type_round_trips(log):
    found = list(read_messages(McapRecords(log.path)))
    assert [message.type for message in found] == log.names
    assert [message.log_ns - message.publish_ns for message in found] == [1] * len(found)
    assert deserialize_message(found[-1].data, message_class(JOINT_STATE)) == log.halves
    for message in found[:-1]:
        kind = message_class(message.type)
        assert deserialize_message(message.data, kind) == deserialize_message(serialize_message(kind()), kind)


def test_the_log_has_the_rosbag2_profile_and_encodings(log):
    with log.path.open("rb") as file:
        reader = make_reader(file)
        assert reader.get_header().profile == "ros2"
        summary = reader.get_summary()
    assert {channel.message_encoding for channel in summary.channels.values()} == {"cdr"}
    assert {schema.encoding for schema in summary.schemas.values()} == {"ros2msg"}
    assert all(channel.schema_id in summary.schemas for channel in summary.channels.values())
    assert all("reliability: 1" in channel.metadata["offered_qos_profiles"] for channel in summary.channels.values())


def test_rosbags_decodes_every_type_with_the_stored_definitions(log):
    highlevel = pytest.importorskip("rosbags.highlevel", reason="rosbags is not in the extras of the tests")
    with highlevel.AnyReader([log.path]) as reader:
        found = [(each.msgtype, reader.deserialize(data, each.msgtype)) for each, _, data in reader.messages()]
    assert [name for name, _ in found] == log.names
    assert found[-1][1].position.tolist() == [1.0, 2.0]
    assert found[-1][1].effort.tolist() == [3.0]
    for name, message in found:
        assert set(message_class(name).get_fields_and_field_types()) <= set(dir(message))


@pytest.mark.ros
@pytest.mark.parametrize("name", [*MESSAGES, "std_msgs/msg/Empty"])
def test_a_recorded_message_has_its_size_on_the_wire(bare_node, name):
    """Bytes behind the end are from `serialize_message`, and padding bytes mean nothing."""
    kind = message_class(name)
    assert len(bare_node.over_the_wire(kind())) == len(to_cdr(kind()))


def test_a_truncated_log_is_readable_up_to_the_reported_cut(log, tmp_path):
    whole = log.path.read_bytes()
    cut = tmp_path / "cut.mcap"
    for end in range(0, len(whole), 997):
        cut.write_bytes(whole[:end])
        assert len(list(read_messages(McapRecords(cut)))) <= len(log.names)
        assert problem_of_messages(cut).startswith("cut.mcap: "), end


@pytest.fixture(scope="module")
def bare_node(lasting_domain):
    """Yield a node that sends a message to itself and returns the received bytes."""
    with lasting_domain() as domain_id:
        ros = RosNode("bare", namespace="/", clock=SteadyClock(), domain_id=domain_id)

    def over_the_wire(message):
        kind, topic = type(message), f"/wire_{type(message).__name__}"
        subscription = ros.node.create_subscription(kind, topic, lambda _: None, 10, raw=True)
        publisher = ros.node.create_publisher(kind, topic, 10)
        ros.wait_until(publisher.get_subscription_count, 10.0)
        publisher.publish(message)
        taken = []
        ros.wait_until(lambda: taken.append(subscription.handle.take_message(kind, True)) or taken[-1], 10.0)
        return taken[-1][0]

    yield SimpleNamespace(over_the_wire=over_the_wire)
    ros.close()


# -------------------------------------------------------------------------------------------------------- whole episodes


@pytest.fixture(scope="module")
def recorded(lasting_domain, tmp_path_factory):
    """Return the closed run of a short episode over ROS 2, and the info of its last step."""
    with lasting_domain() as domain_id:
        env = embodied_env.make(
            "arm_reach", backend="mujoco_ros", domain_id=domain_id, record=tmp_path_factory.mktemp("runs"),
            record_messages=True,
        )  # fmt: skip
        env.reset(seed=1)
        for _ in range(STEPS):
            env.step(np.zeros(6))
        env.close()
    return env


@pytest.mark.ros
def test_messages_on_the_wire_are_recorded(recorded):
    run = embodied_env.read_run(recorded.path)
    assert run.problem == ""
    contract = recorded.unwrapped.contract
    (namespace,) = {str(Path(message.topic).parent) for message in run.messages() if message.topic.endswith("/clock")}
    counts = Counter(message.topic for message in run.messages())
    for sensor in contract.sensors.values():
        assert counts[f"{namespace}/{sensor.topic}"] >= STEPS
    for actuator in contract.actuators.values():
        assert counts[f"{namespace}/{actuator.topic}"] >= STEPS
    assert counts[f"{namespace}/clock"] >= STEPS
    ours = {message.topic for message in run.messages() if message.is_ours}
    assert {f"{namespace}/{actuator.topic}" for actuator in contract.actuators.values()} <= ours
    assert run.manifest["messages"] is True
    assert run.manifest["record"] == {"complete": True, "lost_rows": 0, "lost_messages": 0}


@pytest.mark.ros
def test_recorded_messages_match_the_rows(recorded):
    run = embodied_env.read_run(recorded.path)
    last = list(run.transitions())[-1]
    states = [each for each in run.messages() if each.type == "sensor_msgs/msg/JointState" and not each.is_ours]
    message = deserialize_message(states[-1].data, message_class(states[-1].type))
    positions = dict(zip(message.name, message.position, strict=True))
    joints = recorded.unwrapped.contract.sensors["joints"].fields["position"].joints
    assert [positions[joint] for joint in joints] == last["observation"]["joints_position"]
    assert states[-1].log_ns == last["inner"]["sensors"]["joints"]["arrival_system_ns"]
    assert states[-1].publish_ns == last["inner"]["sensors"]["joints"]["source_ns"]


@pytest.mark.ros
def test_a_truncated_message_log_makes_the_run_unclean(recorded, tmp_path):
    cut = tmp_path / "cut"
    cut.mkdir()
    for file in recorded.path.iterdir():
        data = file.read_bytes()
        (cut / file.name).write_bytes(data[: len(data) // 2] if file.name == "messages.mcap" else data)
    problem = embodied_env.read_run(cut).problem
    assert problem.startswith("messages.mcap: truncated, because its writer was stopped (")
