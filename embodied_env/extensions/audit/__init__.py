"""The audit of recorded runs and transitions."""

from embodied_env.extensions.audit.run_audit import AuditReport, audit_lines, audit_run
from embodied_env.extensions.audit.transition_audit import audit_transition

__all__ = ["AuditReport", "audit_lines", "audit_run", "audit_transition"]
