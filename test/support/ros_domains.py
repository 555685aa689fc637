"""ROS 2 domains of this test process, which differ between the workers of one run and mostly between runs."""

import itertools
import os

WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_RUN = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
_COUNT = 98  # from 1; processes of a test in the next three domains still stay below the ephemeral ports of Linux
_SHARE = _COUNT // WORKERS
_RESERVED = 7  # three for the workers of an evaluation in the last domain of a test, and the four below


def _domain(index):
    return 1 + (_RUN + WORKER * _SHARE + index) % _COUNT


FOR_TESTS = itertools.cycle([_domain(index) for index in range(max(1, _SHARE - _RESERVED))])
FOR_MODULES, FOR_KILLS, FOR_RELAY, FOR_DEMO = (_domain(_SHARE - number) for number in (4, 3, 2, 1))
