"""Approved commands of a gate, of a gate and its relay, and of several robots in one world.

The only module that makes an `ApprovedCommand`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from embodied_env.core.types import ApprovedCommand, CommandState, GateReport, SentCommand, Trajectory
from embodied_env.safety.findings import sorted_by_gate


def approve_command(
    report: GateReport, *, seq: int, epoch: int, trajectory: Trajectory | None = None
) -> ApprovedCommand:
    """Return the approved command whose values are `report.applied_si`."""
    return ApprovedCommand(values=report.applied_si, seq=seq, epoch=epoch, report=report, trajectory=trajectory)


def state_after(
    before: CommandState, command: ApprovedCommand, is_velocity: NDArray[np.bool_], sent: SentCommand | None = None
) -> CommandState:
    """Return the reference after `before` once `command`, or else `sent`, was published."""
    report = command.report if sent is None or sent.report is None else sent.report
    velocities, positions = report.velocity_si, command.values if sent is None else sent.values
    if any(is_velocity.tolist()):  # those commanded by velocity stay the measured
        positions = np.where(is_velocity, before.positions, positions)
    return CommandState(
        positions=positions,
        velocities=velocities,
        seq=command.seq,
        epoch=command.epoch,
        slack=before.slack,
        accelerations=(velocities - before.velocities) / report.dt_s if report.dt_s > 0.0 else None,
    )


def merge_relay_report(approved: ApprovedCommand, answer: GateReport) -> ApprovedCommand:
    """Return `approved` as changed by the relay's gate, with the findings of both gates."""
    report = replace(
        answer,
        disposition=max(approved.report.disposition, answer.disposition),
        findings=sorted_by_gate([*approved.report.findings, *answer.findings]),
        intervened=approved.report.intervened or answer.intervened,
        requested=approved.report.requested,
    )
    return approve_command(report, seq=approved.seq, epoch=approved.epoch)


def without_acceleration(command: ApprovedCommand) -> ApprovedCommand:
    """Return `command` without guaranteed acceleration, as the time of its write is unknown."""
    report = replace(command.report, guaranteed={**command.report.guaranteed, "acceleration": False})
    return approve_command(report, seq=command.seq, epoch=command.epoch, trajectory=command.trajectory)


def concatenate_commands(parts: Sequence[ApprovedCommand], *, seq: int, epoch: int) -> ApprovedCommand:
    """Return the command of several robots in one world, each part approved by its own gate."""
    reports = [part.report for part in parts]
    vectors = {}
    for name in ("requested", "applied", "applied_si", "velocity_si"):
        vectors[name] = np.concatenate([getattr(report, name) for report in reports])
        vectors[name].flags.writeable = False
    report = GateReport(
        disposition=max(report.disposition for report in reports),
        findings=sorted_by_gate([finding for report in reports for finding in report.findings]),
        intervened=any(report.intervened for report in reports),
        dt_s=max(report.dt_s for report in reports),
        guaranteed={name: all(report.guaranteed[name] for report in reports) for name in reports[0].guaranteed},
        **vectors,
    )
    return approve_command(report, seq=seq, epoch=epoch)
