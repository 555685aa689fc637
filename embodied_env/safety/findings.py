"""Construction of the findings of the gates and of their arrays in ``info``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from embodied_env.core.code_table import CODE_TABLE, CODES, GATES
from embodied_env.core.code_types import Severity
from embodied_env.core.safety_input_state import InputState, InputStates, InputStatus
from embodied_env.core.types import Finding

NO_SEVERITY, NO_CODE = np.zeros(len(GATES), dtype=np.int8), np.zeros(len(GATES), dtype=np.int16)
"""The arrays of `gate_arrays` without findings, to be copied."""

_INDICES = {gate: index for index, gate in enumerate(GATES)}
_severity_of = attrgetter("severity")

_INPUT_CODES: Mapping[InputStatus, str] = {
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
_UNCONFIRMED = (InputStatus.LAPSED, InputStatus.UNCLEAR)  # the next message or poll confirms them, or not


def gate_arrays(findings: Sequence[Finding]) -> tuple[NDArray[np.int8], NDArray[np.int16]]:
    """Return each gate's severity (int8) and code (int16) of its most severe finding."""
    severity, code = NO_SEVERITY.copy(), NO_CODE.copy()
    for finding in sorted(findings, key=_severity_of):  # of equal ones the last
        index = _INDICES[finding.gate]
        severity[index], code[index] = finding.severity, CODES[finding.code]
    return severity, code


def joint_codes(findings: Sequence[Finding], joints: Iterable[str]) -> dict[str, int]:
    """Return the code number of the most severe finding that names each joint, 0 without one."""
    codes = dict.fromkeys(joints, 0)
    for finding in sorted(findings, key=_severity_of):  # of equal ones the last
        for joint in finding.joints:
            codes[joint] = CODES[finding.code]
    return codes


def unmoved_joints(findings: Sequence[Finding], joints: Sequence[str], start: Sequence[float]) -> list[str]:
    """Return the joints with a tracking error still at the start, within 0.1 of the tolerance."""
    return [
        joint
        for finding in findings
        if finding.code == "track.error" and finding.after is not None and finding.limit is not None
        for joint, position, tolerance in zip(finding.joints, finding.after, finding.limit, strict=True)
        if abs(position - start[joints.index(joint)]) <= 0.1 * tolerance
    ]


def sorted_by_gate(findings: list[Finding]) -> tuple[Finding, ...]:
    """Return findings in the order of their gates."""
    return tuple(sorted(findings, key=lambda finding: _INDICES[finding.gate]))


def worst_severity(findings: list[Finding]) -> Severity:
    """Return the highest severity of `findings`, PASS if there are none."""
    return max(map(_severity_of, findings), default=Severity.PASS)


def latched_finding(latched: Finding) -> Finding:
    """Return the finding that reports the latch `latched`."""
    code = "latch.estop" if latched.severity is Severity.ESTOP else "latch.stop"
    return Finding(gate="latch", severity=latched.severity, code=code, detail=f"latched by {latched.code}")


def safety_input_findings(inputs: InputStates) -> list[Finding]:
    """Return a finding for each safety input not ok, where any non-state counts as unknown."""
    findings = []
    for name, state in inputs.items():
        status = state.status if isinstance(state, InputState) else InputStatus.UNKNOWN
        if status is not InputStatus.OK:
            code = _INPUT_CODES[status]
            severity = Severity.HOLD if status in _UNCONFIRMED else CODE_TABLE[code].severity
            findings.append(Finding(gate="estop", severity=severity, code=code, detail=f"{name} is {state}"))
    return findings


def modification(
    gate: str,
    code: str,
    joints: tuple[str, ...],
    before: Sequence[float],
    after: Sequence[float],
    limit: Sequence[float] | None = None,
) -> Finding:
    """Return the LIMIT finding for joints where `before` differs from `limit` (else `after`)."""
    limit = after if limit is None else limit
    return _of_joints(gate, code, joints, [i for i, x in enumerate(before) if x != limit[i]], before, after, limit)


def rate_finding(share: float, n_steps: int, severity: Severity) -> Finding:
    """Return the finding that the gate changed a share of the last steps."""
    detail = f"the gate changed {share:.0%} of the last {n_steps} steps"
    return Finding(gate="intervention", severity=severity, code="rate.intervention", detail=detail)


def gap_finding(joints: tuple[str, ...], published: Sequence[float], used: Sequence[float]) -> Finding:
    """Report reference velocities lowered after a gap in commands, `published` to `used`."""
    finding = modification("joint_limits", "vel.gap", joints, published, used)
    return replace(finding, severity=Severity.PASS, limit=None, margin=None, detail="gap in the commands")


def tightened_finding(joints: tuple[str, ...], late: Sequence[int], velocities: Sequence[float]) -> Finding:
    """Report the joints (indices `late`) that still brake into tightened limits."""
    return Finding(
        gate="joint_limits",
        severity=Severity.PASS,
        code="limits.tightened",
        joints=tuple(joints[i] for i in late),
        after=np.array([velocities[i] for i in late]),
        detail="still braking into the tightened limits",
    )


def limit_findings(
    joints: tuple[str, ...],
    target: Sequence[float],
    published: Sequence[float],
    limited: Mapping[int, tuple[str, float]],
) -> list[Finding]:
    """Return a finding per code in `limited`, joint index -> code and value of its limit."""
    hit: dict[str, list[int]] = {}
    bounds = {}
    for index, (code, bound) in limited.items():
        hit.setdefault(code, []).append(index)
        bounds[index] = bound
    return [
        _of_joints("joint_limits", code, joints, hit[code], target, published, bounds)
        for code in sorted(hit, key=CODES.__getitem__)
    ]


def _of_joints(
    gate: str,
    code: str,
    joints: tuple[str, ...],
    hit: list[int],
    before: Sequence[float],
    after: Sequence[float],
    limit: Sequence[float] | Mapping[int, float],
) -> Finding:
    """Return the LIMIT finding for the joints with the indices `hit`, at least one."""
    names, *columns = zip(*[(joints[i], before[i], after[i], limit[i]) for i in hit], strict=True)
    was, becomes, bound = map(np.array, columns)
    return Finding(
        gate=gate,
        severity=Severity.LIMIT,
        code=code,
        joints=names,
        before=was,
        after=becomes,
        limit=bound,
        margin=becomes - was,
    )
