"""Delays and clocks of the robot emulator in its own process, as observed on its topics."""

import os
import time
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import ros_domains

pytest.importorskip("rclpy", reason="needs rclpy")

from std_srvs.srv import Trigger

import embodied_env
from embodied_env.contract.contract_loader import dump_contract
from embodied_env.messages.message_types import JOINT_SENSOR, message_class
from embodied_env.processes.child_process import Child, simulator
from embodied_env.ros.transport.node import RosNode
from embodied_env.ros.transport.qos import RELIABLE
from embodied_env.ros.wire.command_messages import to_command
from embodied_env.ros.wire.sensor_buffer import stamp_ns
from embodied_env.ros.wire.simulator_protocol import RESET_SERVICE, ResetReply
from embodied_env.timing.clock import SteadyClock

pytestmark = [pytest.mark.ros, pytest.mark.realtime]

ARM = embodied_env.load_contract("arm_reach")
NAMESPACE = f"/emulator_{os.getpid()}"
PATIENCE_S = 20.0
ATTEMPTS = 5  # of observations without a stall of the machine
STATE = "state"
SLACK_S = 0.05  # for a busy machine
COMMAND_DELAY_S = 0.3
DRIVER_DELAY_S = 0.2
SKEW_S = 0.5
EMULATOR = f"""{{
    "tick_s": 0.005, "command_delay_s": {COMMAND_DELAY_S}, "controller_state": true,
    "sensors": {{
        "joints": {{"rate_hz": 100, "driver_delay_s": {DRIVER_DELAY_S}}},
        "tcp": {{"driver_delay_s": {DRIVER_DELAY_S}, "stamp": "publication"}},
        "target": {{"clock_offset_s": {SKEW_S}}},
        "true_distance": {{"stamp": "zero"}}
    }}
}}"""


MEDIANS_S = {"joints": DRIVER_DELAY_S, "tcp": 0.0, "target": -SKEW_S}


@dataclass
class Observations:
    """Observations of a robot, with its reset and the state after it.

    The arrivals are by sensor, and the commands are (sent at, values).
    """

    arrivals: dict
    commands: list
    reset: ResetReply
    after: list

    def late_s(self, sensor):
        """Return how much later than its header stamp each message was published."""
        return np.array([(a.info["source_timestamp"] - stamp_ns(a.message)) / 1e9 for a in self.arrivals[sensor]])

    def taken_s(self, number):
        """Return how long after a command the controller took it, in all its messages."""
        sent_ns, values = self.commands[number]
        states = [a.message for a in self.arrivals[STATE] if np.allclose(a.message.position, values, atol=1e-9)]
        return {(stamp_ns(each) - sent_ns) / 1e9 for each in states}

    def is_undisturbed(self):
        """Return whether no stall delayed the commands, the reset, or half of the messages."""
        waited_s = [max(self.taken_s(number), default=np.inf) - COMMAND_DELAY_S for number in range(2)]
        waited_s.append(abs(stamp_ns(self.after[-1].message) - self.reset.stamp_ns) / 1e9)
        waited_s += [np.median(self.late_s(name)) - delay_s for name, delay_s in MEDIANS_S.items()]
        return max(waited_s) < SLACK_S


def collect(ros, seconds, observed):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for arrival in ros.receiver.receive(0.02):
            observed.setdefault(arrival.key, []).append(arrival)
    return observed


def connect(ros):
    actuator = ARM.actuators["arm"]
    for name, sensor in ARM.sensors.items():
        ros.receiver.subscribe(name, message_class(sensor.type), sensor.topic)
    ros.receiver.subscribe(STATE, message_class(JOINT_SENSOR), "simulator/controller_state")
    publisher = ros.node.create_publisher(message_class(actuator.type), actuator.topic, RELIABLE)
    assert ros.wait_until(publisher.get_subscription_count, PATIENCE_S)
    return publisher


def observe(ros, publisher):
    """Command the robot twice, reset it with a third command in transit, and return everything it publishes."""
    actuator = ARM.actuators["arm"]
    observed, end = {}, time.monotonic() + PATIENCE_S
    while len(observed) < len(ARM.sensors) + 1:
        assert time.monotonic() < end
        collect(ros, 0.1, observed)
    home, commands, observed = np.array(observed[STATE][-1].message.position), [], {}
    for step in (0.01, 0.02, 0.03):
        commands.append((time.time_ns(), home + step))
        publisher.publish(to_command(actuator, home + step, stamp_ns=time.time_ns(), period_s=0.05))
        if step < 0.03:
            collect(ros, COMMAND_DELAY_S + 0.2, observed)
        else:
            collect(ros, 0.1, observed)
    response = ros.receiver.call(Trigger, RESET_SERVICE, Trigger.Request(), PATIENCE_S, lambda: None)
    after = collect(ros, COMMAND_DELAY_S + 0.2, {})[STATE]
    return Observations(observed, commands, ResetReply.from_text(response.message), after)


@pytest.fixture(scope="module")
def observed():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROS_DOMAIN_ID", str(ros_domains.FOR_MODULES))
        patch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
        spec = simulator("-", namespace=NAMESPACE, source=ARM.source, free_running=True, emulator_settings=EMULATOR)
        child = Child(spec, first_line=dump_contract(ARM))
        ros = RosNode("observer", namespace=NAMESPACE, clock=SteadyClock())
        try:
            publisher = connect(ros)
            for _ in range(ATTEMPTS):
                found = observe(ros, publisher)
                if found.is_undisturbed():
                    break
            return found
        finally:
            ros.close()
            child.stop()


def test_a_reading_is_published_one_driver_delay_after_its_header_stamp(observed):
    late_s = observed.late_s("joints")
    assert late_s.min() > DRIVER_DELAY_S - 0.001
    assert np.median(late_s) < DRIVER_DELAY_S + SLACK_S


def test_a_publication_stamp_hides_the_delay(observed):
    assert np.median(np.abs(observed.late_s("tcp"))) < SLACK_S


def test_a_skewed_clock_gives_stamps_in_the_future(observed):
    late_s = observed.late_s("target")
    assert late_s.min() > -SKEW_S - 0.001
    assert np.median(late_s) < -SKEW_S + SLACK_S


def test_a_driver_without_a_clock_publishes_zero_stamps(observed):
    assert {stamp_ns(a.message) for a in observed.arrivals["true_distance"]} == {0}


def test_a_sensor_has_the_rate_of_its_driver_and_the_others_the_tick_rate(observed):
    joints, tcp = (len(observed.arrivals[name]) for name in ("joints", "tcp"))
    assert 1.6 < tcp / joints < 2.4


def test_a_command_takes_effect_after_its_delay_as_the_controller_reports(observed):
    states = observed.arrivals[STATE]
    for number in range(2):
        (taken_s,) = observed.taken_s(number)  # in many messages
        assert -0.001 < taken_s - COMMAND_DELAY_S < SLACK_S
    assert all(list(a.message.name) == list(ARM.actuators["arm"].joints) for a in states)
    assert all(stamp_ns(a.message) <= stamp_ns(b.message) for a, b in pairwise(states))


def test_a_command_in_transit_at_a_reset_has_no_effect(observed):
    never = observed.commands[-1][1]
    states = observed.arrivals[STATE] + observed.after
    assert not any(np.allclose(a.message.position, never, atol=1e-9) for a in states)
    assert stamp_ns(observed.after[-1].message) == pytest.approx(observed.reset.stamp_ns, abs=SLACK_S * 1e9)
