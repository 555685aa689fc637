"""The workspace filter: keep-in and keep-out regions, self-collision, braking distances."""
