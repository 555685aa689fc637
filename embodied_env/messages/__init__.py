"""Message types of contracts with fields, shapes, units, reading, writing and validity, without ROS."""
