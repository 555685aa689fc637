"""Vectorized environments: several slots stepped together, bit for bit as single ones."""
