"""Check a contract for a relay, and compute how long it brakes to rest."""

from __future__ import annotations

from embodied_env.contract import Contract
from embodied_env.contract.spaces import ActionLayout
from embodied_env.errors import ContractError


def check_relayed(contract: Contract) -> None:
    """Raise ContractError unless a relay can enforce `contract`."""
    if contract.safety.mode != "enforce":
        problem = f"mode is {contract.safety.mode!r} (expected 'enforce', as a relay guarantees the limits)"
        raise ContractError("safety.mode", problem, source=contract.source)
    if contract.trajectory_steps is not None:
        problem = f"trajectory_steps: {contract.trajectory_steps} (expected null for a relay: one point per command)"
        raise ContractError("actuators", problem, source=contract.source)


def stopping_time_s(contract: Contract) -> float:
    """Return the longest time in which a joint brakes to rest from its velocity limit, plus one period."""
    limits = ActionLayout(contract).limits
    moving = ~limits.is_goal
    longest = (limits.fastest[moving] / limits.deceleration[moving]).max(initial=0.0)
    return float(longest) + contract.control_period_s
