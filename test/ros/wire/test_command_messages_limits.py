"""The commands of an adversarial agent keep every limit on their topic, where they are differentiated.

The commands go through the gate and the arbiter to a real topic, and are read back from it. They are joined with the
arbiter's steps by the number of their publication. The small edition is always run; 10^6 steps belong to `.ci/long`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from safety_strategies import rounding_of_velocity

pytest.importorskip("rclpy")

from embodied_env.contract import load_contract
from embodied_env.core.types import SentCommand
from embodied_env.messages.message_types import message_class
from embodied_env.ros.transport.node import RosNode
from embodied_env.ros.transport.qos import RELIABLE
from embodied_env.ros.wire.command_messages import to_command
from embodied_env.safety.arbiter import Arbiter
from embodied_env.safety.gate import SafetyGate
from embodied_env.safety.publishing import make_publishing
from embodied_env.timing.clock import NS_PER_S, ManualClock, SteadyClock

pytestmark = [pytest.mark.ros, pytest.mark.realtime]

SMALL, LARGE = 1_000, 250_000  # for each of the four: 10^6 in all
BATCH = 8  # publications read back together: fewer than the topic's queue
STALL_PERIODS = 3


def arm(command):
    contract = load_contract("arm_reach")
    actuator = replace(
        contract.actuators["arm"], command=command, type="sensor_msgs/msg/JointState", topic="adversarial"
    )
    return replace(contract, actuators={"arm": actuator})


def cart():
    return load_contract("cart_goal")


CONTRACTS = {
    "position_delta": lambda: arm("position_delta"),
    "position": lambda: arm("position"),
    "velocity": lambda: arm("velocity"),
    "twist": cart,
}


def values_of(message, actuator):
    if actuator.command == "twist":
        twist = message.twist
        parts = (name.split(".") for name in actuator.joints)
        return [getattr(getattr(twist, part), axis) for part, axis in parts]
    return message.velocity if actuator.is_velocity else message.position


class Adversary:
    """Extreme, alternating, malformed and harmless actions in bursts of random length."""

    def __init__(self, size, rng):
        self._size, self._rng = size, rng
        self._left, self._kind, self._extreme = 0, 0, np.ones(size)

    def act(self, step):
        if self._left == 0:
            self._left, self._kind = int(self._rng.integers(1, 60)), int(self._rng.integers(6))
            self._extreme = self._rng.choice([-1.0, 1.0], self._size)
        self._left -= 1
        kinds = (
            lambda: self._extreme,
            lambda: self._extreme * (-1.0) ** step,
            lambda: self._rng.uniform(-1.0, 1.0, self._size),
            lambda: self._extreme * 10.0 ** self._rng.uniform(-3, 300),
            lambda: np.where(self._rng.random(self._size) < 0.1, np.nan, self._extreme),
            lambda: np.zeros(self._size),
        )
        return kinds[self._kind]()


def published(contract, steps, seed):
    """Return for each step what was read back, the arbiter's dt, and the time since the last publication, s."""
    (actuator,) = contract.actuators.values()
    rng = np.random.default_rng(seed)
    clock, period_ns = ManualClock(), contract.control_period_ns
    gate = SafetyGate(contract, fixed_rate=False)
    ros = RosNode("adversary", namespace="/adversary", clock=SteadyClock())
    try:
        ros.receiver.subscribe("commands", message_class(actuator.type), actuator.topic)
        publisher = ros.node.create_publisher(message_class(actuator.type), actuator.topic, RELIABLE)
        assert ros.wait_until(lambda: publisher.get_subscription_count() == 1, 30.0)

        def send(command):
            publisher.publish(to_command(actuator, command.values, stamp_ns=clock.now_ns(), period_s=0.05))
            return SentCommand(seq=command.seq, values=command.values)

        arbiter = Arbiter(send, gate, make_publishing(gate), clock=clock, free_running=True)
        limits = gate.layout.limits
        low, high = np.nan_to_num(limits.position_low, neginf=-1.0), np.nan_to_num(limits.position_high, posinf=1.0)
        middle = (low + high) / 2
        arbiter.reset(middle, epoch=0)
        adversary, received, dts_s, silences_s = Adversary(gate.layout.size, rng), {}, [], []
        for step in range(steps):
            jitter = rng.choice([1.0, rng.uniform(0.05, 1.5), rng.uniform(3.5, 6.0)], p=[0.5, 0.45, 0.05])
            clock.advance_ns(max(1, round(jitter * period_ns)))
            silences_s.append(jitter * period_ns / NS_PER_S)
            arbiter.update_measured(middle, np.zeros(gate.layout.size))  # for velocities: far from any bound
            with arbiter.exclusive as (reference, dt_s):
                command = gate.judge(adversary.act(step), reference, dt_s)
                arbiter.send(command)
            dts_s.append(command.report.dt_s)
            if gate.latched is not None:
                gate.reset()
            while step + 1 - len(received) >= (BATCH if step + 1 < steps else 1):
                for arrival in ros.receiver.receive(1.0):
                    received[arrival.info["publication_sequence_number"]] = list(values_of(arrival.message, actuator))
        assert sorted(received) == list(range(1, steps + 1))
        return (
            gate.layout,
            middle,
            np.array([received[n] for n in sorted(received)]),
            np.array(dts_s),
            np.array(silences_s),
        )
    finally:
        ros.close()


@pytest.mark.parametrize("kind", CONTRACTS)
@pytest.mark.parametrize("steps", [SMALL, pytest.param(LARGE, marks=pytest.mark.long)])
def test_the_published_topic_keeps_every_limit(kind, steps):
    contract = CONTRACTS[kind]()
    layout, start, values, dts_s, silences_s = published(contract, steps, seed=steps + len(kind))
    limits, dt = layout.limits, dts_s[:, np.newaxis]
    assert np.isfinite(values).all()
    if layout.is_velocity.all():
        velocities, before = values, np.vstack([np.zeros(layout.size), values[:-1]])
        extent = np.ones(layout.size)
    else:
        assert (values >= limits.position_low).all()
        assert (values <= limits.position_high).all()
        velocities = np.diff(np.vstack([start, values]), axis=0) / dt
        before = np.vstack([np.zeros(layout.size), velocities[:-1]])
        before[silences_s > STALL_PERIODS * contract.control_period_s] = 0.0  # the servo has arrived by then
        extent = np.maximum(np.abs(limits.position_low), np.abs(limits.position_high))
    rounding = np.vectorize(rounding_of_velocity)(extent, extent, velocities, dt)
    assert (np.abs(velocities) <= limits.fastest + rounding).all()
    faster = np.abs(velocities) > np.abs(before)
    reversed_ = velocities * before < 0.0
    up, down = limits.acceleration * dt, limits.deceleration * dt
    allowed = np.where(faster & ~reversed_, up, np.where(reversed_, np.maximum(up, down), down))
    previous_dt = np.vstack([dt[:1], dt[:-1]])
    carried = np.vectorize(rounding_of_velocity)(extent, extent, before, previous_dt)
    assert (np.abs(velocities - before) <= allowed + 2.0 * (rounding + carried)).all()
