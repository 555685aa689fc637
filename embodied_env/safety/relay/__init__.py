"""The relay: a process that owns the actuator topics and brakes the robot when its client hangs or dies."""
