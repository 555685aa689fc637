"""The record of a run: written by a wrapper, read back, and audited."""

from embodied_env.record.audit import AuditReport, audit_lines, audit_run, audit_transition
from embodied_env.record.reading import Run, read_run
from embodied_env.record.recorder import RecordTransitions
from embodied_env.record.violations import Violation

__all__ = [
    "AuditReport",
    "RecordTransitions",
    "Run",
    "Violation",
    "audit_lines",
    "audit_run",
    "audit_transition",
    "read_run",
]
