"""Comparison of this package with its alternatives: `python -m benchmarks --help`.

Studies that the documentation cites run as scripts: `smooth_motion.py`, `network_delay.py`, and `simulator_step.py` for
a Gazebo server.
"""
