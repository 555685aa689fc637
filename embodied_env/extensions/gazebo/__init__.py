"""Backends for the simulators of third parties, Gazebo and those with simulation_interfaces."""
