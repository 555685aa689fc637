from __future__ import annotations

import threading

import numpy as np
import pytest
import scripted_tasks
from arbiter_bench import HOLD, ArbiterBench
from scripted_tasks import DECELERATION, PERIOD_NS, PERIOD_S, VELOCITY

from embodied_env.errors import BackendLostError, ClosedError
from embodied_env.timing.clock import NS_PER_S, ManualClock


@pytest.fixture
def lockstep():
    return ArbiterBench(scripted_tasks.contract(), free_running=False)


@pytest.fixture
def running():
    return ArbiterBench(scripted_tasks.contract())


def test_reference_is_the_last_published_command(lockstep):
    approved = lockstep.publish((0.1, 0.0))
    reference = lockstep.arbiter.reference
    assert reference.positions.tolist() == approved.values.tolist()
    assert reference.velocities.tolist() == approved.report.velocity_si.tolist()
    assert reference.seq == approved.seq == 1


def test_reset_starts_at_rest_at_a_copy_of_the_measured_positions_and_counts_on(lockstep):
    measured = np.array([0.5, -0.5])
    lockstep.publish((0.1, 0.1))
    lockstep.arbiter.reset(measured, 3)
    measured[:] = 9.0
    reference = lockstep.arbiter.reference
    assert reference.positions.tolist() == [0.5, -0.5]
    assert reference.velocities.tolist() == [0.0, 0.0]
    assert reference.epoch == 3
    assert lockstep.publish().seq == 2


def test_lockstep_dt_is_the_control_period(lockstep):
    for pause_ns in (0, 1, 2_000_000_000):
        lockstep.clock.advance_ns(pause_ns)
        assert lockstep.publish().report.dt_s == PERIOD_S


@pytest.mark.parametrize(
    ("elapsed_ns", "dt_s"), [(1, 1e-9), (PERIOD_NS // 2, PERIOD_S / 2), (PERIOD_NS, PERIOD_S), (10**12, PERIOD_S)]
)
def test_free_running_dt_is_measured_and_at_most_the_control_period(running, elapsed_ns, dt_s):
    running.clock.advance_ns(elapsed_ns)
    assert running.publish().report.dt_s == pytest.approx(dt_s)


def test_two_commands_at_one_instant_count_as_one_motion(running):
    first = running.publish((1.0, 0.0), after_ns=PERIOD_NS)
    second = running.publish((1.0, 0.0))
    assert [finding.code for finding in second.report.findings] == ["clock.dt"]
    assert second.values.tolist() == first.values.tolist()


@pytest.mark.parametrize(("periods", "moves"), [(2, True), (4, False)])
def test_motion_starts_from_rest_only_after_a_long_pause(running, periods, moves):
    for _ in range(3):
        running.publish((0.3, 0.0), after_ns=PERIOD_NS)
    running.clock.advance_ns(periods * PERIOD_NS)
    with running.arbiter.exclusive as (reference, _):
        assert (reference.velocities[0] > 0.0) == moves


class SuspendedClock(ManualClock):
    """The clock of a host that is suspended, which its steady time does not count."""

    slept_ns = 0

    def boot_ns(self):
        return self.now_ns() + self.slept_ns


def test_a_suspend_of_the_host_is_a_gap_after_which_braking_moves_nothing():
    bench = ArbiterBench(scripted_tasks.contract(), clock=SuspendedClock())
    for _ in range(5):
        before = bench.publish((1.0, 0.0), after_ns=PERIOD_NS)
    bench.clock.slept_ns = 3600 * NS_PER_S
    bench.clock.advance_ns(PERIOD_NS)
    braking = bench.arbiter.brake(HOLD)
    assert before.report.velocity_si[0] > DECELERATION * PERIOD_S
    assert braking.values.tolist() == before.values.tolist()
    assert bench.publish((1.0, 0.0), after_ns=PERIOD_NS).report.velocity_si[0] > 0.0  # the gap is over


def test_refused_command_does_not_become_the_reference_and_its_number_is_not_reused(lockstep):
    lockstep.publish((0.1, 0.0))
    before = lockstep.arbiter.reference
    lockstep.failures = 1
    with pytest.raises(BackendLostError):
        lockstep.publish((0.1, 0.0))
    assert lockstep.arbiter.reference.positions.tolist() == before.positions.tolist()
    assert lockstep.arbiter.reference.velocities.tolist() == before.velocities.tolist()
    assert lockstep.publish().seq == 3


def test_failed_send_releases_the_lock(running):
    running.failures = 1
    with pytest.raises(BackendLostError):
        running.publish()
    thread = threading.Thread(target=running.publish)
    thread.start()
    thread.join(timeout=30.0)
    assert not thread.is_alive()


def test_brake_to_rest_before_the_first_reset_publishes_nothing(running):
    running.arbiter.reset(np.zeros(2), -1)  # the epoch of a new arbiter
    running.arbiter.brake_to_rest(HOLD)
    assert running.sent == []


def test_brake_to_rest_in_lockstep_is_one_command_with_its_reason(lockstep):
    lockstep.publish((1.0, 1.0))
    lockstep.arbiter.brake_to_rest(HOLD)
    assert [command.report.findings for command in lockstep.sent[1:]] == [(HOLD,)]


def test_brake_to_rest_brakes_a_free_running_robot_every_period_until_at_rest(running):
    for _ in range(5):
        running.publish((1.0, 0.0), after_ns=PERIOD_NS)
    cruising = len(running.sent)
    running.clock.advance_ns(PERIOD_NS)
    began_ns = running.clock.now_ns()
    running.arbiter.brake_to_rest(HOLD)
    braking = running.sent[cruising:]
    assert [round(float(c.report.velocity_si[0]), 9) for c in braking] == [0.6, 0.2, 0.0]
    assert pytest.approx(VELOCITY - 0.6) == DECELERATION * PERIOD_S
    assert running.clock.now_ns() - began_ns == 2 * PERIOD_NS


def test_dry_run_continues_from_the_measured_positions(running):
    running.publish((1.0, 0.0), after_ns=PERIOD_NS)
    before, last = running.arbiter.reference, running.arbiter.last
    assert before.velocities[0] > 0.0
    running.arbiter.set_position_reference(np.array([0.25, 0.0]))
    after = running.arbiter.reference
    assert after.positions.tolist() == [0.25, 0.0]
    assert after.velocities.tolist() == before.velocities.tolist()
    assert after.seq == before.seq
    assert running.arbiter.last == last  # so that time passes for the limits


def test_only_braking_is_published_after_close(running):
    for _ in range(3):
        running.publish((0.5, 0.0), after_ns=PERIOD_NS)
    running.arbiter.close()
    count = len(running.sent)
    running.clock.advance_ns(PERIOD_NS)
    with pytest.raises(ClosedError):
        running.publish((0.5, 0.0))
    assert len(running.sent) == count
    running.arbiter.brake_to_rest(HOLD)
    assert running.sent[-1].report.velocity_si.tolist() == [0.0, 0.0]
