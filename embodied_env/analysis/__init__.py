"""Analysis of recorded runs: statistics, replay, calibration, reports and comparisons."""
