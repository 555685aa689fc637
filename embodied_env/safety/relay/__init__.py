"""The relay: a process that owns the actuator topics, so that the robot brakes when its client hangs or dies."""
