"""Limit the time from observation to command."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal, Self

from embodied_env.contract.key_types import Count, Positive
from embodied_env.contract.tightening_rules import AtLeast, AtMost, towards
from embodied_env.contract.value_checks import allow
from embodied_env.core.code_types import Code, Gate, Severity
from embodied_env.core.types import Finding, SafetyContext
from embodied_env.safety.interlocks.interlock import Interlock

if TYPE_CHECKING:
    from embodied_env.contract import Contract, FloatArray
    from embodied_env.contract.contract_schema import ContractFields
    from embodied_env.contract.spaces import ActionLayout


@dataclass(frozen=True, kw_only=True)
class LatencyBudget:
    """Maximum time from observation to command."""

    budget_s: AtMost[Positive | None] = None  # maximum time from observation to command; null: none
    misses: AtMost[Count] = 3  # number of misses within the window that triggers `action`
    window_steps: AtLeast[Count] = 10  # steps in the window, >= `misses`
    action: Annotated[Literal["warn", "hold"], towards("hold")] = "warn"  # `warn` reports the misses, `hold` brakes


@dataclass(frozen=True, kw_only=True)
class LatencyKey:
    """The key of the latency budget."""

    latency: LatencyBudget = field(default_factory=LatencyBudget)


class LatencyGate(Interlock):
    """Limits how many of the last steps exceed the latency budget, from observation to command."""

    keys = LatencyKey
    gates = (
        Gate(
            name="latency",
            condition="observation to command, against a budget",
            result="reported, or HOLD",
            codes={"lat.budget": Code(150, Severity.HOLD, "the time from observation to command exceeds its budget")},
        ),
    )

    @classmethod
    def validate(cls, contract: ContractFields) -> None:
        """Check that the window is long enough for `misses`."""
        spec: LatencyBudget = contract.safety.latency
        value = f"misses {spec.misses}, window_steps {spec.window_steps}"
        allow(spec.misses <= spec.window_steps, "safety.latency", value, "misses <= window_steps")

    @classmethod
    def declared_by(cls, contract: Contract, layout: ActionLayout) -> Self | None:  # noqa: ARG003 - one interface
        """Return the interlock of ``safety.latency``, if it has a budget."""
        spec = contract.safety.latency
        return None if spec.budget_s is None else cls(spec, spec.budget_s)

    def __init__(self, spec: LatencyBudget, budget_s: float) -> None:
        self._spec, self._budget_s = spec, budget_s
        self.missed: deque[bool] = deque(maxlen=spec.window_steps)

    def reset(self) -> None:
        """Clear the window."""
        self.missed.clear()

    def judge(self, context: SafetyContext, commanded: FloatArray) -> list[Finding]:  # noqa: ARG002 - one interface
        """Report a window with at least `misses` misses, or HOLD where the contract declares it."""
        self.missed.append(not context.latency_s <= self._budget_s)
        misses = sum(self.missed)
        if misses < self._spec.misses:
            return []
        severity = Severity.HOLD if self._spec.action == "hold" else Severity.PASS
        detail = f"{misses} of the last {len(self.missed)} steps exceeded the latency budget of {self._budget_s} s"
        return [Finding(gate="latency", severity=severity, code="lat.budget", detail=detail)]
