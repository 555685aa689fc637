"""Runs in formats that others read: JSON lines, Parquet, Minari, LeRobot."""

from embodied_env.record.export.exporting import FORMATS, export_run

__all__ = ["FORMATS", "export_run"]
