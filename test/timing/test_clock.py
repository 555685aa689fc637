import pytest

from embodied_env.errors import UsageError
from embodied_env.timing.clock import ManualClock, SteadyClock, VirtualClock, make_clock


def test_the_steady_clock_sleeps_until_the_deadline():
    clock = SteadyClock()
    deadline_ns = clock.now_ns() + 2_000_000
    clock.sleep_until_ns(deadline_ns)
    assert clock.now_ns() >= deadline_ns


def test_the_steady_clock_returns_immediately_for_a_past_deadline():
    clock = SteadyClock()
    before_ns = clock.now_ns()
    clock.sleep_until_ns(before_ns - 10**12)
    assert clock.now_ns() - before_ns < 10**9


def test_a_manual_clock_advances_only_on_request():
    clock = ManualClock(start_ns=10)
    clock.on_world_advanced(5)
    assert clock.now_ns() == 10
    clock.advance_ns(7)
    assert clock.now_ns() == clock.system_ns() == 17


def test_a_manual_clock_never_goes_back():
    with pytest.raises(UsageError, match=r"invalid advance_ns\(-1\) .expected >= 0"):
        ManualClock().advance_ns(-1)


def test_sleeping_on_a_manual_clock_advances_to_the_deadline():
    clock = ManualClock()
    clock.sleep_until_ns(2_000_000_000)
    assert clock.now_ns() == 2_000_000_000


def test_a_virtual_clock_advances_with_the_world():
    clock = VirtualClock()
    clock.on_world_advanced(50_000_000)
    assert clock.now_ns() == 50_000_000


@pytest.mark.parametrize(
    ("clock", "kind", "virtual"),
    [(None, SteadyClock, False), ("steady", SteadyClock, False), ("virtual", VirtualClock, True)],
)
def test_a_clock_is_created_by_name(clock, kind, virtual):
    made = make_clock(clock)
    assert type(made) is kind
    assert made.virtual is virtual


def test_a_clock_object_is_used_directly():
    clock = ManualClock()
    assert make_clock(clock) is clock


def test_an_unknown_clock_lists_the_known_ones():
    with pytest.raises(
        UsageError, match=r"^unknown clock='sundial' .expected one of: steady, virtual, or a Clock object.$"
    ):
        make_clock("sundial")
