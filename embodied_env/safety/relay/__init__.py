"""Relay process, which owns the actuator topics and brakes if its client hangs or dies."""
