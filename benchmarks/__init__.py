"""Compare this package with its alternatives.

Run `python -m benchmarks --help` for the list.

Studies that the documentation cites run as scripts: `smooth_motion.py`, `network_delay.py`, and `simulator_step.py` for
a Gazebo server.
"""
