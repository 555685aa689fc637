"""Waits for states of threads and processes, which a busy machine reaches late."""

import re
import time

import pytest


def wait_for(condition, timeout_s=30.0):
    """Wait until `condition` returns true, or fail."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def wait_for_error(act, error, why):
    """Call `act`, which raises `error`, until its message matches `why`, since discovery takes a while."""
    end, found = time.monotonic() + 30.0, ""
    while not re.search(why, found):
        assert time.monotonic() < end, found
        with pytest.raises(error) as caught:
            act()
        found = str(caught.value)


def wait_past_error(act, error, why):
    """Return what `act` returns once it no longer raises `error` with a message that matches `why`."""
    end = time.monotonic() + 30.0
    while True:
        try:
            return act()
        except error as found:
            if not re.search(why, str(found)) or time.monotonic() > end:
                raise
