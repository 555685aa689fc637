"""Comparison of two runs, and its page."""
