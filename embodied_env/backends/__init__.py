"""Backends without ROS, their protocol and registry, replay and delay injection."""
