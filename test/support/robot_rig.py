"""A robot emulator, a monitor of its topics and a real environment, for tests of faults over ROS 2."""

import itertools
import os
import signal
import time
from dataclasses import replace
from typing import Any

import numpy as np
import ros_domains
from shipped_contracts import with_slow_emulator
from spinning import Spinning
from std_msgs.msg import Bool, Float64MultiArray, Int32
from waiting import wait_for

import embodied_env
from embodied_env.contract.contract_loader import dump_contract
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.code_types import Severity
from embodied_env.processes.child_process import Child, simulator
from embodied_env.ros.transport.qos import LATCHED as LATCHED_QOS
from embodied_env.ros.transport.qos import RELIABLE
from embodied_env.testing import ChaosNode
from embodied_env.testing.fault_injection.fault_node import chaos_qos

SHIPPED = with_slow_emulator(embodied_env.load_contract("arm_reach"))
ARM = replace(
    SHIPPED, episode=replace(SHIPPED.episode, horizon_steps=2000)
)  # so that a fault ends the episode, not its length
PERIOD_S = ARM.control_period_s
MAX_AGE_S = ARM.sensors["joints"].max_age_s
LAYOUT = ActionLayout(ARM)
DOMAIN_ID = ros_domains.FOR_KILLS
ENVIRONMENT = {"ROS_DOMAIN_ID": str(DOMAIN_ID), "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"}
NAMESPACE = f"/faults_{os.getpid()}"
SEED = 11
TIMEOUT_S = 30.0
PATIENCE_STEPS = 500
SHORT_S = 0.5  # longer than discovery; for a reset that fails at its deadline
BUSY_S = 3.0  # tolerated lateness on a busy machine
BUSY = {"act.late", "obs.stale"}  # codes that a stall of the machine causes
STALLED = {"policy_lost:late", *(f"safety_stop:{code}" for code in (*BUSY, "wd.stop"))}  # ends after a longer stall
ATTEMPTS = 10
ROUNDING = 1e-9
ZERO, SLOW, FAST = np.zeros(6), np.array([0.2, 0, 0, 0, 0, 0]), np.array([1.0, 0, 0, 0, 0, 0])
AUTOMATIC, PROTECTIVE = 7, 3
ESTOPS: dict[str, dict] = {
    "button": {"topic": "button", "timeout_s": 0.5},
    "mode": {
        "topic": "mode",
        "type": "std_msgs/msg/Int32",
        "safe": (AUTOMATIC,),
        "kind": "robot_mode",
        "latched": True,
    },
}


def with_injection(**profile):
    """Return the environment's contract with joint states that pass through fault injection."""
    joints = replace(ARM.sensors["joints"], topic="chaos/joint_states")
    known = {"reset": {"service": "simulator/reset"}, "discovery_s": 0.0, "reset_timeout_s": 10.0}
    known["connect_timeout_s"] = TIMEOUT_S  # a busy machine starts the robot slowly
    return replace(
        ARM, sensors={**ARM.sensors, "joints": joints}, backends={**ARM.backends, "real": {**known, **profile}}
    )


def start_robot(namespace):
    spec = simulator("-", namespace=namespace, source=ARM.source, free_running=True)
    return Child(spec, first_line=dump_contract(ARM), environment=ENVIRONMENT)


def kill(child):
    child.note_shared_memory()
    os.kill(child.pid, signal.SIGKILL)


class Monitor(Spinning):
    """Publish the robot's e-stop and mode and store commands, from a node with its own thread."""

    def __init__(self, namespace):
        super().__init__("monitor", namespace, DOMAIN_ID)
        self.button = self.node.create_publisher(Bool, "button", RELIABLE)
        self.mode = self.node.create_publisher(Int32, "mode", LATCHED_QOS)
        self.commands = []
        topic = next(iter(ARM.actuators.values())).topic
        self.node.create_subscription(Float64MultiArray, topic, self._take, chaos_qos())
        self.node.create_timer(PERIOD_S, self._publish)
        self.publish_safe_inputs()
        self.start()

    def _take(self, message):
        self.commands.append(list(message.data))

    def _publish(self):
        if self.pressed is not None:
            self.button.publish(Bool(data=self.pressed))

    def publish_safe_inputs(self):
        self.pressed = False  # None: publish nothing
        self.mode.publish(Int32(data=AUTOMATIC))


class SinkSpy:
    """A command publisher that stores each command with its time."""

    def __init__(self, outlet):
        self.outlet, self.passed = outlet, []

    def send(self, command):
        self.passed.append((time.monotonic_ns(), command))
        return self.outlet.send(command)

    @property  # type: ignore[misc] # for isinstance
    def __class__(self):
        return type(self.outlet)

    def __getattr__(self, name):
        return getattr(self.outlet, name)


class Episode:
    """One episode of an environment, and everything it published."""

    def __init__(self, env, monitor=None):
        self.env, self.monitor = env, monitor
        self.begin()

    def begin(self):
        env, monitor, self.rows = self.env, self.monitor, []
        self.observation, self.reset_info = env.reset(seed=SEED)
        backend = env.unwrapped.stepper.backend
        if isinstance(backend._connection.sink, SinkSpy):
            backend._connection.sink = backend._connection.sink.outlet
        self.spy = backend._connection.sink = SinkSpy(backend._connection.sink)
        self.published: list = []
        if monitor is not None:
            monitor.commands = self.published
        self.ended = ""
        self.fault_ns = 0

    def inject(self, act=lambda: None):
        """Start the fault, and measure times from here."""
        self.fault_ns = time.monotonic_ns()
        act()

    def step(self, action=ZERO):
        observation, reward, terminated, truncated, info = self.env.step(action)
        transition = self.env.unwrapped.last_transition
        self.rows.append(transition)
        assert np.isfinite(reward)
        assert observation in self.env.observation_space
        assert all(np.isfinite(values).all() for values in observation.values())
        assert (terminated or truncated) == bool(info["end_reason"])
        self.ended = info["end_reason"]
        return transition

    def run(self, steps, action=ZERO):
        """Take `steps` steps that do not end the episode, and repeat them after a stall of the machine."""
        for _ in range(ATTEMPTS):
            for _ in range(steps):
                self.step(action)
                if self.ended:
                    break
            else:
                return self.rows[-steps:]
            assert self.ended in STALLED, self.ended
            self.check()
            self.begin()
        raise AssertionError(f"{ATTEMPTS} episodes ended early")

    def run_to_end(self, action=ZERO):
        first, end = len(self.rows), time.monotonic() + TIMEOUT_S
        while not self.ended:
            assert len(self.rows) - first < PATIENCE_STEPS, codes(self.rows[-1])
            assert time.monotonic() < end
            self.step(action)
        assert self.rows[-1].truncated
        assert not self.rows[-1].terminated
        return self.rows[first:]

    def time_to_hold(self):
        """Return the ns from the fault to the first HOLD that is no late action, and to rest."""
        after = [(at_ns - self.fault_ns, c.report) for at_ns, c in self.spy.passed if at_ns > self.fault_ns]
        first = next(i for i, (_, report) in enumerate(after) if severe_codes(report) - {"act.late", ""})
        rest = next(ns for ns, report in after[first:] if not report.velocity_si.any())
        return after[first][0], rest

    def note(self, record_property):
        """Record the times of the fault, in control periods, for docs/reference/faults.md."""
        hold, rest = (round(ns / ARM.control_period_ns, 1) for ns in self.time_to_hold())
        record_property("periods_to_hold", hold)
        record_property("periods_to_rest", rest)
        return hold, rest

    def check(self):
        """Assert that every published command is within every limit, by the arbiter's stamps and sequence numbers."""
        sent = self.spy.passed
        assert [c.seq for _, c in sent] == list(range(sent[0][1].seq, sent[0][1].seq + len(sent)))
        values = np.array([c.values for _, c in sent])
        limits = LAYOUT.limits
        assert np.isfinite(values).all()
        assert (values >= limits.position_low - ROUNDING).all()
        assert (values <= limits.position_high + ROUNDING).all()
        for (before_ns, before), (after_ns, after) in itertools.pairwise(sent):
            dt_s = after.report.dt_s
            assert 0.0 <= dt_s <= PERIOD_S + ROUNDING
            moved = np.abs(after.values - before.values)
            assert (moved <= limits.fastest * dt_s + ROUNDING).all()
            assert (np.abs(after.report.velocity_si) <= limits.fastest + ROUNDING).all()
            if after_ns - before_ns > 3 * ARM.control_period_ns:
                continue  # the servo has arrived and restarts from rest
            faster = np.abs(after.report.velocity_si) - np.abs(before.report.velocity_si)
            assert (faster <= limits.acceleration * dt_s + ROUNDING).all()
            assert (-faster <= limits.deceleration * dt_s + ROUNDING).all()
        if self.monitor is not None:
            wait_for(lambda: len(self.published) >= len(sent))
            assert self.published == values.tolist()


def codes(transition):
    return [finding.code for finding in transition.report.findings]


def severe_codes(report):
    return {finding.code for finding in report.findings if finding.severity >= Severity.HOLD}


def holds(rows):
    """Return the codes that held a step."""
    return {code for row in rows for code in severe_codes(row.report)}


class Rig:
    """A robot with an e-stop, fault injection on its joint states, and a recorded environment."""

    def __init__(self, folder):
        self.robot = start_robot(NAMESPACE)
        self.monitor = Monitor(NAMESPACE)
        self.chaos = ChaosNode(
            "joint_states", "chaos/joint_states", "sensor_msgs/msg/JointState", seed=SEED, namespace=NAMESPACE
        )
        self.env: Any = None
        self._is_closed = False
        self.chaos.__enter__()
        try:
            options = {"namespace": NAMESPACE, "domain_id": DOMAIN_ID, "record": folder}
            self.env = embodied_env.make(with_injection(estop=ESTOPS, reset_timeout_s=30.0), backend="real", **options)
            self.env.reset(seed=SEED)  # starts its threads before the first test counts them
        except BaseException:
            self.close()
            raise

    def begin(self):
        """Start an episode without faults."""
        assert self.robot.exit_code is None, self.robot.stderr_tail()
        self.chaos.set_faults()
        self.monitor.publish_safe_inputs()
        backend = self.env.unwrapped.stepper.backend
        wait_for(lambda: all(backend.estops()[name].is_ok for name in ESTOPS))
        self.env.unwrapped.clear_estop()
        return Episode(self.env, self.monitor)

    def close_env(self):
        """Stop everything but the robot. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self.env is not None:
                self.env.close()
        finally:
            self.chaos.__exit__(None, None, None)
            self.monitor.close()

    def close(self):
        """Stop everything. Idempotent."""
        try:
            self.close_env()
        finally:
            self.robot.stop()
