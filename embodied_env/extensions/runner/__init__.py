"""A managed ROS 2 node that keeps one policy loaded and runs episodes with it on request."""
