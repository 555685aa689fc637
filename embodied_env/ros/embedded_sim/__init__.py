"""The embedded MuJoCo simulator as a ROS 2 node, and the backend that drives it."""
