"""The second publisher of a robot's joint states is a forgotten one, a shared one, or the restarted driver."""

import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs rclpy")

from in_process_robot import NAMESPACE, PATIENCE_S, SIMPLE, InProcessRobot, in_s, reset, with_profile
from sensor_msgs.msg import JointState
from spinning import Spinning
from std_msgs.msg import Bool
from waiting import wait_for

import embodied_env
from embodied_env.cli.main import main
from embodied_env.contract import FieldSpec
from embodied_env.core.code_types import Severity
from embodied_env.errors import BackendNotReadyError
from embodied_env.ros.robot.preflight import survey
from embodied_env.ros.robot.robot_profile import load_real_profile
from embodied_env.ros.transport.qos import RELIABLE

pytestmark = [pytest.mark.ros, pytest.mark.realtime]

JOINTS, IS_AT = SIMPLE.sensors["joints"].fields["position"].joints, 0.5
SHARED = with_profile(SIMPLE, shared=["joints"], connect_timeout_s=1.0)
FINGER = replace(
    SIMPLE.sensors["joints"], fields={"position": FieldSpec(joints=("finger",), unit="m", low=0.0, high=1.0)}
)
WITH_FINGER = with_profile(replace(SIMPLE, sensors={**SIMPLE.sensors, "finger": FINGER}), shared=["joints", "finger"])
ZERO = np.zeros(len(JOINTS))


class StatePublisher(Spinning):
    """A joint_state_publisher that publishes every joint at 0, at 50 Hz, from a thread."""

    def __init__(self):
        super().__init__("joint_state_publisher", NAMESPACE, None)
        self._publisher = self.node.create_publisher(JointState, "joint_states", RELIABLE)
        self.node.create_timer(0.02, self._publish)
        self.start()

    def _publish(self):
        message = JointState(name=list(JOINTS), position=[0.0] * len(JOINTS), velocity=[0.0] * len(JOINTS))
        message.header.stamp = self.node.get_clock().now().to_msg()
        self._publisher.publish(message)


@pytest.fixture
def robot(domain_id, close_later):
    """A robot whose driver has run for a while, so that a restart shows in the numbers."""
    found = close_later(InProcessRobot(SIMPLE))
    message = found._message("joints", time.time_ns())
    for _ in range(2000):
        found.publishers["joints"].publish(message)
    return found


def start_driver_again(robot):
    """Return the earlier publisher of a robot that publishes with a new one, while the graph has both."""
    first, has_ended = robot.publishers["joints"], threading.Event()
    robot.publishers["joints"] = SimpleNamespace(publish=lambda _: has_ended.set())
    assert has_ended.wait(PATIENCE_S)
    time.sleep(0.05)  # the last message of the earlier one arrives before the first of the new one
    robot.publishers["joints"] = robot.node.create_publisher(JointState, "joint_states", RELIABLE)
    return first


def commands(robot):
    return [list(arrival.message.data) for arrival in robot.ros.receiver.receive(0.1)]


def test_a_second_publisher_stops_an_episode_and_no_command_follows_it(robot, close_later):
    env = close_later(embodied_env.make(SIMPLE, backend="real", namespace=NAMESPACE))
    env.reset(seed=1)
    assert env.step(ZERO)[-1]["end_reason"] == ""
    close_later(StatePublisher())
    end, codes = time.monotonic() + PATIENCE_S, []
    while not (reason := env.step(ZERO)[-1]["end_reason"]):
        codes += [f.code for f in env.unwrapped.last_transition.report.findings if f.severity >= Severity.HOLD]
        assert time.monotonic() < end
    assert reason in ("safety_stop:robot.contention", "safety_stop:robot.restarted")
    assert set(codes) <= {"robot.contention", "act.late", "obs.stale"}
    assert np.abs(np.array(commands(robot)) - IS_AT).max() < 1e-6
    env.unwrapped.stepper.backend.reset_timeout_s = 0.5
    with pytest.raises(BackendNotReadyError, match=r"\[pub\.(multiple|conflict)\]"):
        env.reset(options=None)
    assert np.abs(np.array(commands(robot) or [[IS_AT]]) - IS_AT).max() < 1e-6


def test_conflicting_publishers_of_a_shared_topic_refuse_the_reset_before_any_command(robot, close_later, backend):
    close_later(StatePublisher())
    one = backend(SHARED)
    wait_for(lambda: one._connection.ros.node.count_publishers("joint_states") == 2)  # its discovery_s is 0
    wait_for(lambda: one.estops()["sensor topics"].status == "contention")
    assert not one._connection.inputs.publishers.await_lease()
    with pytest.raises(BackendNotReadyError, match=r"\[pub\.conflict\] .*joint_state_publisher"):
        reset(one)
    assert commands(robot) == []


def test_a_publisher_that_appears_during_the_reset_refuses_its_readings(robot, close_later, backend):
    one = backend(with_profile(SIMPLE, connect_timeout_s=1.0))
    wait_for(lambda: has_discovered(one._connection.ros.node))
    reset(one)  # the rest of the procedure may take minutes: homing, a confirmation
    close_later(StatePublisher())
    wait_for(lambda: one._connection.ros.node.count_publishers("joint_states") == 2)
    with pytest.raises(BackendNotReadyError, match=r"\[pub\.conflict\]"):
        one.verify(in_s(PATIENCE_S))
    assert commands(robot) == []


def test_a_driver_that_starts_again_ends_the_episode_and_can_be_reset(robot, close_later):
    env = close_later(embodied_env.make(SIMPLE, backend="real", namespace=NAMESPACE))
    env.reset(seed=1)
    first = start_driver_again(robot)
    end = time.monotonic() + PATIENCE_S
    while not (reason := env.step(ZERO)[-1]["end_reason"]):
        assert time.monotonic() < end
    assert reason == "safety_stop:robot.restarted"
    robot.node.destroy_publisher(first)
    env.reset()
    assert env.step(ZERO)[-1]["end_reason"] == ""


def test_a_driver_that_starts_again_during_a_reset_does_not_refuse_it(robot, backend):
    one = backend(SIMPLE)
    reset(one)
    first = start_driver_again(robot)
    wait_for(lambda: one.estops()["sensor topics"].status == "restarted")
    assert not one._connection.inputs.publishers.settle()
    robot.node.destroy_publisher(first)
    wait_for(one._connection.inputs.publishers.settle)
    assert one.estops()["sensor topics"].is_ok


def has_discovered(node):
    topics = [sensor.topic for sensor in SIMPLE.sensors.values()]
    commands = [actuator.topic for actuator in SIMPLE.actuators.values()]
    return all(map(node.count_publishers, topics)) and all(map(node.count_subscribers, commands))


@pytest.mark.parametrize("begins", ["in a new process", "in the next episode", "during the reset"])
def test_a_killed_driver_in_the_graph_is_awaited_beyond_the_connect_timeout(robot, backend, close_later, begins):
    contract = with_profile(SIMPLE, connect_timeout_s=0.2)
    if begins != "in a new process":
        one = backend(contract)
        wait_for(lambda: has_discovered(one._connection.ros.node))  # a stall may exceed the connect timeout
        reset(one)
    first = start_driver_again(robot)
    if begins == "in a new process":
        one = backend(contract)
        wait_for(lambda: has_discovered(one._connection.ros.node))
    wait_for(lambda: one._connection.ros.node.count_publishers("joint_states") == 2)
    lease = threading.Timer(1.5, robot.node.destroy_publisher, [first])
    lease.start()
    close_later(SimpleNamespace(close=lease.join))
    snapshot = one.verify(in_s(PATIENCE_S)) if begins == "during the reset" else reset(one)
    assert lease.finished.is_set()
    assert snapshot.samples.keys() == SIMPLE.sensors.keys()


def test_a_second_publisher_of_an_emergency_stop_is_contention(robot, backend):
    button = {"topic": "button", "timeout_s": 9.0}
    one = backend(with_profile(SIMPLE, estop={"button": button}))
    publishers = [robot.node.create_publisher(Bool, "button", RELIABLE) for _ in range(2)]

    def is_contention():
        for publisher in publishers:
            publisher.publish(Bool(data=False))
        return str(one.estops()["sensor topics"]).startswith("contention: /robot/button: ")

    wait_for(is_contention)


def look(contract, timeout_s=2.0):
    profile = load_real_profile(contract)
    checks = survey(contract, profile, namespace=NAMESPACE, timeout_s=timeout_s, settle_s=0.2)
    return {check.name: check.code for check in checks if check.passed is False}


def test_doctor_passes_disjoint_publishers_and_rejects_conflicting_ones(domain_id, close_later):
    close_later(InProcessRobot(WITH_FINGER))
    assert not {name for name in look(WITH_FINGER, PATIENCE_S) if name.startswith("sensors.")}
    close_later(StatePublisher())
    wait_for(lambda: look(WITH_FINGER).get("sensors.joints") == "pub.conflict")  # once both are discovered


def test_sensors_on_one_topic_skip_other_joints_and_have_their_own_ages(domain_id, close_later, backend):
    robot = close_later(InProcessRobot(WITH_FINGER))
    one = backend(WITH_FINGER)
    samples = reset(one).samples
    assert [samples[name].values["position"].shape for name in ("joints", "finger")] == [(6,), (1,)]
    robot.offset_s["finger"] = None  # its publisher falls silent

    def ages_s():
        snapshot = one.read(in_s(0), in_s(1))
        return [(snapshot.now_ns - snapshot.samples[name].stamp_ns) / 1e9 for name in ("joints", "finger")]

    wait_for(lambda: ages_s()[0] < 0.5 < ages_s()[1])
    assert one.estops()["sensor topics"].is_ok


@pytest.mark.needs("contract_init")
def test_contract_init_rejects_conflicting_publishers(robot, close_later, tmp_path, capsys):
    close_later(StatePublisher())
    command = (
        f"contract init --from-graph --namespace {NAMESPACE} --listen 1.0 --force -o {tmp_path}/draft.yaml".split()
    )
    expected = "conflicting publishers of /robot/joint_states: /robot/in_process, /robot/joint_state"
    wait_for(lambda: main(command) != 0 and expected in capsys.readouterr().err)  # once both are discovered
