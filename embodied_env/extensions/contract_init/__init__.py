"""Draft contracts from a running robot, URDF, MuJoCo model, SDF world or robot file."""
