"""The workspace filter: keep-in and keep-out regions, distances and braking margins."""
