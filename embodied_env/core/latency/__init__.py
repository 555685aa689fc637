"""Latency: the ledger of a step, its stages, their statistics, latency profiles and delay models."""
