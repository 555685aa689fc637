"""What a relay asks of a contract, and what it can promise by it."""

from __future__ import annotations

import numpy as np

from embodied_env.contract import Contract
from embodied_env.errors import ContractError


def check_relayed(contract: Contract) -> None:
    """Check that a relay can answer for what it sends; raises ContractError."""
    if contract.safety.mode != "enforce":
        raise ContractError(
            "safety.mode",
            f"{contract.safety.mode!r} is not allowed: a relay answers for the limits; allowed: enforce",
            source=contract.source,
        )
    for name, actuator in contract.actuators.items():
        limits = actuator.limits(contract.safety.margins)
        for kind in ("velocity", "acceleration", "deceleration"):
            for joint, value in zip(limits.joints, getattr(limits, kind).tolist(), strict=True):
                if not 0.0 < value < np.inf:
                    path = f"actuators.{name}.joints.{joint}.{kind}"
                    problem = f"the limit after margins is {value}; a relay needs a finite one above 0"
                    raise ContractError(path, problem, source=contract.source)


def stopping_time_s(contract: Contract) -> float:
    """Return how long braking to rest takes at most: the slowest joint, from its limit, and one period to begin."""
    longest = 0.0
    for actuator in contract.actuators.values():
        limits = actuator.limits(contract.safety.margins)
        longest = max(longest, *(limits.velocity / limits.deceleration).tolist())
    return longest + contract.control_period_s
