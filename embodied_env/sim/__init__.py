"""The embedded simulator: a MuJoCo world built from a contract alone. Nothing here knows of ROS, or of one robot."""
