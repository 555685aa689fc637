"""The relay in a ROS 2 node."""
