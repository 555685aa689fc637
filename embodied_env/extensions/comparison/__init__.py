"""Comparison of runs of one contract, and its page."""
