"""Safety gate with its limits and filters, the arbiter of the last published command, and the watchdog."""
