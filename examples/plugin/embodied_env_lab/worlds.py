"""A backend and a task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from embodied_env.backends.fake_backend import FakeBackend
from embodied_env.contract import Contract
from embodied_env.core.types import FloatArray, Snapshot, TaskResult, Verdict
from embodied_env.timing.clock import Clock


class StillBackend(FakeBackend):
    """Fake backend under a name of its own.

    A real one implements `embodied_env.backends.backend.Backend`.
    """

    name = "lab_still"


def make_still(contract: Contract, *, clock: Clock, **options: Any) -> StillBackend:
    """Return the backend, whose keyword parameters are the options of `make`."""
    return StillBackend(contract, clock=clock, **options)


class StayLow:
    """Keep every joint below a height."""

    version = 1
    terms = ("height",)

    @dataclass(frozen=True, kw_only=True)
    class Parameters:
        """The keys of the task in a contract."""

        most: float = 1.0

    def __init__(self, contract: Contract, parameters: Parameters) -> None:
        self._most = parameters.most

    def judge(self, previous: Snapshot, current: Snapshot, applied: FloatArray) -> TaskResult:
        """Fail above the height."""
        height = float(current.samples["joints"].values["position"].max())
        verdict = Verdict.running() if height <= self._most else Verdict.failed("too_high")
        return TaskResult(reward=-height, verdict=verdict, terms={"height": height})
