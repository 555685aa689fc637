"""Workspace filter with keep-in and keep-out regions, self-collision and braking distances."""
