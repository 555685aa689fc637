"""Comparison of two runs of one contract, and its page."""
