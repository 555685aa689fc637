"""Message types that a contract may use: fields, shapes, units, reading, writing and validity. No ROS needed."""
