"""Child processes, signals and scheduling."""
