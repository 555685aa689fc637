"""Backends for third-party simulators, Gazebo and those with simulation_interfaces."""
