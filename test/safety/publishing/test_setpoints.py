import json
import threading
from typing import Any

import numpy as np
import pytest
import scripted_tasks
from arbiter_bench import HOLD, ArbiterBench, homing_context
from hypothesis import example, given
from hypothesis import strategies as st
from safety_strategies import FunctionFilter, examples
from scripted_tasks import PERIOD_NS, PERIOD_S

from embodied_env.contract import parse_contract
from embodied_env.core.code_types import Severity
from embodied_env.core.reset_draws import ResetRoutine
from embodied_env.errors import BackendLostError, ClosedError
from embodied_env.safety.command_filters import FilterDecision
from embodied_env.safety.gate import SafetyGate
from embodied_env.safety.homing import HomingMotion
from embodied_env.safety.joint_limits import joint_bounds, limit_violation
from embodied_env.safety.watchdog import SetpointThread, Watchdog
from embodied_env.timing.clock import ManualClock

PER_STEP = 5
H_NS = PERIOD_NS // PER_STEP


def contract(jerk=None, **limits):
    document = scripted_tasks.document()
    document["actuators"]["arm"] |= {"command": "position", "scale": "physical"}
    for joint in document["actuators"]["arm"]["joints"].values():
        joint.update(limits if jerk is None else {**limits, "jerk": jerk})
    return parse_contract(json.dumps(document))


class Bench(ArbiterBench):
    """An arbiter on a manual clock whose setpoints are sent when they are due, or later."""

    def __init__(self, *, per_step=PER_STEP, start=(0.0, 0.0), filters=None, **limits):
        made = contract(**limits)
        super().__init__(made, fixed_rate=False, filters=filters, start=start, setpoints_per_step=per_step)
        self.thread_is_dead = False
        spec = made.safety.watchdog
        self.watchdog = Watchdog(self.arbiter, self.gate, spec, clock=self.clock, control_period_s=PERIOD_S)
        self.origin_ns = self.clock.now_ns()
        self.clock.advance_ns(10 * PERIOD_NS)

    def step(self, action):
        self.watchdog.feed()
        return self.publish(list(action))

    def wait(self, duration_ns, late_ns=0):
        """Pass time, and send each setpoint `late_ns` after it was due.

        After the death of its thread no setpoint is sent.
        """
        end_ns = self.clock.now_ns() + duration_ns
        while self.thread_is_dead and self.clock.now_ns() + PERIOD_NS // 2 < end_ns:
            self.clock.advance_ns(PERIOD_NS // 2)
            self.watchdog.check()
        while (
            not self.thread_is_dead
            and (due_ns := self.arbiter.setpoint_due_ns) is not None
            and due_ns + late_ns < end_ns
        ):
            self.clock.sleep_until_ns(due_ns + late_ns)
            self.arbiter.send_setpoint()
        self.clock.sleep_until_ns(end_ns)

    def run(self, *targets):
        """Take a step to each of these positions of the first joint, or pairs, and pass its period."""
        for target in targets:
            self.step(target if isinstance(target, tuple) else (target, 0.0))
            self.wait(PERIOD_NS)

    def cruise(self):
        """Accelerate for ten steps."""
        self.run(*[1.0] * 10)

    def start_grid(self):
        """Hold for a step, after which all setpoints are one period apart."""
        self.run(0.0)
        del self.sent[:], self.sent_ns[:]

    def motion(self):
        """Return times in s, positions and velocities of all published commands."""
        times = (np.array(self.sent_ns) - self.origin_ns) / 1e9
        return times, np.array([c.values for c in self.sent]), np.array([c.report.velocity_si for c in self.sent])

    def check_limits(self, start=(0.0, 0.0)):
        """Check each published command against the one before, by formulas independent of the gate's."""
        x, v, before_ns = np.array(start), np.zeros(2), 0
        for now_ns, command in zip(self.sent_ns, self.sent, strict=True):
            next_v, dt_s = command.report.velocity_si, command.report.dt_s
            assert dt_s <= (now_ns - before_ns) / 1e9
            before_ns = now_ns
            if not dt_s > 0.0:  # two commands at one instant: the second repeats the first
                assert command.values.tolist() == x.tolist()
                continue
            for i, bounds in enumerate(joint_bounds(self.gate.limits)):
                problem = limit_violation(x[i], v[i], command.values[i], next_v[i], bounds, dt_s)
                assert not problem, problem
            x, v = command.values, next_v


def positions(*targets):
    """Return actions that request these positions of the first joint at a physical scale."""
    return [(target, 0.0) for target in targets]


def test_the_first_step_publishes_at_once_and_the_others_on_the_grid():
    bench = Bench()
    start_ns = bench.clock.now_ns()
    bench.run(0.004, 0.008)
    found = [now_ns - start_ns for now_ns in bench.sent_ns]
    assert found[0] == 0
    assert found[1:] == [H_NS // 2 + i * H_NS for i in range(len(found) - 1)]


@pytest.mark.parametrize("jitter_ns", [-H_NS // 2 + 1, -1, 1, H_NS // 2 - 1])
def test_jitter_below_half_a_setpoint_period_changes_no_time_of_publication(jitter_ns):
    benches = Bench(), Bench()
    for k in range(6):
        for bench, shift_ns in zip(benches, (0, jitter_ns), strict=True):
            due_ns = bench.origin_ns + (10 + k) * PERIOD_NS + (shift_ns if k % 2 else 0)
            bench.wait(max(0, due_ns - bench.clock.now_ns()))
            bench.step((0.004 * k, 0.0))
    assert benches[0].sent_ns == benches[1].sent_ns


def test_setpoints_are_approved_commands_with_increasing_numbers():
    bench = Bench()
    approved = bench.step((0.004, 0.0))
    bench.wait(PERIOD_NS)
    assert [command.seq for command in bench.sent] == list(range(1, len(bench.sent) + 1))
    assert approved.seq == 1
    assert bench.step((0.008, 0.0)).seq == len(bench.sent)


def test_steps_in_time_are_approved_as_without_setpoints():
    targets = positions(0.004, 0.012, 0.024, 0.036, 0.044, 0.048, 0.048, 0.048)
    one, many = Bench(per_step=1), Bench()
    for target in targets:
        expected, found = one.step(target), many.step(target)
        assert found.values.tolist() == expected.values.tolist()
        assert found.report.velocity_si.tolist() == expected.report.velocity_si.tolist()
        assert found.report.dt_s == expected.report.dt_s
        one.wait(PERIOD_NS)
        many.wait(PERIOD_NS)


def test_setpoints_lie_on_the_quadratic_b_spline_of_the_approved_positions():
    bench = Bench()
    bench.start_grid()
    approved = [0.0, 0.0]
    for target in positions(0.004, 0.012, 0.024, 0.036, 0.044, 0.048, 0.048, 0.048):
        approved.append(bench.step(target).values[0])
        bench.wait(PERIOD_NS)
    _, found, _ = bench.motion()
    steps = np.diff(approved)
    for k in range(1, len(steps)):  # velocities change in equal parts from one approved velocity to the next
        velocities = (steps[k - 1] + (steps[k] - steps[k - 1]) * np.arange(1, PER_STEP + 1) / PER_STEP) / PERIOD_S
        published = found[(k - 1) * PER_STEP : k * PER_STEP, 0]
        before = found[(k - 1) * PER_STEP - 1, 0] if k > 1 else 0.0
        assert np.allclose(np.diff(published, prepend=before) / (PERIOD_S / PER_STEP), velocities, atol=1e-9)
    assert np.array_equal(found[-PER_STEP:, 0], np.full(PER_STEP, found[-1, 0]))
    assert found[-1, 0] == pytest.approx(0.048, abs=1e-9)


def test_a_late_step_finds_the_motion_still_under_way():
    bench = Bench()
    bench.run(0.004, 0.012, 0.024)
    bench.wait(H_NS)
    assert bench.sent[-1].report.disposition is Severity.PASS
    speed = bench.arbiter.reference.velocities[0]
    bench.step((0.036, 0.0))
    assert bench.arbiter.reference.velocities[0] == pytest.approx(speed, rel=0.1)


def test_braking_starts_at_the_last_setpoint_and_ends_the_motion():
    bench = Bench()
    bench.cruise()
    bench.step((1.0, 0.0))
    bench.wait(2 * H_NS + 1)
    before = bench.arbiter.reference
    bench.arbiter.brake(HOLD)
    assert 0.0 <= bench.arbiter.reference.velocities[0] <= before.velocities[0]
    bench.arbiter.brake_to_rest(HOLD)
    assert bench.arbiter.setpoint_due_ns is None
    bench.check_limits()


def test_braking_commands_in_quick_succession_do_not_postpone_the_next_setpoint():
    bench = Bench()
    bench.cruise()
    for _ in range(20):
        bench.arbiter.brake(HOLD)
        bench.clock.advance_ns(1000)
    assert bench.arbiter.setpoint_due_ns - bench.clock.now_ns() <= H_NS
    bench.check_limits()


def test_after_close_only_braking_is_published():
    bench = Bench()
    bench.step((1.0, 0.0))
    bench.wait(H_NS)
    bench.arbiter.close()
    with pytest.raises(ClosedError):
        bench.step((1.0, 0.0))
    bench.wait(PERIOD_NS)
    assert not bench.arbiter.reference.velocities.any()


def test_a_setpoint_that_cannot_be_sent_changes_nothing():
    bench = Bench()
    bench.run(0.004)
    before, bench.failures = bench.arbiter.reference, 1
    with pytest.raises(BackendLostError):
        bench.step((0.012, 0.0))
    after = bench.arbiter.reference
    assert after.positions.tolist() == before.positions.tolist()
    assert after.velocities.tolist() == before.velocities.tolist()
    bench.wait(PERIOD_NS)
    assert not bench.arbiter.reference.velocities.any()


def test_the_account_has_the_rate_and_the_worst_gap():
    bench = Bench()
    bench.step((0.004, 0.0))
    bench.wait(PERIOD_NS, late_ns=H_NS // 4)
    account = bench.arbiter.take_setpoint_account()
    assert account == {"rate_hz": PER_STEP / PERIOD_S, "sent": PER_STEP + 1, "worst_gap_s": pytest.approx(H_NS / 1e9)}
    assert bench.arbiter.take_setpoint_account()["sent"] == 0


near_ends = st.sampled_from([-5.0, -1.98, -1.9, 0.0, 1.9, 1.98, 5.0])
actions = st.tuples(near_ends | st.floats(-2.0, 2.0), near_ends | st.floats(-2.0, 2.0))


@pytest.mark.parametrize("jerk", [None, 40.0])
def test_homing_arrives_and_rests(jerk):
    bench = Bench(jerk=jerk)
    home = {"shoulder": 0.6, "elbow": -0.4}
    the_contract = contract(jerk)

    routine = ResetRoutine(home=home, speed=0.5)
    motion = HomingMotion(the_contract, routine, bench.gate, bench.arbiter, bench.clock)
    deadline_ns = bench.clock.now_ns() + 20_000_000_000
    ways = homing_context(bench.clock.now_ns, lambda: bench.arbiter.reference.positions, lambda: bench.wait(PERIOD_NS))
    motion.drive(ways, deadline_ns)
    reference = bench.arbiter.reference
    assert np.abs(reference.positions - list(home.values())).max() <= routine.tolerance
    assert not reference.velocities.any()
    bench.check_limits()


@st.composite
def runs(draw):
    """Draw steps at any time, with any action and late setpoints, in which the watchdog brakes now and then."""
    steps = draw(st.lists(st.tuples(st.floats(0.02, 4.0), st.floats(0.0, 3.0), actions, st.booleans()), max_size=25))
    start = draw(st.tuples(st.floats(-1.9, 1.9), st.floats(-1.9, 1.9)))
    return start, steps


speeds = st.floats(0.05, 20.0)
any_limits = st.fixed_dictionaries(
    {
        "velocity": speeds | st.tuples(st.just(0.0) | speeds.map(lambda speed: -speed), speeds),
        "acceleration": st.floats(0.1, 200.0),
        "deceleration": st.floats(0.1, 200.0),
    },
    optional={"jerk": st.floats(1.0, 1e4)},
)
dies_at = st.none() | st.integers(0, 25)  # the step before which the thread of the setpoints ends


@examples(40)
@given(runs(), st.sampled_from([2, 3, 5, 25]), any_limits, dies_at)
@example(  # a step that follows no other begins with room to brake
    ((0.0, 0.0), [(1.0, 0.0, (-5.0, 0.0), False), (0.0, 0.0, (-5.0, 0.0), False)]),
    2,
    {"velocity": 2.0, "acceleration": 39.0, "deceleration": 1.0},
    None,
)
def test_every_setpoint_keeps_the_limits_at_any_timing_and_silence_ends_at_rest(run, per_step, limits, dies):
    start, steps = run
    bench = Bench(per_step=per_step, start=start, **limits)
    for number, (periods, late, action, brakes) in enumerate(steps):
        bench.thread_is_dead |= number == dies
        bench.step(action)
        bench.wait(round(periods * PERIOD_NS), late_ns=round(late * PERIOD_NS / per_step))
        if brakes and late > 2.0:
            bench.arbiter.brake(HOLD)
    bench.wait(round(1.1e9 * np.abs(limits["velocity"]).max() / limits["deceleration"]) + 5 * PERIOD_NS)
    bench.check_limits(start)
    if bench.gate.limits.velocity_low[0] == 0.0:  # exactly: not even by rounding
        assert (np.diff([start, *(command.values for command in bench.sent)], axis=0) >= 0.0).all()
    assert not bench.arbiter.reference.velocities.any()
    assert bench.thread_is_dead or (bench.arbiter.setpoint_due_ns is None and bench.gate.latched is None)


@examples(40)
@given(st.lists(actions, min_size=5, max_size=20), st.lists(st.floats(-0.2, 0.2), min_size=21, max_size=21))
def test_jitter_of_the_steps_never_brakes(targets, jitter):
    bench = Bench(per_step=10)
    for k, target in enumerate(targets):
        bench.step(target)
        bench.wait(round((1.0 + jitter[k + 1] - jitter[k]) * PERIOD_NS))
        assert all(command.report.disposition <= Severity.LIMIT for command in bench.sent)


@examples(40)
@given(st.lists(actions, min_size=2, max_size=15), st.floats(10.0, 1000.0))
def test_jerk_limits_hold_at_the_rate_of_the_setpoints_as_far_as_the_joint_limits_permit(targets, jerk):
    bench = Bench(jerk=jerk)
    bench.start_grid()
    bench.run(*targets)
    velocities = bench.motion()[2]
    changes = np.diff(np.diff(velocities, axis=0, prepend=0.0), axis=0, prepend=0.0) * PER_STEP / PERIOD_S
    from_rest = np.roll(velocities, 1, axis=0) == 0.0  # braking to rest ends with the acceleration 0
    by_joint = [[any(f.gate == "joint_limits" for f in c.report.findings)] for c in bench.sent]
    assert np.abs(np.where(from_rest | by_joint, 0.0, changes)).max() <= jerk * PERIOD_S / PER_STEP + 1e-6


class FailingArbiter:
    """An arbiter whose setpoints raise, and which comes to rest at once when it brakes."""

    def __init__(self):
        self.setpoint_pending, self.setpoint_due_ns, self.braked = threading.Event(), 0, []

    def send_setpoint(self):
        raise ValueError("a filter")

    def brake(self, finding):
        self.braked.append(finding)
        self.setpoint_due_ns = None


def test_a_setpoint_that_raises_brakes_at_once_and_latches_a_stop():
    gate = SafetyGate(contract())
    arbiter: Any = FailingArbiter()
    thread = SetpointThread(arbiter, gate, clock=ManualClock())
    thread.start()
    while not arbiter.braked:
        assert thread.is_alive()
    thread.stop()
    assert arbiter.braked == [gate.latched]
    assert "ValueError: a filter" in gate.latched.detail


def test_a_late_setpoint_makes_up_for_one_that_was_missed_and_no_more():
    bench, setpoint_ns = Bench(per_step=10), PERIOD_NS // 10
    bench.run(*(0.02 * k for k in range(1, 6)))
    bench.step((0.12, 0.0))
    bench.clock.advance_ns(8 * setpoint_ns)
    bench.arbiter.send_setpoint()
    assert bench.sent[-1].report.dt_s == pytest.approx(2 * setpoint_ns / 1e9)


def slow_between_steps(proposal):
    is_setpoint = proposal.dt_s < PERIOD_S / 2
    return FilterDecision(severity=Severity.LIMIT, share=0.1, detail="slow") if is_setpoint else None


def test_a_step_starts_near_a_motion_that_has_fallen_behind():
    bench = Bench(filters={"slow": FunctionFilter(slow_between_steps)})
    reach = bench.gate.limits.fastest * PERIOD_S
    for k in range(1, 20):
        with bench.arbiter.exclusive as (reference, _):
            published = bench.arbiter.reference
            ahead = published.positions + published.velocities * PERIOD_S
        assert (np.abs(reference.positions - ahead) <= 2 * reach).all()
        bench.step((0.1 * k, 0.0))
        bench.wait(PERIOD_NS)
    assert np.abs(bench.arbiter.reference.positions[0]) < 1.0
