"""The clock of a simulator, from its stamps alone."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from embodied_env.ros.external_sim.control.service_session import ClockMonitor

stamps = st.lists(st.integers(min_value=0, max_value=5), max_size=30)


def heard(values):
    clock = ClockMonitor()
    for at_s, stamp_ns in enumerate(values):
        clock.on_clock(stamp_ns, float(at_s))
    return clock


def test_a_clock_that_was_never_heard_knows_nothing():
    clock = ClockMonitor()
    assert (clock.now_ns, clock.seen, clock.received, clock.rewinds, clock.from_ns) == (None, 0, 0, 0, None)


def test_a_stamp_that_comes_again_is_seen_again_and_its_time_is_that_of_the_first():
    clock = heard([1, 2, 2, 2])
    assert (clock.now_ns, clock.seen, clock.changed_s) == (2, 3, 1.0)


def test_a_clock_that_goes_back_says_from_where():
    clock = heard([1, 7, 0, 3])
    assert (clock.now_ns, clock.rewinds, clock.from_ns) == (3, 1, 7)


@given(stamps)
def test_it_is_where_it_was_last_heard(values):
    clock = heard(values)
    assert clock.now_ns == (values[-1] if values else None)
    assert clock.received == len(values)


@given(stamps)
def test_the_present_stamp_was_seen_as_often_as_it_stands_at_the_end(values):
    run = 0
    for stamp in reversed(values):
        if stamp != values[-1]:
            break
        run += 1
    assert heard(values).seen == run


@given(stamps)
def test_rewinds_are_the_steps_down_and_what_never_goes_back_has_none(values):
    falls = [a for a, b in itertools.pairwise(values) if b < a]
    clock = heard(values)
    assert clock.rewinds == len(falls)
    assert clock.from_ns == (falls[-1] if falls else None)
    assert heard(sorted(values)).rewinds == 0


@given(stamps, st.integers(min_value=0, max_value=5))
def test_hearing_the_same_twice_changes_only_how_often(values, again):
    once, twice = heard([*values, again]), heard([*values, again, again])
    assert (once.now_ns, once.rewinds, once.changed_s) == (twice.now_ns, twice.rewinds, twice.changed_s)
    assert twice.seen == once.seen + 1
