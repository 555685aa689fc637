"""The record of a run: written by a wrapper, and read back."""

from embodied_env.record.recorder import RecordTransitions
from embodied_env.record.run import Run, read_run
from embodied_env.record.run_repair import RepairReport, repair_run
from embodied_env.record.violation import Violation

__all__ = ["RecordTransitions", "RepairReport", "Run", "Violation", "read_run", "repair_run"]
