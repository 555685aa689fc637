"""Episodes of policies: runner, local workers and Ray workers."""
