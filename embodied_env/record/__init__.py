"""The record of a run, which a wrapper writes and `read_run` reads."""

from embodied_env.record.recorder import RecordTransitions
from embodied_env.record.run import Run, read_run
from embodied_env.record.run_repair import RepairReport, repair_run
from embodied_env.record.violation import Violation

__all__ = ["RecordTransitions", "RepairReport", "Run", "Violation", "read_run", "repair_run"]
