"""ROS 2 layer, which imports rclpy and messages (as does `testing.fault_injection`)."""
