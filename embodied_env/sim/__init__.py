"""Embedded simulator, which builds a MuJoCo world of any robot from a contract."""
