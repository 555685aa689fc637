"""Draft contracts from a running robot, a URDF, a MuJoCo model or a robot file."""
