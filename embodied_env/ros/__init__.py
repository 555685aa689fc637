"""The seam to ROS 2: the only place, beside `sim.node` and the relay, that imports rclpy."""
