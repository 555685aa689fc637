"""Vectorized environments of several slots that are stepped together, bit for bit as single ones."""
