"""The relay process is driven by plain rclpy."""

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from threading import Event

import numpy as np
import pytest
import ros_domains
from shipped_contracts import changed_text

pytest.importorskip("rclpy", reason="needs rclpy")

import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from gripper_servers import relaying
from rcl_interfaces.srv import GetParameters, SetParameters
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy, QoSProfile
from rclpy.signals import SignalHandlerOptions
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool, Float64MultiArray, String
from std_srvs.srv import Trigger

import embodied_env
from embodied_env.contract import parse_contract
from embodied_env.contract.contract_loader import dump_contract
from embodied_env.contract.contract_schema import RobotSource
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.code_types import Severity
from embodied_env.errors import ContractError
from embodied_env.processes.child_process import Child, relay, remove_orphaned_segments, segments_of
from embodied_env.ros.relay.relay_node import run_relay
from embodied_env.safety.relay.relay_protocol import (
    Armed,
    CommandId,
    JointFields,
    RelayReport,
    RelayState,
    write_command,
)

pytestmark = [pytest.mark.ros, pytest.mark.kills, pytest.mark.realtime]

NAMESPACE = "/relayed"
TIMEOUT_S = 20.0
ARM = embodied_env.load_contract("arm_reach")
WITH_BUTTON = changed_text(ARM, {"backends.real.estop": {"button": {"topic": "button", "timeout_s": 2.0}}})
CONTRACT_OF_ALL = parse_contract(WITH_BUTTON, source="test")
LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
DEEP = QoSProfile(depth=1000)  # a stall of the machine loses no message
LAYOUT = ActionLayout(ARM)
PERIOD_S = ARM.control_period_s
ROUNDING = 1e-9


class Bench:
    """A robot that reports its joints, and a client, in one plain rclpy node that the test spins."""

    process: subprocess.Popen

    def __init__(self, domain_id):
        self.context = Context()
        rclpy.init(context=self.context, domain_id=domain_id, signal_handler_options=SignalHandlerOptions.NO)
        self.node = Node("bench", context=self.context, namespace=NAMESPACE, enable_rosout=False)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        self.commands, self.applied, self.reports, self.states, self.diagnostics = [], [], [], [], []
        self._listen(Float64MultiArray, "arm_controller/commands", lambda m: self.commands.append(list(m.data)))
        self._listen(JointState, "relay/applied", lambda m: self.applied.append(JointFields.of(m)))
        self._listen(String, "relay/report", lambda m: self.reports.append(RelayReport.from_text(m.data)))
        self._listen(String, "relay/state", lambda m: self.states.append(RelayState.from_text(m.data)), LATCHED)
        self._listen(DiagnosticArray, "/diagnostics", self.diagnostics.append)
        self.command = self.node.create_publisher(JointState, "relay/command", 10)
        self.button = self.node.create_publisher(Bool, "button", 10)
        self.pressed = False
        self.joints = self.node.create_publisher(JointState, "joint_states", 10)
        self.services = {
            name: self.node.create_client(Trigger, f"relay/{name}") for name in ("arm", "estop", "clear_estop")
        }
        self.epoch = self.seq = 0
        self.published_s = 0.0

    def _listen(self, kind, topic, take, qos=DEEP):
        self.node.create_subscription(kind, topic, take, qos)

    def spin(self, timeout_s=0.01):
        """Publish the joints every 0.02 s, and run one callback."""
        if time.monotonic() - self.published_s > 0.02:
            self.published_s = time.monotonic()
            message = JointState(name=list(LAYOUT.joints), position=[0.0] * LAYOUT.size)
            message.velocity = [0.0] * LAYOUT.size
            message.header.stamp = self.node.get_clock().now().to_msg()
            self.joints.publish(message)
            self.button.publish(Bool(data=self.pressed))
        self.executor.spin_once(timeout_sec=timeout_s)

    def until(self, condition, timeout_s=TIMEOUT_S):
        end = time.monotonic() + timeout_s
        while not (found := condition()):
            assert time.monotonic() < end, (self.states[-1:], self.reports[-1:])
            self.spin()
        return found

    def wait_for_rest(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.spin()

    def connect(self):
        """Wait until the relay is running and all endpoints have matched."""
        self.until(lambda: all(client.service_is_ready() for client in self.services.values()))
        self.until(lambda: self.command.get_subscription_count() and self.states)
        self.until(self.joints.get_subscription_count)
        self.until(lambda: self.node.count_publishers("relay/report") and self.node.count_publishers("relay/applied"))
        self.until(lambda: self.reports or self.send(None, epoch=1, seq=1) is None)  # refused, and reported
        self.wait_for_rest(0.1)
        self.reports.clear()

    def call(self, name):
        future = self.services[name].call_async(Trigger.Request())
        self.until(future.done)
        return future.result().success, future.result().message

    def ask_parameters(self, kind, **request):
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()
        client = self.node.create_client(kind, f"relay/{words}")
        self.until(client.service_is_ready)
        future = client.call_async(kind.Request(**request))
        self.until(future.done)
        self.node.destroy_client(client)
        return future.result()

    def arm(self):
        end = time.monotonic() + TIMEOUT_S
        while not (answer := self.call("arm"))[0]:
            assert time.monotonic() < end, answer
            self.wait_for_rest(0.1)
        self.epoch, self.seq = Armed.from_text(answer[1]).epoch, 0
        return Armed.from_text(answer[1])

    def send(self, values, epoch=None, seq=None):
        self.seq += seq is None
        tag = CommandId(epoch=epoch or self.epoch, seq=seq or self.seq)
        vector = Severity.HOLD if values is None else np.array(values)
        self.command.publish(write_command(tag, vector, LAYOUT).fill(JointState()))
        return tag

    def ask(self, values, **tag):
        """Send a command, and return its report."""
        sent, known = self.send(values, **tag), len(self.reports)
        return self.until(lambda: next((r for r in self.reports[known:] if r.tag == sent), None))

    def ask_feasible(self, values):
        """Send a command until its report has no findings, since on a busy host readings expire, and return it."""
        return self.until(lambda: None if (report := self.ask(values)).findings else report)

    def drive(self, steps, values=None):
        """Command the fastest motion, at the control rate."""
        wanted = [3.0] * LAYOUT.size if values is None else values
        for _ in range(steps):
            self.ask(wanted)
            self.wait_for_rest(PERIOD_S * 0.8)

    def close(self):
        self.executor.shutdown()
        self.node.destroy_node()
        self.context.try_shutdown()


def at_rest(bench):
    """Return whether the newest report has the robot at rest."""
    published = [report for report in bench.reports if report.published]
    return bool(published) and not published[-1].velocity_si.any()


def start_relay(source, domain_id, log_folder):
    surroundings = {"ROS_DOMAIN_ID": str(domain_id), "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"}
    process = subprocess.Popen(
        [sys.executable, "-m", "embodied_env.cli", "relay", str(source), "--namespace", NAMESPACE],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **surroundings, "ROS_LOG_DIR": str(log_folder)},
    )
    assert "relaying" in process.stdout.readline()
    return process


def end_relay(process):
    """Terminate a relay, and check that it exits with 0."""
    process.terminate()
    assert process.wait(timeout=TIMEOUT_S) == 0
    process.stdout.close()


@pytest.fixture(scope="module")
def shared_bench(tmp_path_factory):
    """A bench with a relay of the arm with an e-stop button, shared by tests that kill no process."""
    folder = tmp_path_factory.mktemp("relay")
    source = folder / "arm.yaml"
    source.write_text(WITH_BUTTON)
    process = start_relay(source, ros_domains.FOR_RELAY, folder / "log")
    bench = Bench(ros_domains.FOR_RELAY)
    bench.connect()
    yield bench
    bench.close()
    end_relay(process)


@pytest.fixture
def bench(shared_bench, domain_id):
    """The shared bench, at rest, without an e-stop and without messages of earlier tests."""
    bench = shared_bench
    bench.pressed = False
    assert bench.call("estop")[0]
    bench.until(lambda: at_rest(bench) or not bench.reports)
    bench.until(lambda: bench.call("clear_estop")[0])
    for received in (bench.commands, bench.applied, bench.reports, bench.diagnostics):
        received.clear()
    return bench


@pytest.fixture
def armed(bench):
    bench.arm()
    return bench


@pytest.fixture
def leftovers(domain_id):
    """Names of the shared memory of killed or suspended processes, removed after the test."""
    names = set()
    yield names
    remove_orphaned_segments(names)


@pytest.fixture
def own_relay(domain_id, leftovers, tmp_path):
    """Return a function that starts a relay for this test alone."""
    started = []

    def start():
        process = start_relay(ARM.name, domain_id, tmp_path / "log")
        leftovers.update(segments_of(process.pid))
        bench = Bench(domain_id)
        bench.process = process
        started.append(bench)
        bench.connect()
        bench.arm()
        return bench

    yield start
    for bench in started:
        end_relay(bench.process)
        bench.close()


def check_account(bench):
    """Assert that the published commands, differentiated by relay stamps, keep every limit, and return the reports."""
    bench.until(lambda: len(bench.commands) >= len([r for r in bench.reports if r.published]))
    published = [report for report in bench.reports if report.published]
    assert [report.applied_si.tolist() for report in published] == bench.commands
    first = published[0].number
    assert [report.number for report in published] == list(range(first, first + len(published)))
    limits = LAYOUT.limits
    for before, after in itertools.pairwise(published):
        if before.tag.epoch != after.tag.epoch:
            continue  # a new epoch starts at the measured joints
        dt_s = min((after.published_ns - before.published_ns) / 1e9, PERIOD_S)
        velocity = (after.applied_si - before.applied_si) / after.dt_s
        np.testing.assert_allclose(velocity, after.velocity_si, atol=1e-6)
        assert 0.0 < after.dt_s <= dt_s + 1e-3  # one stamp is before the publication, the other after it
        assert (np.abs(velocity) <= limits.fastest + ROUNDING).all()
        pause_s = (after.published_ns - before.published_ns) / 1e9
        if pause_s > 3 * PERIOD_S:
            continue  # the servo has arrived and restarts from rest
        faster = np.abs(after.velocity_si) - np.abs(before.velocity_si)
        assert (faster <= limits.acceleration * after.dt_s + ROUNDING).all()
        assert (-faster <= limits.deceleration * after.dt_s + ROUNDING).all()
    return published


# ------------------------------------------------------------------------------------------------------------ commands


def test_the_applied_command_keeps_the_limits_and_is_published(armed):
    armed.drive(8)
    armed.drive(8, values=[-3.0] * 6)
    armed.until(lambda: at_rest(armed))
    published = check_account(armed)
    armed.until(lambda: len(armed.applied) >= len(published))
    assert [fields.frame_id for fields in armed.applied] == [report.tag.to_text() for report in published]
    assert [list(fields.positions) for fields in armed.applied] == armed.commands
    assert {finding.code for report in published for finding in report.findings} >= {"acc.limit", "wd.hold"}


def test_a_feasible_command_arrives_bit_identically(armed):
    wanted = [0.001, -0.001, 0.0005, 0.0, -0.0, 1e-7]
    armed.wait_for_rest(2 * PERIOD_S)
    report = armed.ask_feasible(wanted)
    assert report.published
    assert report.applied_si.tolist() == wanted


def test_a_second_command_publisher_stops_the_robot_and_blocks_arming(armed):
    armed.drive(4)
    foreign = armed.node.create_publisher(JointState, "relay/command", 10)
    try:
        armed.until(lambda: armed.states[-1].latched == "robot.contention")
        armed.until(lambda: at_rest(armed))
        report = armed.ask([0.0] * 6)
        assert "robot.contention" in [finding.code for finding in report.findings]
        assert "/relayed/relay/command" in report.findings[-1].detail
        assert "/relayed/bench" in report.findings[-1].detail
        success, text = armed.call("arm")
        assert not success
        assert "robot.contention" in text
    finally:
        armed.node.destroy_publisher(foreign)
    armed.arm()
    assert armed.ask([0.0] * 6).published


def test_a_second_publisher_of_joint_states_stops_the_robot_and_blocks_arming(armed):
    """Without it the robot would start where the other publisher reports it to be."""
    armed.drive(2)
    foreign = armed.node.create_publisher(JointState, "joint_states", 10)
    joints = list(LAYOUT.joints)

    def stops():
        message = JointState(name=joints, position=[1.0] * len(joints), velocity=[0.0] * len(joints))
        message.header.stamp = armed.node.get_clock().now().to_msg()
        foreign.publish(message)
        return armed.states[-1].state == "stopped"

    try:
        armed.until(stops)
        armed.until(lambda: at_rest(armed))
        armed.until(lambda: stops() and armed.states[-1].latched in ("robot.contention", "robot.restarted"))
        success, text = armed.call("arm")
        assert not success
        assert "/relayed/joint_states: " in text
    finally:
        armed.node.destroy_publisher(foreign)
    check_account(armed)
    armed.arm()
    assert armed.ask([0.0] * 6).published


# ------------------------------------------------------------------------------------------------------------- braking


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_terminated_relay_brakes_the_robot_first(own_relay, number):
    armed = own_relay()
    armed.drive(5)
    while not armed.reports[-1].velocity_si.any():  # a busy machine is late, and the relay brakes
        armed.drive(1)
    armed.process.send_signal(number)
    armed.until(lambda: armed.process.poll() is not None)
    armed.until(lambda: at_rest(armed))
    armed.wait_for_rest(0.2)
    published = check_account(armed)
    assert armed.process.returncode == 0
    assert not published[-1].velocity_si.any()
    assert published[-1].findings[0].code == "latch.stop"


@pytest.mark.long
def test_a_relay_whose_parent_ends_brakes_the_robot_first(domain_id):
    child = Child(relay("-", namespace=NAMESPACE, source=ARM.source), first_line=dump_contract(ARM))
    bench = Bench(domain_id)
    try:
        bench.connect()
        bench.arm()
        bench.drive(8)
        child.close_input()
        bench.until(lambda: child.exit_code is not None)
        bench.wait_for_rest(0.2)
        published = check_account(bench)
        assert child.exit_code == 0
        assert not published[-1].velocity_si.any()
    finally:
        child.stop()
        bench.close()


# ------------------------------------------------------------------------------------------------------------ services


def test_a_pressed_estop_button_stops_the_robot_until_cleared(armed):
    armed.drive(4)
    armed.pressed = True
    armed.until(lambda: armed.states[-1].latched == "estop.active")
    armed.until(lambda: at_rest(armed))
    is_cleared, message = armed.call("clear_estop")
    assert not is_cleared
    assert re.search(r"button is active: topic \S+; release the emergency stop", message)
    armed.pressed = False
    armed.until(lambda: armed.states[-1].inputs["button"] == "ok")
    assert armed.states[-1].state == "estop"
    assert not armed.call("arm")[0]
    assert armed.call("clear_estop")[0]
    assert armed.call("arm")[0]


# --------------------------------------------------------------------------------------------------- state, diagnostics


def test_the_state_is_latched_for_late_subscribers(armed):
    late = Bench(ros_domains.FOR_RELAY)
    try:
        late.until(lambda: late.states)
        assert (late.states[0].epoch, late.states[0].fingerprint) == (armed.epoch, CONTRACT_OF_ALL.fingerprint)
    finally:
        late.close()


def test_diagnostics_report_state_and_refusals(armed):
    armed.ask([0.0] * 6)
    armed.ask([0.0] * 6, seq=1)
    wanted = {"armed": "True", "state": "armed", "epoch": str(armed.epoch)}

    def newest_status():
        reports = [status for message in armed.diagnostics for status in message.status]
        return next((s for s in reports if wanted.items() <= {v.key: v.value for v in s.values}.items()), None)

    end = time.monotonic() + TIMEOUT_S
    while not (status := newest_status()):  # it is armed as long as commands arrive
        assert time.monotonic() < end
        armed.ask(None)
        armed.wait_for_rest(0.02)
    values = {value.key: value.value for value in status.values}
    assert int(values["refused.act.dup"]) >= 1
    assert int(values["accepted"]) >= 1
    assert 0.0 < float(values["last_dt_s"]) <= ARM.control_period_s
    assert status.level == b"\x00"
    names = [each.name for each in armed.diagnostics[-1].status]
    assert names == [f"relayed/relay: {name}" for name in ("arm_reach", "periodicity", "heartbeat")]


def test_parameters_are_readable_and_read_only(bench):
    names = ["contract", "fingerprint", "diagnostics.threshold.periodicity.mean_error.warn"]
    contract, fingerprint, warn = bench.ask_parameters(GetParameters, names=names).values
    assert (contract.string_value, warn.double_value) == ("arm_reach", 5.0)
    assert fingerprint.string_value == CONTRACT_OF_ALL.fingerprint
    wanted = Parameter("contract", value="another").to_parameter_msg()
    (result,) = bench.ask_parameters(SetParameters, parameters=[wanted]).results
    assert not result.successful


PATH = "actuators.arm.joints.j1.acceleration"
CHOSEN = RobotSource(name="some_arm", sha256="0" * 64, chosen={PATH: "no source"})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"robot": CHOSEN}, (f"{PATH}: no source", "--confirm-chosen")),
        ({"unknown": {PATH: "unit of the commands"}}, (f"1 unknown: {PATH}: unit of the commands",)),
    ],
    ids=["chosen", "unknown"],
)
def test_a_relay_is_not_armed_with_chosen_or_unknown_values(domain_id, changes, words):
    with relaying(replace(ARM, **changes), NAMESPACE), contextlib.closing(Bench(domain_id)) as bench:
        bench.connect()
        is_armed, message = bench.call("arm")
    assert not is_armed
    assert all(each in message for each in words)


@pytest.mark.parametrize("estop", ["button", {"button": {"topic": "t", "type": "Bool"}}])
def test_an_invalid_profile_is_rejected_before_the_node_is_created(estop, monkeypatch):
    monkeypatch.setattr(rclpy, "init", lambda **_: pytest.fail("ROS 2 was initialised"))
    with pytest.raises(ContractError) as caught:
        run_relay(embodied_env.load_contract("arm_reach"), namespace=None, profile={"estop": estop}, stop=Event())
    assert caught.value.path.startswith("estop")
