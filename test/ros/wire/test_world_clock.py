"""The world clock continues UTC or simulated time without jumps."""

from __future__ import annotations

import itertools

import pytest

from embodied_env.ros.wire.world_clock import GOOD_PAIR_NS, STEP_NS, SimTimeTracker, SystemClockMonitor, read_clock_pair
from embodied_env.timing.clock import NS_PER_S, ManualClock

MS = 1_000_000
UTC_NS = 1_700_000_000 * NS_PER_S


class FreeClock(ManualClock):
    """Three clocks advanced by the test, with `reading_ns` between two readings."""

    virtual = False

    def __init__(self, *, reading_ns=100):
        self.steady_ns = 5 * NS_PER_S
        self.utc_ahead_ns = UTC_NS
        self.slept_ns = 0
        self.reading_ns = itertools.repeat(reading_ns) if isinstance(reading_ns, int) else iter(reading_ns)

    def now_ns(self):
        self.steady_ns += next(self.reading_ns)
        return self.steady_ns

    def system_ns(self):
        return self.now_ns() + self.utc_ahead_ns

    def boot_ns(self):
        return self.now_ns() + self.slept_ns

    def pass_s(self, seconds):
        self.steady_ns += round(seconds * NS_PER_S)

    def sleep_s(self, seconds):
        """Suspend the host, which stops the steady clock."""
        self.slept_ns += round(seconds * NS_PER_S)
        self.utc_ahead_ns += round(seconds * NS_PER_S)


@pytest.fixture
def clock():
    return FreeClock()


@pytest.fixture
def watch(clock):
    return SystemClockMonitor(clock)


def look(clock, watch):
    watch.check_pair(clock.now_ns(), clock.system_ns())
    return watch.status()


# --------------------------------------------------------------------------------------------------- clock pairs


def test_interrupted_clock_pair_is_read_again():
    pair = read_clock_pair(FreeClock(reading_ns=[100, 3 * MS, 100, *[100] * 10]))
    assert 2 * pair.error_ns <= GOOD_PAIR_NS


def test_best_clock_pair_is_kept_with_its_error():
    clock = FreeClock(reading_ns=[MS * n for n in range(20, 0, -1)])
    pair = read_clock_pair(clock)
    assert GOOD_PAIR_NS < pair.error_ns < 10 * MS
    assert abs(pair.offset_ns - UTC_NS) <= pair.error_ns


# ----------------------------------------------------------------------------------------------------------- UTC


def test_world_clock_starts_at_utc(clock, watch):
    assert abs(watch.now_ns() - clock.system_ns()) < STEP_NS
    assert watch.to_world_ns(123) == 123


def test_slew_is_not_a_jump(clock, watch):
    for _ in range(100):
        clock.pass_s(1.5)
        clock.utc_ahead_ns += round(1.5 * 400e-6 * NS_PER_S)
        assert look(clock, watch).jump == ""
    assert abs(watch.shift_ns - 60 * MS) < MS
    assert abs(watch.now_ns() - watch.to_world_ns(clock.system_ns())) < MS


def test_interrupted_readings_are_not_a_step(clock, watch):
    steady_ns = clock.now_ns()
    clock.pass_s(0.2)
    watch.check_pair(steady_ns, clock.system_ns())
    assert watch.status().jump == ""


def test_suspend_of_the_host_is_reported(clock, watch):
    clock.sleep_s(600.0)
    account = look(clock, watch)
    assert (account.jump, account.epoch, account.jumps) == ("suspended", 1, 1)
    assert look(clock, watch).jump == ""
    assert abs(watch.now_ns() - watch.to_world_ns(clock.system_ns())) < MS


def test_short_suspend_is_a_step(clock, watch):
    clock.sleep_s(0.4)
    assert look(clock, watch).jump == "stepped"


def test_suspend_is_not_hidden_by_a_later_step(clock, watch):
    clock.sleep_s(600.0)
    watch.resync()
    clock.utc_ahead_ns += NS_PER_S
    assert look(clock, watch).jump == "suspended"


def test_reset_clears_jumps_except_an_unreported_suspend(clock, watch):
    clock.utc_ahead_ns += NS_PER_S
    watch.resync()
    watch.begin()
    account = watch.status()
    assert (account.jump, account.jumps, account.epoch) == ("", 0, 1)
    clock.sleep_s(60.0)
    watch.resync()
    watch.begin()
    assert watch.status().jump == "suspended"


def test_inaccurate_pair_does_not_hide_a_step():
    """A step during an interruption cannot be ruled out, and is reported once a pair is accurate again."""
    clock = FreeClock()
    watch = SystemClockMonitor(clock)
    clock.utc_ahead_ns += 4 * MS
    clock.reading_ns = itertools.chain(itertools.repeat(10 * MS, 17), itertools.repeat(100))
    watch.resync()
    assert watch.status().jump == ""
    watch.resync()
    assert watch.status().jump == "stepped"


# ------------------------------------------------------------------------------------------------- simulated time


PERIOD_NS = 50 * MS


class Simulator:
    """Publishes its clock every 10 ms of simulated time."""

    def __init__(self, clock, watch):
        self.clock = clock
        self.time = SimTimeTracker(watch, period_ns=PERIOD_NS)
        self.sim_ns = 100 * NS_PER_S

    def run(self, seconds, *, rtf=1.0):
        for _ in range(round(seconds / 0.01)):
            self.sim_ns += 10 * MS
            self.clock.pass_s(0.01 / rtf)
            self.publish_clock()

    def publish_clock(self):
        return self.time.on_clock(self.sim_ns, self.clock.now_ns())

    def age_s(self, stamp_ns):
        return (self.time.now_ns() - stamp_ns) / NS_PER_S


@pytest.fixture
def simulator(clock, watch):
    made = Simulator(clock, watch)
    made.publish_clock()
    return made


def test_there_is_no_simulated_time_before_the_first_message(watch):
    assert SimTimeTracker(watch, period_ns=PERIOD_NS).now_ns() == 0


@pytest.mark.parametrize("rtf", [0.2, 1.0, 5.0])
def test_ages_are_in_simulated_time_at_any_speed(simulator, rtf):
    simulator.run(3.0, rtf=rtf)
    stamp_ns = simulator.time.to_world_ns(simulator.sim_ns)
    simulator.run(0.1, rtf=rtf)
    account = simulator.time.status()
    assert simulator.age_s(stamp_ns) == pytest.approx(0.1, abs=0.001)
    assert account.rtf == pytest.approx(rtf, rel=0.05)
    assert (account.mode, account.jump, account.jumps) == ("sim", "", 0)


def test_ages_grow_while_the_clock_topic_is_silent(simulator):
    simulator.run(3.0, rtf=0.5)
    stamp_ns = simulator.time.to_world_ns(simulator.sim_ns)
    simulator.clock.pass_s(1.0)
    assert simulator.age_s(stamp_ns) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(("to_ns", "jump"), [(0, "rewound"), (200 * NS_PER_S, "skipped")])
def test_setting_simulated_time_starts_an_epoch_and_changes_no_age(simulator, to_ns, jump):
    simulator.run(3.0)
    stamp_ns = simulator.time.to_world_ns(simulator.sim_ns)
    simulator.clock.pass_s(0.01)
    simulator.sim_ns = to_ns
    assert simulator.publish_clock()
    assert simulator.age_s(stamp_ns) == pytest.approx(0.01, abs=0.002)
    assert [simulator.time.status().jump for _ in range(2)] == [jump, ""]
    simulator.run(0.05)
    assert simulator.age_s(simulator.time.to_world_ns(simulator.sim_ns)) == pytest.approx(0.0, abs=0.001)
    assert (simulator.time.status().epoch, simulator.time.status().jumps) == (1, 1)


def test_late_stamp_after_a_skip_is_old(simulator):
    simulator.run(1.0)
    late_ns = simulator.sim_ns
    simulator.sim_ns += 100 * NS_PER_S
    simulator.publish_clock()
    assert simulator.age_s(simulator.time.to_world_ns(late_ns)) > 90.0


def test_fast_simulator_after_our_pause_is_not_a_skip(simulator):
    simulator.run(3.0, rtf=5.0)
    simulator.clock.pass_s(1.0)
    simulator.sim_ns += 5 * NS_PER_S
    assert not simulator.publish_clock()


def test_stamp_slightly_ahead_advances_world_time(simulator):
    simulator.run(1.0)
    stamp_ns = simulator.time.to_world_ns(simulator.sim_ns + 15 * MS)
    assert simulator.age_s(stamp_ns) >= 0.0


def test_stamp_far_ahead_does_not_advance_world_time(simulator):
    simulator.run(1.0)
    stamp_ns = simulator.time.to_world_ns(simulator.sim_ns + NS_PER_S)
    assert simulator.age_s(stamp_ns) == pytest.approx(-1.0, abs=0.01)


def test_repeated_clock_message_is_not_progress(simulator):
    simulator.run(1.0)
    advanced_ns = simulator.time.advanced_ns
    simulator.clock.pass_s(1.0)
    assert not simulator.publish_clock()
    assert simulator.time.advanced_ns == advanced_ns


def test_sim_time_reports_suspends_but_not_utc_steps(simulator, clock, watch):
    clock.utc_ahead_ns += NS_PER_S
    watch.resync()
    assert simulator.time.status().jump == ""
    clock.sleep_s(60.0)
    watch.resync()
    account = simulator.time.status()
    assert (account.jump, account.jumps) == ("suspended", 1)
