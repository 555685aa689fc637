"""Relay reports are the evidence, and the robot stops when the environment or its relay dies."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import numpy as np
import psutil
import pytest
import ros_domains
from evidence import assert_replays, assert_sound
from shipped_contracts import changed_text, with_slow_emulator

pytest.importorskip("rclpy", reason="needs rclpy")

from rclpy.qos import DurabilityPolicy, QoSProfile
from sensor_msgs.msg import JointState
from std_msgs.msg import String
from waiting import wait_for_error

import embodied_env
from embodied_env.backends.backend_registry import make_backend
from embodied_env.contract.contract_loader import dump_contract, load_contract
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.code_table import CODES, GATES
from embodied_env.core.code_types import Severity
from embodied_env.core.policy import NoAction
from embodied_env.envs.latency_info import ACTUATION_METHODS
from embodied_env.errors import BackendNotReadyError, ResetNeededError
from embodied_env.processes.child_process import Child, relay, remove_orphaned_segments, segments_of, simulator
from embodied_env.ros.robot.relay_client import RELAY_STATE
from embodied_env.ros.transport.node import RosNode
from embodied_env.ros.transport.receive_thread import ReceiveThread, ServiceCaller
from embodied_env.ros.wire.sensor_buffer import SensorReader, stamp_ns
from embodied_env.safety.late_agent import LATE
from embodied_env.safety.relay.relay_protocol import CommandId, RelayReport, RelayState, write_command
from embodied_env.timing.clock import NS_PER_S, SteadyClock

pytestmark = [pytest.mark.ros, pytest.mark.kills, pytest.mark.realtime]

DOMAIN_ID = ros_domains.FOR_KILLS
SURROUNDINGS = {"ROS_DOMAIN_ID": str(DOMAIN_ID), "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"}
PATIENCE_S = 30.0
ATTEMPTS = 10  # of what a stall of the machine may interrupt
SERVO_S = 0.5  # until the arm reaches its target
STILL = 0.05  # rad/s: a servo that holds its position
ARM, CART = (with_slow_emulator(embodied_env.load_contract(name)) for name in ("arm_reach", "cart_goal"))
PERIOD_S = ARM.control_period_s
LAYOUT = ActionLayout(ARM)
DEEP = QoSProfile(depth=1000)
LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
FORWARD = np.array([1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
FORWARD.flags.writeable = False


PATIENT = {"backends.real.discovery_s": 0.0, "backends.real.connect_timeout_s": PATIENCE_S}


def with_profile(contract, **keys):
    profile = {**contract.backends["real"], "discovery_s": 0.0, "connect_timeout_s": PATIENCE_S, **keys}
    return replace(contract, backends={**contract.backends, "real": profile})


RELAYED = with_profile(ARM, relay=True)


def start(spec, contract=RELAYED, **options):
    return Child(spec, first_line=dump_contract(contract), **options)


class Monitor:
    """Stores the relay's reports, states and commands, and the measured joint velocities."""

    def __init__(self, namespace, contract=ARM, *, domain_id):
        self.ros = RosNode("monitor", namespace=namespace, clock=SteadyClock(), domain_id=domain_id)
        self.listener = ReceiveThread(self.ros.node, SteadyClock())
        self.reports, self.states, self.commands, self.moves = [], [], {}, []
        self.services = {
            name: ServiceCaller(self.listener, f"relay/{name}", SteadyClock())
            for name in ("arm", "estop", "clear_estop")
        }
        ((_, actuator),) = contract.actuators.items()
        self._listen(actuator.type, actuator.topic, self._take_command)
        self._listen("std_msgs/msg/String", "relay/report", lambda a: _keep(self.reports, RelayReport, a.message.data))
        self._listen(
            "std_msgs/msg/String", "relay/state", lambda a: _keep(self.states, RelayState, a.message.data), LATCHED
        )
        moving, field = ("joints", "velocity") if contract.name == ARM.name else ("imu", "angular_velocity")
        reader = SensorReader(moving, contract.sensors[moving])
        self._listen(
            contract.sensors[moving].type,
            contract.sensors[moving].topic,
            lambda a: self.moves.append((stamp_ns(a.message), reader.read(a.message)[field])),
        )
        self.listener.start()

    def _listen(self, kind, topic, take, qos=DEEP):
        self.listener.subscribe(topic, kind, topic, qos, take)

    def _take_command(self, arrival):
        self.commands[arrival.info["publication_sequence_number"]] = arrival

    def until(self, condition, timeout_s=PATIENCE_S):
        end = time.monotonic() + timeout_s
        while not (found := condition()):
            self.listener.raise_if_failed()
            assert time.monotonic() < end, (self.states[-1:], self.reports[-1:])
            time.sleep(0.01)
        return found

    def call(self, name):
        response = self.services[name].call(time.monotonic_ns() + round(PATIENCE_S * NS_PER_S))
        return response.success, response.message

    def published(self):
        return [report for report in self.reports if report.published]

    def at_rest(self):
        published = self.published()
        return bool(published) and not published[-1].velocity_si.any()

    def at_speed(self):
        """Return whether the first joint is commanded at nearly its full speed."""
        published = self.published()
        return bool(published) and published[-1].velocity_si[0] > 0.9 * LAYOUT.limits.fastest[0]

    def close(self):
        self.listener.stop()
        self.ros.close()


def _keep(messages, kind, text):
    """Store a message unless it is invalid, like that of a foreign publisher."""
    with contextlib.suppress(ValueError):
        messages.append(kind.from_text(text))


def check_account(monitor):
    """Assert that the commands on the topic, differentiated by the relay's stamps, keep the limits."""
    monitor.until(lambda: {report.number for report in monitor.published()} <= set(monitor.commands))
    published = monitor.published()
    for report in published:
        assert list(monitor.commands[report.number].message.data) == report.applied_si.tolist()
    for before, after in itertools.pairwise(published):
        if before.tag.epoch != after.tag.epoch or after.number != before.number + 1:
            continue
        elapsed_s = (after.published_ns - before.published_ns) / NS_PER_S
        assert 0.0 < after.dt_s <= min(elapsed_s, PERIOD_S) + 1e-3  # the stamps are taken around one publication
        velocity = (after.applied_si - before.applied_si) / after.dt_s
        assert (np.abs(velocity) <= LAYOUT.limits.fastest + 1e-9).all()
        is_arrived = elapsed_s > 2 * PERIOD_S  # three periods from the begin of a write, which may take one
        if after.guaranteed["acceleration"] and not is_arrived:
            faster = (np.abs(velocity) - np.abs(before.velocity_si)) / after.dt_s
            assert (faster <= LAYOUT.limits.acceleration + 1e-6).all()
            assert (-faster <= LAYOUT.limits.deceleration + 1e-6).all()
    return published


def check_it_stopped(monitor):
    """Assert that the robot stopped within the bound, by relay stamps and joint velocities, and stays at rest."""
    monitor.until(lambda: monitor.states[-1].state == "stopped")
    monitor.until(monitor.at_rest)
    time.sleep(0.5)
    published = check_account(monitor)
    last = [report for report in published if report.cause == "command"][-1]
    braking = [report for report in published if report.number >= last.number]
    assert last.velocity_si.any()
    assert {report.cause for report in braking[1:]} <= {"tick", "brake"}
    gaps_s = np.diff([report.published_ns for report in braking]) / NS_PER_S
    begin_s = (ARM.safety.watchdog.hold_steps + 1) * PERIOD_S  # detection, until the next tick
    late_s = max(0.0, gaps_s[0] - begin_s) + float(
        np.maximum(gaps_s[1:] - PERIOD_S, 0.0).sum()
    )  # lateness of the machine
    slowest_s = float((LAYOUT.limits.fastest / LAYOUT.limits.deceleration).max())
    rest = next(report for report in braking if not report.velocity_si.any())
    assert (rest.published_ns - last.published_ns) / NS_PER_S <= begin_s + slowest_s + PERIOD_S + late_s
    assert not any(report.velocity_si.any() for report in braking if report.number > rest.number)
    check_it_stays_at_rest(monitor, since_ns=rest.published_ns, within_s=SERVO_S + late_s)


def check_it_stays_at_rest(monitor, *, since_ns, within_s):
    """Assert that readings later than `since_ns`, of the steady clock, show rest and stay so."""
    limit_ns = since_ns + round(within_s * NS_PER_S) + time.time_ns() - time.monotonic_ns()

    def is_still():  # a robot whose process was delayed arrives later
        return monitor.moves and monitor.moves[-1][0] > limit_ns and np.abs(monitor.moves[-1][1]).max() < STILL

    monitor.until(is_still)
    limit_ns = monitor.moves[-1][0]
    time.sleep(0.3)
    assert max(np.abs(speeds).max() for stamp, speeds in monitor.moves if stamp > limit_ns) < STILL


# --------------------------------------------------------------------------------------------------------- fixtures


def remove_unused(names):
    """Remove the segments of killed processes that no live process uses, as several may share a port."""
    others = [process.pid for process in psutil.process_iter() if process.pid != os.getpid()]
    ours = {name for name in segments_of(os.getpid()) if name.startswith("fastrtps_port")}
    remove_orphaned_segments(names.difference(ours, *(segments_of(pid) for pid in others)))


@pytest.fixture(scope="module")
def shared_leftovers():
    """Names of the shared memory of killed processes, which others may keep open for longer than a test."""
    names = set()
    yield names
    remove_unused(names)


@pytest.fixture
def leftovers(domain_id, shared_leftovers):
    """Return these names, and remove unused segments after the test."""
    yield shared_leftovers
    remove_unused(shared_leftovers)


@pytest.fixture(scope="module")
def hosted(tmp_path_factory, shared_leftovers):
    """An arm, its relay and a monitor, shared by tests that kill neither."""
    namespace = f"/behind_{os.getpid()}"
    folder = tmp_path_factory.mktemp("relayed")
    profile = {"backends.real.relay": True, **PATIENT}
    (folder / "arm.yaml").write_text(changed_text(ARM, profile), encoding="utf-8")
    specs = (simulator("-", namespace=namespace, free_running=True), relay("-", namespace=namespace))
    with contextlib.ExitStack() as cleanup:
        for spec in specs:
            cleanup.callback(start(spec, environment=SURROUNDINGS).stop)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in SURROUNDINGS.items():
                patch.setenv(name, value)
            monitor = cleanup.enter_context(contextlib.closing(Monitor(namespace, domain_id=DOMAIN_ID)))
            hosted = Hosted(namespace, folder / "arm.yaml", monitor)
            cleanup.callback(hosted.close_env)
            hosted.env.reset(seed=0)
            end_episode(hosted.env)
        yield hosted


class Hosted:
    """An arm, its relay, a monitor, and an environment until a test makes its own, as the relay accepts one client."""

    def __init__(self, namespace, path, monitor):
        self.namespace, self.path, self.monitor = namespace, path, monitor
        self.env = embodied_env.make(RELAYED, backend="real", namespace=namespace, domain_id=DOMAIN_ID)

    def close_env(self):
        if self.env is not None:
            self.env.close()
            self.env = None


def end_episode(env):
    with contextlib.suppress(ResetNeededError):
        while True:
            env.step(None)


@pytest.fixture
def monitor(hosted, leftovers):
    """The monitor, without messages of earlier tests except the relay state."""
    monitor = hosted.monitor
    monitor.call("clear_estop")  # of the previous test
    monitor.until(lambda: monitor.at_rest() or not monitor.reports)
    with monitor.listener.condition:
        for received in (monitor.reports, monitor.commands, monitor.moves):
            received.clear()
    return monitor


@pytest.fixture
def env(hosted, monitor):
    """An environment behind the relay, at the start of an episode."""
    assert hosted.env is not None, "closed: tests with their own environment must come later"
    hosted.env.unwrapped.clear_estop()
    hosted.env.reset(seed=1)
    yield hosted.env
    end_episode(hosted.env)


@pytest.fixture
def make(hosted, close_later):
    hosted.close_env()

    def make_one(contract=RELAYED, **options):
        options = {"namespace": hosted.namespace, "domain_id": DOMAIN_ID, **options}
        return close_later(embodied_env.make(contract, backend="real", **options))

    return make_one


def drive(env, monitor):
    """Step until the first joint is fast, and reset where a stall has ended the episode."""
    for _ in range(ATTEMPTS):
        info = {"end_reason": ""}
        with contextlib.suppress(ResetNeededError):
            while not monitor.at_speed() or info["end_reason"]:
                *_, info = env.step(FORWARD)
            return
        env.reset()
    raise AssertionError(f"{ATTEMPTS} episodes ended early")


def learner_at_speed(learners, monitor, path, namespace, **options):
    """Return a learner whose robot moves at speed, in place of any that a busy machine stopped before."""
    while True:
        learner = learners(path, namespace, **options)
        monitor.until(lambda: monitor.at_speed() or monitor.states[-1].latched)
        if not monitor.states[-1].latched:
            return learner
        learner.kill()


def is_refused(info):
    """Return whether the action was held, as that of a busy machine is because of its age."""
    return info["safety"]["disposition"] >= Severity.HOLD


LEARNER = """
import ctypes, json, os, signal, sys
import numpy as np
import embodied_env

class Suspended:  # a tensor whose numbers come when the process goes on: a suspension in the verdict
    def detach(self):
        os.kill(os.getpid(), signal.SIGSTOP)
        return self
    def cpu(self):
        return action

path, namespace, hang_at, place = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
env = embodied_env.make(path, backend="real", namespace=namespace)
action = np.zeros(env.action_space.shape)
action[-1 if "cart" in path else 0] = 1.0
env.reset(seed=1)
print("reset", flush=True)
ended = False
while not ended:
    is_due = env.unwrapped.step_index == hang_at
    if is_due and place == "interpreter":
        ctypes.PyDLL(None).getchar()  # a C call that holds the GIL until a line arrives
    *_, terminated, truncated, info = env.step(Suspended() if is_due and place == "verdict" else action)
    ended = terminated or truncated
    if ended and env.unwrapped.step_index < hang_at:  # a stall of a busy machine
        env.reset()
        ended = False
print(json.dumps({"end_reason": info["end_reason"], "applied": info["action"]["applied"].tolist()}), flush=True)
"""


@pytest.fixture
def learners(leftovers):
    """Return a function that runs a learner in its own process, and kill all after the test."""
    started = []

    def run(path, namespace, *, domain_id=DOMAIN_ID, hang_at=-1, place="interpreter"):
        process = subprocess.Popen(
            [sys.executable, "-c", LEARNER, str(path), namespace, str(hang_at), place],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **SURROUNDINGS, "ROS_DOMAIN_ID": str(domain_id)},
        )
        started.append(process)
        line = process.stdout.readline()
        assert line == "reset\n", process.stderr.read()
        leftovers.update(segments_of(process.pid))
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


# ------------------------------------------------------------------- robots of their own, before the shared one starts


@pytest.fixture
def mortal(domain_id, leftovers):
    """Return a function that starts processes that may be killed, in their own domain."""
    children, witnesses = [], []
    namespace = f"/mortal_{os.getpid()}"

    def run(contract, *specs):
        children.extend(start(spec(namespace), contract) for spec in specs)
        monitor = Monitor(namespace, contract, domain_id=domain_id)
        witnesses.append(monitor)
        monitor.until(lambda: monitor.moves and (len(specs) == 1 or monitor.states))
        return namespace, monitor, children

    yield run
    leftovers.update(segments_of(os.getpid()), *(segments_of(child.pid) for child in children))
    for monitor in witnesses:
        monitor.close()
    for child in reversed(children):
        child.stop()


def free_simulator(namespace):
    return simulator("-", namespace=namespace, free_running=True)


def relay_in(namespace):
    return relay("-", namespace=namespace)


def test_setpoints_of_the_relay_are_accounted_and_bring_the_robot_to_rest_when_the_learner_is_killed(
    domain_id, leftovers, learners, mortal, tmp_path
):
    path = tmp_path / "arm.yaml"
    keys = {"actuators.arm.setpoint_rate_hz": 200, "backends.real.relay": True, **PATIENT}
    path.write_text(changed_text(ARM, keys))
    contract = load_contract(path)
    namespace, monitor, _ = mortal(contract, free_simulator, relay_in)
    where = {"namespace": namespace, "domain_id": domain_id}
    with embodied_env.make(contract, backend="real", record=tmp_path / "runs", **where) as env:
        accounts, info = [], {"end_reason": "none"}
        for _ in range(400):
            if info["end_reason"]:
                env.reset(seed=1)
            *_, info = env.step(FORWARD)
            account = info.get("annotations", {}).get("setpoints", {"sent": 0})
            if not is_refused(info) and account["sent"] >= 2:  # a busy machine delays the others
                accounts.append(account)
            if len(accounts) == 8:
                break
    assert [account["rate_hz"] for account in accounts] == [200.0] * 8
    assert max(account["worst_gap_s"] for account in accounts) > 0.004
    assert_sound(env.path)
    assert_replays(env.path)
    learner = learner_at_speed(learners, monitor, path, namespace, domain_id=domain_id)
    leftovers.update(segments_of(learner.pid))
    with monitor.listener.condition:
        monitor.commands.clear()
    learner.kill()
    monitor.until(lambda: monitor.states[-1].latched == "wd.stop" and not monitor.states[-1].braking)
    time.sleep(0.3)
    rest_ns = time.monotonic_ns()
    commands = [list(arrival.message.data) for _, arrival in sorted(monitor.commands.items())]
    jumps = np.abs(np.diff(commands, axis=0)).max(axis=1)
    limits = LAYOUT.limits
    assert jumps.max() <= limits.fastest.max() * PERIOD_S * (1 + 1e-9)  # of a tick after a gap
    assert np.median(jumps[jumps > 0.0]) <= limits.fastest.max() * 2 / 200
    assert len(jumps) > 200 * limits.fastest[0] / limits.deceleration[0] / 6  # at the rate of the setpoints
    check_it_stays_at_rest(monitor, since_ns=rest_ns, within_s=SERVO_S)


@pytest.mark.long
def test_a_killed_relay_first_holds_then_loses_the_robot(domain_id, leftovers, mortal, make):
    namespace, monitor, (_, relay_child) = mortal(RELAYED, free_simulator, relay_in)
    env = make(namespace=namespace, domain_id=domain_id)
    env.reset(seed=1)
    drive(env, monitor)
    leftovers.update(segments_of(relay_child.pid))
    os.kill(relay_child.pid, signal.SIGKILL)
    killed_ns = time.monotonic_ns()
    infos = []
    while not (infos and infos[-1]["end_reason"]):
        *_, info = env.step(FORWARD)
        infos.append(info)
    assert infos[-1]["end_reason"] == "backend_lost:relay_silent"
    no_response = [info for info in infos if info["safety"]["code"][GATES.index("relay")] == CODES["relay.silent"]]
    assert len(no_response) >= ARM.safety.watchdog.stop_steps - 2  # braking by the watchdog counts too
    for info in no_response:
        assert info["safety"]["disposition"] >= Severity.HOLD
        assert not any(info["safety"]["guaranteed"].values())
        np.testing.assert_array_equal(info["action"]["applied"], np.zeros(6))
    check_it_stays_at_rest(monitor, since_ns=killed_ns, within_s=SERVO_S)
    sent = monitor.commands[max(monitor.commands)].message.data
    assert list(no_response[-1]["action"]["applied_si"].values()) == list(sent)


def hold_the_gil(learner, seconds):
    time.sleep(seconds)  # it waits for a line at the 30th step
    learner.stdin.write("\n")
    learner.stdin.flush()


def suspend(process, seconds, *, until):
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(seconds)
    until()
    os.kill(process.pid, signal.SIGCONT)


LONG = pytest.mark.long
SUSPENDED_S = 1.5  # above the 0.5 s of the controller and the 1.0 s after which a STOP is latched


@pytest.mark.parametrize(
    ("suspended", "is_relayed"),
    [
        ("agent", False),
        pytest.param("verdict", False, marks=LONG),  # test_late_writes.py has it by default
        pytest.param("agent", True, marks=LONG),
        *[pytest.param("agent", False, marks=LONG, id=f"agent-at-random-{k}") for k in range(30)],
        *[pytest.param("relay", True, marks=LONG, id=f"relay-at-random-{k}") for k in range(20)],
        pytest.param("verdict", True, marks=LONG),
        pytest.param("interpreter", False, marks=LONG),
        pytest.param("interpreter", True, marks=LONG),
    ],
)
def test_braking_never_moves_a_base_at_rest(domain_id, leftovers, learners, mortal, tmp_path, suspended, is_relayed):
    """The controller stops the base after 0.5 s without a command, and then the suspended process resumes."""
    contract = with_profile(CART, relay=is_relayed)
    written = {**PATIENT, "backends.real.relay": is_relayed}
    (tmp_path / "cart.yaml").write_text(changed_text(CART, written))
    specs = (free_simulator, relay_in) if is_relayed else (free_simulator,)
    namespace, monitor, children = mortal(contract, *specs)
    hang_at = {"interpreter": 30, "verdict": 12}.get(suspended, -1)
    learner = learners(tmp_path / "cart.yaml", namespace, domain_id=domain_id, hang_at=hang_at, place=suspended)
    monitor.until(lambda: monitor.moves and abs(monitor.moves[-1][1][2]) > 1.0)
    if suspended == "interpreter":
        hold_the_gil(learner, 4.0)
    else:
        if suspended == "verdict":
            monitor.until(lambda: psutil.Process(learner.pid).status() == psutil.STATUS_STOPPED)
        process = children[-1] if suspended == "relay" else learner
        suspend(process, SUSPENDED_S, until=lambda: monitor.until(lambda: abs(monitor.moves[-1][1][2]) < STILL))
    resumed_ns = time.time_ns()
    said, _ = learner.communicate(timeout=PATIENCE_S)
    reason = json.loads(said)["end_reason"]  # without a STOP if the step in which it was suspended ends the episode
    assert reason in ("safety_stop:wd.stop", LATE) or reason.startswith(("backend_lost:", "sensor_gap:"))
    time.sleep(0.5)
    arrivals = [arrival for _, arrival in sorted(monitor.commands.items())]
    turns = [(each.info["source_timestamp"], each.message.twist.angular.z) for each in arrivals]  # as sent
    limits = ActionLayout(CART).limits
    if not (is_relayed and suspended != "relay"):  # a running relay leaves no gap
        assert max(np.diff([at_ns for at_ns, _ in turns])) > 0.5 * NS_PER_S
    in_force = 0.0
    for (before_ns, before), (at_ns, turn) in itertools.pairwise(turns):
        in_force = 0.0 if at_ns - before_ns > 0.6 * NS_PER_S else before
        assert abs(turn) <= abs(in_force) + limits.acceleration[1] * CART.control_period_s + 1e-9
        if at_ns > resumed_ns:
            assert abs(turn) <= abs(in_force)
    assert turns[-1][1] == 0.0
    assert max(abs(speeds[2]) for stamp, speeds in monitor.moves if stamp > resumed_ns) < 2 * STILL


# ---------------------------------------------------------------------------------------------------- the reports


def test_the_relay_report_is_actuation_evidence(env, monitor):
    info = None
    while info is None or is_refused(info):
        drive(env, monitor)
        *_, info = env.step(FORWARD)
    latency = info["latency"]
    assert (latency["actuation_method"], latency["actuation_behind"]) == (ACTUATION_METHODS["echo"], 0)
    assert 0.0 < latency["actuation_s"] < ARM.control_period_s
    assert latency["end_to_end_s"] == latency["data_age_s"]["joints"] + latency["actuation_s"]


def test_a_relay_estop_ends_the_episode_and_must_be_cleared_on_both_sides(env, monitor):
    drive(env, monitor)
    monitor.call("estop")
    truncated = False
    while not truncated:
        *_, truncated, info = env.step(FORWARD)
    assert info["end_reason"].startswith("safety_stop:")
    assert info["safety"]["latched"]
    assert monitor.until(monitor.at_rest)
    with pytest.raises(BackendNotReadyError, match=r"an ESTOP is latched .*clear_estop"):
        env.reset(seed=2)
    assert monitor.call("clear_estop")[0]
    env.unwrapped.clear_estop()
    env.reset(seed=3)
    *_, info = env.step(FORWARD)
    assert info["end_reason"] == ""


@contextlib.contextmanager
def intruding(hosted, kind, topic, qos, subscribers=1):
    """Yield a publisher with a node of its own, so that no executor uses it while it is destroyed."""
    ros = RosNode("intruder", namespace=hosted.namespace, clock=SteadyClock(), domain_id=DOMAIN_ID)
    try:
        publisher = ros.node.create_publisher(kind, topic, qos)
        assert ros.wait_until(lambda: publisher.get_subscription_count() >= subscribers, PATIENCE_S)
        yield publisher
    finally:
        ros.close()


def test_a_foreign_publisher_on_the_command_topic_ends_the_episode_and_blocks_the_next(env, monitor, hosted):
    backend = env.unwrapped.stepper.backend
    drive(env, monitor)
    info = {"end_reason": ""}
    with intruding(hosted, JointState, "relay/command", 10) as intruder:
        while not info["end_reason"]:
            tag = CommandId(epoch=monitor.states[-1].epoch, seq=10**15)
            intruder.publish(write_command(tag, np.ones(6), LAYOUT).fill(JointState()))
            *_, info = env.step(FORWARD)
        assert info["end_reason"] == "safety_stop:robot.contention"
        details = [f.detail for f in env.unwrapped.last_transition.report.findings if f.code == "robot.contention"]
        assert f"{hosted.namespace}/relay/command" in details[0]  # the node may not be discovered yet
        assert max(report.tag.seq for report in monitor.published()) < 10**15
        patient, backend.reset_timeout_s = backend.reset_timeout_s, 1.0
        expected = r"\[robot.contention\] relay: .*also published by /.*/intruder"  # discovered last
        wait_for_error(lambda: env.reset(seed=2), BackendNotReadyError, expected)
        backend.reset_timeout_s = patient
    env.reset(seed=3)
    assert not env.step(np.zeros(6))[-1]["end_reason"]


@pytest.mark.parametrize("topic", ["relay/report", "relay/state"])
def test_invalid_relay_messages_end_the_episode_and_the_next_reset_works(env, hosted, topic):
    qos = LATCHED if topic == "relay/state" else DEEP
    with intruding(hosted, String, topic, qos, subscribers=2) as intruder:  # the environment and the monitor
        intruder.publish(String(data='{"a":' * 50_000))
        info = {"end_reason": ""}
        while not info["end_reason"]:
            *_, info = env.step(np.zeros(6))
        assert info["end_reason"] in {
            "safety_stop:robot.contention",
            {"relay/report": "backend_lost:invalid_message", "relay/state": "safety_stop:estop.unknown"}[topic],
        }
    if info["end_reason"] == "safety_stop:estop.unknown":
        with pytest.raises(
            BackendNotReadyError, match=r"reset refused: an ESTOP is latched \(estop\.unknown: relay st"
        ):
            env.reset()
    env.unwrapped.clear_estop()
    env.reset(seed=3)
    assert not env.step(np.zeros(6))[-1]["end_reason"]


# ----------------------------------------------------- tests with their own environment: the one above is closed


HOME = {"j1": 0.1, "j2": -1.5, "j3": 1.5, "j4": -1.6, "j5": -1.5, "j6": 0.1}


def test_homing_goes_through_the_relay_slowly_and_the_episode_starts_there(make, monitor):
    """The relay enforces the contract's limits, and the environment makes the motion slow."""
    speed = 0.3
    env = make(with_profile(ARM, relay=True, reset={"home": HOME, "speed": speed}))
    env.unwrapped.clear_estop()
    for _ in range(ATTEMPTS):
        with contextlib.suppress(BackendNotReadyError):  # a relay that is delayed in each of ten commands
            _, info = env.reset(seed=1)
            break
    assert info["reset"]["routine"] == "home"
    with monitor.listener.condition:
        moves = np.array([report.velocity_si for report in monitor.published()])
    assert 0.4 * speed < np.abs(moves / LAYOUT.limits.fastest).max() < 1.3 * speed  # its periods differ from ours
    *_, info = env.step(0.0 * FORWARD)  # the relay's clock may clip the first command
    np.testing.assert_allclose(list(info["action"]["applied_si"].values()), list(HOME.values()), atol=0.03)
    end_episode(env)


def test_a_relayed_episode_passes_the_audit_and_records_what_the_relay_published(make, monitor, tmp_path):
    env = make(record=tmp_path)
    policy = embodied_env.load_policy("scripted", ARM)
    info = {"end_reason": ""}
    for _ in range(ATTEMPTS):
        observation, _ = env.reset(seed=1)
        accounts, speeds, missed, ended = [], [], [], False
        while not ended:
            is_missing = len(accounts) < 2 or (len(missed) < 3 and (missed or speeds[-1] > 0.8))
            if is_missing and accounts[1:]:
                missed.append(len(accounts))
            action = NoAction("late") if is_missing else policy(observation)
            observation, _, terminated, truncated, info = env.step(action)
            accounts.append(env.unwrapped.last_transition.report)
            speeds.append(np.abs(accounts[-1].velocity_si).max())
            ended = terminated or truncated
        if info["end_reason"] == "success":  # no stall of the machine
            break
    assert max(speeds[:2]) == 0.0
    assert speeds[missed[0] - 1] > speeds[missed[-1]]
    path = env.path
    env.close()
    assert info["end_reason"] == "success"
    assert_sound(path)
    published = {report.applied_si.tobytes(): report for report in check_account(monitor)}
    answered = [each for each in accounts if all(finding.code != "relay.silent" for finding in each.findings)]
    assert len(answered) > len(accounts) / 2  # on a busy machine, a report may miss its deadline
    for account in answered:
        report = published[account.applied_si.tobytes()]
        assert account.guaranteed["position"]
        assert account.guaranteed["velocity"]
        assert account.dt_s == report.dt_s or not report.velocity_si.any()


@pytest.mark.parametrize(
    ("contract", "option", "is_relayed"),
    [(ARM, None, False), (ARM, True, True), (RELAYED, None, True), (RELAYED, False, False)],
)
def test_the_option_overrides_the_profile(contract, option, is_relayed):
    backend: Any = make_backend("real", contract, clock=SteadyClock(), relay=option)
    assert backend.capabilities.acknowledges_commands == is_relayed
    assert (RELAY_STATE in backend.estops()) == is_relayed


# ------------------------------------------------------------------------------------------- killed and hung processes


def test_killing_the_learner_stops_the_robot_until_it_is_armed_again(hosted, leftovers, learners, monitor):
    hosted.close_env()
    learner = learner_at_speed(learners, monitor, hosted.path, hosted.namespace)
    leftovers.update(segments_of(learner.pid))
    learner.kill()
    check_it_stopped(monitor)
    epoch = monitor.published()[-1].tag.epoch
    assert monitor.states[-1].latched == "wd.stop"
    assert monitor.call("arm")[0]
    monitor.until(lambda: (monitor.states[-1].state, monitor.states[-1].epoch > epoch) == ("armed", True))


@pytest.mark.long
def test_a_policy_that_holds_the_gil_leaves_the_robot_at_rest(hosted, learners, monitor):
    hosted.close_env()
    learner = learner_at_speed(learners, monitor, hosted.path, hosted.namespace, hang_at=15)
    check_it_stopped(monitor)
    assert learner.poll() is None
    published = len(monitor.published())
    line, _ = learner.communicate("\n", timeout=PATIENCE_S)
    result = json.loads(line)
    assert result["end_reason"] in ("safety_stop:wd.stop", LATE)
    assert result["applied"] == [0.0] * 6
    assert len(monitor.published()) == published
    assert monitor.states[-1].state == "stopped"
