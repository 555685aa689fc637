"""Draft contracts from a running robot, a URDF, a MuJoCo model, an SDF world or a robot file."""
