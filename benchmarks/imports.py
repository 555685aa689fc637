"""Measure the first import in a fresh interpreter, and the CPU time of whole processes, in ms."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from functools import partial

from .harness import Samples, run_rounds

PACKAGES = ("gymnasium", "numpy", "embodied_env")
LATER = ("pydantic", "pydantic_core", "yaml", "mujoco", "rclpy", "rich", "mcap")  # imported only on use
STARTS = {
    "numpy, gymnasium": "import numpy, gymnasium",
    "evaluate --help": "from embodied_env.cli.main import main; main(['evaluate', '--help'])",
    "make": "import embodied_env; embodied_env.make('arm_reach')",
}
"""Name of a process -> its code."""

PROBE = """
import json, sys, time
start_ns = time.perf_counter_ns()
import {package}
took_ns = time.perf_counter_ns() - start_ns
print(json.dumps([took_ns, [name for name in {later} if name in sys.modules]]))
"""


def measure(*, smoke: bool) -> Samples:
    """Return the durations of imports.

    Raises:
        AssertionError: `embodied_env` imports a module of `LATER`.
    """
    return run_rounds({package: partial(import_ms, package) for package in PACKAGES}, 3 if smoke else 15)


def import_ms(package: str) -> float:
    """Return the duration of the import, ms."""
    code = PROBE.format(package=package, later=LATER)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603
    took_ns, brought = json.loads(done.stdout)
    if package == "embodied_env" and brought:
        raise AssertionError(f"import embodied_env imports {', '.join(brought)}")
    return float(took_ns) / 1e6


def measure_starts(*, smoke: bool) -> Samples:
    """Return the CPU time of each process of `STARTS`, of user and system together."""
    return run_rounds({name: partial(process_ms, code) for name, code in STARTS.items()}, 3 if smoke else 15)


def process_ms(code: str) -> float:
    """Return the CPU time of a process that runs `code`, ms."""
    before_s = children_s()
    subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=True)  # noqa: S603
    return (children_s() - before_s) * 1e3


def children_s() -> float:
    """Return the CPU time of all child processes that have ended, s."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
