"""Replay of recorded runs, as a backend and as a verification."""
