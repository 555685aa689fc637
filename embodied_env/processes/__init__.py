"""Child processes, signals, scheduling and shared memory."""
