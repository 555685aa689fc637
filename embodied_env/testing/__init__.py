"""Conformance suites and test doubles for third-party backends and environments.

Derive from a suite in a test file and return the object under test; pytest runs every check on it::

    from embodied_env.testing import BackendContract

    class TestMyBackend(BackendContract):
        def make_backend(self, clock):
            return MyBackend(self.contract, clock=clock)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embodied_env.backends.fake_backend import FakeBackend, ScriptedFault
from embodied_env.testing.conformance import BackendContract, EnvContract, SpyObserver, approve
from embodied_env.timing.clock import ManualClock, VirtualClock

if TYPE_CHECKING:
    from embodied_env.testing.fault_injection.fault_node import ChaosNode as ChaosNode

__all__ = [
    "BackendContract",
    "EnvContract",
    "FakeBackend",
    "ManualClock",
    "ScriptedFault",
    "SpyObserver",
    "VirtualClock",
    "approve",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - of a module
    """Import `ChaosNode` on first use, since it needs ROS."""
    if name == "ChaosNode":
        from embodied_env.testing.fault_injection.fault_node import ChaosNode  # noqa: PLC0415

        return ChaosNode
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
