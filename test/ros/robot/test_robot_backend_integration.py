"""The environment fits in with other ROS 2 nodes in names, parameters, QoS and diagnostics."""

import time
from dataclasses import replace

import numpy as np
import pytest
from waiting import wait_for, wait_past_error

pytest.importorskip("rclpy", reason="needs rclpy")

from diagnostic_msgs.msg import DiagnosticArray
from in_process_robot import NAMESPACE, SIMPLE, InProcessRobot, check_reset_fails, in_s, reset, with_profile
from rcl_interfaces.msg import Parameter, ParameterType, ParameterValue
from rcl_interfaces.srv import GetParameters, ListParameters, SetParameters
from rclpy.lifecycle import LifecycleNode
from sensor_msgs.msg import JointState
from spinning import Spinning
from std_msgs.msg import Float64MultiArray

import embodied_env
from embodied_env.core.code_types import Quality, Severity
from embodied_env.core.types import ResetRequest
from embodied_env.errors import BackendNotReadyError, UsageError
from embodied_env.messages.message_types import message_class
from embodied_env.ros.embedded_sim.message_encoder import to_message
from embodied_env.ros.robot.diagnostics import THRESHOLDS
from embodied_env.ros.robot.graph_checks import graph_checks
from embodied_env.ros.robot.preflight import survey
from embodied_env.ros.robot.robot_profile import load_real_profile
from embodied_env.ros.robot.safety_inputs import CONTENTION
from embodied_env.ros.transport.node import RosNode
from embodied_env.ros.transport.qos import LATCHED, RELIABLE
from embodied_env.ros.wire.transforms import NoTransformError, Transform
from embodied_env.testing import approve
from embodied_env.timing.clock import SteadyClock

pytestmark = pytest.mark.ros

GENEROUS_S = 20.0
PROFILE = load_real_profile(SIMPLE)
REMAPPED = ["-r", "joint_states:=arm/states", "-r", "arm_controller/commands:=arm/commands"]


def topic_changed(contract, sensor, topic):
    return replace(contract, sensors={**contract.sensors, sensor: replace(contract.sensors[sensor], topic=topic)})


MOVED = replace(
    topic_changed(SIMPLE, "joints", "arm/states"),
    actuators={"arm": replace(SIMPLE.actuators["arm"], topic="arm/commands")},
)


def node(close_later, name="other", **options):
    return close_later(RosNode(name, namespace=NAMESPACE, clock=SteadyClock(), **options))


def check_of(node, name):
    """Return one check of the graph as this node sees it now."""
    return {check.name: check for check in graph_checks(SIMPLE, PROFILE, node)}[name]


def test_remapped_topics_are_used_and_checked_under_their_new_names(close_later, backend):
    """One test has every use of a topic name, since each needs the same robot and 0.5 s of discovery."""
    robot = close_later(InProcessRobot(MOVED))
    remapped = backend(SIMPLE, ros_args=REMAPPED)
    snapshot = reset(remapped)  # the preflight has found all endpoints
    command = approve(SIMPLE, np.full(6, 0.5), positions=snapshot.samples["joints"].values["position"])
    remapped.send(command)
    (arrival,) = robot.ros.receiver.receive(GENEROUS_S)
    np.testing.assert_array_equal(arrival.message.data, command.values)
    foreign = node(close_later, "foreign").node
    foreign.create_publisher(Float64MultiArray, "arm_controller/commands", RELIABLE)  # a topic without a subscriber
    time.sleep(0.6)  # longer than the period of graph checks
    assert remapped.estops()[CONTENTION].is_ok
    foreign.create_publisher(Float64MultiArray, "arm/commands", RELIABLE)
    wait_for(lambda: remapped.estops()[CONTENTION].status == "contention")


def test_command_line_remappings_apply_to_environment_and_doctor(close_later, monkeypatch):
    close_later(InProcessRobot(MOVED))
    monkeypatch.setattr("sys.argv", ["embodied-env", "--ros-args", *REMAPPED])
    checks = survey(SIMPLE, PROFILE, namespace=NAMESPACE, timeout_s=GENEROUS_S, settle_s=0.2)
    found = {check.name: check for check in checks}
    assert found["sensors.joints"].detail.startswith("/robot/arm/states: from /robot/in_process")
    assert found["actuators.arm"].passed
    assert found["readings.joints"].passed


def test_swapped_topics_are_remapped_once(close_later):
    """A name that is remapped twice would be itself again."""
    ours = node(close_later, "swapped", ros_args=["-r", "joint_states:=tcp_pose", "-r", "tcp_pose:=joint_states"]).node
    other = node(close_later).node
    for _ in range(2):
        other.create_publisher(JointState, "tcp_pose", RELIABLE)

    def doubled():
        return [check.name for check in graph_checks(SIMPLE, PROFILE, ours) if check.code == "pub.multiple"]

    wait_for(lambda: doubled() == ["sensors.joints"])


@pytest.mark.parametrize("ros_args", [["-r", "nonsense"], ["--nonsense"], "-r a:=b", [1]])
def test_invalid_ros_arguments_are_rejected(domain_id, ros_args):
    with pytest.raises(UsageError, match=r"invalid ROS arguments|ros_args="):
        RosNode("wrong", namespace=NAMESPACE, clock=SteadyClock(), ros_args=ros_args)


def test_a_duplicate_node_name_is_rejected_and_another_name_is_accepted(close_later):
    ours, _ = node(close_later, "environment"), node(close_later, "environment")

    def check(of):
        return check_of(of.node, "node name")

    wait_for(lambda: check(ours).code == "node.name")
    assert "make(..., node_name=...)" in check(ours).remedy
    assert check(node(close_later, "environment_2")).passed


def call(of, service_type, name, request):
    return of.receiver.call(service_type, f"{NAMESPACE}/environment/{name}", request, GENEROUS_S, lambda: None)


def test_parameters_are_readable_and_read_only(close_later, backend):
    backend()
    other = node(close_later)
    names = call(other, ListParameters, "list_parameters", ListParameters.Request()).result.names
    assert {"contract", "fingerprint", "control_period_s", "backend", "relay", "use_sim_time"} <= set(names)
    request = GetParameters.Request(names=["fingerprint", "control_period_s"])
    fingerprint, period = call(other, GetParameters, "get_parameters", request).values
    assert (fingerprint.string_value, period.double_value) == (SIMPLE.fingerprint, SIMPLE.control_period_s)
    for name, kind, value in (("relay", "bool_value", True), ("use_sim_time", "bool_value", True)):
        wanted = ParameterValue(type=ParameterType.PARAMETER_BOOL, **{kind: value})
        request = SetParameters.Request(parameters=[Parameter(name=name, value=wanted)])
        (result,) = call(other, SetParameters, "set_parameters", request).results
        assert not result.successful


def test_a_parameter_file_cannot_override_our_parameters(close_later):
    ours = node(close_later, "environment", ros_args=["-p", "relay:=true"], parameters={"relay": False})
    assert ours.node.get_parameter("relay").value is False


WARN = "diagnostics.threshold.periodicity.mean_error.warn"


def test_thresholds_of_the_diagnostics_are_parameters_that_a_launch_sets(close_later, backend):
    backend(ros_args=["-p", f"{WARN}:=0.5"])
    other = node(close_later)
    request = GetParameters.Request(names=[WARN, WARN.replace("warn", "error")])
    values = call(other, GetParameters, "get_parameters", request).values
    assert [value.double_value for value in values] == [0.5, 10.0]


@pytest.mark.parametrize("value", ["0.0", "-1.0", ".nan", "some", "true"])
def test_a_wrong_threshold_is_refused(close_later, value):
    with pytest.raises(UsageError, match=rf"{WARN}: .*expected a positive number"):
        node(close_later, "environment", ros_args=["-p", f"{WARN}:={value}"], parameters=THRESHOLDS)


def test_simulated_time_that_a_launch_sets_gives_a_warning(backend, capfd):
    backend(ros_args=["-p", "use_sim_time:=true"])
    assert "use_sim_time has no effect" in capfd.readouterr().err


def test_an_old_latched_goal_is_received(close_later, backend):
    target = replace(SIMPLE.sensors["target"], qos="latched", max_age_s=3600.0)
    contract = replace(SIMPLE, sensors={**SIMPLE.sensors, "target": target})
    close_later(InProcessRobot(replace(SIMPLE, sensors={name: SIMPLE.sensors[name] for name in ("joints", "tcp")})))
    goal = node(close_later, "goal").node.create_publisher(message_class(target.type), target.topic, LATCHED)
    said_ns = time.time_ns() - 60 * 10**9
    goal.publish(to_message(target, {"position": np.full(3, 0.25)}, said_ns))
    robot = backend(contract)
    for epoch in range(2):  # the second reset receives nothing new
        sample = robot.reset(ResetRequest(epoch=epoch, seed=1), in_s(GENEROUS_S)).samples["target"]
        assert (sample.stamp_ns, sample.quality) == (said_ns, Quality.OK)
        np.testing.assert_array_equal(sample.values["position"], np.full(3, 0.25))


def test_a_publisher_with_incompatible_qos_is_reported_by_name(close_later, backend):
    reliable = replace(SIMPLE.sensors["target"], qos="latched")
    close_later(InProcessRobot(SIMPLE))  # it stores nothing for late joiners
    ours = backend(replace(SIMPLE, sensors={**SIMPLE.sensors, "target": reliable}))._connection.ros.node
    wait_for(lambda: check_of(ours, "sensors.target").code == "qos.incompatible")
    assert "transient local subscription" in check_of(ours, "sensors.target").detail


class UnreachableTarget(InProcessRobot):
    """A target out of reach, so that an episode continues."""

    def _message(self, name, now_ns):
        message = super()._message(name, now_ns)
        if name == "target":
            message.pose.position.x = 0.1
        return message


def test_diagnostics_are_published_every_second_and_when_a_level_rises(close_later):
    close_later(UnreachableTarget(SIMPLE))
    received = []
    listener = node(close_later, "listener")
    listener.receiver.subscribe("diagnostics", DiagnosticArray, "/diagnostics")
    env = close_later(embodied_env.make(SIMPLE, backend="real", namespace=NAMESPACE))
    env.reset(seed=1)

    def levels(action):
        if env.step(action)[-1]["end_reason"]:
            env.reset()
        received.extend(arrival.message for arrival in listener.receiver.receive(0.0))
        return [{status.name: status.level for status in message.status} for message in received]

    names = [f"robot/environment: {name}" for name in ("gates", "latency", "sensors", "heartbeat", "periodicity")]
    wait_for(lambda: any({found[name] for name in names[:4]} == {b"\x00"} for found in levels(np.zeros(6))))
    assert set(levels(np.zeros(6))[-1]) == set(names)
    assert received[-1].status[0].hardware_id == f"arm_reach {SIMPLE.fingerprint[:12]}"
    levels(np.full(6, np.nan))
    wait_for(lambda: any(found["robot/environment: gates"] == b"\x01" for found in levels(np.zeros(6))))


class FixedFrames:
    """The base frame is one metre from the world frame, until the transform is lost."""

    def __init__(self):
        self.is_known = True

    def lookup(self, target, source, stamp_ns):
        if not self.is_known or source != "world":
            raise NoTransformError(f"no transform from {source} to {target}")
        return Transform(translation=np.array([1.0, 0.0, 0.0]), rotation=np.array([0.0, 0.0, 0.0, 1.0]))


FRAMED = with_profile(
    replace(SIMPLE, sensors={**SIMPLE.sensors, "target": replace(SIMPLE.sensors["target"], frame=None, max_age_s=0.2)}),
    tf={"target": "base"},
)


class InWorld(InProcessRobot):
    def _message(self, name, now_ns):
        message = super()._message(name, now_ns)
        message.header.frame_id = "world"
        return message


def test_values_are_transformed_to_the_declared_frame(close_later, backend):
    close_later(InWorld(SIMPLE))
    frames = FixedFrames()
    robot = backend(FRAMED, frames=frames)
    np.testing.assert_allclose(reset(robot).samples["target"].values["position"], [0.5, -0.5, -0.5])
    frames.is_known = False
    wait_for(lambda: robot.read(in_s(0), in_s(1)).samples["target"].quality is Quality.INVALID)
    sample = robot.read(in_s(0), in_s(1)).samples["target"]
    assert (sample.reason, sample.values) == ("no transform from world to base", {})


class Driver(Spinning):
    """A lifecycle node, spun by its own thread."""

    def __init__(self):
        super().__init__("unused", NAMESPACE, None)
        self.node = LifecycleNode("driver", context=self.ros.node.context, namespace=NAMESPACE)
        self._executor.add_node(self.node)
        self.start()

    def release(self):
        machine = self.node._state_machine
        self.node.destroy_node()
        machine.destroy_when_not_in_use()  # rclpy's node drops it, but it keeps the participant


@pytest.fixture
def driven(close_later, backend):
    """A robot whose driver is configured but not active, and a backend that requires it to be active."""
    close_later(InProcessRobot(SIMPLE))
    driver = close_later(Driver())
    driver.node.trigger_configure()
    return driver, backend(with_profile(SIMPLE, active={"driver": {"node": "driver", "timeout_s": GENEROUS_S}}))


def test_an_inactive_driver_is_rejected_by_name(driven):
    with pytest.raises(BackendNotReadyError, match="driver is lapsed: driver is inactive"):
        reset(driven[1])


def reset_once_active(robot):
    """Reset, although the events of the activation may arrive later than the answer of the driver."""
    return wait_past_error(lambda: reset(robot), BackendNotReadyError, "activating")


def test_a_driver_deactivated_during_an_episode_is_latched_until_reset(driven):
    driver, robot = driven
    driver.node.trigger_activate()
    reset_once_active(robot)
    assert robot.estops()["driver"].is_ok
    for timer in robot._connection.ros.node.timers:
        timer.cancel()  # the next poll, which would find it later
    driver.node.trigger_deactivate()
    wait_for(lambda: not robot.estops()["driver"].is_ok)
    driver.node.trigger_activate()
    wait_for(lambda: str(robot.estops()["driver"]).startswith("inactive: driver is "))
    reset_once_active(robot)
    assert robot.estops()["driver"].is_ok


def test_deactivating_the_driver_brakes_then_ends_the_episode_with_a_reason(close_later):
    close_later(UnreachableTarget(SIMPLE))
    driver = close_later(Driver())
    driver.node.trigger_configure()
    driver.node.trigger_activate()
    contract = with_profile(SIMPLE, active={"driver": {"node": "driver", "timeout_s": GENEROUS_S}})
    env = close_later(embodied_env.make(contract, backend="real", namespace=NAMESPACE))
    env.reset(seed=1)
    env.step(np.zeros(6))
    driver.node.trigger_deactivate()
    severities, info = [], {"end_reason": ""}
    while not info["end_reason"]:
        *_, info = env.step(np.zeros(6))
        severities.append(info["safety"]["disposition"])
    assert info["end_reason"] == "safety_stop:robot.inactive"
    assert severities[-1] == Severity.STOP
    assert Severity.HOLD in severities[:-1]
    found = [f.detail for f in env.unwrapped.last_transition.report.findings if f.code == "robot.inactive"]
    assert any(detail.startswith("driver is inactive: driver is ") for detail in found)


def test_a_missing_driver_is_reported_by_name(close_later, backend):
    close_later(InProcessRobot(SIMPLE))
    robot = backend(with_profile(SIMPLE, active={"driver": {"node": "/nowhere"}}))
    check_reset_fails(robot, r"active.driver: /nowhere/get_state: no service")
