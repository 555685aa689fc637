"""Remedies after a robot has stopped, or has not moved."""

from __future__ import annotations

from embodied_env.contract import Contract
from embodied_env.core.codes import end_kind
from embodied_env.safety.interlocks import INPUT_REMEDIES

UNMOVED = "has not moved since the reset: are joint names and controller right?"
"""Why a joint may not follow its command at all."""


def operator_remedy(reason: str, contract: Contract | None = None) -> str:
    """Return the remedy after a stop by a safety input, or "" for any other end reason.

    With `contract`, each input that can have made the stop is named, with its topic and its own words.
    """
    code = reason.partition(":")[2]
    remedy = INPUT_REMEDIES.get(code, "") if end_kind(reason) == "safety_stop" else ""
    kind = {"estop.active": "estop", "robot.protective_stop": "robot_mode"}.get(code)
    inputs = {} if contract is None else contract.backends.get("real", {}).get("estop") or {}
    named = [
        f"{name} on topic {spec['topic']}: {spec.get('release') or remedy}"
        for name, spec in inputs.items()
        if remedy and spec.get("kind", "estop") == kind
    ]
    return "; ".join(named) or remedy
