"""Waits for states of threads and processes, which a busy machine reaches late."""

import time


def wait_for(condition, timeout_s=30.0):
    """Wait until `condition` returns true, or fail."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)
