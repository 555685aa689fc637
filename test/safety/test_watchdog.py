import threading
import time

import pytest
import scripted_tasks
from arbiter_bench import ArbiterBench
from scripted_tasks import PERIOD_NS, PERIOD_S
from waiting import wait_for

from embodied_env.contract.safety_schema import WatchdogSpec
from embodied_env.core.code_types import Severity
from embodied_env.core.safety_input_state import parse_states
from embodied_env.errors import BackendLostError
from embodied_env.safety.watchdog import Watchdog, WatchdogThread
from embodied_env.timing.clock import ManualClock, SteadyClock

pytestmark = pytest.mark.realtime

PATIENCE_S = 30.0
SPEC = WatchdogSpec(hold_steps=2, stop_steps=10)


class Bench(ArbiterBench):
    """A free-running robot and its watchdog."""

    def __init__(self, clock, *, period_s=PERIOD_S):
        super().__init__(scripted_tasks.contract(control_period_s=period_s), clock=clock)
        self.inputs = {}  # the states of the safety inputs, or an error
        self.watchdog = Watchdog(
            self.arbiter, self.gate, SPEC, clock=clock, control_period_s=period_s, estops=self._estops
        )

    def _estops(self):
        if isinstance(self.inputs, Exception):
            raise self.inputs
        return parse_states(self.inputs)

    def cruise(self):
        for _ in range(4):
            self.publish([0.5, 0.0], after_ns=PERIOD_NS)
        self.watchdog.feed()


@pytest.fixture
def bench():
    made = Bench(ManualClock())
    made.cruise()
    made.sent.clear()
    return made


@pytest.mark.parametrize("inputs", [{}, {"door": "active"}], ids=str)
@pytest.mark.parametrize("is_fed", [False, True])
def test_watchdog_does_nothing_before_the_first_feed_and_between_episodes(is_fed, inputs):
    made = Bench(ManualClock())
    if is_fed:
        made.watchdog.feed()
        made.watchdog.disarm()
    made.inputs = inputs
    made.clock.advance_ns(100 * PERIOD_NS)
    assert made.watchdog.check() is None
    assert made.sent == []
    assert made.gate.latched is None


@pytest.mark.parametrize(
    ("passed_ns", "code"),
    [
        (2 * PERIOD_NS - 1, None),
        (2 * PERIOD_NS, "wd.hold"),
        (10 * PERIOD_NS - 1, "wd.hold"),
        (10 * PERIOD_NS, "wd.stop"),
    ],
)
def test_watchdog_holds_and_then_stops_at_the_periods_of_its_contract(bench, passed_ns, code):
    bench.clock.advance_ns(passed_ns)
    found = bench.watchdog.check()
    assert (found and found.code) == code
    assert [command.report.disposition for command in bench.sent] == ([] if found is None else [found.severity])
    assert (bench.gate.latched and bench.gate.latched.code) == (code if code == "wd.stop" else None)


@pytest.mark.parametrize(("periods", "latched"), [(9, None), (10, "wd.stop")])
def test_late_step_latches_a_stop_before_the_thread_runs(bench, periods, latched):
    """A process that was suspended may go on with its next step at once."""
    bench.failures = 1  # the braking command is lost too
    bench.clock.advance_ns(periods * PERIOD_NS)
    bench.watchdog.feed()
    assert (bench.gate.latched and bench.gate.latched.code) == latched
    assert bench.watchdog.trips == (periods >= 10)


def test_each_pause_is_one_trip_and_a_safety_input_is_none(bench):
    for _ in range(2):
        bench.clock.advance_ns(2 * PERIOD_NS)
        for _ in range(3):
            bench.watchdog.check()
        bench.watchdog.feed()
    bench.inputs = {"door": "active"}
    assert bench.watchdog.check().code == "estop.active"
    assert bench.watchdog.trips == 2


def test_step_with_the_lock_is_not_overdue(bench):
    """The watchdog waits for the lock and decides once it holds it."""
    bench.clock.advance_ns(9 * PERIOD_NS)
    looking = threading.Thread(target=bench.watchdog.check)
    with bench.arbiter.exclusive as (reference, dt_s):
        looking.start()
        bench.watchdog.feed()
        time.sleep(0.05)  # it checks now, and waits
        bench.arbiter.send(bench.gate.judge([0.0, 0.0], reference, dt_s))
    looking.join(PATIENCE_S)
    assert len(bench.sent) == 1
    assert bench.gate.latched is None


def test_nothing_is_published_after_disarm(bench):
    """A braking command in progress is completed first, so that none falls into the next reset."""
    bench.clock.advance_ns(2 * PERIOD_NS)
    sending, go_on = threading.Event(), threading.Event()
    send = bench._send

    def slowly(command):
        sending.set()
        go_on.wait(PATIENCE_S)
        return send(command)

    bench.arbiter._send = slowly
    looking = threading.Thread(target=bench.watchdog.check)
    looking.start()
    assert sending.wait(PATIENCE_S)
    disarming = threading.Thread(target=bench.watchdog.disarm)
    disarming.start()
    time.sleep(0.02)
    assert disarming.is_alive()
    go_on.set()
    for thread in (looking, disarming):
        thread.join(PATIENCE_S)
    published = len(bench.sent)
    bench.watchdog.check()
    assert len(bench.sent) == published == 1


def test_lapsed_input_between_steps_brakes_without_latching(bench):
    bench.inputs = {"driver": "lapsed: /arm is deactivating"}
    assert bench.watchdog.check().severity is Severity.HOLD
    assert len(bench.sent) == 1
    assert bench.gate.latched is None


def test_most_severe_safety_input_counts(bench):
    bench.inputs = {"driver": "inactive", "door": "active"}
    assert bench.watchdog.check().code == "estop.active"
    assert bench.gate.latched.severity is Severity.ESTOP


def test_unreadable_safety_inputs_are_unknown(bench):
    """Nor do they keep the watchdog from braking."""
    bench.inputs = BackendLostError("gone", "no such node")
    assert bench.watchdog.check().code == "estop.unknown"
    assert bench.gate.latched.severity is Severity.ESTOP
    assert len(bench.sent) == 1


@pytest.fixture
def live():
    """A running watchdog with a period of 4 ms."""
    made = Bench(SteadyClock(), period_s=0.004)
    thread = WatchdogThread(made.watchdog, bool, control_period_s=0.004)
    thread.start()
    yield made
    thread.stop()


def watchdog_threads():
    return {thread for thread in threading.enumerate() if thread.name == "embodied_env watchdog"}


def test_the_thread_brakes_for_a_safety_input(live):
    live.inputs = {"door": "active"}
    live.watchdog.feed()
    wait_for(lambda: live.gate.latched is not None and live.gate.latched.code == "estop.active")
    wait_for(lambda: live.sent)


def test_thread_survives_a_refused_command(live):
    live.failures = 2
    live.watchdog.feed()
    wait_for(lambda: len(live.sent) >= 2)
    assert live.failures == 0


@pytest.mark.parametrize("is_started", [True, False])
def test_stop_joins_the_thread_and_is_idempotent(is_started):
    others = watchdog_threads()
    thread = WatchdogThread(Bench(SteadyClock()).watchdog, bool, control_period_s=0.01)
    if is_started:
        thread.start()
    assert len(watchdog_threads() - others) == is_started
    thread.stop()
    thread.stop()
    assert not watchdog_threads() - others


def test_a_requested_close_is_retried_until_it_ends():
    answers = [True, False, False]
    others = watchdog_threads()
    thread = WatchdogThread(Bench(SteadyClock()).watchdog, answers.pop, control_period_s=0.004)
    thread.start()
    time.sleep(0.02)
    assert len(answers) == 3
    thread.request_close()
    wait_for(lambda: not watchdog_threads() - others)
    assert answers == []
