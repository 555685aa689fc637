"""What the chaos channel decides, and that it loses nothing that it was not told to lose."""

from __future__ import annotations

import array
import math
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_env.errors import UsageError
from embodied_env.testing.fault_injection import (
    Burst,
    ChaosChannel,
    Corrupt,
    Delay,
    Drop,
    Duplicate,
    Edit,
    Freeze,
    Reorder,
    Restamp,
    decisions,
)

MS = 1_000_000


class Stamped:
    """A message like the generated ones: a header, a scalar, two arrays, and what is no floating-point number."""

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
    """Pass `count` messages through a channel; return them with the times at which they left, and the channel."""
    channel = ChaosChannel(faults, seed=seed)
    left = []

    def drain(until_ns):
        while (due_ns := channel.next_ns()) is not None and due_ns <= until_ns:
            left.extend((due_ns, message) for message in channel.take(due_ns))

    for number in range(count):
        drain(number * period_ns)
        channel.put(make(number), number * period_ns)
    drain(math.inf)
    return left, channel


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


@settings(max_examples=100)
@given(st.lists(faults, max_size=4), seeds, st.integers(0, 40))
def test_nothing_is_lost_but_what_is_dropped(chain, seed, count):
    left, channel = run(chain, count, seed=seed)
    counts = channel.counts()
    assert counts["received"] == count
    assert counts["published"] == len(left)
    assert counts["pending"] == 0
    assert counts["received"] + counts["duplicated"] == counts["dropped"] + counts["published"]


@settings(max_examples=50)
@given(st.lists(faults, max_size=4), seeds, st.integers(0, 40), st.integers(0, 400))
def test_what_is_under_way_is_counted_at_any_time(chain, seed, count, now_ms):
    channel = ChaosChannel(chain, seed=seed)
    for number in range(count):
        channel.put(number, number * 10 * MS)
    taken = channel.take(now_ms * MS)
    counts = channel.counts()
    assert counts["published"] == len(taken)
    assert counts["received"] + counts["duplicated"] == counts["dropped"] + counts["published"] + counts["pending"]


@settings(max_examples=50)
@given(st.lists(faults, max_size=4), seeds)
def test_the_same_seed_and_messages_give_the_same(chain, seed):
    first, channel = run(chain, 30, seed=seed)
    again, other = run(chain, 30, seed=seed)
    assert (first, channel.counts()) == (again, other.counts())


@settings(max_examples=50)
@given(st.lists(faults, max_size=4), seeds, st.integers(1, 30))
def test_no_message_leaves_before_it_came_and_times_never_go_back(chain, seed, count):
    left, _ = run(chain, count, seed=seed)
    assert all(due_ns >= number * 10 * MS for due_ns, number in left)
    assert [due_ns for due_ns, _ in left] == sorted(due_ns for due_ns, _ in left)


@settings(max_examples=20)
@given(st.floats(0.0, 1.0), seeds, st.integers(0, 5))
def test_shares_converge(share, seed, place):
    befallen = decisions(Drop(share=share), seed=seed, place=place, count=1000)
    assert abs(befallen.mean() - share) < 6 * math.sqrt(share * (1 - share) / 1000) + 0.005  # few are Poisson's


@settings(max_examples=20)
@given(shares, seeds)
def test_the_channel_does_what_the_pure_function_says(share, seed):
    befallen = decisions(Drop(share=share), seed=seed, place=0, count=60)
    assert messages([Drop(share=share)], 60, seed=seed) == [n for n in range(60) if not befallen[n]]


@given(seeds, st.integers(1, 50))
def test_a_decision_does_not_depend_on_how_many_came_before(seed, count):
    longer = decisions(Drop(share=0.5), seed=seed, place=1, count=60)
    assert decisions(Drop(share=0.5), seed=seed, place=1, count=count).tolist() == longer[:count].tolist()


def test_two_faults_and_two_seeds_decide_for_themselves():
    alone = decisions(Drop(share=0.5), seed=1, place=0, count=200)
    assert (alone != decisions(Drop(share=0.5), seed=1, place=1, count=200)).any()
    assert (alone != decisions(Drop(share=0.5), seed=2, place=0, count=200)).any()


def test_copies_are_befallen_each_for_itself():
    left = messages([Duplicate(), Drop(share=0.5)], 100, seed=3)
    assert {left.count(number) for number in range(100)} == {0, 1, 2}


def test_a_fault_befalls_only_within_its_time():
    assert messages([Drop(after_s=0.02, duration_s=0.03)], 8) == [0, 1, 5, 6, 7]


def test_a_delay_is_added_to_the_time_of_arrival():
    assert run([Delay(delay_s=0.5)], 3)[0] == [(500 * MS, 0), (510 * MS, 1), (520 * MS, 2)]


def test_a_delay_grows_within_its_ramp():
    left, _ = run([Delay(delay_s=0.5, ramp_s=0.1)], 12)
    late_ms = [(due_ns - number * 10 * MS) // MS for due_ns, number in left]
    assert late_ms == [0, 50, 100, 150, 200, 250, 300, 350, 400, 450, 500, 500]


def test_a_delayed_message_is_not_overtaken_unless_that_is_allowed():
    chain = [Delay(delay_s=0.05, share=0.5)]
    assert messages(chain, 50, seed=1) == list(range(50))
    out_of_order = messages([Delay(delay_s=0.05, share=0.5, in_order=False)], 50, seed=1)
    assert out_of_order != list(range(50))
    assert sorted(out_of_order) == list(range(50))


def test_copies_come_with_their_message():
    assert messages([Duplicate(copies=2)], 2) == [0, 0, 0, 1, 1, 1]


def test_a_reordered_message_is_overtaken_by_so_many():
    assert messages([Reorder(places=2, after_s=0.01, duration_s=0.01)], 5) == [0, 2, 3, 1, 4]


def test_a_reordered_message_comes_even_when_nothing_overtakes_it():
    left, _ = run([Reorder(after_s=0.03)], 4)
    assert left[-1] == (1030 * MS, 3)


def test_a_frozen_topic_repeats_the_last_message_with_its_stamp():
    left = messages([Freeze(after_s=0.02)], 5, make=Stamped)
    assert [message.count for message in left] == [0, 1, 1, 1, 1]
    assert left[-1].header.stamp.sec == 101


def test_a_topic_that_is_frozen_from_the_first_message_repeats_that():
    assert messages([Freeze()], 4) == [0, 0, 0, 0]


def test_one_number_of_a_corrupted_message_is_nan_and_the_seed_says_which():
    def spoilt(seed):
        (message,) = messages([Corrupt()], 1, seed=seed, make=Stamped)
        return [math.isnan(value) for value in (message.scalar, *message.doubles, *message.singles)]

    assert {sum(spoilt(seed)) for seed in range(20)} == {1}
    assert len({tuple(spoilt(seed)) for seed in range(20)}) > 1
    assert spoilt(4) == spoilt(4)


def test_every_number_of_a_corrupted_message_can_be_nan_and_nothing_else_is_touched():
    (message,) = messages([Corrupt(every=True)], 1, make=Stamped)
    assert np.isnan([message.scalar, *message.doubles, *message.singles]).all()
    assert (message.count, message.bytes.tolist()) == (0, [1, 2])


def test_a_message_is_corrupted_in_a_copy():
    original = Stamped(0)
    messages([Corrupt(every=True), Restamp(kind="zero")], 1, make=lambda _: original)
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
def test_a_stamp_is_shifted_or_zero(fault, stamp):
    (message,) = messages([fault], 1, make=Stamped)
    assert (message.header.stamp.sec, message.header.stamp.nanosec) == stamp


def test_old_data_have_new_stamps():
    left = messages([Restamp(kind="old_data", after_s=0.02)], 4, make=Stamped)
    assert [message.count for message in left] == [0, 1, 1, 1]
    assert [message.header.stamp.sec for message in left] == [100, 101, 102, 103]


def test_a_burst_is_held_and_released_together():
    left, channel = run([Burst(hold_s=0.05, every_s=0.1)], 12)
    assert [due_ns // MS for due_ns, _ in left] == [50, 50, 50, 50, 50, 50, 60, 70, 80, 90, 150, 150]
    assert [number for _, number in left] == list(range(12))
    assert channel.counts()["held"] == 7


def test_an_edit_gets_a_copy():
    def without_second(message):
        message.doubles = message.doubles[:1]
        return message

    original = Stamped(0)
    (message,) = messages([Edit(edit=without_second)], 1, make=lambda _: original)
    assert (len(message.doubles), len(original.doubles)) == (1, 2)


def test_other_faults_begin_their_time_anew_and_lose_nothing():
    channel = ChaosChannel([Reorder(places=5)], seed=0)
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
def test_a_fault_with_a_wrong_value_names_it(kind, values):
    with pytest.raises(UsageError, match=f"{kind.__name__}: {list(values)[-1] if kind is not Burst else 'hold_s'}="):
        kind(**values)


def test_a_negative_seed_is_refused():
    with pytest.raises(UsageError, match="seed=-1"):
        ChaosChannel(seed=-1)


def test_a_channel_without_faults_passes_everything_on_at_once():
    assert run([], 3)[0] == [(0, 0), (10 * MS, 1), (20 * MS, 2)]


def test_the_faults_and_the_suites_are_there_without_ros():
    script = "import sys, embodied_env.testing.fault_injection, embodied_env.testing; print('rclpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
