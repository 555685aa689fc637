import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safety_strategies import examples

import embodied_env
from embodied_env.backends.backend_registry import make_backend
from embodied_env.backends.mujoco_backend import RealtimeStepper
from embodied_env.core.types import ResetRequest
from embodied_env.errors import BackendLostError
from embodied_env.sim.world import World
from embodied_env.sim.world_profile import load_profile
from embodied_env.testing import approve
from embodied_env.timing.clock import ManualClock

ARM = embodied_env.load_contract("arm_reach")
PERIOD_NS = ARM.control_period_ns
TICK_NS = PERIOD_NS // 5
LATER_NS = 10**15
REQUEST = ResetRequest(epoch=0, seed=3)
PUSH = np.full(6, 0.3)
many = examples(100)


class TickingWorld:
    """A world that counts ticks, each of which takes `cost_ns` of the clock."""

    def __init__(self, clock, tick_ns, cost_ns=0):
        self.clock, self.tick_ns, self.cost_ns = clock, tick_ns, cost_ns
        self.now_ns = 77  # its time is independent of the clock

    def step(self):
        self.clock.advance_ns(self.cost_ns)
        self.now_ns += self.tick_ns


@pytest.fixture
def clock():
    return ManualClock(start_ns=1000)


def opened(clock, pacing):
    backend = make_backend("mujoco", ARM, clock=clock, pacing=pacing)
    backend.open()
    return backend, backend.reset(REQUEST, LATER_NS)


@pytest.fixture
def arm(clock):
    backend, _ = opened(clock, "realtime")
    yield backend
    backend.close()


def command(seq=1):
    return approve(ARM, PUSH, positions=home(), seq=seq - 1)


def home():
    backend, snapshot = opened(ManualClock(), "lockstep")
    backend.close()
    return snapshot.samples["joints"].values["position"]


def step(backend, action=None):
    if action is not None:
        backend.send(action)
    backend.advance(LATER_NS, LATER_NS)
    return backend.read(LATER_NS, LATER_NS)


def bytes_of(snapshot):
    return {
        name: (sample.stamp_ns, sample.seq, {field: value.tobytes() for field, value in sample.values.items()})
        for name, sample in snapshot.samples.items()
    }


def episode(pacing):
    """Return the readings when each command is sent at the deadline of the previous one."""
    backend, snapshot = opened(ManualClock(start_ns=5), pacing)
    rng, seen = np.random.default_rng(1), [bytes_of(snapshot)]
    for n in range(30):
        positions = snapshot.samples["joints"].values["position"]
        snapshot = step(backend, approve(ARM, rng.uniform(-1, 1, 6), positions=positions, seq=n))
        seen.append((snapshot.now_ns, bytes_of(snapshot)))
    backend.close()
    return seen


def test_an_instant_policy_observes_the_lockstep_world():
    """The numbers of readings differ, since a sensor without a rate has one at every tick."""

    def without_numbers(readings):
        return {name: (stamp_ns, values) for name, (stamp_ns, _, values) in readings.items()}

    realtime, lockstep = episode("realtime"), episode("lockstep")
    assert realtime[0] == lockstep[0]
    for (now_ns, readings), (expected_ns, expected) in zip(realtime[1:], lockstep[1:], strict=True):
        assert now_ns == expected_ns
        assert without_numbers(readings) == without_numbers(expected)


def test_a_command_acts_from_its_arrival(arm, clock):
    """After 20 of 50 ms, two ticks have the last command and three the new one."""
    clock.advance_ns(20_000_000)
    snapshot = step(arm, command())
    world = World(ARM, load_profile(ARM, "mujoco"), free_running=True)
    world.reset(3, {})
    for ticks in (2, 3):
        for _ in range(ticks):
            world.step()
        world.command(command().values)
    assert snapshot.now_ns == world.now_ns
    np.testing.assert_array_equal(
        snapshot.samples["joints"].values["position"], world.read()["joints"].values["position"]
    )


def test_an_inference_of_three_periods_advances_the_world_by_three_periods(arm, clock):
    before_ns = step(arm, command()).now_ns
    clock.advance_ns(3 * PERIOD_NS)
    assert step(arm, command(2)).now_ns == before_ns + 3 * PERIOD_NS
    assert (arm.pacer.overruns, arm.pacer.missed, arm.pacer.overrun_ns) == (1, 2, 2 * PERIOD_NS)


def test_the_step_after_a_pause_takes_a_whole_period(arm, clock):
    clock.advance_ns(7 * PERIOD_NS + 1234)
    step(arm, command())
    before_ns = clock.now_ns()
    snapshot = step(arm, command(2))
    assert clock.now_ns() - before_ns == PERIOD_NS
    assert snapshot.samples["joints"].stamp_ns == snapshot.now_ns


@pytest.fixture(scope="module")
def lasting():
    clock = ManualClock(start_ns=5)
    backend, _ = opened(clock, "realtime")
    yield clock, backend, command()
    backend.close()


@settings(max_examples=25, deadline=None)
@given(thoughts_ns=st.lists(st.integers(0, 3 * PERIOD_NS), min_size=1, max_size=6))
def test_a_reading_is_never_ahead_of_the_clock_nor_a_tick_behind_it(lasting, thoughts_ns):
    clock, backend, same = lasting
    first = backend.reset(REQUEST, LATER_NS)
    started_ns = clock.now_ns()
    for thought_ns in thoughts_ns:
        clock.advance_ns(thought_ns)
        snapshot = step(backend, same)
        behind_ns = (clock.now_ns() - started_ns) - (snapshot.now_ns - first.now_ns)
        assert 0 <= behind_ns < TICK_NS
        assert snapshot.clock.rtf == 1.0


def test_a_watchdog_that_sends_from_its_thread_moves_the_world(arm, clock):
    before_ns = arm.read(LATER_NS, LATER_NS).now_ns
    clock.advance_ns(4 * PERIOD_NS)
    sender = threading.Thread(target=arm.send, args=(command(),))
    sender.start()
    sender.join()
    assert arm.read(LATER_NS, LATER_NS).now_ns == before_ns + 4 * PERIOD_NS


def test_clock_status_reports_the_error_bound(arm, clock):
    account = step(arm, command()).clock
    assert (account.mode, account.jump, account.rtf, account.offset_error_ns) == ("sim", "", 1.0, TICK_NS)
    assert clock.now_ns() + account.offset_ns == arm.read(LATER_NS, LATER_NS).now_ns


class LateClock(ManualClock):
    """Each reading takes a microsecond, and each sleep ends slightly late."""

    def now_ns(self):
        self.advance_ns(1000)
        return super().now_ns()

    def sleep_until_ns(self, deadline_ns):
        super().sleep_until_ns(deadline_ns + 70_000)


def test_slightly_late_wakeups_are_not_missed_deadlines():
    backend, _ = opened(LateClock(), "realtime")
    for n in range(1, 20):
        step(backend, command(n))
    assert (backend.pacer.overruns, backend.pacer.missed) == (0, 0)
    backend.close()


@pytest.mark.parametrize("end", ["halt", "close"])
def test_a_halted_or_closed_world_takes_no_step(arm, end):
    arm.halt("test") if end == "halt" else arm.close()
    with pytest.raises(BackendLostError):
        arm.advance(LATER_NS, LATER_NS)


def test_steps_on_the_steady_clock_keep_the_grid(close_later):
    env = close_later(embodied_env.make(ARM, pacing="realtime"))
    env.reset(seed=1)
    for _ in range(5):
        env.step(np.zeros(6))
    backend = env.unwrapped.stepper.backend
    snapshot = env.unwrapped.last_transition.snapshot
    assert env.unwrapped.pacing == "realtime"
    assert snapshot.now_ns - env.unwrapped.last_reset.now_ns >= (5 - 1) * PERIOD_NS
    assert backend.pacer.deadline_ns > snapshot.now_ns - snapshot.clock.offset_ns


def followed(tick_ns, cost_ns, patience_ns):
    clock = ManualClock()
    world: Any = TickingWorld(clock, tick_ns, cost_ns)
    return clock, world, RealtimeStepper(world, clock, patience_ns=patience_ns)


@many
@given(
    tick_ns=st.integers(1, 50),
    cost_ns=st.integers(0, 200),
    patience_ns=st.integers(1, 300),
    pauses_ns=st.lists(st.integers(0, 1000), min_size=1, max_size=20),
)
def test_catching_up_ends_within_its_limit_and_a_tick_and_drops_the_rest(tick_ns, cost_ns, patience_ns, pauses_ns):
    clock, world, follower = followed(tick_ns, cost_ns, patience_ns)
    for pause_ns in pauses_ns:
        clock.advance_ns(pause_ns)
        before_ns = clock.now_ns()
        follower.catch_up()
        assert clock.now_ns() - before_ns <= patience_ns + cost_ns
        assert world.now_ns - follower.offset_ns <= clock.now_ns()
    dropped_ns = (77 - 0) - follower.offset_ns
    assert dropped_ns >= 0
    assert dropped_ns % tick_ns == 0
    assert (follower.rtf() < 1.0) == (dropped_ns > 0)
    assert world.now_ns - 77 + dropped_ns <= clock.now_ns()


def test_rtf_is_that_of_the_last_seconds():
    clock, world, follower = followed(tick_ns=10_000_000, cost_ns=20_000_000, patience_ns=50_000_000)
    for _ in range(100):
        clock.advance_ns(10_000_000)
        follower.catch_up()
    assert 0.3 < follower.rtf() < 0.6  # half the speed
    world.cost_ns = 0
    for _ in range(5):
        clock.advance_ns(1_000_000_000)
        follower.catch_up()
        follower.rtf()
    assert follower.rtf() == 1.0


def test_a_slow_world_is_late_but_returns():
    """Each tick of the world behind the backend takes twice its duration."""
    clock = ManualClock()
    backend, _ = opened(clock, "realtime")
    backend._stepper._world = TickingWorld(clock, TICK_NS, 2 * TICK_NS)
    backend._stepper.begin()
    for n in range(1, 10):
        before_ns = clock.now_ns()
        snapshot = step(backend, command(n))
        assert clock.now_ns() - before_ns < 4 * PERIOD_NS
    assert snapshot.clock.rtf < 0.8
    backend.close()
