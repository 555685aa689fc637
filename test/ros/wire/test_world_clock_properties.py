"""UTC steps change no age and are counted once, and a slew is not a step."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from stamped_robot import MS, UtcClock

from embodied_env.ros.wire.world_clock import STEP_NS, SimTimeTracker, SystemClockMonitor
from embodied_env.timing.clock import NS_PER_S

READING_NS = 200
DOUBT_NS = 10_000  # of an uninterrupted pair, doubled


steps_ns = st.one_of(
    st.just(0),
    st.integers(5 * MS, 3600 * NS_PER_S),  # more than STEP_NS and twice the slew in 3 s
    st.integers(-3600 * NS_PER_S, -5 * MS),
)
happenings = st.lists(st.tuples(st.integers(1 * MS, 3 * NS_PER_S), st.floats(-500e-6, 500e-6), steps_ns), max_size=30)


@given(happenings)
@example([(300 * MS, 0.0, 5 * MS // 2), (100 * MS, 0.0, -5 * MS // 2)])  # hardly more than STEP_NS
def test_steps_change_no_age_and_are_counted_once(happened):
    clock = UtcClock(reading_ns=READING_NS)
    watch = SystemClockMonitor(clock)
    held_ns, held_at_ns = watch.to_world_ns(clock.system_ns()), clock.steady_ns
    steps = 0
    for passed_ns, slew, step_ns in happened:
        clock.steady_ns += passed_ns
        clock.ahead_ns += round(slew * passed_ns)
        clock.ahead_ns += step_ns
        steps += step_ns != 0
        watch.check_pair(clock.now_ns(), clock.system_ns())
        fresh_ns = watch.to_world_ns(clock.system_ns())
        assert abs(watch.now_ns() - fresh_ns) <= STEP_NS + DOUBT_NS + 500e-6 * NS_PER_S
        assert abs((watch.now_ns() - held_ns) - (clock.steady_ns - held_at_ns)) <= DOUBT_NS
        account = watch.status()
        assert account.jump == ("stepped" if step_ns else "")
        assert account.jumps == account.epoch == steps


@given(st.lists(st.tuples(st.integers(1 * MS, NS_PER_S), st.integers(0, 500 * NS_PER_S)), min_size=1, max_size=40))
def test_held_reading_is_never_in_the_future(messages):
    clock = UtcClock(reading_ns=READING_NS)
    time = SimTimeTracker(SystemClockMonitor(clock), period_ns=50 * MS)
    held = []
    for passed_ns, sim_ns in messages:
        clock.steady_ns += passed_ns
        epoch = time.epoch
        was_set = time.on_clock(sim_ns, clock.now_ns())
        assert was_set == (time.epoch == epoch + 1) == bool(time.status().jump)
        held.append(time.to_world_ns(sim_ns))
        assert all(time.now_ns() >= placed_ns for placed_ns in held)
