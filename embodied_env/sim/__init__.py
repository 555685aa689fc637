"""The embedded simulator: a MuJoCo world built from a contract, for any robot and without ROS."""
