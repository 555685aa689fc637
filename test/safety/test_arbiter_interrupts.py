"""After a signal or an exception at any line of the send path, braking starts from the published command."""

from __future__ import annotations

import contextlib
import itertools
import signal
import sys
import threading
from functools import partial

import arbiter_bench
import numpy as np
import pytest
import scripted_tasks
from arbiter_bench import HOLD, ArbiterBench, RelayOutlet
from safety_strategies import calm, joint_limits, plain_contract
from scripted_tasks import PERIOD_NS, PERIOD_S, Scene

from embodied_env.backends.fake_backend import FakeBackend
from embodied_env.core.reset_draws import ResetRoutine
from embodied_env.processes import signals as interrupts
from embodied_env.safety import arbiter, homing
from embodied_env.safety.gate import SafetyGate
from embodied_env.safety.publishing import single
from embodied_env.safety.relay import relay as core
from embodied_env.safety.relay.relay import Relay
from embodied_env.safety.relay.relay_protocol import Armed, CommandId, write_command
from embodied_env.timing.clock import NS_PER_S, ManualClock

HOME = {"shoulder": 0.6, "elbow": -0.4}
CONTRACT, PLAIN = scripted_tasks.contract(), plain_contract()
LAYOUT = SafetyGate(PLAIN).layout
TRACED = {module.__file__ for module in (arbiter, arbiter_bench, single, interrupts, core, homing)} | {__file__}


class Interrupted(Exception):  # noqa: N818
    """Raised by the handlers of these tests."""


class Injection:
    """Calls `act` at line number `at` (from 0) executed by the thread in the traced files."""

    def __init__(self, at, act, files=TRACED):
        self.at, self.act, self.files, self.lines = at, act, files, 0
        self.where = ""

    def __call__(self, frame, event, _argument):
        if frame.f_code.co_filename not in self.files or frame.f_code.co_name.startswith("_guard"):
            return None
        if event == "line":
            self.lines += 1
            if self.lines == self.at + 1:
                self.where = f"{frame.f_code.co_qualname}:{frame.f_lineno}" if sys.version_info >= (3, 11) else ""
                self.act()
        return self

    @contextlib.contextmanager
    def _guard(self):
        before = sys.gettrace()
        sys.settrace(self)
        try:
            yield
        finally:
            sys.settrace(before)

    def during(self, call):
        """Run `call`, and return whether the injected exception ended it."""
        try:
            with self._guard():
                call()
        except (Interrupted, MemoryError, KeyboardInterrupt):
            return True
        return False


@pytest.fixture
def raising_signal(request):
    """Return a function that delivers a signal whose handler raises."""

    def handle(_number, _frame):
        raise Interrupted

    number = getattr(request, "param", signal.SIGINT)
    before = signal.signal(number, handle)
    yield lambda: signal.raise_signal(number)
    signal.signal(number, before)


class Bench(ArbiterBench):
    """A robot in motion, which delays no signal in lockstep."""

    def __init__(self, *, free_running=True):
        super().__init__(CONTRACT, free_running=free_running)
        for _ in range(2):
            self.move()
        self.clock.advance_ns(PERIOD_NS)

    def move(self):
        self.publish([1.0, -1.0], after_ns=PERIOD_NS)


def refers_to(reference, command):
    return (reference.positions.tolist(), reference.velocities.tolist()) == (
        command.values.tolist(),
        command.report.velocity_si.tolist(),
    )


def may_publish_in_another_thread(arbiter):
    """Return whether the lock of `arbiter` was released, without which the watchdog would block forever."""

    def take():
        with arbiter.exclusive:
            pass

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    thread.join(30.0)
    return not thread.is_alive()


@pytest.mark.parametrize("raising_signal", [signal.SIGALRM], indirect=True)
def test_after_a_signal_at_any_line_of_a_publication_braking_starts_from_the_published_command(raising_signal):
    published_or_not = set()
    for at in itertools.count():
        bench = Bench()
        before = len(bench.sent)
        injection = Injection(at, raising_signal)
        was_raised = injection.during(bench.move)
        if not was_raised:
            assert injection.lines <= at
            break
        last = bench.sent[-1]
        published_or_not.add(len(bench.sent) - before)
        assert refers_to(bench.arbiter.reference, last), injection.where
        assert bench.arbiter.reference.seq == last.seq, injection.where
        if not injection.where.startswith(
            "ArbiterBench."
        ):  # no signal is handled where a tracer sees the end of a `with`
            assert may_publish_in_another_thread(bench.arbiter), injection.where
        bench.clock.advance_ns(PERIOD_NS)
        assert_brakes(bench.arbiter.brake(HOLD), last, scripted_tasks.DECELERATION, injection.where)
    assert published_or_not == {0, 1}


def assert_brakes(braking, last, deceleration, where):
    speed = np.maximum(0.0, np.abs(last.report.velocity_si) - deceleration * PERIOD_S)
    expected = last.values + np.sign(last.report.velocity_si) * speed * PERIOD_S
    np.testing.assert_allclose(braking.values, expected, atol=1e-12, err_msg=where)


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_exception_at_any_line_keeps_the_reference_consistent(error):
    """A command that was not sent may count as published, never the reverse, since an exception is not delayed."""

    def fail():
        raise error

    for at in itertools.count():
        bench = Bench(free_running=False)
        count = len(bench.sent)
        if not Injection(at, fail, {arbiter.__file__, arbiter_bench.__file__, __file__}).during(bench.move):
            break
        reference = bench.arbiter.reference
        assert reference.seq in (bench.sent[-1].seq, count + 1)
        if len(bench.sent) > count:
            assert refers_to(reference, bench.sent[-1])


def test_braking_starts_from_a_message_sent_before_its_transport_failed():
    bench = Bench()

    def fail(command):
        bench.sent.append(command)
        raise OSError("the acknowledgement was lost")

    bench.arbiter._send = fail
    with pytest.raises(OSError, match="acknowledgement"):
        bench.move()
    assert refers_to(bench.arbiter.reference, bench.sent[-1])


# ------------------------------------------------------------------------------------------------- relay and homing


def moving_relay():
    """Return a relay with both joints in motion, its clock, its outlet, and a function that sends the next command."""
    clock, outlet = ManualClock(start_ns=1_000 * NS_PER_S), RelayOutlet()
    relay = Relay(PLAIN, outlet, clock=clock)
    relay.on_joint_positions("joints", np.zeros(2), clock.now_ns())
    epoch = Armed.from_text(relay.arm()[1]).epoch
    numbers = itertools.count(1)

    def command():
        clock.advance_ns(PERIOD_NS)
        tag = CommandId(epoch=epoch, seq=next(numbers))
        relay.command(write_command(tag, np.array([1.5, -1.5]), LAYOUT))

    for _ in range(2):
        command()
    return relay, clock, outlet, command


def test_relay_brakes_from_the_published_command_after_a_signal_at_any_line(raising_signal):
    published_or_not = set()
    for at in itertools.count():
        relay, clock, outlet, command = moving_relay()
        count = len(outlet.published)
        injection = Injection(at, raising_signal)
        if not injection.during(command):
            break
        published_or_not.add(len(outlet.published) - count)
        last = outlet.published[-1]
        clock.advance_ns(PERIOD_NS)
        relay.end()
        assert_brakes(outlet.published[-1], last, joint_limits().deceleration, injection.where)
    assert published_or_not == {0, 1}


def test_signal_at_any_line_of_homing_keeps_the_reference_consistent(raising_signal):
    published_or_not = set()
    for at in itertools.count():
        bench = Bench()
        way = homing.HomingMotion(CONTRACT, ResetRoutine(home=HOME), bench.gate, bench.arbiter, bench.clock)
        count = len(bench.sent)
        injection = Injection(at, raising_signal)
        safety_context = partial(calm, bench.arbiter.reference)
        if not injection.during(partial(way._command, safety_context)):
            break
        published_or_not.add(len(bench.sent) - count)
        assert refers_to(bench.arbiter.reference, bench.sent[-1]), injection.where
    assert published_or_not == {0, 1}


def test_robot_brakes_without_a_jump_after_a_signal_during_homing():
    class Pressed(FakeBackend):
        def send(self, command):
            sent = super().send(command)
            if len(self.sent) == 5:
                signal.raise_signal(signal.SIGINT)
            return sent

    scene = Scene(CONTRACT, backend=Pressed, free_running=True)
    scene.backend.routine = ResetRoutine(home=HOME)
    with pytest.raises(KeyboardInterrupt):
        scene.reset()
    positions = np.array([[0.0, 0.0], *(command.values for command in scene.sent)])
    scene.close()
    assert len(positions) > 6
    assert (np.diff(positions, axis=0) * [1, -1] >= 0.0).all()
