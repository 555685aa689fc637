"""Findings of the robot's safety inputs, which the gate judges before anything else."""

from __future__ import annotations

from collections.abc import Mapping

from embodied_env.core.code_table import CODE_TABLE
from embodied_env.core.code_types import Severity
from embodied_env.core.safety_input_state import InputState, InputStates, InputStatus
from embodied_env.core.types import Finding

_CODES: Mapping[InputStatus, str] = {
    InputStatus.ACTIVE: "estop.active",
    InputStatus.EXPIRED: "estop.expired",
    InputStatus.UNKNOWN: "estop.unknown",
    InputStatus.PROTECTIVE_STOP: "robot.protective_stop",
    InputStatus.LAPSED: "robot.inactive",
    InputStatus.INACTIVE: "robot.inactive",
    InputStatus.UNCLEAR: "robot.contention",
    InputStatus.CONTENTION: "robot.contention",
    InputStatus.RESTARTED: "robot.restarted",
    InputStatus.SILENT: "gripper.silent",
}
"""Status of a safety input -> code."""

_UNCONFIRMED = (InputStatus.LAPSED, InputStatus.UNCLEAR)  # the next message or poll confirms them, or not


def safety_input_findings(inputs: InputStates) -> list[Finding]:
    """Return a finding for each safety input that is not ok, where anything but a state counts as unknown."""
    findings = []
    for name, state in inputs.items():
        status = state.status if isinstance(state, InputState) else InputStatus.UNKNOWN
        if status is not InputStatus.OK:
            code = _CODES[status]
            severity = Severity.HOLD if status in _UNCONFIRMED else CODE_TABLE[code].severity
            findings.append(Finding(gate="estop", severity=severity, code=code, detail=f"{name} is {state}"))
    return findings
