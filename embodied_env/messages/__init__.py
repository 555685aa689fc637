"""Message types that a contract may use: fields, shapes, units and precision. No ROS needed."""
