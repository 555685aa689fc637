"""Interrupts wait for C++ to be done, and are never lost."""

from __future__ import annotations

import signal
import threading

import pytest

from embodied_env.core.process.signals import deferred_signals


@pytest.fixture
def heard():
    """Handle SIGTERM by noting it."""
    numbers = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: numbers.append(number))
    yield numbers
    signal.signal(signal.SIGTERM, before)


def hold(*numbers):
    """Hold while these signals come."""
    with deferred_signals():
        for number in numbers:
            signal.raise_signal(number)


def test_a_signal_waits_for_the_end_of_the_hold(heard):
    with deferred_signals():
        signal.raise_signal(signal.SIGTERM)
        during = list(heard)
    assert during == []
    assert heard == [signal.SIGTERM]


def test_outside_of_a_hold_a_signal_is_handled_at_once(heard):
    with deferred_signals():
        pass
    signal.raise_signal(signal.SIGTERM)
    assert heard == [signal.SIGTERM]


def test_an_inner_hold_does_not_end_the_outer_one(heard):
    with deferred_signals():
        with deferred_signals():
            signal.raise_signal(signal.SIGTERM)
        assert heard == []
    assert heard == [signal.SIGTERM]


def test_two_signals_are_handled_in_their_order(heard):
    with pytest.raises(KeyboardInterrupt):
        hold(signal.SIGTERM, signal.SIGINT)
    assert heard == [signal.SIGTERM]


def test_ctrl_c_in_a_hold_is_still_a_keyboard_interrupt():
    with pytest.raises(KeyboardInterrupt):
        hold(signal.SIGINT)


def test_a_hold_that_fails_hands_on_what_waited(heard):
    with pytest.raises(TypeError):
        hold(signal.SIGTERM, "no number")
    assert heard == [signal.SIGTERM]


def test_a_signal_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with deferred_signals():
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_in_another_thread_nothing_is_held(heard):
    thread = threading.Thread(target=hold, args=[signal.SIGTERM])
    thread.start()
    thread.join()
    assert heard == [signal.SIGTERM]
