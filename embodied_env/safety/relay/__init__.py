"""Relay process, which owns the actuator topics and brakes the robot when its client hangs or dies."""
