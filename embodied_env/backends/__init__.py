"""Backends without ROS: the protocol, the registry, in-process simulators, replay and delay injection."""
