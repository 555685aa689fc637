"""Base class of the interlocks, with their declarations and their judgement of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Self

from embodied_env.core.code_types import Gate

if TYPE_CHECKING:
    from embodied_env.contract import Contract, FloatArray, Safety
    from embodied_env.contract.contract_schema import ContractFields
    from embodied_env.contract.spaces import ActionLayout
    from embodied_env.core.types import Finding, SafetyContext


class Interlock:
    """Condition under which no action is accepted.

    HOLD brakes for one step, while the gate latches STOP and ESTOP.

    Attributes:
        keys: a frozen dataclass whose fields are its keys in a contract's ``safety``.
        gates: the gates that it reports, with their codes, in the order of the chain.
    """

    keys: ClassVar[type]
    gates: ClassVar[tuple[Gate, ...]] = ()

    @classmethod
    def validate(cls, contract: ContractFields) -> None:
        """Check what the types of its keys do not express, or raise ContractError."""

    @classmethod
    def readings(cls, safety: Safety) -> list[tuple[str, str]]:  # noqa: ARG003 - one interface
        """Return sensor and field of each judged reading, which an action requires."""
        return []

    @classmethod
    def declared_by(cls, contract: Contract, layout: ActionLayout) -> Self | None:
        """Return the interlock if `contract` declares it."""
        raise NotImplementedError

    def reset(self) -> None:
        """Clear the state of the last episode."""

    def judge(self, context: SafetyContext, commanded: FloatArray) -> list[Finding]:
        """Return the findings against an action after the last command, shape (n_joints,)."""
        raise NotImplementedError
