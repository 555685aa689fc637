"""Vectorized environments of slots stepped together, bit for bit as single ones."""
