"""The safety gate: pure limits, the gate chain, the arbiter of the last published command, the watchdog."""
