"""Message types of contracts, which read, write and validate messages without ROS."""
