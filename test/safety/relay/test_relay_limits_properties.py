"""A relay has the limits of the gate, in each direction of a joint by itself."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from arbiter_bench import ArbiterBench, RelayOutlet
from hypothesis import given
from hypothesis import strategies as st
from safety_strategies import contract_of, examples, joint_limits

from embodied_env.contract.safety_schema import Margins, WatchdogSpec
from embodied_env.safety.relay.relay import Relay
from embodied_env.safety.relay.relay_protocol import Armed, CommandId, write_command
from embodied_env.timing.clock import NS_PER_S, ManualClock

PERIOD_NS = NS_PER_S // 20
PATIENT = WatchdogSpec(hold_steps=50, stop_steps=100)
NO_MARGINS = Margins(position=0.0, velocity=1.0)

speeds = st.floats(0.05, 3.0)
asymmetric = st.tuples((st.just(0.0) | speeds).map(lambda speed: -speed), speeds)
runs = st.lists(
    st.tuples(st.tuples(st.floats(-3.0, 3.0), st.floats(-3.0, 3.0)), st.sampled_from([1, PERIOD_NS // 3, PERIOD_NS])),
    min_size=1,
    max_size=25,
)


def contract_with(command, *velocities):
    limits = [dataclasses.replace(joint_limits(), velocity=each) for each in velocities]
    return contract_of(*limits, command=command, scale="physical", margins=NO_MARGINS, watchdog=PATIENT, tracking=None)


class Pair(ArbiterBench):
    """A relay, and the gate of an environment with its arbiter, at one clock."""

    def __init__(self, contract):
        super().__init__(contract, clock=ManualClock(start_ns=1_000 * NS_PER_S), fixed_rate=False)
        self.outlet = RelayOutlet()
        self.relay = Relay(contract, self.outlet, clock=self.clock)
        self.relay.on_joint_positions("joints", np.zeros(2), self.clock.now_ns())
        self.epoch, self.seq = Armed.from_text(self.relay.arm()[1]).epoch, 0

    def command(self, target, after_ns):
        """Send one target through both, and return the commands of gate and relay."""
        self.publish(list(target), after_ns=after_ns)
        self.seq += 1
        tag = CommandId(epoch=self.epoch, seq=self.seq)
        self.relay.command(write_command(tag, np.array(target), self.gate.layout))
        return self.sent[-1], self.outlet.published[-1]


@pytest.mark.parametrize("command", ["position", "velocity"])
@examples(60)
@given(velocities=st.tuples(asymmetric, asymmetric), run=runs)
def test_a_relay_limits_each_direction_like_the_gate(command, velocities, run):
    pair = Pair(contract_with(command, *velocities))
    low, high = np.array(velocities).T
    for target, after_ns in run:
        by_gate, by_relay = pair.command(target, after_ns)
        assert by_relay.values.tolist() == by_gate.values.tolist()
        assert by_relay.report.velocity_si.tolist() == by_gate.report.velocity_si.tolist()
        assert by_relay.report.guaranteed == by_gate.report.guaranteed
        assert (low <= by_relay.report.velocity_si).all()
        assert (by_relay.report.velocity_si <= high).all()


def test_a_relay_reaches_both_limits_and_no_more():
    for command in ("position", "velocity"):
        pair = Pair(contract_with(command, (-0.2, 1.0), (-0.2, 1.0)))
        for _ in range(30):
            pair.command((2.0, -2.0), PERIOD_NS)
        assert pair.outlet.published[-1].report.velocity_si.tolist() == [pytest.approx(1.0), pytest.approx(-0.2)]
