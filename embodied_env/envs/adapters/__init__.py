"""The environment as other evaluators want it."""
