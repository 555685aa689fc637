"""Safety gate, limits, filters, arbiter of the last published command, and watchdog."""
