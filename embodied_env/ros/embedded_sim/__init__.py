"""The embedded simulator behind ROS 2, in lockstep or free-running."""
