"""Latch (P14), watchdog (P15), numbers (P16) and epochs (P17) of a relay are correct in any order of events.

P-numbers are those of the table in `test_gate_chain_properties`. The machine keeps a small model of the relay and compares it.
"""

import dataclasses
import itertools
import math

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from safety_strategies import contract_of, costly, finite_vectors

from embodied_env.contract import JointLimits
from embodied_env.contract.safety_schema import WatchdogSpec
from embodied_env.core.code_types import Severity
from embodied_env.core.safety_input_state import parse_states
from embodied_env.safety.relay.relay import Relay
from embodied_env.safety.relay.relay_protocol import (
    Armed,
    CommandId,
    JointFields,
    RelayReport,
    RelayState,
    write_command,
)
from embodied_env.timing.clock import NS_PER_S, ManualClock

PERIOD_S = 0.05
PERIOD_NS = round(PERIOD_S * NS_PER_S)
SPEC = WatchdogSpec(hold_steps=2, stop_steps=10)
ROUNDING = 1e-9
LIMITS = JointLimits(position=(-2.0, 2.0), velocity=1.0, acceleration=4.0, deceleration=8.0)
FREE = dataclasses.replace(LIMITS, position=None)
LOWEST, HIGHEST = np.array([-1.0, -0.4]), np.array([1.0, 1.0])  # the second joint is slower backwards

MALFORMED = st.sampled_from(
    [
        {"frame_id": "base_link"},
        {"frame_id": ""},
        {"names": ("j0", "j0")},
        {"names": ("j0", "elbow")},
        {"positions": (math.nan, 0.0), "velocities": (math.nan, 0.0)},
        {"positions": (math.inf, 0.0), "velocities": (0.0, -math.inf)},
        {"positions": (0.0,), "velocities": (0.0,)},
        {"positions": (0.0, 0.0), "velocities": (0.0, 0.0)},
        {"positions": (), "velocities": ()},
    ]
)


@dataclasses.dataclass(frozen=True)
class Event:
    """One publication, with its time on the relay's clock and the relay's epoch at that time."""

    at_ns: int
    epoch: int
    command: object


class Relays(RuleBasedStateMachine):
    """A relay and all events that may occur, which ticks at least once a period, as its loop guarantees."""

    command = "position"
    limits = LIMITS

    @initialize()
    def build(self):
        slower = dataclasses.replace(self.limits, velocity=(-0.4, 1.0))
        contract = contract_of(self.limits, slower, command=self.command, watchdog=SPEC)
        self.clock = ManualClock(start_ns=1_000 * NS_PER_S)
        self.events, self.applied_tags, self.reports, self.states = [], [], [], []
        self.core = Relay(contract, self, clock=self.clock)
        self.layout = self.core._layout
        self.epoch, self.seq = 0, 0  # the model: the last epoch, and its last accepted number
        self.accepted_ns = None
        self.latched = Severity.PASS
        self.armed = self.ended = False
        self.button = "ok"
        self.ticked_ns = self.clock.now_ns()
        self.where = np.zeros(2)
        self.the_joints_are_measured()

    # the outlet

    def publish(self, command):
        self.events.append(Event(self.clock.now_ns(), self.core.tag.epoch, command))

    def applied(self, fields):
        self.applied_tags.append(CommandId.from_text(fields.frame_id))

    def report(self, report):
        self.reports.append(RelayReport.from_text(report.to_text()))

    def state(self, state):
        self.states.append(RelayState.from_text(state.to_text()))

    # events

    def _follow(self):
        """Move the robot to its last command."""
        if self.events and self.command == "position":
            self.where = self.events[-1].command.values

    def _expected_stop(self):
        """Update the model by the rule of the watchdog."""
        overdue = self.accepted_ns is not None and self.clock.now_ns() - self.accepted_ns >= SPEC.stop_steps * PERIOD_NS
        if self.armed and overdue:
            self._model_latch(Severity.STOP)

    def _model_latch(self, severity):
        self.latched, self.armed = max(self.latched, severity), False

    def _send(self, fields):
        published, reported = len(self.events), len(self.reports)
        self._expected_stop()
        self.core.command(fields)
        assert len(self.reports) == reported + 1
        report = self.reports[-1]
        assert report.published == (len(self.events) == published + 1)
        if not report.published and self.events and self.events[-1].epoch == self.epoch:
            assert report.applied_si.tolist() == self.events[-1].command.values.tolist()
        return report

    def _refused(self, fields, code):
        """Send a command that is refused for this reason, or because of the latch."""
        report = self._send(fields)
        assert not report.published
        assert report.findings[0].code == (code if self.armed else self._latched_code)

    @property
    def _latched_code(self):
        return "latch.estop" if self.latched is Severity.ESTOP else "latch.stop"

    @rule(wanted=finite_vectors(2), lost=st.sampled_from([0, 0, 0, 1, 999]))
    def a_command_arrives(self, wanted, lost=0):
        tag = CommandId(epoch=self.epoch, seq=self.seq + 1 + lost)
        self._expected_stop()
        may = self.armed
        report = self._send(write_command(tag, wanted, self.layout))
        assert report.published == may
        assert report.tag == tag
        if may:
            self.seq, self.accepted_ns = tag.seq, self.clock.now_ns()
            assert report.disposition < Severity.STOP
        else:
            assert report.findings[0].code == self._latched_code
        self._follow()

    @rule(steps=st.integers(2, 8), wanted=st.sampled_from([(1.9, -1.9), (-5.0, 5.0), (0.0, 0.0), (1e300, 1.0)]))
    def a_client_drives(self, steps, wanted):
        for _ in range(steps):
            self.time_passes(1)
            self.a_command_arrives(np.array(wanted))

    @rule()
    def braking_is_requested(self):
        tag = CommandId(epoch=self.epoch, seq=self.seq + 1)
        self._expected_stop()
        may = self.armed
        report = self._send(write_command(tag, Severity.HOLD, self.layout))
        assert report.published == may
        if may:
            self.seq, self.accepted_ns = tag.seq, self.clock.now_ns()
            assert report.disposition is Severity.HOLD
        self._follow()

    @rule(wanted=finite_vectors(2), back=st.integers(0, 5))
    def an_old_number_arrives(self, wanted, back):
        tag = CommandId(epoch=self.epoch, seq=max(0, self.seq - back))
        self._refused(write_command(tag, wanted, self.layout), "act.dup")

    @rule(wanted=finite_vectors(2), lost=st.sampled_from([1000, 10**15]))
    def a_number_far_ahead_arrives(self, wanted, lost):
        tag = CommandId(epoch=self.epoch, seq=self.seq + 1 + lost)
        self._refused(write_command(tag, wanted, self.layout), "act.jump")

    @rule(wanted=finite_vectors(2), by=st.sampled_from([-1, 1, -1000, 10**6]), ahead=st.integers(1, 99))
    def a_command_of_another_epoch_arrives(self, wanted, by, ahead):
        tag = CommandId(epoch=max(0, self.epoch + by), seq=self.seq + ahead)
        if tag.epoch != self.epoch:
            self._refused(write_command(tag, wanted, self.layout), "act.epoch")

    @rule(changes=MALFORMED)
    def a_malformed_command_arrives(self, changes):
        tag = CommandId(epoch=self.epoch, seq=self.seq + 1)
        fields = JointFields(frame_id=tag.to_text(), names=("j0", "j1"), positions=(), velocities=())
        report = self._send(dataclasses.replace(fields, **changes))
        assert (report.published, report.findings[0].code.partition(".")[0]) == (False, "form")
        assert report.tag == (None if "frame_id" in changes else tag)

    @rule(off=st.sampled_from([-0.11, 0.11, 3600.0]))
    def a_command_with_a_wrong_stamp_arrives(self, off):
        stamp_ns = self.clock.system_ns() + round(off * NS_PER_S)
        tag = CommandId(epoch=self.epoch, seq=self.seq + 1)
        self._refused(write_command(tag, np.zeros(2), self.layout, stamp_ns=stamp_ns), "act.late")

    @rule(ticks=st.sampled_from([1, 3, 12]))
    def time_passes(self, ticks):
        for _ in range(ticks):
            self.clock.advance_ns(self.ticked_ns + PERIOD_NS - self.clock.now_ns())
            self.the_loop_ticks()

    @rule(ns=st.sampled_from([0, 1, 1000, PERIOD_NS // 3, PERIOD_NS - 1]))
    def a_moment_passes(self, ns):
        self.clock.advance_ns(max(0, min(ns, self.ticked_ns + PERIOD_NS - 1 - self.clock.now_ns())))

    @rule(ns=st.integers(0, 100 * PERIOD_NS))
    def the_relay_is_suspended(self, ns):
        self.clock.advance_ns(ns)
        self.the_loop_ticks()

    @rule()
    def the_loop_ticks(self):
        self._expected_stop()
        self.core.tick()
        self.ticked_ns = self.clock.now_ns()
        self._follow()

    @rule()
    def the_joints_are_measured(self):
        assert self.core.on_joint_positions("joints", self.where, self.clock.now_ns())

    @rule(positions=st.sampled_from([(math.nan, 0.0), (math.inf, 0.0)]))
    def a_bad_measurement_arrives(self, positions):
        assert not self.core.on_joint_positions("joints", np.array(positions), self.clock.now_ns())

    @rule(measured=st.booleans())
    def it_is_armed(self, measured):
        if measured:
            self.the_joints_are_measured()
        at_rest = self.core.at_rest
        success, message = self.core.arm()
        if self.latched is Severity.ESTOP or self.button != "ok" or self.ended or not at_rest:
            assert not success
        elif measured:
            assert success
        if success:
            armed = Armed.from_text(message)
            assert armed.epoch > self.epoch
            self.epoch, self.seq, self.accepted_ns = armed.epoch, 0, None
            self.latched, self.armed = Severity.PASS, True

    @rule()
    def it_is_armed_at_rest(self):
        self.time_passes(12)
        self.it_is_armed(measured=True)

    @rule(steps=st.integers(1, 6), ticks=st.integers(0, 4), noise=st.booleans())
    def it_is_cleared_armed_and_driven(self, steps, ticks, noise):
        """Clear, arm and move the robot, and then send no command, or only refused ones.

        Random order seldom reaches this.
        """
        if self.ended:
            return
        self.the_button_changes("ok")
        self.the_estop_is_cleared()
        self.it_is_armed_at_rest()
        self.a_client_drives(steps, np.where(self.where > 0.0, -1.9, 1.9))
        assert not self.core.at_rest
        for _ in range(ticks):
            self.time_passes(1)
            if noise:
                self.an_old_number_arrives(np.zeros(2), 0)
            self.p15_without_commands_the_newest_publication_brakes_within_a_tick()

    @rule()
    def the_estop_is_triggered(self):
        self.core.estop("pressed")
        self._model_latch(Severity.ESTOP)

    @rule()
    def the_estop_is_cleared(self):
        success, _ = self.core.clear_estop()
        assert success == (self.button == "ok")
        if success:
            self.latched = min(self.latched, Severity.STOP)

    @rule(state=st.sampled_from(["ok", "active", "expired", "unknown", "protective_stop"]))
    def the_button_changes(self, state):
        self.button = state
        was_live = self.armed or not self.core.at_rest
        self.core.inputs(parse_states({"button": state}))
        assert self.states[-1].inputs == {"button": state}
        if was_live and state != "ok":
            self._model_latch(Severity.ESTOP)

    @rule(sure=st.integers(0, 29))
    def the_process_ends(self, sure):
        if sure == 0:
            self.core.end()
            self.ended, self.armed = True, False

    # invariants

    @invariant()
    def p14_no_command_and_no_time_clears_a_latch(self):
        latched = self.core._gate.latched
        if not self.ended:
            assert (latched.severity if latched else Severity.PASS) == self.latched
        state = self.core.current_state.state
        assert (state == "armed") == self.armed
        if self.latched is Severity.ESTOP:
            assert state == "estop"

    @invariant()
    def p15_without_commands_the_newest_publication_brakes_within_a_tick(self):
        if self.accepted_ns is None or not self.events or self.events[-1].epoch != self.epoch:
            return
        if self.clock.now_ns() - self.accepted_ns >= SPEC.hold_steps * PERIOD_NS + PERIOD_NS:
            last = self.events[-1].command.report
            assert last.disposition >= Severity.HOLD or not last.velocity_si.any()
            if last.velocity_si.any():
                assert self.clock.now_ns() - self.events[-1].at_ns <= PERIOD_NS

    @invariant()
    def p16_numbers_strictly_increase(self):
        numbers = [event.command.seq for event in self.events]
        assert numbers == sorted(set(numbers))
        assert self.applied_tags == sorted(set(self.applied_tags))
        assert [report.number for report in self.reports if report.published] == numbers

    @invariant()
    def p17_nothing_of_an_epoch_is_used_in_the_next_or_published_before_its_first_command(self):
        if self.accepted_ns is None and self.events:
            assert self.events[-1].epoch != self.epoch
        assert all(event.command.epoch == event.epoch for event in self.events)
        assert all(
            report.tag.epoch == event.epoch for report, event in zip(self._published(), self.events, strict=True)
        )

    @invariant()
    def every_publication_has_its_report(self):
        assert len(self.applied_tags) == len(self.events)
        for report, event in zip(self._published()[-3:], self.events[-3:], strict=True):
            assert report.applied_si.tolist() == event.command.values.tolist()
            assert report.published_ns == event.at_ns

    @invariant()
    def only_braking_is_published_when_disarmed(self):
        if not self.armed and self.events and self.events[-1].at_ns == self.clock.now_ns():
            before = self.events[-2].command.report.velocity_si if len(self.events) > 1 else np.zeros(2)
            now = self.events[-1].command.report
            if now.disposition >= Severity.STOP:
                assert (np.abs(now.velocity_si) <= np.abs(before) + ROUNDING).all()

    @invariant()
    def every_published_value_keeps_every_limit(self):
        """Differentiate the published values by the relay's own clock, and check each pair once."""
        for before, after in itertools.pairwise(self.events[-12:]):
            assert np.isfinite(after.command.values).all()
            if before.epoch == after.epoch:
                self._check_pair(before, after)

    def _check_pair(self, before, after):
        values, velocity = after.command.values, after.command.report.velocity_si
        dt_s = min((after.at_ns - before.at_ns) / NS_PER_S, PERIOD_S)
        assert ((velocity >= LOWEST - ROUNDING) & (velocity <= HIGHEST + ROUNDING)).all()
        if self.command == "position":
            low, high = LIMITS.position
            assert ((low <= values) & (values <= high)).all()
            moved = values - before.command.values
            assert ((moved >= LOWEST * dt_s - ROUNDING) & (moved <= HIGHEST * dt_s + ROUNDING)).all()
        else:
            assert ((values >= LOWEST) & (values <= HIGHEST)).all()
        if after.at_ns - before.at_ns > 3 * PERIOD_NS and self.command == "position":
            return  # the servo has arrived: it starts from rest
        faster = np.abs(velocity) - np.abs(before.command.report.velocity_si)
        assert (faster <= LIMITS.acceleration * dt_s + ROUNDING).all()
        assert (-faster <= LIMITS.deceleration * dt_s + ROUNDING).all()

    def _published(self):
        return [report for report in self.reports if report.published]

    def teardown(self):
        """Check that the robot stops within its braking time, and then publishes nothing."""
        if not hasattr(self, "core"):
            return
        ticks = SPEC.stop_steps + math.ceil(LIMITS.fastest / (LIMITS.deceleration * PERIOD_S)) + 1
        self.time_passes(ticks)
        assert self.core.at_rest
        sent = len(self.events)
        self.time_passes(SPEC.stop_steps)
        assert len(self.events) == sent
        if not self.ended:
            self.it_is_cleared_armed_and_driven(3, 0, noise=False)
            self.core.end()
            assert self.core.arm() == (False, "the relay is shutting down")
            self.ended, self.armed = True, False
            self.a_command_arrives(np.zeros(2))
            self.time_passes(ticks)
            assert self.core.at_rest


class RelaysByVelocity(Relays):
    """The same properties with velocity commands."""

    command = "velocity"
    limits = FREE


Relays.TestCase.settings = settings(costly(100), stateful_step_count=25)
TestRelays = Relays.TestCase
RelaysByVelocity.TestCase.settings = settings(costly(50), stateful_step_count=25)
TestRelaysByVelocity = RelaysByVelocity.TestCase
