"""How the gates say what they did: findings, and their arrays in ``info``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from embodied_env.contract import FloatArray
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.codes import CODES, Severity
from embodied_env.core.types import Finding, GateReport
from embodied_env.safety.joint_limits import JointStep

GATES = (
    "latch",
    "form",
    "estop",
    "clock",
    "observation",
    "action_age",
    "tracking",
    "force",
    "latency",
    "space_box",
    "mapping",
    "jerk",
    "joint_limits",
    "plugins",
    "workspace",
    "post_condition",
    "watchdog",
    "intervention",
    "relay",
)
"""The gates in order: the axis of ``info["safety"]["severity"]`` and ``["code"]``.

Refuse before modifying, shape before limits, limits before what only weakens. The last three stand beside the chain.
"""

_PLACES = {gate: place for place, gate in enumerate(GATES)}

_NO_SEVERITY, _NO_CODE = np.zeros(len(GATES), dtype=np.int8), np.zeros(len(GATES), dtype=np.int16)


def gate_arrays(report: GateReport) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return per gate of `GATES` its severity (int8) and the number of the code of its gravest finding (int16)."""
    severity, code = _NO_SEVERITY.copy(), _NO_CODE.copy()
    gravest_of: dict[int, Finding] = {}
    for finding in report.findings:
        gate = _PLACES[finding.gate]
        if gate not in gravest_of or finding.severity >= gravest_of[gate].severity:
            gravest_of[gate] = finding
            severity[gate], code[gate] = finding.severity, CODES[finding.code]
    return severity, code


def sorted_by_gate(findings: list[Finding]) -> tuple[Finding, ...]:
    """Sort findings by their gates."""
    if not findings:
        return ()
    return tuple(sorted(findings, key=lambda finding: _PLACES[finding.gate]))


def worst_severity(findings: list[Finding]) -> Severity:
    """Return the disposition that findings make."""
    return max([finding.severity for finding in findings]) if findings else Severity.PASS


def latched_finding(latched: Finding) -> Finding:
    """Say that a latch holds."""
    code = "latch.estop" if latched.severity is Severity.ESTOP else "latch.stop"
    return Finding(gate="latch", severity=latched.severity, code=code, detail=f"latched by {latched.code}")


def modification(gate: str, code: str, joints: tuple[str, ...], before: FloatArray, after: FloatArray) -> list[Finding]:
    """Return the LIMIT of what a gate changed, in SI units, or nothing when it changed nothing."""
    hit = before != after
    if not hit.any():
        return []
    return [
        Finding(
            gate=gate,
            severity=Severity.LIMIT,
            code=code,
            joints=for_joints(joints, hit),
            before=before[hit],
            after=after[hit],
            limit=after[hit],
            margin=after[hit] - before[hit],
        )
    ]


def gap_finding(joints: tuple[str, ...], published: FloatArray, used: FloatArray) -> list[Finding]:
    """Return what says which velocities a gap has lowered, from what was published to what limits start from."""
    return [
        replace(finding, severity=Severity.PASS, limit=None, margin=None, detail="no command for a while")
        for finding in modification("joint_limits", "vel.gap", joints, published, used)
    ]


def tightened_finding(joints: tuple[str, ...], is_late: list[bool], velocities: FloatArray) -> Finding:
    """Return what says which joints still brake into limits that have become narrower, and how fast they move."""
    hit = np.array(is_late)
    return Finding(
        gate="joint_limits",
        severity=Severity.PASS,
        code="limits.tightened",
        joints=for_joints(joints, hit),
        after=velocities[hit],
        detail="narrower limits are not kept yet",
    )


def box_finding(layout: ActionLayout, requested: FloatArray, boxed: FloatArray, mode: str) -> list[Finding]:
    """Return the LIMIT of an action outside of its space, in action units, or nothing."""
    clipped = boxed != requested
    if not clipped.any():
        return []
    passed_on = requested if mode == "monitor" else boxed
    return [
        Finding(
            gate="space_box",
            severity=Severity.LIMIT,
            code="box.clip",
            joints=for_joints(layout.joints, clipped),
            before=requested[clipped],
            after=passed_on[clipped],
            limit=boxed[clipped],
            margin=passed_on[clipped] - requested[clipped],
        )
    ]


def limit_findings(
    joints: tuple[str, ...], target: FloatArray, steps: list[JointStep], published: FloatArray
) -> list[Finding]:
    """Return one finding per bound that held, with the joints it held."""
    held: dict[str, list[int]] = {}
    for place, step in enumerate(steps):
        if step.code:
            held.setdefault(step.code, []).append(place)
    findings = []
    for code in sorted(held, key=CODES.__getitem__):
        hit = held[code]
        before, after = target[hit], published[hit]
        findings.append(
            Finding(
                gate="joint_limits",
                severity=Severity.LIMIT,
                code=code,
                joints=tuple([joints[place] for place in hit]),
                before=before,
                after=after,
                limit=np.array([steps[place].bound for place in hit]),
                margin=after - before,
            )
        )
    return findings


def for_joints(joints: tuple[str, ...], hit: np.ndarray[Any, Any]) -> tuple[str, ...]:
    """Return the joints that are hit."""
    return tuple(joint for joint, is_hit in zip(joints, hit, strict=True) if is_hit)
