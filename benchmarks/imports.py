"""Time of `import embodied_env` and of `import gymnasium`, each the first import of a fresh interpreter, ms."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial

from .harness import Samples, run_rounds

PACKAGES = ("gymnasium", "numpy", "embodied_env")
LATER = ("pydantic", "yaml", "mujoco", "rclpy", "rich", "mcap")  # imported only on use
PROBE = """
import json, sys, time
start_ns = time.perf_counter_ns()
import {package}
took_ns = time.perf_counter_ns() - start_ns
print(json.dumps([took_ns, [name for name in {later} if name in sys.modules]]))
"""


def measure(*, smoke: bool) -> Samples:
    """Return the durations; raises AssertionError if `embodied_env` imports a module of `LATER`."""
    return run_rounds({package: partial(import_ms, package) for package in PACKAGES}, 3 if smoke else 15)


def import_ms(package: str) -> float:
    """Return the duration of the import, ms."""
    code = PROBE.format(package=package, later=LATER)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603
    took_ns, brought = json.loads(done.stdout)
    if package == "embodied_env" and brought:
        raise AssertionError(f"import embodied_env imports {', '.join(brought)}")
    return float(took_ns) / 1e6
