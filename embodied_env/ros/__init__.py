"""The ROS 2 layer: the only package, with `testing.fault_injection`, that imports rclpy and message packages."""
