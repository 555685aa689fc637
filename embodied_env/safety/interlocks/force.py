"""Limit measured forces and torques."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Self

from embodied_env.contract.key_types import Positive
from embodied_env.contract.tightening_rules import tighten
from embodied_env.contract.value_checks import check_reading
from embodied_env.core.code_types import Code, Gate, Severity
from embodied_env.core.types import Finding, SafetyContext
from embodied_env.safety.interlocks.interlock import Interlock

if TYPE_CHECKING:
    from embodied_env.contract import Contract, FloatArray
    from embodied_env.contract.contract_schema import ContractFields
    from embodied_env.contract.safety_schema import Safety
    from embodied_env.contract.spaces import ActionLayout


@dataclass(frozen=True, kw_only=True)
class ForceLimit:
    """Maximum norm of a sensor's field in its unit, beyond which the robot STOPs."""

    field: str  # field of the sensor
    limit: Positive  # maximum norm, in the field's unit, which the sensor can exceed; STOP above it


def _forces_at_most(robot: Any, own: Any) -> bool:  # noqa: ANN401 - mappings of force limits
    """Accept smaller limits of the same fields."""
    return all(
        name in own and own[name]["field"] == limit["field"] and own[name]["limit"] <= limit["limit"]
        for name, limit in robot.items()
    )


@dataclass(frozen=True, kw_only=True)
class ForcesKey:
    """The key of the force limits."""

    # force limits by sensor
    forces: Annotated[Mapping[str, ForceLimit], tighten(_forces_at_most)] = dataclasses.field(default_factory=dict)


class ForceGate(Interlock):
    """Requires each force reading to be known and within its limit."""

    keys = ForcesKey
    gates = (
        Gate(
            name="force",
            condition="magnitude of a measured force or torque",
            result="STOP",
            codes={"force.limit": Code(110, Severity.STOP, "force limit")},
        ),
    )

    @classmethod
    def validate(cls, contract: ContractFields) -> None:
        """Check the sensors, their fields and the limits."""
        from embodied_env.contract.sensor_validation import check_limit_in_range  # noqa: PLC0415 - it imports this module

        for name, limit in contract.safety.forces.items():
            path = f"safety.forces.{name}"
            check_reading((path, name), (f"{path}.field", limit.field), contract.sensors)
            check_limit_in_range(f"{path}.limit", limit.limit, contract.sensors[name], limit.field, is_norm=True)

    @classmethod
    def readings(cls, safety: Safety) -> list[tuple[str, str]]:
        """Return the sensors with a limit, and their fields."""
        return [(name, limit.field) for name, limit in safety.forces.items()]

    @classmethod
    def declared_by(cls, contract: Contract, layout: ActionLayout) -> Self | None:  # noqa: ARG003 - one interface
        """Return the interlock of ``safety.forces``."""
        return cls(contract.safety) if contract.safety.forces else None

    def __init__(self, safety: Safety) -> None:
        self._limits = {name: limit.limit for name, limit in safety.forces.items()}

    def judge(self, context: SafetyContext, commanded: FloatArray) -> list[Finding]:  # noqa: ARG002 - one interface
        """STOP for each sensor whose force is unknown or above its limit."""
        findings = []
        for name, limit in self._limits.items():
            force = context.forces.get(name, math.nan)
            if not force <= limit:
                detail = f"{name} measures {force:.6g} (limit {limit})"
                findings.append(Finding(gate="force", severity=Severity.STOP, code="force.limit", detail=detail))
        return findings
