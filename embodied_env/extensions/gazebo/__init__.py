"""Backends for simulators of third parties: Gazebo and simulation_interfaces."""
