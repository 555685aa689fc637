"""Analysis of recorded runs: statistics that reports, comparisons and calibrations share."""
