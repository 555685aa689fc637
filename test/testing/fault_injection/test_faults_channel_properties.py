"""Only `Drop` loses messages."""

import array
import math
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safety_strategies import examples

from embodied_env.errors import UsageError
from embodied_env.testing.fault_injection import (
    Burst,
    Corrupt,
    Delay,
    Drop,
    Duplicate,
    Edit,
    FaultChannel,
    Freeze,
    Reorder,
    Restamp,
)
from embodied_env.testing.fault_injection.faults import rng_of

MS = 1_000_000


class Stamped:
    """A message like the generated ones, with a header, floating-point scalar and arrays, integers and bytes."""

    def __init__(self, number):
        self.header = SimpleNamespace(stamp=SimpleNamespace(sec=100 + number, nanosec=5))
        self.scalar = float(number)
        self.doubles = array.array("d", [1.0, 2.0])
        self.bytes = array.array("B", [1, 2])
        self.singles = np.ones(2, dtype=np.float32)
        self.count = number

    def get_fields_and_field_types(self):
        return dict.fromkeys(("scalar", "doubles", "bytes", "singles", "count"), "")


def run(faults, count, *, seed=0, period_ns=10 * MS, make=lambda number: number):
    """Pass `count` messages through a channel, and return (due_ns, message) pairs and the channel."""
    channel = FaultChannel(faults, seed=seed)
    left = []

    def drain(until_ns):
        while (due_ns := channel.next_ns()) is not None and due_ns <= until_ns:
            left.extend((due_ns, message) for message in channel.take(due_ns))

    for number in range(count):
        drain(number * period_ns)
        channel.put(make(number), number * period_ns)
    drain(math.inf)
    return left, channel


def hits(fault, count, *, seed, place=0):
    """Return which of the first `count` messages `fault` affects, from the pure functions alone."""
    return np.array([fault.hits(0.0, rng_of(seed, place, number)) for number in range(count)], dtype=bool)


def messages(faults, count, **options):
    return [message for _, message in run(faults, count, **options)[0]]


shares = st.floats(0.0, 1.0)
seconds = st.floats(0.0, 0.3)
times = {"share": shares, "after_s": seconds, "duration_s": st.floats(0.01, 1.0)}
faults = st.one_of(
    st.builds(Drop, **times),
    st.builds(Delay, delay_s=seconds, jitter_s=seconds, ramp_s=seconds, in_order=st.booleans(), **times),
    st.builds(Duplicate, copies=st.integers(1, 3), **times),
    st.builds(Reorder, places=st.integers(1, 4), **times),
    st.builds(Freeze, **times),
    st.builds(Burst, hold_s=st.floats(0.01, 0.1), every_s=st.floats(0.1, 0.3), **times),
)
seeds = st.integers(0, 2**63)


@examples(100)
@given(st.lists(faults, max_size=4), seeds, st.integers(0, 40), st.integers(0, 400))
def test_only_dropped_messages_are_lost_and_a_seed_repeats_all(chain, seed, count, now_ms):
    left, channel = run(chain, count, seed=seed)
    counts = channel.counts()
    again, other = run(chain, count, seed=seed)
    assert (left, counts) == (again, other.counts())
    assert counts["received"] == count
    assert counts["published"] == len(left)
    assert counts["pending"] == 0
    assert counts["received"] + counts["duplicated"] == counts["dropped"] + counts["published"]
    channel = FaultChannel(chain, seed=seed)
    for number in range(count):
        channel.put(number, number * 10 * MS)
    taken, counts = channel.take(now_ms * MS), channel.counts()  # some may be pending
    assert counts["published"] == len(taken)
    assert counts["received"] + counts["duplicated"] == counts["dropped"] + counts["published"] + counts["pending"]


@examples(50)
@given(st.lists(faults, max_size=4), seeds, st.integers(1, 30))
def test_messages_leave_after_arrival_in_time_order(chain, seed, count):
    left, _ = run(chain, count, seed=seed)
    assert all(due_ns >= number * 10 * MS for due_ns, number in left)
    assert [due_ns for due_ns, _ in left] == sorted(due_ns for due_ns, _ in left)


@settings(max_examples=20)
@given(shares, seeds)
def test_channel_drops_what_the_pure_functions_decide(share, seed):
    hit = hits(Drop(share=share), 60, seed=seed)
    assert messages([Drop(share=share)], 60, seed=seed) == [n for n in range(60) if not hit[n]]


def test_faults_and_seeds_decide_independently():
    first = hits(Drop(share=0.5), 200, seed=1)
    assert (first != hits(Drop(share=0.5), 200, seed=1, place=1)).any()
    assert (first != hits(Drop(share=0.5), 200, seed=2)).any()


@pytest.mark.parametrize(
    ("fault", "left"),
    [
        (None, [(0, 0), (10, 1), (20, 2), (30, 3)]),
        (Drop(after_s=0.01, duration_s=0.015), [(0, 0), (30, 3)]),
        (Delay(delay_s=0.5), [(500, 0), (510, 1), (520, 2), (530, 3)]),
        (Duplicate(copies=2, after_s=0.03), [(0, 0), (10, 1), (20, 2), (30, 3), (30, 3), (30, 3)]),
        (Reorder(places=2, duration_s=0.005), [(10, 1), (20, 2), (20, 0), (30, 3)]),
        (Reorder(after_s=0.03), [(0, 0), (10, 1), (20, 2), (1030, 3)]),  # nothing overtakes it
        (Freeze(), [(0, 0), (10, 0), (20, 0), (30, 0)]),
    ],
)
def test_each_fault_hits_while_it_is_active(fault, left):
    found, _ = run([] if fault is None else [fault], 4)
    assert [(due_ns // MS, number) for due_ns, number in found] == left


def test_delay_grows_during_ramp():
    left, _ = run([Delay(delay_s=0.5, ramp_s=0.1)], 12)
    late_ms = [(due_ns - number * 10 * MS) // MS for due_ns, number in left]
    assert late_ms == [0, 50, 100, 150, 200, 250, 300, 350, 400, 450, 500, 500]


def test_delayed_message_is_overtaken_only_out_of_order():
    chain = [Delay(delay_s=0.05, share=0.5)]
    assert messages(chain, 50, seed=1) == list(range(50))
    out_of_order = messages([Delay(delay_s=0.05, share=0.5, in_order=False)], 50, seed=1)
    assert out_of_order != list(range(50))
    assert sorted(out_of_order) == list(range(50))


def test_frozen_topic_repeats_last_message_with_its_stamp():
    left = messages([Freeze(after_s=0.02)], 5, make=Stamped)
    assert [message.count for message in left] == [0, 1, 1, 1, 1]
    assert left[-1].header.stamp.sec == 101


def test_seed_selects_the_corrupted_number():
    def corrupted(seed):
        (message,) = messages([Corrupt()], 1, seed=seed, make=Stamped)
        return [math.isnan(value) for value in (message.scalar, *message.doubles, *message.singles)]

    assert {sum(corrupted(seed)) for seed in range(20)} == {1}
    assert len({tuple(corrupted(seed)) for seed in range(20)}) > 1
    assert corrupted(4) == corrupted(4)


def test_corrupt_every_changes_all_floats_and_nothing_else():
    (message,) = messages([Corrupt(every=True)], 1, make=Stamped)
    assert np.isnan([message.scalar, *message.doubles, *message.singles]).all()
    assert (message.count, message.bytes.tolist()) == (0, [1, 2])


def test_corruption_and_edits_change_a_copy():
    def without_second(message):
        message.doubles = message.doubles[:1]
        return message

    original = Stamped(0)
    chain = [Corrupt(every=True), Restamp(kind="zero"), Edit(edit=without_second)]
    (message,) = messages(chain, 1, make=lambda _: original)
    assert (len(message.doubles), len(original.doubles)) == (1, 2)
    assert (original.scalar, original.header.stamp.sec) == (0.0, 100)


@pytest.mark.parametrize(
    ("fault", "stamp"),
    [
        (Restamp(offset_s=-1.5), (98, 500_000_005)),
        (Restamp(offset_s=3600.0), (3700, 5)),
        (Restamp(kind="zero"), (0, 0)),
        (Restamp(offset_s=-1e6), (0, 0)),
    ],
)
def test_restamp_shifts_or_zeroes_the_stamp(fault, stamp):
    (message,) = messages([fault], 1, make=Stamped)
    assert (message.header.stamp.sec, message.header.stamp.nanosec) == stamp


def test_old_data_keep_new_stamps():
    left = messages([Restamp(kind="old_data", after_s=0.02)], 4, make=Stamped)
    assert [message.count for message in left] == [0, 1, 1, 1]
    assert [message.header.stamp.sec for message in left] == [100, 101, 102, 103]


def test_burst_is_delayed_and_released_together():
    left, channel = run([Burst(hold_s=0.05, every_s=0.1)], 12)
    assert [due_ns // MS for due_ns, _ in left] == [50, 50, 50, 50, 50, 50, 60, 70, 80, 90, 150, 150]
    assert [number for _, number in left] == list(range(12))
    assert channel.counts()["held"] == 7


def test_replaced_faults_restart_their_time_and_lose_nothing():
    channel = FaultChannel([Reorder(places=5)], seed=0)
    channel.put("held", 0)
    channel.replace([Drop(after_s=1.0)])
    for number in range(3):
        channel.put(number, 10**10 + number * 10**9)
    assert channel.take(10**11) == ["held", 0]
    assert channel.counts()["dropped"] == 2


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (Drop, {"share": 1.1}),
        (Drop, {"share": math.nan}),
        (Drop, {"after_s": -1.0}),
        (Drop, {"duration_s": 0.0}),
        (Delay, {"delay_s": math.inf}),
        (Delay, {"delay_s": 0.1, "jitter_s": -0.1}),
        (Duplicate, {"copies": 0}),
        (Reorder, {"places": 0}),
        (Restamp, {"kind": "later"}),
        (Restamp, {"offset_s": math.nan}),
        (Burst, {"hold_s": 0.2, "every_s": 0.1}),
    ],
)
def test_invalid_fault_value_is_named(kind, values):
    with pytest.raises(UsageError, match=rf"{kind.__name__}\.{list(values)[-1] if kind is not Burst else 'hold_s'}:"):
        kind(**values)


def test_invalid_seed_is_named():
    with pytest.raises(UsageError, match="seed: -1"):
        FaultChannel(seed=-1)


def test_faults_and_suites_import_without_ros():
    script = "import sys, embodied_env.testing.fault_injection, embodied_env.testing; print('rclpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
