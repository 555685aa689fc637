"""Remedies after a robot has stopped, has not moved, or has received no valid action."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import gymnasium

from embodied_env.contract import Contract
from embodied_env.core.code_table import CODE_TABLE
from embodied_env.core.code_types import end_kind
from embodied_env.core.types import Finding

UNMOVED = "has not moved since the reset: are joint names and controller right?"
"""Why a joint may not follow its command at all."""


def operator_remedy(reason: str, contract: Contract | None = None) -> str:
    """Return the remedy after a safety stop, or "" where its code has none.

    It is also "" for any other end reason. With `contract`, each input that can have made the stop is named, with its
    topic and its own words.
    """
    code = reason.partition(":")[2]
    remedy = CODE_TABLE[code].remedy if end_kind(reason) == "safety_stop" and code in CODE_TABLE else ""
    kind = {"estop.active": "estop", "robot.protective_stop": "robot_mode"}.get(code)
    inputs = {} if contract is None else contract.backends.get("real", {}).get("estop") or {}
    named = [
        f"{name} on topic {spec['topic']}: {spec.get('release') or remedy}"
        for name, spec in inputs.items()
        if remedy and spec.get("kind", "estop") == kind
    ]
    return "; ".join(named) or remedy


def warn_of_malformed_action(findings: Iterable[Finding]) -> bool:
    """Log a warning where `findings` reject the form of an action, and return whether they do."""
    malformed = [finding for finding in findings if finding.code in ("form.shape", "form.type")]
    for finding in malformed:
        with suppress(UserWarning):  # a warning turned into an error must not stop the robot
            remedy = "the robot brakes at each such action; pass one of env.action_space"
            gymnasium.logger.warn(f"malformed action: {finding.detail}; {remedy}")
    return bool(malformed)
