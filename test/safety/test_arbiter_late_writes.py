"""Suspensions between any two reads of the clock and in any write never set a robot at rest in motion.

The plant moves as the messages command at the moment at which they leave. The limiter depends only on these moments, the
values and the motion of the plant, and shares no formula with the product.
"""

from __future__ import annotations

import contextlib
import json
import time

import numpy as np
import pytest
import scripted_tasks
from arbiter_bench import HOLD, homing_context
from hypothesis import example, given
from hypothesis import strategies as st
from safety_strategies import contract_of, examples

from embodied_env.contract import JointLimits, parse_contract
from embodied_env.contract.safety_schema import WatchdogSpec
from embodied_env.core.code_types import Severity
from embodied_env.core.reset_draws import ResetRoutine
from embodied_env.core.types import Finding, SentCommand
from embodied_env.errors import BackendNotReadyError
from embodied_env.safety.arbiter import Arbiter
from embodied_env.safety.gate import SafetyGate
from embodied_env.safety.homing import HomingMotion
from embodied_env.safety.publishing import make_publishing
from embodied_env.safety.relay.relay import Relay
from embodied_env.safety.relay.relay_protocol import Armed, CommandId, write_command
from embodied_env.timing.clock import NS_PER_S, ManualClock

PERIOD_S, PERIOD_NS, PER_STEP = 0.05, 50_000_000, 5
FASTEST, SPEEDUP, BRAKING = 1.0, 4.0, 8.0
TIMEOUT_S, AGE_S = 0.32, 0.004  # of the plant's controller; of a measured velocity
GAPS_NS = [PERIOD_NS // 4, 2 * PERIOD_NS // 3, 2 * PERIOD_NS, 3 * PERIOD_NS, 6 * PERIOD_NS, 2 * NS_PER_S]
KINDS = ["velocity", "measured", "position", "setpoints", "trajectory", "relay"]
WIDE = JointLimits(position=(-900.0, 900.0), velocity=FASTEST, acceleration=SPEEDUP, deceleration=BRAKING)
FREE = JointLimits(position=None, velocity=FASTEST, acceleration=SPEEDUP, deceleration=BRAKING)


class SuspendedClock(ManualClock):
    """Jumps ahead just before some of its reads, as for a process that is suspended there."""

    def __init__(self):
        super().__init__(start_ns=1_000 * NS_PER_S)
        self.jumps = {}  # number of reads from now -> ns
        self.reads = 0
        self.returned_ns = None  # first read after a write

    def now_ns(self):
        self.advance_ns(self.jumps.pop(self.reads, 0))
        self.reads += 1
        self.returned_ns = self.returned_ns or self.instant
        return self.instant

    @property
    def instant(self):
        return super().now_ns()

    def suspend(self, jumps):
        self.jumps, self.reads = dict(jumps), 0


class RealClock(SuspendedClock):
    """The same in real time, where the suspensions are sleeps among those that the machine adds."""

    @property
    def instant(self):
        return time.monotonic_ns()

    def advance_ns(self, ns):
        time.sleep(ns / NS_PER_S)

    def sleep_until_ns(self, deadline_ns):
        self.advance_ns(max(0, deadline_ns - self.instant))


class Plant:
    """One joint with a controller that keeps a velocity for a time, a servo, or a controller of trajectories."""

    def __init__(self, kind):
        self.kind = kind
        self.messages = [(0, 0.0, 0.0)]  # time, value, and where a servo was
        self.line = [(0, 0.0)]

    def receive(self, now_ns, command):
        if self.kind == "trajectory":
            first_ns, points = command.trajectory.first_ns, command.trajectory.points
            ahead = [(first_ns + k * PERIOD_NS, float(p.positions[0])) for k, p in enumerate(points)]
            here = now_ns, self.position(now_ns)
            self.line = [*(c for c in self.line if c[0] < now_ns), here, *(c for c in ahead if c[0] > now_ns)]
            if len(self.line) < 2 or ahead[-1][0] <= now_ns:
                self.line.append((now_ns + 1, ahead[-1][1]))  # a controller goes there at once
        self.messages.append((now_ns, float(command.values[0]), self.position(now_ns)))

    def position(self, now_ns):
        if self.kind == "trajectory":
            times_ns, positions = zip(*self.line, strict=True)
            return float(np.interp(now_ns, times_ns, positions))
        at_ns, target, start = self.messages[-1]
        return start + (target - start) * min(1.0, (now_ns - at_ns) / PERIOD_NS)

    def velocity(self, now_ns):
        if self.kind == "trajectory":
            return (self.position(now_ns + 1000) - self.position(now_ns)) * 1e6
        at_ns, value, _ = self.messages[-1]
        return value if now_ns - at_ns <= TIMEOUT_S * NS_PER_S else 0.0


class World:
    """A robot with one joint, behind an arbiter or a relay, and the limiter of what it receives."""

    def __init__(self, kind, clock=None):
        self.kind, self.clock = kind, clock or SuspendedClock()
        self.by_velocity = kind in ("velocity", "measured", "relay")
        self.plant = Plant(kind)
        self.inside = (0, 0)  # suspensions inside the next write: before and after the message leaves
        self.published, self.speed, self.problems = [], 0.0, []
        self.left_ns = self.clock.instant
        self.is_open = False  # the write of the last command was suspended: it may have left at any time in between
        contract = contract_of(
            FREE if self.by_velocity else WIDE,
            command="velocity" if self.by_velocity else "position",
            watchdog=WatchdogSpec(hold_steps=2, stop_steps=100),
        )
        self.gate = SafetyGate(contract, fixed_rate=False)
        self.relay = None
        if kind == "relay":
            self.relay = Relay(contract, self, clock=self.clock, downstream_timeout_s=TIMEOUT_S)
            self.relay.on_joint_positions("joints", np.zeros(1), self.clock.instant)
            self.epoch, self.seq, self.answers = Armed.from_text(self.relay.arm()[1]).epoch, 0, []
            self.arbiter = self.relay.arbiter
        else:
            publishing = make_publishing(
                self.gate,
                downstream_timeout_s=TIMEOUT_S if kind == "velocity" else None,
                measured_velocities=self.measure if kind == "measured" else None,
                setpoints_per_step=PER_STEP if kind == "setpoints" else 1,
                has_trajectories=kind == "trajectory",
            )
            self.arbiter = Arbiter(self.send, self.gate, publishing, clock=self.clock, free_running=True)
            self.arbiter.reset(np.zeros(1), 0)
        self.next_ns = self.clock.instant

    # of the relay's publisher

    def publish(self, command):
        self.send(command)

    def applied(self, fields):
        pass

    def state(self, state):
        pass

    def report(self, report):
        self.answers.append(report)

    def measure(self):
        return np.array([self.plant.velocity(self.clock.instant - round(AGE_S * NS_PER_S))]), np.array([AGE_S])

    def send(self, command):
        self.is_open |= self.clock.returned_ns - self.left_ns > PERIOD_NS
        before_ns, after_ns = self.inside
        self.inside = (0, 0)
        self.clock.advance_ns(before_ns)
        now_ns = self.clock.instant
        self.limit(now_ns, command, inside_ns=before_ns)
        self.plant.receive(now_ns, command)
        self.published.append((now_ns, command))
        self.left_ns, self.clock.returned_ns = now_ns, None
        self.clock.advance_ns(after_ns)
        if self.kind == "trajectory":
            self.is_open = before_ns + after_ns > 0 and self.clock.instant > command.trajectory.first_ns
        else:
            self.is_open = before_ns + after_ns > PERIOD_NS
        return SentCommand(seq=command.seq, values=command.values)

    def limit(self, now_ns, command, *, inside_ns):
        """Note a message that speeds the joint up by more than the limit, from what it does, or brakes it harder."""
        last_ns, last, _ = self.plant.messages[-1]
        gap_ns, value = now_ns - last_ns, float(command.values[0])
        dt_s, slack, speed = min(gap_ns, PERIOD_NS) / NS_PER_S, 1e-6, value
        moving = [self.plant.velocity(now_ns)]
        if self.kind == "measured":  # when its controller stops it is not known
            moving.append(self.plant.velocity(now_ns - PERIOD_NS // 2 - round(AGE_S * NS_PER_S)))
            slack += BRAKING * AGE_S
        elif self.kind == "trajectory":
            points = [(command.trajectory.first_ns + k * PERIOD_NS, p) for k, p in enumerate(command.trajectory.points)]
            here = self.plant.position(now_ns)
            ahead = [((t - now_ns) / NS_PER_S, float(p.positions[0]) - here) for t, p in points if t > now_ns]
            speed = ahead[0][1] / ahead[0][0] if ahead else (value - here) * NS_PER_S
            dt_s += PERIOD_S
        elif not self.by_velocity:
            speed = float(command.report.velocity_si[0])
            moving = [self.speed if gap_ns <= 3 * PERIOD_NS else 0.0]
            if abs(value - last) > abs(speed) * dt_s + slack:
                self.problems.append(f"{self.kind}: from {last:.4f} to {value:.4f} in {dt_s:.3f} s at {speed:.4f}")
            if self.kind == "setpoints":
                dt_s = min(dt_s, 2 * PERIOD_S / PER_STEP)
        self.speed = speed
        if self.is_open or (inside_ns and self.is_too_late(now_ns, command, inside_ns, last_ns)):
            return
        if abs(speed) > max(map(abs, moving)) + SPEEDUP * dt_s + slack:
            self.problems.append(f"{self.kind}: {speed:.4f} after {moving} in {gap_ns / NS_PER_S:.3f} s")
        if self.by_velocity and abs(moving[0]) - abs(value) > BRAKING * gap_ns / NS_PER_S + slack:
            self.problems.append(f"{self.kind}: brakes from {moving} to {value:.4f} in {gap_ns / NS_PER_S:.3f} s")

    def is_too_late(self, now_ns, command, inside_ns, last_ns):
        """Return whether the motion may have changed while a message was delayed inside its write."""
        if self.kind == "trajectory":
            return now_ns > command.trajectory.first_ns
        rests_ns = last_ns + (TIMEOUT_S * NS_PER_S if self.by_velocity else 3 * PERIOD_NS)
        return inside_ns > PERIOD_NS or now_ns - inside_ns <= rests_ns < now_ns

    def step(self, target):
        """Command one target, and return the written values and their guarantees."""
        if self.relay is not None:
            self.seq += 1
            tag = CommandId(epoch=self.epoch, seq=self.seq)
            self.relay.command(write_command(tag, np.array([target]), self.gate.layout))
            return self.answers[-1]
        with self.arbiter.exclusive as (reference, dt_s):
            value = target if self.by_velocity else reference.positions[0] + target * PERIOD_S
            approved = self.gate.limit(np.array([value]), reference, dt_s)
            approved = self.arbiter.send(approved).command or approved
        return approved.report

    def wait(self):
        """Pass the rest of a control period, and send setpoints when they are due."""
        self.next_ns = max(self.next_ns + PERIOD_NS, self.clock.instant)
        while (due_ns := self.arbiter.setpoint_due_ns) is not None and due_ns < self.next_ns:
            self.clock.sleep_until_ns(due_ns)
            self.arbiter.send_setpoint()
        self.clock.sleep_until_ns(self.next_ns)

    def accelerate(self):
        for _ in range(8):
            self.wait()
            self.step(FASTEST)
        assert self.published[-1][1].report.velocity_si[0] > 0.9 * FASTEST
        self.wait()


def codes(report):
    return [finding.code for finding in report.findings]


points = st.dictionaries(st.integers(0, 14), st.sampled_from(GAPS_NS), min_size=1, max_size=2)


@pytest.mark.parametrize("kind", KINDS)
@examples(40)
@given(jumps=points, target=st.sampled_from([FASTEST, 0.0, -FASTEST, "brake", "brake_to_rest"]))
def test_a_suspension_between_any_reads_of_the_clock_never_speeds_a_joint_up(kind, jumps, target):
    world = World(kind)
    world.accelerate()
    world.clock.suspend(jumps)
    if isinstance(target, str):
        getattr(world.arbiter, target)(HOLD)
        target = 0.0
    else:
        world.step(target)
    for _ in range(4):
        world.wait()
        world.step(target)
    assert not world.problems


@pytest.mark.parametrize("kind", KINDS)
@examples(40)
@given(shift_ns=st.integers(0, PERIOD_NS), delay_ns=st.integers(0, PERIOD_NS // 2))
@example(shift_ns=24_000_000, delay_ns=24_000_000)
def test_steps_that_have_shifted_and_wait_before_their_write_never_speed_a_joint_up(kind, shift_ns, delay_ns):
    world = World(kind)
    world.accelerate()
    world.next_ns += shift_ns
    world.clock.sleep_until_ns(world.next_ns)
    for _ in range(4):
        world.clock.suspend({1: delay_ns})
        world.step(FASTEST)
        world.wait()
    assert not world.problems


@pytest.mark.parametrize("kind", KINDS)
@examples(20)
@given(before_ns=st.sampled_from([0, *GAPS_NS]), after_ns=st.sampled_from([0, *GAPS_NS]))
def test_a_suspension_inside_a_write_costs_its_guarantee_and_that_of_the_next(kind, before_ns, after_ns):
    world = World(kind)
    world.accelerate()
    world.inside = before_ns, after_ns
    reports = []
    for _ in range(4):
        reports.append(world.step(FASTEST))
        world.wait()
    assert not world.problems
    is_slow = before_ns + after_ns > (PERIOD_NS // 2 if kind == "trajectory" else PERIOD_NS)
    assert [report.guaranteed["acceleration"] for report in reports] == [not is_slow, not is_slow, True, True]


@pytest.mark.parametrize(
    ("kind", "rests_s"), [("velocity", TIMEOUT_S), ("relay", TIMEOUT_S), ("position", 3 * PERIOD_S)]
)
def test_a_joint_that_comes_to_rest_during_a_write_costs_its_guarantee(kind, rests_s):
    world = World(kind)
    world.accelerate()
    world.clock.sleep_until_ns(world.plant.messages[-1][0] + round(rests_s * NS_PER_S) - PERIOD_NS // 4)
    world.inside = PERIOD_NS // 2, 0
    assert not world.step(FASTEST).guaranteed["acceleration"]
    world.wait()
    assert world.step(FASTEST).guaranteed["acceleration"]


@pytest.mark.parametrize("kind", ["velocity", "relay"])
def test_a_joint_that_stopped_during_a_write_is_not_set_in_motion_by_the_braking_after_it(kind):
    world = World(kind)
    world.accelerate()
    world.inside = 0, 2 * NS_PER_S  # the message left, and its controller timed out
    world.step(FASTEST)
    world.arbiter.brake(HOLD)
    assert world.published[-1][1].values.tolist() == [0.0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gap_ns", [PERIOD_NS, 2 * NS_PER_S])
def test_an_old_verdict_is_replaced_by_braking(kind, gap_ns):
    world = World(kind)
    world.accelerate()
    count = len(world.published)
    world.clock.suspend({2 if kind == "relay" else 1: gap_ns})
    report = world.step(FASTEST)
    assert "act.late" in codes(report)
    assert report.disposition == Severity.HOLD
    assert len(world.published) == count + 1
    assert (np.abs(report.velocity_si) < FASTEST).all()
    assert not world.problems


@pytest.mark.parametrize("read", range(1, 6))
def test_a_command_that_waited_in_the_relay_is_not_executed(read):
    world = World("relay")
    world.accelerate()
    world.clock.suspend({read: 2 * NS_PER_S})
    report = world.step(-FASTEST)
    assert "act.late" in codes(report)
    assert report.applied_si.tolist() == [0.0]


def test_half_an_interval_is_in_time():
    world = World("velocity")
    world.accelerate()
    world.clock.suspend({1: PERIOD_NS // 2})
    assert codes(world.step(FASTEST)) == []
    world.wait()
    world.clock.suspend({1: PERIOD_NS // 2 + 1})
    assert codes(world.step(FASTEST)) == ["act.late"]


def test_a_verdict_from_before_the_timeout_of_the_controller_is_not_written_after_it():
    world = World("velocity")
    world.accelerate()
    timed_out_ns = world.plant.messages[-1][0] + round(TIMEOUT_S * NS_PER_S)
    world.clock.sleep_until_ns(timed_out_ns - 10_000_000)
    world.clock.suspend({1: 20_000_000})
    report = world.step(FASTEST)
    assert set(codes(report)) == {"act.late", "vel.gap"}
    assert report.applied_si.tolist() == [0.0]


def test_braking_replaces_a_stop_with_its_reasons():
    world = World("velocity")
    world.accelerate()
    world.gate.latch(Finding(gate="force", severity=Severity.STOP, code="force.limit"))
    world.clock.suspend({1: PERIOD_NS})
    report = world.step(FASTEST)
    assert codes(report) == ["latch.stop", "act.late"]
    assert report.disposition == Severity.STOP


@pytest.mark.parametrize("kind", KINDS)
def test_a_machine_that_is_always_too_slow_brakes_at_each_write_to_rest(kind):
    world = World(kind)
    world.accelerate()
    speeds = []
    for _ in range(40):
        world.clock.suspend(dict.fromkeys(range(60), 2 * PERIOD_NS // 3))
        report = world.step(FASTEST)
        world.clock.suspend({})
        speeds.append(abs(world.published[-1][1].report.velocity_si[0]))
        if "act.late" in codes(report):
            assert not report.guaranteed["acceleration"] or not speeds[-1]
    assert speeds == sorted(speeds, reverse=True)
    assert speeds[-1] == 0.0


@pytest.mark.parametrize(
    ("steps", "clock"),
    [
        (400, SuspendedClock),
        pytest.param(50_000, SuspendedClock, marks=pytest.mark.long),
        pytest.param(900, RealClock, marks=[pytest.mark.long, pytest.mark.realtime]),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_steps_with_random_suspensions_keep_the_limits_of_an_independent_limiter(kind, steps, clock):
    world, rng, late = World(kind, clock()), np.random.default_rng(7), 0
    target = FASTEST
    for step in range(steps):
        if step % 20 == 0:
            target = float(rng.choice([-FASTEST, FASTEST, 0.3]))
        where = rng.random()
        if where < 0.10:
            world.clock.suspend({int(rng.integers(0, 12)): int(rng.choice(GAPS_NS))})
        elif where < 0.13:
            world.inside = tuple(rng.permutation([0, int(rng.choice(GAPS_NS))]).tolist())
        elif where < 0.16:
            world.next_ns += int(rng.integers(0, PERIOD_NS))
        late += "act.late" in codes(world.step(target))
        world.wait()
    assert not world.problems
    assert len(world.published) >= steps
    assert late > steps // 100


@examples(20)
@given(jumps=st.dictionaries(st.integers(0, 60), st.sampled_from(GAPS_NS), min_size=1, max_size=3))
def test_a_suspension_during_homing_never_speeds_a_joint_up(jumps):
    document = scripted_tasks.document()
    document["actuators"]["arm"] |= {"command": "position", "scale": "physical"}
    contract, world = parse_contract(json.dumps(document)), World("position")
    world.gate = SafetyGate(contract, fixed_rate=False)
    publishing = make_publishing(world.gate)
    world.arbiter = Arbiter(world.send, world.gate, publishing, clock=world.clock, free_running=True)
    world.arbiter.reset(np.zeros(2), 0)

    def measured():
        return np.array(world.published[-1][1].values) if world.published else np.zeros(2)

    def wait():
        world.next_ns = max(world.next_ns + PERIOD_NS, world.clock.instant)
        world.clock.sleep_until_ns(world.next_ns)

    routine = ResetRoutine(home={"shoulder": 0.6, "elbow": -0.4}, speed=1.0)
    homing = HomingMotion(contract, routine, world.gate, world.arbiter, world.clock)
    world.clock.suspend(jumps)
    ways = homing_context(lambda: world.clock.instant, measured, wait)
    with contextlib.suppress(BackendNotReadyError):
        homing.drive(ways, world.clock.instant + 60 * NS_PER_S)
    assert len(world.published) > 2
    assert not world.problems
