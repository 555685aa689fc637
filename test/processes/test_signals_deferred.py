"""Signal handlers are deferred in critical sections and never lost."""

import signal
import threading

import pytest

from embodied_env.processes.signals import deferred_signals


@pytest.fixture
def received():
    """Record each SIGTERM in a handler."""
    numbers = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: numbers.append(number))
    yield numbers
    signal.signal(signal.SIGTERM, before)


def hold(*numbers):
    """Enter a critical section and raise these signals in it."""
    with deferred_signals():
        for number in numbers:
            signal.raise_signal(number)


def test_signal_outside_the_block_is_handled_immediately(received):
    with deferred_signals():
        pass
    signal.raise_signal(signal.SIGTERM)
    assert received == [signal.SIGTERM]


def test_inner_block_does_not_end_the_outer_block(received):
    with deferred_signals():
        with deferred_signals():
            signal.raise_signal(signal.SIGTERM)
        assert received == []
    assert received == [signal.SIGTERM]


def test_two_signals_are_handled_in_order(received):
    with pytest.raises(KeyboardInterrupt):
        hold(signal.SIGTERM, signal.SIGINT)
    assert received == [signal.SIGTERM]


def test_deferred_ctrl_c_raises_keyboard_interrupt():
    with pytest.raises(KeyboardInterrupt):
        hold(signal.SIGINT)


def test_failing_block_still_runs_deferred_handlers(received):
    with pytest.raises(TypeError):
        hold(signal.SIGTERM, "no number")
    assert received == [signal.SIGTERM]


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with deferred_signals():
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_signals_are_not_deferred_in_other_threads(received):
    thread = threading.Thread(target=hold, args=[signal.SIGTERM])
    thread.start()
    thread.join()
    assert received == [signal.SIGTERM]
