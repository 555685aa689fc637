"""Export of runs in other formats."""
