"""A fixture of the tests of a robot in their own process."""

import pytest


@pytest.fixture
def backend(domain_id, close_later):
    """Return a function that opens a backend `real`, which is closed before the robot."""
    from in_process_robot import NAMESPACE, SIMPLE

    from embodied_env.backends.backend_registry import make_backend
    from embodied_env.timing.clock import SteadyClock

    opened = []

    def open_one(contract=SIMPLE, **options):
        opened.append(make_backend("real", contract, clock=SteadyClock(), namespace=NAMESPACE, **options))
        opened[-1].open()
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()
        one.close()  # idempotent
