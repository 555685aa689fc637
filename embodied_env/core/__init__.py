"""Values that travel through a step, clocks, latency and processes; imports the contract and errors only."""
