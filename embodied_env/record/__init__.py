"""The record of a run: written by a wrapper, read back, and audited."""

from embodied_env.record.audit import AuditReport, audit_run, audit_transition
from embodied_env.record.reading import Run, read_run
from embodied_env.record.recorder import RecordTransitions

__all__ = ["AuditReport", "RecordTransitions", "Run", "audit_run", "audit_transition", "read_run"]
