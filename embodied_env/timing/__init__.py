"""Clocks and their relations, the latency ledger, delay models and pacing."""
