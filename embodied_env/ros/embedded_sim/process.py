"""The process of an embedded simulator that a backend has started; one that it is attached to is none of its own."""

from __future__ import annotations

from typing import Any

from embodied_env.contract import Contract
from embodied_env.contract.loader import dump_contract
from embodied_env.core.process.child import Child, ProcessSpec
from embodied_env.errors import BackendLostError


class SimulatorProcess:
    """At most one process at a time. Where none was started, nothing here does anything."""

    def __init__(self, contract: Contract, *, domain_id: int | None) -> None:
        """Prepare; `domain_id` is that of the process, None: ours."""
        self._contract = contract
        self._environment = {} if domain_id is None else {"ROS_DOMAIN_ID": str(domain_id)}
        self._child: Child | None = None

    def start(self, spec: ProcessSpec) -> None:
        """Start `spec`, which reads our contract from its standard input."""
        self._child = Child(spec, first_line=dump_contract(self._contract), environment=self._environment)

    @property
    def has_ended(self) -> bool:
        """It was started, and runs no more."""
        return self._child is not None and self._child.exit_code is not None

    def raise_if_exited(self) -> None:
        """Raise BackendLostError when it has ended."""
        child = self._child
        if child is not None and (code := child.exit_code) is not None:
            words = child.stderr_tail() or "no output"
            raise BackendLostError("simulator_died", f"pid {child.pid} ended with exit code {code}: {words}")

    def record_shm_segments(self) -> None:
        """Remember what it uses, to be removed in its stead should it be killed."""
        if self._child is not None:
            self._child.note_shared_memory()

    def kill(self) -> None:
        """End it within a moment; `stop` must still follow."""
        if self._child is not None:
            self._child.kill()

    def stop(self) -> None:
        """End it, after our own nodes: what a killed simulator shared with them is then nobody's. Idempotent."""
        child, self._child = self._child, None
        if child is not None:
            child.stop()

    def describe(self) -> list[dict[str, Any]]:
        """Return it as `Backend.processes` tells of it."""
        return [] if self._child is None else [{"role": self._child.role, "pid": self._child.pid}]
