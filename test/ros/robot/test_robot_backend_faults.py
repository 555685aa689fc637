"""Faults are injected over real ROS 2 between the topics of a free-running robot and the environment.

The page docs/reference/faults.md lists the tests of each fault. Each scenario here has a seed and limits of steps and wall
time, and ends with `Episode.check`: published commands are within every limit, and observations are in their space.
"""

import itertools
import os
import signal
import sys
import threading
import time
from collections import deque
from dataclasses import replace

import numpy as np
import psutil
import pytest
from evidence import assert_sound
from held_executor import FLAT_KB, grown_kb, held, more, resident_kb

pytest.importorskip("rclpy", reason="needs rclpy")

from in_process_robot import SteppedClock
from robot_rig import (
    ARM,
    BUSY,
    BUSY_S,
    DOMAIN_ID,
    ENVIRONMENT,
    ESTOPS,
    FAST,
    MAX_AGE_S,
    NAMESPACE,
    PERIOD_S,
    PROTECTIVE,
    ROUNDING,
    SEED,
    SHORT_S,
    SLOW,
    TIMEOUT_S,
    ZERO,
    Episode,
    Monitor,
    Rig,
    codes,
    holds,
    kill,
    start_robot,
    with_injection,
)
from spinning import Spinning
from std_msgs.msg import Float64MultiArray, Int32
from std_srvs.srv import SetBool, Trigger
from waiting import wait_for, wait_for_error

import embodied_env
from embodied_env.core.code_types import Quality, Severity
from embodied_env.core.policy import NoAction
from embodied_env.errors import BackendNotReadyError
from embodied_env.processes.child_process import Child, ProcessSpec
from embodied_env.ros.transport.node import RosNode
from embodied_env.ros.transport.qos import RELIABLE
from embodied_env.testing.fault_injection import Burst, Corrupt, Delay, Freeze, Restamp
from embodied_env.timing.clock import NS_PER_S, SteadyClock

pytestmark = [pytest.mark.ros, pytest.mark.kills, pytest.mark.realtime]


def check_ages(rows):
    """Assert that actions are held exactly when their observation is too old, and return how many."""
    found = 0
    for earlier, later in itertools.pairwise(rows):
        (age_s,) = ages_s([earlier])
        is_held = "obs.stale" in codes(later)
        found += is_held
        if age_s > MAX_AGE_S:
            assert is_held
        elif age_s + later.info["latency_ms"] / 1000 < MAX_AGE_S:
            assert not is_held
    return found


def ages_s(rows):
    return [row.info["sensors"]["joints"]["age_s"] for row in rows]


def qualities(rows):
    return [Quality(row.info["sensors"]["joints"]["quality"]) for row in rows]


def stamps(rows):
    return [row.info["sensors"]["joints"]["stamp_ns"] for row in rows]


def counts_of(rows, what):
    return sum(row.info["sensors"]["joints"][what] for row in rows)


# ---------------------------------------------------------------------------------------------------- shared robot


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**ENVIRONMENT, "ROS_LOG_DIR": str(folder / "log")}.items():
            patch.setenv(name, value)
        rig = Rig(folder)
        yield rig
        rig.close()


@pytest.fixture
def episode(rig):
    """Yield a running episode without a fault, whose limits are checked at the end."""
    for _ in range(10):
        episode = rig.begin()
        episode.run(4, SLOW)
        if not holds(episode.rows):
            break
    assert holds(episode.rows) == set()
    yield episode
    episode.check()


# ------------------------------------------------------------------------------------------------------- sensors


def test_f02_frozen_sensor_becomes_stale_and_stops_the_robot(rig, episode, record_property):
    episode.inject(lambda: rig.chaos.set_faults(Freeze()))
    rows = episode.run_to_end(SLOW)
    assert episode.ended == "safety_stop:obs.stale"
    assert holds(rows) - BUSY == set()
    assert counts_of(rows, "duplicated") > 0
    assert np.all(np.diff(ages_s(rows)[1:]) > 0)
    assert len(set(stamps(rows)[1:])) == 1
    assert check_ages(rows) >= ARM.safety.observation.stop_steps
    _hold, rest = episode.note(record_property)  # a stall of the machine can hold before the fault does
    assert rest * PERIOD_S <= MAX_AGE_S + 10 * PERIOD_S + BUSY_S


def test_f03_old_data_with_new_stamps_are_a_tracking_error_in_motion(rig, episode, record_property):
    episode.inject(lambda: rig.chaos.set_faults(Restamp(kind="old_data")))
    rows = episode.run_to_end(FAST)
    assert episode.ended == "safety_stop:track.error"
    assert holds(rows) >= {"track.error"}
    episode.note(record_property)


def test_f04_non_finite_readings_are_replaced_by_the_last_valid_ones(rig, episode, record_property):
    episode.inject(lambda: rig.chaos.set_faults(Corrupt()))
    rows = episode.run_to_end(SLOW)
    assert episode.ended in {"safety_stop:obs.invalid", "safety_stop:obs.stale"}  # the last valid one grows old too
    assert holds(rows) - BUSY == {"obs.invalid"}
    wrong = [row for row in rows if qualities([row]) == [Quality.INVALID]]
    assert all(row.observation["joints_valid"] == 0 for row in wrong)
    assert len({row.observation["joints_position"].tobytes() for row in wrong}) == 1
    episode.note(record_property)


def test_f04_reset_fails_with_non_finite_readings(rig):
    rig.begin()
    rig.chaos.set_faults(Corrupt(every=True))
    with pytest.raises(BackendNotReadyError, match="no measured position of j1, j2"):
        rig.env.reset(seed=SEED)


def test_f12_newest_message_of_a_late_burst_is_used(rig, episode):
    """Messages delayed beyond max_age_s hold the robot, and readings are valid again at once afterwards."""
    rig.chaos.set_faults(Burst(hold_s=0.3, every_s=0.5))
    rows = episode.run(20, SLOW)
    assert check_ages(rows) > 0
    assert holds(rows) - BUSY == set()
    assert min(row.report.disposition for row in rows[6:]) < Severity.HOLD
    assert np.all(np.diff(stamps(rows)) >= 0)
    newest = [later for earlier, later in itertools.pairwise(rows) if stamps([later]) > stamps([earlier])]
    assert min(ages_s(newest)) < MAX_AGE_S


def test_f14_age_follows_a_growing_delay_and_exceeding_the_limit_holds(rig, episode):
    episode.inject(lambda: rig.chaos.set_faults(Delay(delay_s=0.5, ramp_s=0.6)))
    rows = episode.run_to_end(SLOW)
    assert episode.ended == "safety_stop:obs.stale"
    ages = ages_s(rows)
    assert ages[-1] > MAX_AGE_S > min(ages)  # the first may be caused by a stall of the machine
    assert check_ages(rows) >= ARM.safety.observation.stop_steps


@pytest.mark.parametrize(
    ("offset_s", "code"),
    [
        pytest.param(3600.0, "obs.future", id="an hour ahead", marks=pytest.mark.long),
        pytest.param(37.0, "obs.future", id="TAI"),
        pytest.param(-3600.0, "obs.stale", id="an hour behind", marks=pytest.mark.long),
    ],
)
def test_f16_stamps_of_another_clock_are_never_fresh(rig, episode, offset_s, code):
    rig.chaos.set_faults(Restamp(offset_s=offset_s))
    rows = episode.run_to_end(SLOW)
    assert episode.ended == f"safety_stop:{code}"
    assert holds(rows) - BUSY <= {code}


# ------------------------------------------------------------------------------------------ e-stop and robot mode


def test_f31_pressed_estop_stops_the_robot_and_only_an_operator_clears_it(rig, episode, record_property):
    episode.run(6, FAST)
    episode.inject(lambda: setattr(rig.monitor, "pressed", True))
    episode.run_to_end(FAST)
    assert episode.ended == "safety_stop:estop.active"
    assert episode.rows[-1].report.disposition is Severity.ESTOP
    hold, _rest = episode.note(record_property)
    assert hold * PERIOD_S < PERIOD_S + BUSY_S
    rig.monitor.pressed = False
    wait_for(lambda: rig.env.unwrapped.stepper.backend.estops()["button"].is_ok)
    with pytest.raises(BackendNotReadyError, match=r"an ESTOP is latched \(estop\.active"):
        rig.env.reset()
    episode.check()
    third = rig.begin()
    third.run(2, SLOW)
    third.check()


def test_f31_silent_estop_expires(rig, episode, record_property):
    episode.inject(lambda: setattr(rig.monitor, "pressed", None))
    episode.run_to_end(SLOW)
    assert episode.ended == "safety_stop:estop.expired"
    episode.note(record_property)


def test_f31_estop_brakes_between_two_steps(rig, episode):
    episode.run(6, FAST)
    episode.inject(lambda: setattr(rig.monitor, "pressed", True))

    def has_braked():
        last = episode.spy.passed[-1][1]
        return "estop.active" in codes_of(last) and not last.report.velocity_si.any()

    wait_for(has_braked)  # without a step
    episode.step(FAST)
    assert episode.ended.startswith("safety_stop:")


def codes_of(command):
    return {finding.code for finding in command.report.findings}


def test_f32_protective_stop_latches_and_the_old_target_is_not_sent_again(rig, episode, record_property):
    episode.run(6, FAST)
    episode.inject(lambda: rig.monitor.mode.publish(Int32(data=PROTECTIVE)))
    episode.run_to_end(FAST)
    assert episode.ended == "safety_stop:robot.protective_stop"
    episode.note(record_property)
    again = rig.begin()
    measured = again.observation["joints_position"]
    again.run(1, ZERO)
    np.testing.assert_allclose(again.spy.passed[0][1].values, measured, atol=ROUNDING)
    again.check()


# ------------------------------------------------------------------------------------------------ actuators, policy


@pytest.fixture
def foreign_node(domain_id):
    node = RosNode("foreign_node", namespace=NAMESPACE, clock=SteadyClock(), domain_id=DOMAIN_ID)
    yield node.node
    node.close()


def test_f10_foreign_command_publisher_stops_the_robot_and_makes_reset_fail(
    rig, episode, foreign_node, record_property, monkeypatch
):
    topic = next(iter(ARM.actuators.values())).topic
    episode.inject(lambda: foreign_node.create_publisher(Float64MultiArray, topic, RELIABLE))
    episode.run_to_end(SLOW)
    assert episode.ended == "safety_stop:robot.contention"
    episode.note(record_property)
    monkeypatch.setattr(rig.env.unwrapped.stepper.backend, "reset_timeout_s", 1.0)
    wait_for_error(lambda: rig.env.reset(seed=SEED), BackendNotReadyError, "foreign_node")


def test_f51_policy_without_an_action_brakes_the_robot_and_ends_the_episode(episode):
    episode.run(6, FAST)
    episode.run_to_end(NoAction("server is silent"))
    assert episode.ended == "policy_lost:server is silent"
    assert {finding.code for finding in episode.rows[-1].report.findings} >= {"form.none"}
    np.testing.assert_array_equal(episode.rows[-1].report.velocity_si, ZERO)


@pytest.fixture(scope="module")
def policy_server(tmp_path_factory):
    """A stand-in of a policy server, which the last test that uses it kills."""
    import policy_server_faults

    pytest.importorskip("websockets", reason="needs websockets")
    with policy_server_faults.StandIn(tmp_path_factory.mktemp("server")) as stand_in:
        yield stand_in


@pytest.mark.needs("remote")
@pytest.mark.parametrize("name", ["stalled", pytest.param("nan", marks=pytest.mark.long)])
def test_f52_faulty_policy_server_brakes_the_robot(rig, policy_server, name, record_property):
    from policy_server_faults import FAULTS
    from remote_policy import check_fault

    (fault,) = (each for each in FAULTS if each.name == name)
    check_fault(rig, policy_server, fault, record_property)


@pytest.mark.needs("remote")
def test_f52_killed_policy_server_brakes_the_robot(rig, policy_server, record_property):
    from remote_policy import RemoteEpisode, check_loss

    policy_server.set("")
    with RemoteEpisode(rig, policy_server) as remote:
        remote.episode.inject(policy_server.kill)
        check_loss(remote, "connection refused", record_property)


def test_f33_hanging_policy_brakes_the_robot_and_truncates_the_next_step(rig, episode, record_property):
    episode.run(6, FAST)
    hang(episode)
    _hold, rest = episode.note(record_property)
    assert rest <= ARM.safety.watchdog.stop_steps + BUSY_S / PERIOD_S


def hang(episode):
    """Take no step until the watchdog has stopped the robot."""

    def has_stopped():
        last = episode.spy.passed[-1][1]
        return "wd.stop" in codes_of(last) and not last.report.velocity_si.any()

    episode.inject(lambda: wait_for(has_stopped))
    by_watchdog = [c for at_ns, c in episode.spy.passed if at_ns > episode.fault_ns]
    assert all(codes_of(c) & {"wd.hold", "wd.stop"} for c in by_watchdog)
    last = episode.step(FAST)
    assert episode.ended == "policy_lost:late"
    assert [f.detail for f in last.report.findings if f.gate == "latch"] == ["latched by wd.stop"]
    assert last.info["safety"]["watchdog"]["trips"] >= 1


def test_f47_resets_leak_no_threads_files_or_subscriptions(rig):
    check_resets(rig, 5)


@pytest.mark.long
def test_f47_thousand_resets_leak_no_threads_files_or_subscriptions(rig):
    check_resets(rig, 1000)


def check_resets(rig, count):
    episode = rig.begin()
    episode.run(1)
    backend = rig.env.unwrapped.stepper.backend
    backend._connection.sink, rig.monitor.commands = episode.spy.outlet, deque(maxlen=1)  # these store every command
    before, epoch = held(rig.env, rig.robot.pid), rig.env.unwrapped.epoch
    resident = resident_kb(rig.robot.pid)
    for _ in range(count):
        rig.env.reset()
    assert rig.env.unwrapped.epoch == epoch + count
    wait_for(lambda: not more(before, held(rig.env, rig.robot.pid)))
    grown = grown_kb(resident, resident_kb(rig.robot.pid))
    print(before, held(rig.env, rig.robot.pid), f"memory: {grown} kB more", sep="\n")
    assert max(grown) <= FLAT_KB


def test_log_of_all_faults_is_readable_and_passes_the_audit(rig):
    """This is the last test of the shared environment, since its run holds every episode above."""
    rig.begin().run(2)
    rig.close_env()
    run = embodied_env.read_run(rig.env.path)
    assert run.clean
    assert_sound(rig.env.path)


# ------------------------------------------------------------------------------------------------ killed processes


TOPIC_RELAY = (
    "import sys, threading\n"
    "from embodied_env.processes.child_process import watch_parent\n"
    "from embodied_env.testing import ChaosNode\n"
    "done = threading.Event()\n"
    "watch_parent(done.set)\n"
    f"with ChaosNode(*sys.argv[1:], seed={SEED}, namespace={NAMESPACE!r}):\n"
    "    done.wait()\n"
)


@pytest.fixture
def environment_variables(domain_id, monkeypatch):
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def other_robot(rig):
    """The robot without the environment of the tests above."""
    rig.close_env()
    return rig.robot


@pytest.fixture
def relayed(environment_variables):
    """Relay a topic of the other robot through a process that can be killed."""
    children = []

    def start(source, target, message_type):
        command = (sys.executable, "-c", TOPIC_RELAY, source, target, message_type)
        children.append(Child(ProcessSpec(role="relay of a topic", arguments=command)))
        return children[-1]

    yield start
    for child in children:
        child.stop()


@pytest.fixture
def make(environment_variables, close_later):
    def make_one(contract, **options):
        real = {"backend": "real", "namespace": NAMESPACE, "domain_id": DOMAIN_ID}
        return close_later(embodied_env.make(contract, **real, **options))

    return make_one


def test_f01_killed_sensor_publisher_stops_the_robot_and_is_named_at_reset(other_robot, relayed, make, record_property):
    publisher = relayed("joint_states", "chaos/joint_states", "sensor_msgs/msg/JointState")
    env = make(with_injection(reset_timeout_s=20.0))
    episode = Episode(env)
    episode.run(6, SLOW)
    episode.inject(lambda: kill(publisher))
    rows = episode.run_to_end(SLOW)
    assert episode.ended == "safety_stop:obs.stale"
    assert holds(rows) - BUSY == set()
    arrivals = [row.info["sensors"]["joints"]["arrival_age_s"] for row in rows]
    assert np.all(np.diff(arrivals[1:]) > 0)
    assert rows[-1].info["sensors"]["tcp"]["age_s"] < MAX_AGE_S  # only one sensor is silent
    episode.note(record_property)
    episode.check()
    env.unwrapped.stepper.backend.reset_timeout_s = 0.3
    started = time.monotonic()
    with pytest.raises(BackendNotReadyError, match="joints"):
        env.reset(seed=SEED)
    assert time.monotonic() - started < 0.3 + BUSY_S


def test_f31_reset_waits_for_a_message_of_every_safety_input(other_robot, make):
    """The reset waits for a missing first e-stop message, which is not an ESTOP that an operator must clear."""
    contract = with_injection(estop={"button": ESTOPS["button"]}, reset_timeout_s=SHORT_S)
    monitor = Monitor(NAMESPACE)
    monitor.pressed = None
    try:
        env = make(replace(contract, sensors=ARM.sensors))
        check_reset_reports(env, "no message from safety inputs on button", SHORT_S)
        monitor.pressed = False
        env.unwrapped.stepper.backend.reset_timeout_s = TIMEOUT_S
        episode = Episode(env)
        episode.run(2, SLOW)
        episode.check()
    finally:
        monitor.close()


@pytest.mark.long  # by default this publisher stops, and that of the joints is killed
def test_f31_estop_with_a_killed_publisher_expires(other_robot, relayed, make, record_property):
    joints = ARM.sensors["joints"]
    contract = with_injection(estop={"button": ESTOPS["button"]}, reset_timeout_s=20.0)
    contract = replace(contract, sensors={**contract.sensors, "joints": joints})
    monitor = Monitor(f"{NAMESPACE}/elsewhere")
    try:
        publisher = relayed(f"{NAMESPACE}/elsewhere/button", "button", "std_msgs/msg/Bool")
        episode = Episode(make(contract))
        episode.run(6, SLOW)
        episode.inject(lambda: kill(publisher))
        episode.run_to_end(SLOW)
        assert episode.ended == "safety_stop:estop.expired"
        episode.note(record_property)
        episode.check()
    finally:
        monitor.close()


@pytest.mark.parametrize(
    ("offset_s", "code"), [pytest.param(10, "obs.stale", marks=pytest.mark.long), (-10, "obs.future")]
)
def test_f17_system_clock_step_changes_neither_freshness_nor_deadlines(other_robot, make, offset_s, code):
    clock = SteppedClock()
    episode = Episode(make(replace(with_injection(), sensors=ARM.sensors), clock=clock))
    episode.run(4, SLOW)
    clock.offset_ns = offset_s * NS_PER_S
    started = time.monotonic()
    rows = episode.run_to_end(SLOW)
    assert episode.ended == f"safety_stop:{code}"
    assert holds(rows) - BUSY <= {code, "clock.jump"}
    assert sum("clock.jump" in codes(row) for row in rows) == 1
    assert time.monotonic() - started < len(rows) * PERIOD_S + BUSY_S
    assert all(0.0 <= row.info["latency"]["obs_to_command_s"] < BUSY_S for row in rows)
    episode.check()


def reset_by(service, timeout_s=SHORT_S):
    contract = with_injection(reset={"service": service}, reset_timeout_s=timeout_s)
    return replace(contract, sensors=ARM.sensors)


def check_reset_reports(env, why, timeout_s):
    """Reset until discovery is complete, and check that each reset fails in time and the last for this reason."""

    def reset():
        started = time.monotonic()
        try:
            env.reset(seed=SEED)
        finally:
            assert time.monotonic() - started < timeout_s + BUSY_S

    wait_for_error(reset, BackendNotReadyError, why)


def pending(env):
    """Return the pending requests of this environment."""
    return [
        request
        for client in env.unwrapped.stepper.backend._connection.ros.node.clients
        for request in client._pending_requests
    ]


def test_f25_unanswered_reset_times_out_and_its_late_response_is_ignored(other_robot, make):
    answered, stub = [], Spinning("stub", NAMESPACE, DOMAIN_ID)

    def answer(_request, response):
        answered.append(True)
        response.success, response.message = True, "late"
        return response

    stub.node.create_service(Trigger, "stuck", answer)
    try:
        env = make(reset_by("stuck"))
        check_reset_reports(env, f"service {NAMESPACE}/stuck did not respond in time", SHORT_S)
    finally:
        stub.start()  # now it responds
        wait_for(lambda: answered)
        time.sleep(2 * PERIOD_S)  # the response has arrived and is ignored
        stub.close()
    assert env.unwrapped.stepper.backend._connection.listener.failure is None
    assert pending(env) == []


def test_f27_reset_service_of_another_type_is_reported(other_robot, make):
    stub = RosNode("stub", namespace=NAMESPACE, clock=SteadyClock(), domain_id=DOMAIN_ID)
    stub.node.create_service(SetBool, "home", lambda _request, response: response)
    try:
        check_reset_reports(make(reset_by("home")), f"service {NAMESPACE}/home is not available", SHORT_S)
    finally:
        stub.close()


@pytest.fixture
def mortal(environment_variables):
    """A robot that may be killed, and an episode of it."""
    namespace = f"{NAMESPACE}_mortal"
    robot = start_robot(namespace)
    contract = replace(with_injection(reset_timeout_s=20.0), sensors=ARM.sensors)
    env = embodied_env.make(contract, backend="real", namespace=namespace, domain_id=DOMAIN_ID)
    try:
        yield robot, Episode(env)
    finally:
        env.close()
        robot.stop()


@pytest.mark.long
def test_f26_robot_killed_during_reset_fails_the_reset_in_time(mortal):
    robot, episode = mortal
    episode.run(2, SLOW)
    episode.check()
    robot.note_shared_memory()
    psutil.Process(robot.pid).suspend()  # the middleware accepts the request, the robot does not process it
    killer = threading.Timer(0.5, os.kill, (robot.pid, signal.SIGKILL))
    killer.start()
    episode.env.unwrapped.stepper.backend.reset_timeout_s = 1.0
    started = time.monotonic()
    with pytest.raises(BackendNotReadyError):
        episode.env.reset(seed=SEED)
    assert time.monotonic() - started < 1.0 + BUSY_S
    killer.join()
    assert pending(episode.env) == []


@pytest.mark.long
def test_f22_killed_robot_is_held_and_ends_the_episode(mortal, record_property):
    """The end reason and the reset error are checked in test_robot_backend.py."""
    robot, episode = mortal
    episode.run(6, FAST)
    episode.inject(lambda: kill(robot))
    rows = episode.run_to_end(FAST)
    assert episode.ended.partition(":")[0] in ("safety_stop", "backend_lost")
    assert "obs.stale" in holds(rows)
    episode.note(record_property)
    episode.check()


# -------------------------------------------------------------------------------------------------- slow simulator


@pytest.mark.long
def test_f24_simulator_at_a_fifth_of_real_time_is_not_a_fault_in_simulated_time(domain_id):
    env = embodied_env.make(ARM, backend="mujoco_ros", reset_timeout_s=60.0, step_timeout_s=TIMEOUT_S)
    done = threading.Event()
    throttle = None
    try:
        env.reset(seed=SEED)
        (process,) = (psutil.Process(child["pid"]) for child in env.unwrapped.processes())

        def slow_down():
            while not done.is_set():
                process.suspend()
                done.wait(0.04)
                process.resume()
                done.wait(0.01)

        throttle = threading.Thread(target=slow_down)
        throttle.start()
        for _ in range(30):
            *_, truncated, info = env.step(SLOW)
            assert not truncated
            assert info["safety"]["disposition"] < Severity.HOLD
            assert info["sensors"]["joints"]["age_s"] == 0.0
    finally:
        done.set()
        if throttle is not None:
            throttle.join()
        env.close()
