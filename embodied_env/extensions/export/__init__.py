"""Export of runs as JSON lines, Parquet, Minari and LeRobot."""
