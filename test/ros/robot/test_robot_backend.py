"""The robot is the free-running robot emulator in its own process."""

import contextlib
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import ros_domains
from evidence import assert_sound
from shipped_contracts import unhurried, with_slow_emulator
from waiting import wait_for

import embodied_env

pytest.importorskip("rclpy", reason="needs rclpy")

from builtin_interfaces.msg import Time
from in_process_robot import (
    ARM,
    NAMESPACE,
    PATIENCE_S,
    SIMPLE,
    InProcessRobot,
    SteppedClock,
    check_reset_fails,
    in_s,
    reset,
    with_profile,
)
from rosgraph_msgs.msg import Clock
from spinning import Spinning
from std_msgs.msg import Bool, Int32, String
from std_srvs.srv import SetBool, Trigger

from embodied_env.backends.backend_registry import make_backend
from embodied_env.contract.contract_loader import dump_contract
from embodied_env.contract.contract_schema import RobotSource
from embodied_env.core.code_types import Quality, Severity
from embodied_env.core.types import ResetRequest
from embodied_env.errors import (
    BackendLostError,
    BackendNotReadyError,
    ClosedError,
    ContractError,
    ResetNeededError,
    UsageError,
)
from embodied_env.processes.child_process import Child, simulator
from embodied_env.ros.robot.robot_profile import RealProfile, load_real_profile
from embodied_env.ros.robot.safety_inputs import CONTENTION
from embodied_env.ros.robot.sensor_publishers import SENSOR_TOPICS
from embodied_env.ros.transport.node import RosNode
from embodied_env.ros.transport.qos import LATCHED as LATCHED_QOS
from embodied_env.ros.transport.qos import RELIABLE
from embodied_env.ros.wire.stamp_translation import StampTranslator, Sync
from embodied_env.ros.wire.world_clock import ClockSpec, SystemClockMonitor
from embodied_env.testing import approve
from embodied_env.timing.clock import NS_PER_S, SteadyClock

pytestmark = [pytest.mark.ros, pytest.mark.realtime]

LASTING_NAMESPACE = f"/lasting_{os.getpid()}"
DOMAIN_ID = ros_domains.FOR_MODULES
ZERO = np.zeros(6)


def quick(contract):
    """Return the contract with its own profile, no settling time of the graph, and an emulator slow to start and run."""
    return with_slow_emulator(with_profile(contract, **contract.backends["real"], connect_timeout_s=PATIENCE_S))


PATIENT_ARM = unhurried(ARM)
QUICK_ARM = quick(PATIENT_ARM)
BUTTON = {"topic": "button", "timeout_s": 0.3, "release": "pull the red button out"}
MODE = {"topic": "mode", "type": "std_msgs/msg/Int32", "safe": (7,), "kind": "robot_mode", "latched": True}
SAFETY_INPUTS = {
    "estop": {"button": {**BUTTON, "timeout_s": 5.0}, "mode": MODE},  # a stall of the machine is no stop
    "active": {"driver": {"node": "driver"}},
}


def scripted(contract):
    return embodied_env.load_policy("scripted", contract)


def start_emulator(contract, namespace):
    spec = simulator("-", namespace=namespace, source=contract.source, free_running=True)
    return Child(spec, first_line=dump_contract(contract))


@pytest.fixture
def make(close_later):
    def make_one(contract=QUICK_ARM, **options):
        return close_later(embodied_env.make(contract, backend="real", **{"namespace": NAMESPACE, **options}))

    return make_one


@pytest.fixture(scope="module")
def shared_robot():
    """An arm with all safety inputs, which the last test that uses it kills."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROS_DOMAIN_ID", str(DOMAIN_ID))
        patch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
        child = start_emulator(with_slow_emulator(with_profile(PATIENT_ARM, **SAFETY_INPUTS)), LASTING_NAMESPACE)
    yield child
    child.stop()


@pytest.fixture(scope="module")
def shared_arm(shared_robot, lasting_domain, tmp_path_factory):
    """A recorded environment of this arm, shared by tests that end no process."""
    options = {"namespace": LASTING_NAMESPACE, "domain_id": DOMAIN_ID, "record": tmp_path_factory.mktemp("lasting")}
    with lasting_domain():
        env = embodied_env.make(QUICK_ARM, backend="real", **options)
    with contextlib.closing(env):
        env.reset(seed=0)
        end_episode(env)
        yield env


def end_episode(env):
    with contextlib.suppress(ResetNeededError, ClosedError):
        while True:
            env.step(None)


@pytest.fixture
def arm(shared_arm, domain_id):
    """Return the shared environment between two episodes."""
    yield shared_arm
    end_episode(shared_arm)


def kill(child):
    child.note_shared_memory()
    os.kill(child.pid, signal.SIGKILL)


# ----------------------------------------------------------------------------------------------------- episodes


CART_TIMEOUT_S = 0.5


def shortened(name, steps):
    contract = embodied_env.load_contract(name)
    return replace(contract, episode=replace(contract.episode, horizon_steps=steps))


@pytest.fixture(
    params=[
        pytest.param((ARM, "success"), marks=pytest.mark.long),
        (shortened("cart_goal", 8), "time_limit"),
        pytest.param((embodied_env.load_contract("cart_goal"), "success"), marks=pytest.mark.long),
        pytest.param((embodied_env.load_contract("door_open"), "success"), marks=pytest.mark.long),
    ],
    ids=["arm_reach", "first steps of cart_goal", "cart_goal", "door_open"],
)
def episode(request, domain_id, close_later, make):
    """Run a scripted episode.

    Returns:
        Environment, observations, infos, transitions, mean step in periods, and end.
    """
    contract, end = quick(unhurried(request.param[0])), request.param[1]
    close_later(SimpleNamespace(close=start_emulator(contract, NAMESPACE).stop))
    env, policy = make(contract), scripted(contract)
    observation, _ = env.reset(seed=1)
    rows, ended = [], False
    started = time.monotonic()
    while not ended:
        observation, _, terminated, truncated, info = env.step(policy(observation))
        rows.append((observation, info, env.unwrapped.last_transition))
        ended = terminated or truncated
    return env, rows, (time.monotonic() - started) / len(rows) / contract.control_period_s, end


def test_a_scripted_episode_succeeds(episode):
    """One test of everything that holds in an episode, because an episode takes seconds."""
    env, rows, periods, end = episode
    assert rows[-1][1]["end_reason"] == end
    assert all(observation in env.observation_space for observation, *_ in rows)
    assert [info["step_index"] for _, info, _ in rows] == list(range(1, len(rows) + 1))
    assert periods > 0.9  # the last step also brakes
    for _, _, transition in rows:
        for sample in transition.snapshot.samples.values():
            assert transition.snapshot.now_ns >= sample.stamp_ns
            assert sample.quality in (Quality.OK, Quality.STALE)
    ages_s = [s["age_s"] for _, info, _ in rows for name, s in info["sensors"].items() if name in ("joints", "odom")]
    assert 0.0 <= min(ages_s) < 0.5
    if end == "time_limit":  # for a cart: after a gap its velocities restart from the measured ones
        backend = env.unwrapped.stepper.backend
        assert backend.downstream_timeout_s == CART_TIMEOUT_S
        newest = [backend.newest(("odom",)).samples["odom"] for _ in range(2)]
        assert all(sample.quality is Quality.OK and sample.values["linear"].shape == (3,) for sample in newest)


def test_the_robot_moves_in_a_scripted_episode(arm):
    env = arm
    before, _ = env.reset(seed=1)
    for _ in range(8):
        after, *_, info = env.step(np.array([0.2, 0, 0, 0, 0, 0]))
    assert env.unwrapped.pacing == "realtime"
    assert 0.02 < info["latency"]["period_s"] < PATIENCE_S
    assert 0.0 < info["latency"]["transport_s"]["joints"] < PATIENCE_S
    assert after["joints_position"][0] - before["joints_position"][0] > 0.05
    np.testing.assert_allclose(after["joints_position"][1:], before["joints_position"][1:], atol=0.01)


def test_consecutive_episodes_share_a_robot(arm):
    env = arm
    first = env.reset()[1]["episode_index"] + 1
    for episode in range(3):
        _, info = env.reset()
        assert (info["reset"]["level"], info["reset"]["routine"]) == ("world", "service")
        assert set(info["reset"]["sampled"]) == {"target"}
        *_, info = env.step(ZERO)
        assert (info["end_reason"], info["episode_index"] - first, info["step_index"]) == ("", episode, 1)


# ---------------------------------------------------------------------------------------------------- faults


def test_without_a_robot_reset_reports_what_is_missing(domain_id, make):
    env = make(connect_timeout_s=0.3)
    started = time.monotonic()
    with pytest.raises(
        BackendNotReadyError, match=r"(?s)no publisher: /robot/joint_states.*namespace /robot, ROS"
    ) as caught:
        env.reset(seed=1)
    assert time.monotonic() - started < PATIENCE_S
    assert len(str(caught.value)) < 800


def test_the_emulator_applies_and_reports_seed_and_options(arm):
    env = arm
    reported = []
    for seed, options in ((5, None), (6, None), (5, None), (5, {"target": [-0.4, 0.0, 0.2]})):
        _, info = env.reset(seed=seed, options=options)
        assert info["reset"]["seed_applied"] >= 0
        assert info["reset"]["options_ignored"] == ""
        reported.append((info["reset"]["seed_applied"], *info["reset"]["sampled"]["target"].tolist()))
    assert reported[0] == reported[2] != reported[1]
    assert reported[3][1:] == (-0.4, 0.0, 0.2)


def test_the_recorded_run_of_the_shared_arm_passes_the_audit(arm):
    """This is the last test of this environment, since its run holds every episode of the tests above."""
    arm.close()
    run = embodied_env.read_run(arm.path)
    assert run.clean
    assert run.manifest["pacing"] == "realtime"
    assert_sound(arm.path)


@pytest.fixture
def lasting_make(domain_id, make):
    return lambda contract, **options: make(contract, namespace=LASTING_NAMESPACE, domain_id=DOMAIN_ID, **options)


def test_a_robot_with_another_contract_is_rejected(shared_robot, shared_arm, lasting_make):
    shared_arm.close()
    with pytest.raises(BackendNotReadyError, match="the simulator's contract has fingerprint"):
        lasting_make(replace(QUICK_ARM, version=2)).reset(seed=1)


HOME = {"j1": 0.1, "j2": -1.5, "j3": 1.4, "j4": -1.3, "j5": -1.4, "j6": 0.1}
CHOSEN = {"actuators.arm.joints.j1.acceleration": "no source"}


def with_chosen(contract):
    return replace(contract, robot=RobotSource(name="some_arm", sha256="0" * 64, chosen=CHOSEN))


class Operator:
    """The operator of the shared robot, in a node of its own."""

    def __init__(self):
        self.ros = RosNode("operator", namespace=LASTING_NAMESPACE, clock=SteadyClock(), domain_id=DOMAIN_ID)
        self.close = self.ros.close

    def press(self, name, *, pressed, group="estop"):
        request = SetBool.Request(data=pressed)
        service = f"simulator/{group}/{name}"
        assert self.ros.receiver.call(SetBool, service, request, PATIENCE_S, lambda: None).success

    def release(self, name, env):
        """Release an e-stop, and clear its latch once the environment has received that."""
        self.press(name, pressed=False)
        wait_for(lambda: env.unwrapped.stepper.backend.estops()[name].is_ok)
        env.unwrapped.clear_estop()

    def confirm_reset(self, env):
        """Reset `env`, and return what it asks before it is confirmed by topic."""
        self.ros.receiver.subscribe("question", String, "environment/confirm_request", LATCHED_QOS)
        answer = self.ros.node.create_publisher(Bool, "environment/confirm", RELIABLE)
        thread, found = threading.Thread(target=env.reset), ""
        thread.start()
        while not found and thread.is_alive():
            found = "".join(arrival.message.data for arrival in self.ros.receiver.receive(0.1))
        while thread.is_alive():
            answer.publish(Bool(data=True))
            thread.join(0.05)
        return found


@pytest.fixture
def operator(shared_arm, domain_id, close_later):
    """The operator, next to the robot without its environment."""
    shared_arm.close()
    return close_later(Operator())


def test_an_emulator_is_reset_by_seed_and_options_and_offers_the_estops_of_the_contract(operator, lasting_make):
    """A reset needs no confirmation, and each e-stop ends its episode."""
    contract = with_chosen(with_profile(PATIENT_ARM, reset={"home": HOME, "confirm": "prompt"}, **SAFETY_INPUTS))
    env = lasting_make(contract, emulator=True)
    _, info = env.reset(seed=1, options={"target": [-0.4, 0.0, 0.2]})
    assert info["reset"]["level"] == "world"
    assert info["reset"]["confirmed_by"] == ""
    np.testing.assert_array_equal(info["reset"]["sampled"]["target"], [-0.4, 0.0, 0.2])
    assert env.unwrapped.capabilities.emulated
    assert env.step(ZERO)[-1]["end_reason"] == ""
    for name, reason, release in (
        ("button", "safety_stop:estop.active", BUTTON["release"]),
        ("mode", "safety_stop:robot.protective_stop", "clear the stop at the robot"),
    ):
        env.reset(seed=0)
        operator.press(name, pressed=True)
        info = {"end_reason": ""}
        while not info["end_reason"]:
            *_, info = env.step(ZERO)
        assert info["end_reason"] == reason
        with pytest.raises(ResetNeededError, match=rf"{name} is \w+: topic {name}; {release}.*reset\(\), which"):
            env.step(ZERO)
        operator.release(name, env)
    operator.press("driver", pressed=False, group="active")
    with pytest.raises(BackendNotReadyError, match="driver is lapsed: driver is inactive"):
        env.reset(seed=0)
    operator.press("driver", pressed=True, group="active")
    env.reset(seed=0)
    assert env.step(ZERO)[-1]["end_reason"] == ""


def test_homing_is_refused_with_a_pressed_estop_which_the_question_to_the_operator_names(operator, lasting_make):
    def arm(**reset):
        return with_profile(PATIENT_ARM, reset=reset, **SAFETY_INPUTS)

    release = f"topic button; {BUTTON['release']}"
    operator.press("button", pressed=True)
    with lasting_make(arm(home=HOME)) as env:
        with pytest.raises(BackendNotReadyError, match=f"homing refused: .*button is active: {release}; then call"):
            env.reset(seed=0)
        expected = rf"{release}\).* then call clear_estop\(\) and reset\(\), which .*homing"
        with pytest.raises(ResetNeededError, match=expected):
            env.step(ZERO)
        operator.release("button", env)
        observation, _ = env.reset(seed=0)
    np.testing.assert_allclose(observation["joints_position"], list(HOME.values()), atol=0.03)

    operator.press("button", pressed=True)
    with lasting_make(arm(confirm="topic")) as env:
        assert f"not ready: button is active: {release}" in operator.confirm_reset(env)


def test_a_killed_robot_truncates_the_episode_without_blocking(shared_robot, shared_arm, lasting_make):
    """This is the last test of the shared robot."""
    shared_arm.close()
    env = lasting_make(QUICK_ARM, step_timeout_s=2.0)
    env.reset(seed=1)
    env.step(ZERO)
    kill(shared_robot)
    started, truncated = time.monotonic(), False
    while not truncated:
        observation, _, terminated, truncated, info = env.step(ZERO)
        assert time.monotonic() - started < PATIENCE_S
    assert not terminated
    assert info["end_reason"].split(":")[0] in ("backend_lost", "sensor_gap", "safety_stop")
    assert observation in env.observation_space
    assert observation["joints_valid"] == 0
    env.close()
    shared_robot.stop()


# ---------------------------------------------------------------------------------------------- the backend alone


@pytest.fixture
def in_process_robot(domain_id, close_later):
    return close_later(InProcessRobot(SIMPLE))


def test_a_reset_without_a_service_only_waits_for_the_sensors(in_process_robot, backend):
    before_ns = time.time_ns()
    snapshot = reset(backend())
    assert snapshot.reset.level == "none"
    assert set(snapshot.samples) == set(SIMPLE.sensors)
    assert all(before_ns < sample.stamp_ns <= snapshot.now_ns for sample in snapshot.samples.values())


def test_ignored_reset_options_are_reported(in_process_robot, backend):
    request = ResetRequest(epoch=0, seed=1, options={"target": np.array([-0.4, 0.0, 0.2])})
    report = backend().reset(request, in_s(PATIENCE_S)).reset
    assert (report.ignored, report.seed_applied, report.routine) == (("target",), None, "")


def test_a_reading_after_verification_is_newer_than_the_call(in_process_robot, backend):
    robot = backend()
    reset(robot)
    before_ns = time.time_ns()
    snapshot = robot.verify(in_s(PATIENCE_S))
    assert all(before_ns < sample.stamp_ns <= snapshot.now_ns for sample in snapshot.samples.values())


def test_a_prompt_without_a_terminal_is_rejected_at_open(domain_id, backend):
    assert not sys.stdin.isatty()  # pytest replaces it
    with pytest.raises(BackendNotReadyError, match="prompt needs a terminal"):
        backend(with_profile(SIMPLE, reset={"confirm": "prompt"}))


def test_a_sensor_with_old_stamps_is_reported_by_name(in_process_robot, backend):
    in_process_robot.offset_s["tcp"] = -5.0
    check_reset_fails(backend(), r"tcp \(stamped \d\.\d+ s before it[;,]")


def test_a_silent_sensor_is_reported_by_name(in_process_robot, backend):
    in_process_robot.offset_s["tcp"] = None
    check_reset_fails(backend(), r"reset from tcp \(no message on tcp_pose\)$")


def test_a_receive_timeline_sensor_is_stamped_on_arrival(domain_id, backend):
    contract = replace(SIMPLE, sensors={**SIMPLE.sensors, "tcp": replace(SIMPLE.sensors["tcp"], timeline="receive")})
    robot = InProcessRobot(contract)
    robot.offset_s["tcp"] = -1000.0  # its header is ignored
    try:
        snapshot = reset(backend(contract))
    finally:
        robot.close()
    sample = snapshot.samples["tcp"]
    assert sample.stamp_ns == pytest.approx(sample.arrival_system_ns, abs=1_000_000)
    assert 0.0 <= (snapshot.now_ns - sample.stamp_ns) / 1e9 < PATIENCE_S


def test_a_sensor_with_future_stamps_is_never_fresh(in_process_robot, make):
    in_process_robot.offset_s["tcp"] = 60.0
    with pytest.raises(BackendNotReadyError, match=r"tcp \(stamped \d+\.\d+ s after its arrival \(possibly a clock of"):
        make(SIMPLE).reset(seed=1)


# ------------------------------------------------------------------------------------------------------- clocks


def codes_of(env, steps):
    """Take `steps` steps, and return the codes of the findings that held each, except those of a busy machine."""
    found = []
    for _ in range(steps):
        env.step(ZERO)
        report = env.unwrapped.last_transition.report
        busy = {"", "act.late", "obs.stale"}
        found.append({finding.code for finding in report.findings if finding.severity >= Severity.HOLD} - busy)
    return found


@pytest.mark.parametrize("step_s", [10, pytest.param(-10, marks=pytest.mark.long)])
def test_a_utc_step_on_a_shared_host_costs_one_step(in_process_robot, make, step_s):
    clock = SteppedClock()
    env = make(SIMPLE, clock=clock)
    env.reset(seed=1)
    assert codes_of(env, 3) == [set()] * 3
    clock.offset_ns = step_s * NS_PER_S
    in_process_robot.offset_s = dict.fromkeys(in_process_robot.offset_s, float(step_s))
    found = codes_of(env, 8)
    snapshot = env.unwrapped.last_transition.snapshot
    assert [codes for codes in found if codes] == [{"clock.jump"}]
    assert (snapshot.clock.mode, snapshot.clock.epoch, snapshot.clock.jumps) == ("wall", 1, 1)
    assert snapshot.clock.rmw.startswith("rmw_")
    ages_s = [(snapshot.now_ns - sample.stamp_ns) / NS_PER_S for sample in snapshot.samples.values()]
    assert all(0.0 <= age_s < 5.0 for age_s in ages_s)  # far less than the step


def test_a_suspended_host_stops_the_episode(in_process_robot, make):
    clock = SteppedClock()
    env = make(SIMPLE, clock=clock)
    env.reset(seed=1)
    clock.offset_ns = clock.slept_ns = 60 * NS_PER_S
    in_process_robot.offset_s = dict.fromkeys(in_process_robot.offset_s, 60.0)
    ended = ""
    while not ended:
        ended = env.step(ZERO)[4]["end_reason"]
    assert ended == "safety_stop:clock.suspended"


def test_publishers_on_this_host_share_its_clock(in_process_robot, backend):
    snapshot = reset(backend())
    for sample in snapshot.samples.values():
        assert (sample.stamp_quality, sample.transport_quality) == (Quality.OK, Quality.OK)
        assert sample.header_ns <= sample.source_ns <= sample.received_ns


def test_an_unknown_clock_is_rejected_with_the_key_to_declare(in_process_robot, make):
    contract = with_profile(SIMPLE, clocks={"tcp": {"sync": "none"}})
    with pytest.raises(
        BackendNotReadyError, match=r"tcp \(stamped by a clock .* declare backends\.real\.clocks\.tcp: sync"
    ):
        make(contract).reset(seed=1)


def test_the_default_clock_applies_to_all_other_sensors():
    clocks = {"default": ClockSpec(sync="none"), "tcp": ClockSpec(sync="same_host")}
    utc = SystemClockMonitor(SteadyClock())
    profile, limits = RealProfile(clocks=clocks), ARM.safety.observation
    joints, tcp = (
        StampTranslator(name, profile.clock_of(name), limits, timeline=utc, utc=utc) for name in ("joints", "tcp")
    )
    assert (joints.sync, tcp.sync) == (Sync.UNKNOWN, Sync.SAME)


def test_a_skewed_clock_uses_its_least_delay_and_never_a_trusted_transport(in_process_robot, backend):
    in_process_robot.offset_s["tcp"] = 0.1
    robot = backend(with_profile(SIMPLE, clocks={"tcp": {"sync": "none", "least_delay_s": 0.02}}))
    first = reset(robot).samples["tcp"].seq
    wait_for(lambda: robot.newest(("tcp",)).samples["tcp"].seq > first)
    snapshot = robot.read(in_s(0), in_s(1))
    sample = snapshot.samples["tcp"]
    assert (sample.quality, sample.stamp_quality) == (Quality.OK, Quality.UNSYNCED)
    assert sample.transport_quality is Quality.UNSYNCED
    assert 0.0 <= sample.transport_excess_s < PATIENCE_S
    assert 0.02 <= (snapshot.now_ns - sample.stamp_ns) / NS_PER_S < PATIENCE_S


class Simulated(InProcessRobot):
    """The in-process robot in simulated time, which it also publishes on /clock."""

    speed = 1.0
    is_publishing_clock = True
    jump_to_ns = None

    def __init__(self, contract=ARM):
        self.sim_ns = 1000 * NS_PER_S
        super().__init__(contract)

    def _run(self):
        clock = self.node.create_publisher(Clock, "/clock", RELIABLE)
        while not self._done.wait(0.01):
            self.sim_ns += round(self.speed * 0.01 * NS_PER_S)
            if self.jump_to_ns is not None:
                self.sim_ns, self.jump_to_ns = self.jump_to_ns, None
            sec, nanosec = divmod(self.sim_ns, NS_PER_S)
            if self.is_publishing_clock:
                clock.publish(Clock(clock=Time(sec=sec, nanosec=nanosec)))
            for name, publisher in self.publishers.items():
                publisher.publish(self._message(name, self.sim_ns))


@pytest.fixture
def simulated(domain_id):
    made = Simulated(SIMPLE)
    yield made
    made.close()


SIMULATED = with_profile(SIMPLE, use_sim_time=True)


def test_reset_reports_missing_simulated_time(in_process_robot, backend):
    with pytest.raises(BackendNotReadyError, match=r"pub.none.*/clock"):
        reset(backend(SIMULATED), 0.6)


def test_reset_reports_a_silent_clock_by_its_deadline(simulated, backend):
    simulated.is_publishing_clock = False
    check_reset_fails(backend(SIMULATED), r" /clock ", 1.0)


@pytest.mark.parametrize(
    "to_s", [pytest.param(0, id="back"), pytest.param(1100, id="far ahead", marks=pytest.mark.long)]
)
def test_a_jump_of_simulated_time_costs_one_step(simulated, make, to_s):
    env = make(SIMULATED)
    env.reset(seed=1)
    assert codes_of(env, 3) == [set()] * 3
    simulated.jump_to_ns = to_s * NS_PER_S
    found, ages_s = [], []
    for _ in range(8):
        found += codes_of(env, 1)
        snapshot = env.unwrapped.last_transition.snapshot
        ages_s += [(snapshot.now_ns - sample.stamp_ns) / NS_PER_S for sample in snapshot.samples.values()]
    assert [codes for codes in found if codes] == [{"clock.jump"}]
    assert all(0.0 <= age_s < PATIENCE_S for age_s in ages_s)
    assert (snapshot.clock.mode, snapshot.clock.epoch, snapshot.clock.jumps) == ("sim", 1, 1)
    assert {sample.quality for sample in snapshot.samples.values()} == {Quality.OK}


def test_slow_simulated_time_is_not_a_fault(simulated, make):
    simulated.speed = 0.2
    env = make(SIMULATED)
    env.reset(seed=1)
    assert codes_of(env, 8) == [set()] * 8
    snapshot = env.unwrapped.last_transition.snapshot
    assert 0.0 < snapshot.clock.rtf < 0.4
    assert snapshot.clock.jumps == 0


def test_stopped_simulated_time_is_a_lost_robot(simulated, make):
    env = make(SIMULATED)
    env.reset(seed=1)
    env.unwrapped.stepper.backend._connection.sensors._silence_s = 0.4
    simulated.is_publishing_clock = False
    started, ended = time.monotonic(), ""
    while not ended:
        *_, info = env.step(ZERO)
        ended = info["end_reason"]
    assert ended == "backend_lost:clock_stopped"
    assert time.monotonic() - started < PATIENCE_S


def test_a_command_is_published_as_approved(in_process_robot, backend):
    robot = backend()
    snapshot = reset(robot)
    positions = snapshot.samples["joints"].values["position"]
    command = approve(SIMPLE, np.full(6, 0.5), positions=positions)
    sent = robot.send(command)
    (arrival,) = in_process_robot.ros.receiver.receive(PATIENCE_S)
    assert sent.seq == command.seq
    np.testing.assert_array_equal(sent.values, command.values)
    np.testing.assert_array_equal(arrival.message.data, command.values)


def test_after_halt_nothing_is_sent_until_the_next_reset(in_process_robot, backend):
    robot = backend()
    reset(robot)
    robot.halt("a test")
    with pytest.raises(BackendLostError, match="halted"):
        robot.send(approve(SIMPLE, ZERO))
    reset(robot)
    robot.send(approve(SIMPLE, ZERO))


def test_loss_of_all_sensors_is_a_lost_robot(in_process_robot, backend):
    robot = backend()
    reset(robot)
    robot._connection.sensors._silence_s = 0.3  # a stall of the machine is no silence before
    in_process_robot.offset_s = dict.fromkeys(in_process_robot.offset_s)
    with pytest.raises(BackendLostError, match=r"^silent: "):
        wait_for(lambda: robot.read(in_s(0), in_s(1)) is None)


def test_a_failed_listener_is_a_lost_robot_until_reset(in_process_robot, backend):
    robot = backend()
    reset(robot)
    robot._connection.sensors.buffers["tcp"].add = None  # its next message cannot be taken
    wait_for(lambda: robot._connection.listener.failure is not None)
    with pytest.raises(BackendLostError, match="listener: receiving failed: TypeError"):
        robot.read(in_s(0), in_s(1))
    reset(robot)
    robot.read(in_s(0), in_s(1))


def test_steps_wait_for_deadlines_counted_from_the_end_of_the_reset(in_process_robot, backend):
    robot = backend()
    reset(robot)
    started_ns = time.monotonic_ns()
    for _ in range(3):
        robot.advance(in_s(0), in_s(1))
    assert time.monotonic_ns() - started_ns > 2 * SIMPLE.control_period_ns


def test_the_reason_of_a_failed_reset_service_is_reported(answer_with, backend):
    answer_with(success=False, message="the brakes are on")
    with pytest.raises(BackendNotReadyError, match="failed: the brakes are on"):
        reset(backend(with_profile(SIMPLE, reset={"service": "home"})))


def test_a_reset_service_may_return_free_text(answer_with, backend):
    answer_with(success=True, message="at home")
    report = reset(backend(with_profile(SIMPLE, reset={"service": "home"}))).reset
    assert (report.level, report.sampled, report.details) == ("world", {}, {})


def test_a_reset_service_is_not_called_while_a_stop_is_active(in_process_robot, answer_with, backend):
    calls = answer_with(success=True, message="at home")
    mode = in_process_robot.node.create_publisher(Int32, "mode", LATCHED_QOS)
    mode.publish(Int32(data=3))
    robot = backend(with_profile(SIMPLE, reset={"service": "home"}, estop={"mode": MODE}))
    with pytest.raises(BackendNotReadyError, match="reset service not called: mode is protective_stop: topic mode; "):
        reset(robot)
    assert not calls
    mode.publish(Int32(data=7))
    wait_for(lambda: state_of(robot, "mode") == "ok")
    reset(robot)
    assert len(calls) == 1


def test_an_unavailable_service_is_reported_by_name(in_process_robot, backend):
    robot = backend(with_profile(SIMPLE, reset={"service": "home"}))
    check_reset_fails(robot, "reset service: /robot/home: no service ")


# --------------------------------------------------------------------------------- unconfirmed chosen values


def test_a_robot_is_not_an_emulator(in_process_robot, backend):
    check_reset_fails(backend(emulator=True), r"/robot/simulator/reset: no service")
    assert in_process_robot.ros.receiver.receive(0.1) == []  # no command


def test_unconfirmed_chosen_values_are_rejected_each_with_its_reason(domain_id, backend):
    with pytest.raises(BackendNotReadyError) as caught:
        backend(with_chosen(SIMPLE))
    (path,) = CHOSEN
    for text in (f"{path}: no source", f"confirmed: [{path}]", "confirm_chosen=True", "--confirm-chosen"):
        assert text in str(caught.value)


@pytest.mark.parametrize(
    "accepting", [{"armed": False}, {"confirm_chosen": True}], ids=lambda options: next(iter(options))
)
def test_a_dry_run_and_an_option_accept_unconfirmed_values(domain_id, backend, accepting):
    assert backend(with_chosen(SIMPLE), **accepting).capabilities.chosen_confirmed == ("confirm_chosen" in accepting)


@pytest.mark.parametrize("accepting", [{}, {"confirm_chosen": True}], ids=["", "confirm_chosen"])
def test_no_option_accepts_an_unknown_value_for_a_robot(domain_id, backend, accepting):
    path = "actuators.arm.joints.j1.driver"
    unknown = replace(SIMPLE, unknown={path: "unit of the commands"}, confirmed=())
    with pytest.raises(BackendNotReadyError, match=rf"1 unknown: {path}: unit of the commands .*no option confirms"):
        backend(unknown, **accepting)
    backend(unknown, armed=False)


def test_a_confirmed_value_is_accepted(domain_id, backend):
    backend(replace(with_chosen(SIMPLE), confirmed=tuple(CHOSEN)))


@pytest.fixture
def answer_with(in_process_robot, close_later):
    """Return a function that offers the service `home`, and returns its calls."""

    def offer(*, success, message):
        calls, served = [], close_later(Spinning("home", NAMESPACE, None))

        def answer(request, response):
            calls.append(request)
            response.success, response.message = success, message
            return response

        served.node.create_service(Trigger, "home", answer)
        served.start()
        return calls

    return offer


# ----------------------------------------------------------------------------------------------- safety inputs


@pytest.fixture
def inputs(in_process_robot, backend):
    """A backend with a button and a latched mode, and the publishers of both."""
    button = in_process_robot.node.create_publisher(Bool, "button", RELIABLE)
    mode = in_process_robot.node.create_publisher(Int32, "mode", LATCHED_QOS)
    return backend(with_profile(SIMPLE, estop={"button": BUTTON, "mode": MODE})), button, mode


def state_of(backend, name):
    """Return the state of a safety input, without its topic and remedy."""
    return backend.estops()[name].status


def press(publisher, *, until, backend, is_pressed):
    """Publish until the backend has received the value."""
    end = time.monotonic() + PATIENCE_S
    while state_of(backend, "button") != until:
        publisher.publish(Bool(data=is_pressed))
        assert time.monotonic() < end
        time.sleep(0.02)


def test_an_input_without_a_message_is_unknown(inputs):
    robot, _, _ = inputs
    assert {name: state.status for name, state in robot.estops().items()} == {
        "button": "unknown",
        "mode": "unknown",
        CONTENTION: "ok",
        SENSOR_TOPICS: "ok",
    }


def test_an_earlier_latched_input_is_received_and_does_not_expire(in_process_robot, backend):
    in_process_robot.node.create_publisher(Int32, "mode", LATCHED_QOS).publish(Int32(data=7))
    robot = backend(with_profile(SIMPLE, estop={"mode": MODE}))
    wait_for(lambda: robot.estops()["mode"].is_ok)
    time.sleep(1.5 * BUTTON["timeout_s"])  # the timeout of inputs that are not latched
    assert robot.estops()["mode"].is_ok


def test_a_latched_input_without_its_publisher_is_unknown(inputs, in_process_robot):
    robot, _, mode = inputs
    mode.publish(Int32(data=7))
    wait_for(lambda: robot.estops()["mode"].is_ok)
    in_process_robot.node.destroy_publisher(mode)
    wait_for(lambda: state_of(robot, "mode") == "unknown")


def test_inputs_survive_a_reset(inputs):
    robot, button, mode = inputs
    mode.publish(Int32(data=7))
    press(button, until="ok", backend=robot, is_pressed=False)
    wait_for(lambda: robot.estops()["mode"].is_ok)
    reset(robot)
    assert robot.estops()["mode"].is_ok


# ------------------------------------------------------------------------------------------------- the profile


@pytest.mark.parametrize(
    ("keys", "path", "problem"),
    [
        ({"reset": {"service": "no good"}}, "reset.service", "ROS 2 name"),
        ({"reset": {"parameters": True}}, "reset.parameters", "with the service of a node"),
        ({"reset": {"home": {**HOME, "j9": 0.0}}}, "reset.home.j9", "no such joint"),
        ({"reset": {"home": {**HOME, "j3": 9.0}}}, "reset.home.j3", "the limits after margins"),
        ({"reset": {"home": {"j1": 0.0}}}, "reset.home.j2", "missing"),
        ({"reset": {"home": HOME, "timeout_s": 31.0}}, "reset.timeout_s", "at most reset_timeout_s 30.0"),
        ({"reset": {"confirm": "shout"}}, "reset.confirm", "expected"),
        ({"reset": {"confirm": "topic", "confirm_topic": "no good"}}, "reset.confirm_topic", "ROS 2 name"),
        ({"reset": {"confirm_topic": "go"}}, "reset.confirm_topic", "with confirm: topic only"),
        ({"step_timeout_s": 0.05}, "step_timeout_s", "more than the control period of 0.05 s"),
        ({"downstream_timeout_s": 0.01}, "downstream_timeout_s", "more than the control period"),
        ({"downstream_timeout_s": float("inf")}, "downstream_timeout_s", "finite"),
        ({"downstream_timeout_s": True}, "downstream_timeout_s", "true .expected"),
        ({"start_outside": "anywhere"}, "start_outside", "expected"),
        ({"clocks": {"nose": {}}}, "clocks.nose", "default, joints, target, tcp"),
        ({"clocks": {"tcp": {"sync": "ntp"}}}, "clocks.tcp.sync", "expected"),
        ({"clocks": {"tcp": {"sync": "ptp"}}}, "clocks.tcp.error_s", "error bound of sync: ptp"),
        ({"clocks": {"tcp": {"sync": "chrony", "error_s": 0.0}}}, "clocks.tcp.error_s", "0.0"),
        ({"clocks": {"tcp": {"error_s": 0.1}}}, "clocks.tcp.error_s", "none unless sync is ptp or chrony"),
        ({"clocks": {"tcp": {"sync": "same_host", "least_delay_s": 0.1}}}, "clocks.tcp.least_delay_s", "none or auto"),
        ({"estop": {"button": {}}}, "estop.button.topic", "missing key"),
    ],
)
def test_an_invalid_profile_is_rejected_with_path_and_value(keys, path, problem):
    with pytest.raises(ContractError, match=problem) as caught:
        load_real_profile(with_profile(**keys))
    assert caught.value.path == f"backends.real.{path}"


def test_a_contract_without_a_robot_is_rejected():
    backends = {name: profile for name, profile in ARM.backends.items() if name != "real"}
    with pytest.raises(ContractError, match=r"no profile .*'real' .expected one of: fake, gazebo, mujoco, mujoco_ros"):
        load_real_profile(replace(ARM, backends=backends))


@pytest.mark.parametrize("name", ["arm_reach", "cart_goal", "door_open"])
def test_shipped_contracts_drive_the_emulator(name):
    assert load_real_profile(embodied_env.load_contract(name)).reset.service == "simulator/reset"


# ------------------------------------------------------------------------------------------------------ options


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"pacing": "lockstep"}, "pacing for real: 'lockstep' .*None, 'realtime'"),
        ({"clock": "virtual"}, "VirtualClock"),
        ({"render_mode": "rgb_array"}, "render_mode for real: 'rgb_array'"),
        ({"spawn": False}, "unexpected keyword argument 'spawn'"),
    ],
)
def test_an_invalid_option_is_rejected(options, problem):
    with pytest.raises(UsageError, match=problem):
        embodied_env.make(ARM, backend="real", **options)


def test_closing_an_unopened_backend_is_safe():
    robot = make_backend("real", ARM, clock=SteadyClock())
    robot.halt("before open")
    robot.close()
    robot.close()


def test_a_failed_open_leaves_nothing_behind(domain_id):
    sensors = {**ARM.sensors, "tcp": replace(ARM.sensors["tcp"], type="nowhere_msgs/msg/Nothing")}
    with pytest.raises(Exception, match="nowhere_msgs"):
        make_backend("real", replace(ARM, sensors=sensors), clock=SteadyClock()).open()
