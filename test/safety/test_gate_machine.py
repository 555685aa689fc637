"""Latch (P14), watchdog (P15), sequence numbers (P16) and episodes are correct in any order of events.

P-numbers are those of the table in `test_gate_chain_properties`. The machines keep a small model of the gate and compare it.
"""

import dataclasses
import itertools
import math
import sys
import threading

import numpy as np
import pytest
from arbiter_bench import ArbiterBench
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from safety_strategies import INPUT_STATES, calm, examples, finite_vectors, joint_limits, plain_contract
from scripted_tasks import NoParameters, Running

from embodied_env.backends.fake_backend import FakeBackend
from embodied_env.contract.safety_schema import Nonfinite, ObservationAge, WatchdogSpec
from embodied_env.core.code_types import Quality, Severity
from embodied_env.core.safety_input_state import parse_states
from embodied_env.core.types import Finding, SensorStatus
from embodied_env.envs.stepper import Stepper
from embodied_env.errors import ClosedError, ResetNeededError
from embodied_env.safety.watchdog import Watchdog
from embodied_env.timing.clock import NS_PER_S, ManualClock, SteadyClock

PERIOD_S = 0.05
PERIOD_NS = round(PERIOD_S * NS_PER_S)
TICK_NS = PERIOD_NS // 2  # of the watchdog's thread
SPEC = WatchdogSpec(hold_steps=2, stop_steps=10)
STOP_AFTER = 3
SILENT_STEPS = 3  # of a required sensor, until a STOP
INPUT_SEVERITY = {"ok": Severity.PASS, "inactive": Severity.STOP, "contention": Severity.STOP}  # others: ESTOP
LIMITS = joint_limits()
ROUNDING = 1e-12

BAD = st.sampled_from([[math.nan, 0.0], [0.0], None, "up", [[0.0, 0.0]], [math.inf, math.inf], [0.0, 0.0, 0.0]])


def finding(severity: Severity, code: str) -> Finding:
    return Finding(gate="latch", severity=severity, code=code)


class FreeRunningRobot(RuleBasedStateMachine):
    """A gate, an arbiter and a watchdog in a free-running world, with all events that may occur."""

    @initialize()
    def build(self):
        contract = plain_contract(
            watchdog=SPEC,
            nonfinite=Nonfinite(stop_after=STOP_AFTER),
            observation=ObservationAge(stop_steps=SILENT_STEPS),
        )
        bench = ArbiterBench(contract, clock=ManualClock(start_ns=17))
        self.clock, self.gate, self.arbiter = bench.clock, bench.gate, bench.arbiter
        self.sent, self.sent_ns = bench.sent, bench.sent_ns
        self.inputs, self.is_silent = {}, False
        self.watchdog = Watchdog(
            self.arbiter,
            self.gate,
            SPEC,
            clock=self.clock,
            control_period_s=PERIOD_S,
            estops=lambda: parse_states(self.inputs),
        )
        self.latched, self.malformed, self.silent, self.epoch = Severity.PASS, 0, 0, -1  # the model
        self.fed_ns = self.checked_ns = self.clock.now_ns()
        self.first_of_epoch = 0
        self.reset()

    def _latch(self, severity: Severity) -> None:
        self.latched = max(self.latched, severity)

    def _asserted(self) -> Severity:
        """Return the severity that the safety inputs request."""
        return max((INPUT_SEVERITY.get(state, Severity.ESTOP) for state in self.inputs.values()), default=Severity.PASS)

    def _step(self, action, *, age_s=0.0):
        """Take a step, and return the reference, the command, and the lowest disposition that the model expects."""
        wanted = Severity.PASS
        self._latch(self._asserted())
        if not self.latched:
            self.silent = self.silent + 1 if self.is_silent else 0
            wanted = Severity.HOLD if self.is_silent or age_s > 2 * PERIOD_S else Severity.PASS
            if self.silent >= SILENT_STEPS:
                self._latch(Severity.STOP)
        self.watchdog.feed()
        self.fed_ns = self.clock.now_ns()
        with self.arbiter.exclusive as (reference, dt_s):
            beside = calm(reference, action_age_s=age_s, estops=parse_states(self.inputs))
            if self.is_silent:
                sensors = {"joints": SensorStatus(quality=Quality.STALE, age_s=9.0)}
                beside = dataclasses.replace(beside, sensors=sensors)
            approved = self.gate.judge(action, reference, dt_s, beside)
            self.arbiter.send(approved)
        return reference, approved, max(wanted, self.latched)

    @rule()
    def reset(self):
        self.watchdog.disarm()
        self.gate.reset()
        self.latched = self.latched if self.latched is Severity.ESTOP else Severity.PASS
        self.malformed = self.silent = 0
        self.epoch += 1
        self.arbiter.reset(np.zeros(2) if not self.sent else self.sent[-1].values, self.epoch)
        self.first_of_epoch = len(self.sent)
        self.watchdog.feed()
        self.fed_ns = self.clock.now_ns()

    @rule(action=finite_vectors(2), age_s=st.sampled_from([0.0, 0.0, 2 * PERIOD_S, 0.2, math.inf]))
    def step(self, action, age_s):
        was_latched = max(self.latched, self._asserted())
        reference, approved, wanted = self._step(action, age_s=age_s)
        if not was_latched:
            self.malformed = 0
        if wanted:
            assert approved.report.disposition == wanted
            assert (np.abs(approved.report.velocity_si) <= np.abs(reference.velocities)).all()
        else:
            assert approved.report.disposition <= Severity.HOLD

    @rule(actions=st.lists(BAD, min_size=1, max_size=STOP_AFTER + 1))
    def malformed_steps(self, actions):
        for action in actions:
            self.malformed += 1
            reference, approved, wanted = self._step(action)
            if self.malformed >= STOP_AFTER:
                self._latch(Severity.STOP)
            assert approved.report.disposition == max(Severity.HOLD, wanted, self.latched)
            assert (np.abs(approved.report.velocity_si) <= np.abs(reference.velocities)).all()

    @rule(
        actions=st.lists(finite_vectors(2), min_size=1, max_size=4),
        end=st.sampled_from(["malformed", "silent", "input", "late", "pause"]),
        state=st.sampled_from(INPUT_STATES[4:]),
    )
    def an_episode(self, actions, end, state):
        """Move the robot without a fault until one fault occurs."""
        self.inputs, self.is_silent = {}, False
        self.estop_is_cleared()
        self.reset()
        for action in actions:
            self.clock.advance_ns(TICK_NS)
            self.the_watchdog_checks()
            self.step(action, 0.0)
        if end == "malformed":
            self.malformed_steps([None] * STOP_AFTER)
        elif end == "silent":
            for is_silent in [True] * (SILENT_STEPS - 1) + [False] + [True] * SILENT_STEPS:
                self.is_silent = is_silent
                self.step(actions[0], 0.0)
        elif end == "late":
            self.clock.advance_ns(TICK_NS)
            self.the_watchdog_checks()
            self.step(actions[0], math.inf)
        elif end == "input":
            self.inputs = {"door": state}
            self.the_watchdog_checks()
        else:
            self.time_passes(21)

    @rule(name=st.sampled_from(["door", "driver"]), state=st.sampled_from(INPUT_STATES))
    def an_input_changes(self, name, state):
        self.inputs[name] = state

    @rule()
    def every_input_is_ok(self):
        self.inputs = dict.fromkeys(self.inputs, "ok")

    @rule(is_silent=st.booleans())
    def a_required_sensor_stops_or_resumes(self, is_silent):
        self.is_silent = is_silent

    @rule(action=finite_vectors(2))
    def an_estop_needs_an_operator_and_a_reset(self, action):
        self.inputs = {"door": "active"}
        self._step(action)
        self.inputs = {}
        self.reset()
        assert self._step(action)[1].report.disposition is Severity.ESTOP
        self.estop_is_cleared()
        assert self._step(action)[1].report.disposition is Severity.STOP
        self.reset()
        assert self._step(action)[1].report.disposition < Severity.STOP

    @rule(latch=st.sampled_from([Severity.STOP, Severity.ESTOP]))
    def something_latches(self, latch):
        self.gate.latch(finding(latch, "latch.stop"))
        self._latch(latch)

    @rule()
    def estop_is_cleared(self):
        self.gate.clear_estop()
        self.latched = min(self.latched, Severity.STOP)

    @rule()
    def an_estop_survives_a_reset(self):
        self.something_latches(Severity.ESTOP)
        self.reset()

    @rule(ticks=st.sampled_from([1, 4, 21]))
    def time_passes(self, ticks):
        for _ in range(ticks):
            self.clock.advance_ns(TICK_NS)
            self.the_watchdog_checks()

    @rule(ns=st.sampled_from([0, 1, 1000, TICK_NS - 1]))
    def a_moment_passes(self, ns):
        ns = max(0, min(ns, self.checked_ns + TICK_NS - self.clock.now_ns()))  # the watchdog checks every tick
        self.clock.advance_ns(ns)

    @rule(ns=st.integers(0, 100 * PERIOD_NS))
    def the_process_is_suspended(self, ns):
        self.clock.advance_ns(ns)
        self.the_watchdog_checks()

    @rule()
    def the_watchdog_checks(self):
        age_ns, asserted = self.clock.now_ns() - self.fed_ns, self._asserted()
        before = len(self.sent)
        found = self.watchdog.check()
        self.checked_ns = self.clock.now_ns()
        self._latch(asserted)
        if not asserted and age_ns >= SPEC.stop_steps * PERIOD_NS:
            self._latch(Severity.STOP)
        assert (found is not None) == (asserted > Severity.PASS or age_ns >= SPEC.hold_steps * PERIOD_NS)
        assert len(self.sent) == before + (found is not None)

    @invariant()
    def p14_nothing_but_reset_and_the_operator_clears_a_latch(self):
        latched = self.gate.latched
        assert (latched.severity if latched else Severity.PASS) == self.latched

    @invariant()
    def p15_without_steps_the_newest_command_brakes_within_a_tick(self):
        overdue_ns = self.clock.now_ns() - self.fed_ns - SPEC.hold_steps * PERIOD_NS
        if overdue_ns >= TICK_NS:
            assert self.sent[-1].report.disposition >= Severity.HOLD
            assert self.clock.now_ns() - self.sent_ns[-1] <= TICK_NS

    @invariant()
    def p16_sequence_numbers_strictly_increase(self):
        numbers = [command.seq for command in self.sent]
        assert numbers == sorted(set(numbers))

    @invariant()
    def p17_every_command_has_the_epoch_of_its_episode(self):
        assert all(command.epoch == self.epoch for command in self.sent[self.first_of_epoch :])
        assert all(command.epoch < self.epoch for command in self.sent[: self.first_of_epoch])

    @invariant()
    def the_reference_is_the_last_published_command(self):
        if len(self.sent) > self.first_of_epoch:
            reference, last = self.arbiter.reference, self.sent[-1]
            assert reference.positions.tolist() == last.values.tolist()
            assert reference.velocities.tolist() == last.report.velocity_si.tolist()

    @invariant()
    def p1_to_p4_every_published_command_keeps_every_limit(self):
        low, high = LIMITS.position
        for before, command in itertools.pairwise(self.sent):
            assert np.isfinite(command.values).all()
            assert ((low <= command.values) & (command.values <= high)).all()
            assert (np.abs(command.report.velocity_si) <= LIMITS.fastest).all()
            moved = np.abs(command.values - before.values)
            assert (moved <= LIMITS.fastest * command.report.dt_s + ROUNDING).all() or command.epoch > before.epoch


FreeRunningRobot.TestCase.settings = settings(examples(30), stateful_step_count=25)
TestFreeRunningRobot = FreeRunningRobot.TestCase


class Episodes(RuleBasedStateMachine):
    """A stepper over the fake world, with valid and invalid calls in any order."""

    @initialize()
    def build(self):
        contract = plain_contract(nonfinite=Nonfinite(stop_after=STOP_AFTER))
        self.backend = FakeBackend(contract, clock=ManualClock())
        self.stepper = Stepper(contract, self.backend, Running(contract, NoParameters()), clock=ManualClock())
        self.running = self.closed = False
        self.malformed = self.steps = 0

    def _run_step(self, action):
        if self.closed or not self.running:
            before = len(self.backend.sent)
            with pytest.raises(ClosedError if self.closed else ResetNeededError):
                self.stepper.begin(action)
            assert len(self.backend.sent) == before
            return None
        self.stepper.begin(action)
        self.steps += 1
        done = self.stepper.finish()
        assert not (done.terminated and done.truncated)
        assert (done.terminated or done.truncated) == bool(done.info["end_reason"])
        assert done.info["step_index"] == self.steps
        self.running = not (done.terminated or done.truncated)
        return done

    @rule()
    def reset(self):
        self.stepper.reset(world_seed=1, options=None, seeded=False)
        self.running, self.malformed, self.steps = True, 0, 0
        self.closed = False  # a lockstep world opens again

    @rule(action=finite_vectors(2))
    def step(self, action):
        done = self._run_step(action)
        if done is not None:
            self.malformed = 0
            assert done.info["end_reason"] == ""

    @rule(action=BAD)
    def malformed_step(self, action):
        done = self._run_step(action)
        if done is not None:
            self.malformed += 1
            assert done.info["end_reason"] == ("safety_stop:form.repeated" if self.malformed >= STOP_AFTER else "")

    @precondition(lambda self: self.steps > 3)
    @rule()
    def close(self):
        self.stepper.close()
        self.closed, self.running = True, False

    def teardown(self):
        if hasattr(self, "stepper"):
            self.stepper.close()
            self.stepper.close()


Episodes.TestCase.settings = settings(examples(20), stateful_step_count=20)
TestEpisodes = Episodes.TestCase


class ConcurrentRobot(ArbiterBench):
    """Threads that step, watch and stop one robot at the same time."""

    def __init__(self):
        super().__init__(plain_contract(control_period_s=0.001), clock=SteadyClock())
        self.go, spec = threading.Barrier(6), WatchdogSpec(hold_steps=1, stop_steps=10**9)
        self.watchdog = Watchdog(self.arbiter, self.gate, spec, clock=self.clock, control_period_s=1e-9)
        self.watchdog.feed()

    def step(self):
        actions = np.random.default_rng(7).uniform(-1.0, 1.0, (150, 2))
        self.go.wait()
        for action in actions:
            self.publish(action)

    def watch(self):
        self.go.wait()
        for _ in range(150):
            self.watchdog.check()

    def stop(self):
        self.go.wait()
        for _ in range(5):
            self.arbiter.brake_to_rest(finding(Severity.HOLD, "latch.stop"))

    def run(self):
        works = [self.step, self.step, self.step, self.watch, self.watch, self.stop]
        threads = [threading.Thread(target=work) for work in works]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(timeout=30)
        finally:
            sys.setswitchinterval(interval)


def test_p16_sequence_numbers_strictly_increase_with_concurrent_threads():
    crowd = ConcurrentRobot()
    crowd.run()
    assert [command.seq for command in crowd.sent] == list(range(1, len(crowd.sent) + 1))
    assert len(crowd.sent) >= 3 * 150 + 2 * 100
    for before, after in itertools.pairwise(crowd.sent):
        assert (np.abs(after.values - before.values) <= LIMITS.fastest * after.report.dt_s + ROUNDING).all()
