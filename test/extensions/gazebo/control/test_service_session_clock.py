"""The clock of a simulator, from its stamps alone."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from embodied_env.extensions.gazebo.control.service_session import ClockMonitor

stamps = st.lists(st.integers(min_value=0, max_value=5), max_size=30)


def clock_of(values):
    clock = ClockMonitor()
    for at_s, stamp_ns in enumerate(values):
        clock.on_clock(stamp_ns, float(at_s))
    return clock


@given(stamps)
def test_the_clock_is_at_its_last_message(values):
    clock = clock_of(values)
    assert clock.now_ns == (values[-1] if values else None)
    assert clock.received == len(values)


@given(stamps)
def test_repeats_of_the_current_stamp_are_counted(values):
    run = 0
    for stamp in reversed(values):
        if stamp != values[-1]:
            break
        run += 1
    assert clock_of(values).seen == run


@given(stamps)
def test_every_decrease_of_the_clock_is_a_rewind(values):
    falls = [a for a, b in itertools.pairwise(values) if b < a]
    clock = clock_of(values)
    assert clock.rewinds == len(falls)
    assert clock.from_ns == (falls[-1] if falls else None)
    assert clock_of(sorted(values)).rewinds == 0


@given(stamps, st.integers(min_value=0, max_value=5))
def test_receiving_the_same_stamp_twice_changes_only_its_count(values, again):
    once, twice = clock_of([*values, again]), clock_of([*values, again, again])
    assert (once.now_ns, once.rewinds, once.changed_s) == (twice.now_ns, twice.rewinds, twice.changed_s)
    assert twice.seen == once.seen + 1
