"""The record of a run: written by a wrapper, read back, and audited."""

from embodied_env.record.audit.run_audit import AuditReport, audit_lines, audit_run
from embodied_env.record.audit.transition_audit import audit_transition
from embodied_env.record.audit.violation import Violation
from embodied_env.record.recorder import RecordTransitions
from embodied_env.record.repair import RepairReport, repair_run
from embodied_env.record.run import Run, read_run

__all__ = [
    "AuditReport",
    "RecordTransitions",
    "RepairReport",
    "Run",
    "Violation",
    "audit_lines",
    "audit_run",
    "audit_transition",
    "read_run",
    "repair_run",
]
