"""Absolute deadlines neither drift nor come in bursts, and each missed one is counted once."""

import pytest
from distributions import install
from hypothesis import given
from hypothesis import strategies as st
from safety_strategies import examples

import embodied_env
from embodied_env.errors import UsageError
from embodied_env.timing.clock import ManualClock, Pacer, VirtualClock

PERIOD_NS = 1000
PERIODS_NS = st.integers(1, 10**9)
STARTS_NS = st.integers(0, 10**15)
many = examples(100)


@pytest.fixture
def clock():
    return ManualClock(start_ns=5)


@pytest.fixture
def pacer(clock):
    return Pacer(clock, PERIOD_NS)


def start_late(pacer, clock, ns):
    clock.sleep_until_ns(pacer.deadline_ns + ns)
    pacer.wait()


@pytest.mark.parametrize("period_ns", [0, -1])
def test_period_must_be_positive(clock, period_ns):
    with pytest.raises(UsageError, match="expected > 0"):
        Pacer(clock, period_ns)


def test_begin_restarts_the_grid(pacer, clock):
    clock.advance_ns(300)
    pacer.begin()
    pacer.wait()
    assert clock.now_ns() == 5 + 300 + PERIOD_NS


def test_begin_counts_from_zero(pacer, clock):
    start_late(pacer, clock, 10)
    pacer.begin()
    assert (pacer.overruns, pacer.missed, pacer.overrun_ns) == (0, 0, 0)


@many
@given(start_ns=STARTS_NS, period_ns=PERIODS_NS, parts=st.lists(st.floats(0, 1), max_size=50))
def test_punctual_steps_do_not_drift(start_ns, period_ns, parts):
    clock = ManualClock(start_ns)
    pacer = Pacer(clock, period_ns)
    for n, part in enumerate(parts, start=1):
        clock.advance_ns(int(part * period_ns))  # the work of the step
        pacer.wait()
        assert clock.now_ns() == start_ns + n * period_ns
    assert (pacer.overruns, pacer.missed) == (0, 0)


@many
@given(start_ns=STARTS_NS, period_ns=st.integers(1, 50), works_ns=st.lists(st.integers(0, 200), max_size=40))
def test_every_missed_deadline_is_counted_once(start_ns, period_ns, works_ns):
    """Compare with a model that visits each deadline."""
    clock = ManualClock(start_ns)
    pacer = Pacer(clock, period_ns)
    deadline_ns, missed, overruns = start_ns + period_ns, 0, 0
    for work_ns in works_ns:
        clock.advance_ns(work_ns)
        now_ns = clock.now_ns()
        passed = 0
        while deadline_ns + passed * period_ns < now_ns:
            passed += 1
        missed, overruns = missed + passed, overruns + bool(passed)
        late_ns, restarts = now_ns - deadline_ns, now_ns - deadline_ns > period_ns
        pacer.wait()
        assert clock.now_ns() == max(now_ns, deadline_ns)
        deadline_ns = (now_ns if restarts else deadline_ns) + period_ns
        assert (pacer.missed, pacer.overruns, pacer.deadline_ns) == (missed, overruns, deadline_ns)
        assert pacer.overrun_ns == (late_ns if passed else 0)


def test_free_running_world_is_paced_in_real_time(close_later):
    env = close_later(embodied_env.make("arm_reach", backend="fake", free_running=True, pacing="realtime"))
    assert env.unwrapped.pacing == "realtime"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"free_running": True, "pacing": "lockstep"}, "pacing for fake: 'lockstep'.*'realtime'"),
        ({"free_running": False, "pacing": "realtime"}, "pacing for fake: 'realtime'.*'lockstep'"),
        ({"free_running": True, "clock": "virtual"}, "clock for fake in real time: 'virtual'"),
        ({"free_running": True, "clock": VirtualClock()}, "clock for fake in real time: 'virtual'"),
        ({"pacing": "realtime", "clock": "virtual"}, "clock for fake in real time: 'virtual'"),
        (
            {"backend": "mujoco", "pacing": "realtime", "clock": "virtual"},
            "clock for mujoco in real time: 'virtual'",
        ),
    ],
)
def test_unsupported_pacing_or_clock_is_rejected(options, problem):
    with pytest.raises(UsageError, match=problem):
        embodied_env.make("arm_reach", **{"backend": "fake", **options})


@many
@given(
    period_ns=st.integers(1, 50), work_ns=st.integers(0, 500), parts=st.lists(st.floats(0, 1), min_size=1, max_size=20)
)
def test_the_grid_has_whole_periods_after_a_pause(period_ns, work_ns, parts):
    """At most one period is short where the grid is kept, and no later one is shorter or missed."""
    clock = ManualClock()
    pacer = Pacer(clock, period_ns)
    clock.advance_ns(work_ns)
    pacer.wait()
    clock.sleep_until_ns(pacer.deadline_ns)
    pacer.wait()
    start_ns, missed = clock.now_ns(), pacer.missed
    for n, part in enumerate(parts, start=1):
        clock.advance_ns(int(part * period_ns))
        pacer.wait()
        assert clock.now_ns() == start_ns + n * period_ns
    assert pacer.missed == missed


@pytest.mark.parametrize(
    ("backend", "allowed"),
    [
        ("fake", "None, 'lockstep', 'realtime'"),
        ("mujoco", "None, 'lockstep', 'realtime'"),
        ("mujoco_ros", "None, 'lockstep', 'realtime'"),
        ("real", "None, 'realtime'"),
    ],
)
def test_unknown_pacing_lists_supported_ones(backend, allowed):
    with pytest.raises(UsageError, match=f"pacing for {backend}: 'fast' .*: {allowed}"):
        embodied_env.make("arm_reach", backend=backend, pacing="fast")


@pytest.fixture
def third_party(tmp_path, monkeypatch):
    """Install a third-party backend with a factory that takes the keyword `pacing`, and one that does not."""
    source = (
        "from embodied_env.testing import FakeBackend\n"
        "def both(contract, *, clock, pacing='lockstep'):\n"
        "    return FakeBackend(contract, clock=clock, free_running=pacing == 'realtime')\n"
        "def one(contract, *, clock):\n"
        "    return FakeBackend(contract, clock=clock)\n"
    )
    points = {"backends": {"both": "third_party:both", "one": "third_party:one"}}
    install(monkeypatch, tmp_path, points, third_party=source)


@pytest.mark.parametrize("backend", ["fake", "mujoco", "both"])
@pytest.mark.parametrize(("asked", "pacing"), [(None, "lockstep"), ("lockstep", "lockstep"), ("realtime", "realtime")])
def test_backend_with_both_pacings_defaults_to_lockstep(close_later, third_party, backend, asked, pacing):
    env = close_later(embodied_env.make("arm_reach", backend=backend, pacing=asked))
    assert env.unwrapped.pacing == pacing


def test_third_party_factory_without_pacing_has_one_pacing(third_party):
    with pytest.raises(UsageError, match=r"pacing for fake: 'realtime' .*None.*'lockstep'"):
        embodied_env.make("arm_reach", backend="one", pacing="realtime")
