"""Lockstep control trusts only the clock: over a small simulator that behaves like real ones, on real DDS."""

from __future__ import annotations

import threading
import time

import pytest

pytest.importorskip("rclpy", reason="needs rclpy")

from service_stepping import ServiceStepping
from small_simulator import TICK_NS, Faults, small_simulator

import embodied_env
from embodied_env.core.clock import SteadyClock
from embodied_env.errors import BackendLostError, BackendNotReadyError, UsageError
from embodied_env.ros.external_sim.control.api import FAULTS, SimulatorNotReadyError
from embodied_env.ros.external_sim.control.lockstep_control import LockstepControl
from embodied_env.ros.external_sim.control.service_session import ServiceSession
from embodied_env.ros.node import RosNode

pytestmark = pytest.mark.ros

CONTRACT = embodied_env.load_contract("arm_reach")
PERIOD_NS = CONTRACT.control_period_ns


def deadline(seconds=5.0):
    return time.monotonic() + seconds


@pytest.fixture(scope="module")
def stack(lasting_domain):
    """A small simulator and its lockstep control."""
    with lasting_domain() as domain_id, small_simulator(CONTRACT, domain_id) as small:
        node = RosNode("environment", namespace="/", clock=SteadyClock(), domain_id=domain_id)
        session = ServiceSession(node.receiver, reply_timeout_s=0.3)
        control = LockstepControl(ServiceStepping(world="toy", prefix=None), session, step_ns=PERIOD_NS)
        control.connect(deadline(10))
        yield small, control
        node.close()


@pytest.fixture
def small(stack):
    """The small simulator, well-behaved and paused."""
    small = stack[0]
    small.faults, small.is_running = Faults(), False
    small.tick(1)
    time.sleep(0.02)
    small.requests.clear()
    yield small
    small.faults, small.is_running = Faults(), False


@pytest.fixture
def exact(stack, small):
    control = stack[1]
    control.settle(deadline())
    return control


def lost(call, *args):
    """Return why and with which detail the simulator was lost."""
    with pytest.raises((BackendLostError, SimulatorNotReadyError)) as caught:
        call(*args)
    assert caught.value.why in FAULTS
    return caught.value.why, str(caught.value)


def test_a_hundred_steps_end_at_the_exact_nanosecond(exact, small):
    begin_ns = exact.now_ns()
    ends_ns = [exact.step(PERIOD_NS, deadline()) for _ in range(100)]
    assert ends_ns == [begin_ns + (index + 1) * PERIOD_NS for index in range(100)]
    assert ends_ns[-1] == small.now_ns


@pytest.mark.long
def test_ten_thousand_steps_end_at_the_exact_nanosecond(exact, small):
    begin_ns = small.now_ns
    for index in range(10_000):
        assert exact.step(PERIOD_NS, deadline()) == begin_ns + (index + 1) * PERIOD_NS


def test_a_reply_before_the_end_does_not_end_the_step(exact, small):
    small.faults.early_reply_s = 0.05
    assert exact.step(PERIOD_NS, deadline()) == small.now_ns


def test_a_paused_clock_may_stop_publishing(exact, small):
    small.faults.repeats_clock = False
    assert exact.step(PERIOD_NS, deadline()) == small.now_ns


def test_a_lost_reply_is_reported_with_the_clock_and_no_request_is_repeated(exact, small):
    small.faults.drops_reply = True
    why, detail = lost(exact.step, PERIOD_NS, deadline())
    assert why == "reply_lost"
    assert "the step was carried out" in detail
    assert small.requests == ["step_once"]


def test_a_reply_without_its_step_is_reported(exact, small):
    small.faults.stops_at = 4
    assert lost(exact.step, PERIOD_NS, deadline())[0] == "step_unfinished"


def test_a_clock_that_stops_without_a_reply_is_reported(exact, small):
    small.faults.stops_at, small.faults.drops_reply = 4, True
    assert lost(exact.step, PERIOD_NS, deadline())[0] == "clock_stopped"


def test_a_clock_rewound_during_a_step_is_reported(exact, small):
    small.faults.rewinds = True
    assert lost(exact.step, PERIOD_NS, deadline())[0] == "clock_rewound"


def test_a_clock_rewound_between_steps_is_reported_without_a_request(exact, small):
    small.now_ns = 0
    small.tick(1)
    time.sleep(0.02)
    assert lost(exact.step, PERIOD_NS, deadline())[0] == "clock_rewound"
    assert small.requests == []


def test_a_step_that_overshoots_is_reported(exact, small):
    small.faults.extra_ticks = 2
    why, detail = lost(exact.step, PERIOD_NS, deadline())
    assert why == "extra_steps"
    assert str(small.now_ns) in detail or str(small.now_ns - TICK_NS) in detail


def test_foreign_steps_between_ours_are_reported_without_a_request(exact, small):
    small.tick(3)
    time.sleep(0.02)
    assert lost(exact.step, PERIOD_NS, deadline())[0] == "extra_steps"
    assert small.requests == []


def test_the_reason_of_a_refused_request_is_quoted(exact, small):
    small.faults.refuses = "not today"
    why, detail = lost(exact.step, PERIOD_NS, deadline())
    assert why == "refused"
    assert "not today" in detail


def test_a_fractional_number_of_steps_is_rejected(exact, small):
    with pytest.raises(UsageError, match="multiple of 50000000 ns"):
        exact.step(PERIOD_NS // 2, deadline())
    assert small.requests == []


def test_pending_steps_of_a_dead_client_are_awaited(exact, small):
    small.is_running = True
    small.faults.stops_at = None

    def wait_until_paused():
        small.is_running = False

    timer = threading.Timer(0.3, wait_until_paused)
    timer.start()
    exact.connect(deadline(10))
    timer.join()
    assert exact.now_ns() == small.now_ns
    assert small.requests == []


def test_a_clock_that_never_pauses_is_reported_before_the_first_request(exact, small):
    small.is_running = True
    assert lost(exact.connect, deadline(0.7))[0] == "settling"
    assert small.requests == []


def test_missing_services_are_named(domain_id):
    node = RosNode("lonely", namespace="/", clock=SteadyClock())
    control = LockstepControl(
        ServiceStepping(world="toy", prefix="/absent"), ServiceSession(node.receiver), step_ns=PERIOD_NS
    )
    try:
        with pytest.raises(BackendNotReadyError, match="/absent/simulator/step_once"):
            control.connect(deadline(0.1))
    finally:
        node.close()
