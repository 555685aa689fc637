"""The explanation of one step in words."""
