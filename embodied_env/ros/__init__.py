"""ROS 2 layer, the only package besides `testing.fault_injection` that imports rclpy and message packages."""
