"""The record of a run, which a wrapper writes and `read_run` reads."""

from embodied_env.record.recorder import RecordTransitions
from embodied_env.record.row_schema import Violation
from embodied_env.record.run import Run, read_run
from embodied_env.record.run_repair import RepairReport, repair_run

__all__ = ["RecordTransitions", "RepairReport", "Run", "Violation", "read_run", "repair_run"]
