"""Conversion between messages and values."""
