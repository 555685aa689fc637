"""Latency: statistics of the stages that the ledger measured."""

from embodied_env.core.latency.statistics import LatencyStatistics, StageStatistics, latency_statistics

__all__ = ["LatencyStatistics", "StageStatistics", "latency_statistics"]
