"""Calibration of latencies by gentle moves, and latency profiles of runs."""
