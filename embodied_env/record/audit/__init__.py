"""The audit of recorded runs and transitions."""
